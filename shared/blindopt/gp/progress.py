"""A callback by which long computations report progress and can be stopped."""

from collections.abc import Callable

Tick = Callable[[], None]
"""Called between two parts of a computation. If it raises, the computation ends without a result."""


def NO_TICK() -> None:  # noqa: N802 - a constant that is called
    """Do nothing: the default where no caller follows the progress."""
