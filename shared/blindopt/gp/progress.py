"""How what takes long tells that it goes on, and is told to stop."""

from collections.abc import Callable

Tick = Callable[[], None]
"""Called now and then between two parts of some work. May raise: then the work ends, and its result is lost."""


def NO_TICK() -> None:  # noqa: N802 - a constant that is called
    """Nobody waits."""
