"""What a caller gives, checked before anything is sent: errors name the field, never the value."""

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import SupportsIndex

from pydantic import ValidationError

from blindopt.errors import Invalid


@contextmanager
def checked(what: str = "") -> Iterator[None]:
    """Raise Invalid in place of pydantic's error, with every field of ``what`` that cannot be right."""
    try:
        yield
    except ValidationError as error:
        raise Invalid("; ".join(_lines(what, error))) from None


def _lines(what: str, error: ValidationError) -> Iterator[str]:
    for fault in error.errors(include_input=False, include_url=False):
        where = ".".join(str(part) for part in (what, *fault["loc"]) if part != "")
        message = fault["msg"].removeprefix("Value error, ")
        yield f"{where}: {message}" if where else message


def candidate_number(candidate: SupportsIndex, n: int) -> int:
    """Return the number of one of ``n`` candidates. Raises Invalid for what is no whole number from 0 to n - 1."""
    try:
        number = operator.index(candidate)
    except TypeError:
        number = -1
    if not 0 <= number < n:
        raise Invalid(f"a candidate is a whole number from 0 to {n - 1}")
    return number
