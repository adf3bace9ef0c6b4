"""Base types of the wire: strict, frozen, finite."""

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from blindopt.errors import Invalid

PLAYS_MAX = 1_000
ROWS_MAX = 1_000
FEATURES_MAX = 1_000


class Request(BaseModel):
    """The body of a request."""

    # An error must not quote the input: it may be a token.
    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True, defer_build=True
    )


class Reply(BaseModel):
    """The body of a reply."""

    model_config = ConfigDict(
        strict=True, frozen=True, extra="ignore", allow_inf_nan=False, hide_input_in_errors=True, defer_build=True
    )


Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
Seed = Annotated[int, Field(ge=0, lt=2**53)]
PositiveFloat = Annotated[float, Field(ge=1e-50, le=1e50)]
DecimalString = Annotated[
    str,
    Field(pattern=r"^[0-9]{1,6}(\.[0-9]{1,12})?$", description="A decimal number as a string.", examples=["1.5"]),
]


def _privacy_parameter(text: str) -> str:
    if not Decimal("0.000001") <= Decimal(text) <= 1_000:
        raise ValueError("epsilon must be between 0.000001 and 1000")
    return text


Epsilon = Annotated[DecimalString, AfterValidator(_privacy_parameter)]


def _cap(text: str) -> str:
    if Decimal(text) <= 0:
        raise ValueError("a cap must be larger than 0; null means no cap")
    return text


BudgetEpsilon = Annotated[DecimalString, AfterValidator(_cap)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Page(Reply):
    """One page of a listing, ordered by sequence number."""

    next_page_token: str | None = Field(
        None, description="Pass it as page_token to get the next page; null on the last page."
    )


def amount(text: str) -> Decimal:
    """Return the exact value of a DecimalString."""
    return Decimal(text)


class Caution(Reply):
    """A choice that is allowed, and that an expert would not make."""

    code: str = Field(max_length=100, description="Stable name of the caution, such as delta_large.")
    field: str = Field(max_length=300, description="Field of the request that it is about, such as release.delta.")
    message: str = Field(max_length=2_000, description="What follows from the choice, and what to choose instead.")


class Limits(Reply):
    """Size limits of queries."""

    rows_per_query: int = Field(description="Largest number of candidates in one query.")
    plays_per_row: int = Field(description="Largest number of plays of one candidate in one query.")


@contextmanager
def checked(field: str = "") -> Iterator[None]:
    """Raise Invalid in place of pydantic's error, with every field under ``field`` that cannot be right."""
    try:
        yield
    except ValidationError as error:
        raise Invalid("; ".join(_faults(field, error))) from None


def _faults(field: str, error: ValidationError) -> Iterator[str]:
    for fault in error.errors(include_input=False, include_url=False):
        where = ".".join(str(name) for name in (field, *fault["loc"]) if name != "")
        message = fault["msg"].removeprefix("Value error, ")
        yield f"{where}: {message}" if where else message
