"""Cells of files that people fill in and open: numbers read."""

import re

LENGTH_MAX = 100
"""Longer ones are refused unread: no measurement has so many digits."""
# One way to read each text: what can be read in two ways costs the square of its length to refuse.
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")


def decimal(text: str) -> float | None:
    """The number that a text writes with a point; None for any other text, "nan" and "inf" among them.

    >>> decimal("-0.5"), decimal("7."), decimal("1e-3"), decimal("1_000"), decimal("nan")
    (-0.5, 7.0, 0.001, None, None)
    """
    if len(text) > LENGTH_MAX or not _DECIMAL.fullmatch(text):
        return None
    return float(text)
