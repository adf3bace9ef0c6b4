"""What all models on the wire have in common: strict frozen models, pages, labels, problems.

A field is described in ``Field``, or where that takes more than its line, in a text below it (``description_of``).
"""

import ast
import inspect
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from functools import cache
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    TypeAdapter,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from blindopt import faults
from blindopt.errors import Invalid

M = TypeVar("M", bound=BaseModel)

PLAYS_MAX = 1_000
ROWS_MAX = 1_000
FEATURES_MAX = 1_000


def description_of(model: type[BaseModel], name: str) -> str | None:
    """What a model says of a field: the text below it, or what ``Field`` or its type has."""
    for kind in model.__mro__:
        if text := _texts_of(kind.__module__).get((kind.__name__, name)):
            return text
        if name in inspect.get_annotations(kind):
            break
    return model.model_fields[name].description


@cache
def _texts_of(module: str) -> dict[tuple[str, str], str]:
    """By class and field, the texts below fields, each as one line; none of a module without its source.

    pydantic can read them too, but from each class when it is made, for which every start would wait.
    """
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):
        return {}
    texts: dict[tuple[str, str], str] = {}
    for kind in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        for pair in pairwise(kind.body):
            match pair:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    texts[kind.name, name] = " ".join(text.split())
    return texts


class _Described(BaseModel):
    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        json_schema = handler(schema)
        for name, field in handler.resolve_ref_schema(json_schema).get("properties", {}).items():
            if (text := description_of(cls, name)) is not None:
                field["description"] = text
        return json_schema


class Request(_Described):
    """The body of a request."""

    # An error must not quote the input: it may be a token.
    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True, defer_build=True
    )


TEXT_MAX, ITEMS_MAX = 1 << 16, 1_000_000
"""Lengths of a text, and of a list or a mapping, in a reply whose model names no smaller one."""


class Reply(_Described):
    """The body of a reply. Each text, list and mapping has a length: the other party wrote it."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="ignore",
        allow_inf_nan=False,
        hide_input_in_errors=True,
        defer_build=True,
        str_max_length=TEXT_MAX,
    )

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _bound(schema)
        return schema


def _bound(schema: Any, *, is_inside: bool = False) -> None:
    """Give each list and mapping of a model a length; a model inside has its own."""
    if isinstance(schema, list | tuple):
        for each in schema:
            _bound(each, is_inside=is_inside)
    elif isinstance(schema, dict):
        kind = schema.get("type")
        if kind == "model" and is_inside:
            return
        if kind in ("list", "dict"):
            schema.setdefault("max_length", ITEMS_MAX)
        for name, each in schema.items():
            if name not in ("metadata", "serialization", "default"):
                _bound(each, is_inside=is_inside or kind == "model-fields")


def validator_of(kind: Any) -> TypeAdapter[Any]:
    """A validator of what is no model, such as a list: like a model, it does not quote what it refuses."""
    return TypeAdapter(kind, config=ConfigDict(hide_input_in_errors=True))


Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
Seed = Annotated[int, Field(ge=0, lt=2**53)]
PositiveFloat = Annotated[float, Field(ge=1e-50, le=1e50)]
NonNegativeFloat = Annotated[float, Field(ge=0, le=1e50)]
OUTCOME_MAX = 1e50
"""The largest outcome of a study, whatever measures it."""
BoundedFloat = Annotated[float, Field(ge=-OUTCOME_MAX, le=OUTCOME_MAX)]
DecimalString = Annotated[
    str, Field(pattern=r"^[0-9]{1,6}(\.[0-9]{1,12})?$", description="A decimal number as a string.", examples=["1.5"])
]


def _privacy_parameter(epsilon_text: object) -> object:
    """The range in words: the pattern says only that a text is not written as it must be."""
    if isinstance(epsilon_text, str):
        is_decimal = re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,12})?", epsilon_text)
        if is_decimal is None or not Decimal("0.000001") <= Decimal(epsilon_text) <= 1_000:
            raise ValueError("must be a number from 0.000001 to 1000, with at most 12 decimals")
    return epsilon_text


Epsilon = Annotated[DecimalString, BeforeValidator(_privacy_parameter)]


def _cap(epsilon_text: str) -> str:
    if Decimal(epsilon_text) <= 0:
        raise ValueError("a cap must be larger than 0; null means no cap")
    return epsilon_text


BudgetEpsilon = Annotated[DecimalString, AfterValidator(_cap)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Page(Reply):
    """One page of a listing, ordered by sequence number."""

    next_page_token: str | None = None
    """Pass it as page_token to get the next page; null on the last page."""


def amount(epsilon_text: str) -> Decimal:
    """Return the exact value of a DecimalString."""
    return Decimal(epsilon_text)


GuaranteeKind = Literal["worst_case", "prior_average", "none"]
"""What a charge promises. A sum over charges bounds nothing unless each is ``worst_case``."""


CautionLevel = Literal["note", "high"]
DraftStep = Literal["data", "features", "measurement", "release", "answers"]


class CautionFix(Reply):
    """What mends a caution: a step of a draft. It holds no value that was computed from the records."""

    step: DraftStep = Field(description="The step to change.")
    words: str = Field(max_length=200, description="What to do there, for a link or a button.")
    use: list[float] | None = Field(None, min_length=2, max_length=2)
    """Ends of a range to take, from public inputs; null: none."""


class Caution(Reply):
    """A choice that is allowed, and that an expert would not make."""

    code: str = Field(max_length=100, description="Stable name of the caution, such as delta_large.")
    field: str = Field(max_length=300, description="Field of the request that it is about, such as release.delta.")
    message: str = Field(max_length=2_000, description="What follows from the choice, and what to choose instead.")
    level: CautionLevel = Field("note", description="high: the study cannot work, or promises next to nothing.")
    fix: CautionFix | None = Field(None, description="What mends it; null: see message.")


class Limits(Reply):
    """Size limits of queries."""

    rows_per_query: int = Field(description="Largest number of candidates in one query.")
    plays_per_row: int = Field(description="Largest number of measurements of one candidate in one query.")


_DECIMAL = ("epsilon", "epsilon_per_row", "epsilon_total")
"""Fields that are decimal strings on the wire, and may be numbers in Python."""
_DEEPEST = 20
"""Lists and dicts in each other: fewer in every request, and without end in a list that holds itself."""
_DIGITS_MAX = 300
"""No field holds a longer number, and Python writes none of more than 4,300."""


def parsed(model: type[M], fields: Mapping[str, Any], names: Mapping[str, str] = MappingProxyType({})) -> M:
    """A model with these fields. Raises Invalid for what cannot be right, by the argument that it is.

    ``names``: what paths of fields are called in Python, such as ``privacy`` for ``release``.
    """

    def argument(path: str) -> str:
        renamed = next((name for name in names if path == name or path.startswith(f"{name}.")), "")
        return names[renamed] + path.removeprefix(renamed) if renamed else path

    model_: M = faults.parse(model, json.dumps(plain(fields, argument)), argument)
    return model_


def plain(value: object, rename: Callable[[str], str] = str, path: tuple[str | int, ...] = ()) -> object:
    """The JSON of a value, in which an epsilon is a decimal string.

    Raises Invalid for what JSON cannot hold. ``rename`` returns the argument of a path.
    """
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if len(path) > _DEEPEST:
        message = f"has lists or dicts in more than {_DEEPEST} others: check that none holds itself"
        raise Invalid.at(faults.dotted(path[:1], rename), message)
    if hasattr(value, "tolist"):  # an array or a number of numpy, which is not imported for this
        return plain(value.tolist(), rename, path)
    if isinstance(value, Mapping):
        fields = {str(key): item for key, item in value.items()}
        return {plain(key, rename, (*path, key)): plain(item, rename, (*path, key)) for key, item in fields.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(item, rename, (*path, number)) for number, item in enumerate(value)]
    if isinstance(value, Decimal) and value.is_finite():
        return f"{value:f}" if _is_epsilon(path) else float(value)
    if message := _no_json(value):
        raise Invalid.at(faults.dotted(path or ("body",), rename), message)
    if isinstance(value, int | float) and not isinstance(value, bool) and _is_epsilon(path):
        return decimal(value)
    return value


def _no_json(value: object) -> str:
    """Why JSON holds no such text or number, or nothing."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return "must be text in UTF-8"
        return ""
    if isinstance(value, int):
        return f"must have at most {_DIGITS_MAX} digits" if abs(value) >= 10**_DIGITS_MAX else ""
    if value is None or isinstance(value, float):
        return ""
    return f"is of the type {type(value).__name__}: write numbers, texts, lists and dicts"


def _is_epsilon(path: Sequence[str | int]) -> bool:
    *_, name = ["", *(step for step in path if isinstance(step, str))]
    return (name if name in path[-1:] else name.removesuffix("s")) in _DECIMAL


def decimal(value: float | str) -> str:
    """A number as a decimal string.

    >>> decimal(0.5), decimal(3), decimal(1e-6), decimal("2.50")
    ('0.5', '3', '0.000001', '2.50')
    """
    return value if isinstance(value, str) else f"{value:.12f}".rstrip("0").rstrip(".")


TAGS_MAX = 10
NOTE_MAX = 2_000
Tag = Annotated[
    str, Field(min_length=1, max_length=30, pattern=r"^[^\x00-\x20\x7f,]([^\x00-\x1f\x7f,]*[^\x00-\x20\x7f,])?$")
]


class Labels(Request):
    """A note and tags, which replace those before."""

    note: str | None = Field(None, max_length=NOTE_MAX, description="Free text; null or empty: no note.")
    tags: list[Tag] = Field([], max_length=TAGS_MAX, description="Short words to filter a listing by.")

    @model_validator(mode="after")
    def _different(self) -> Self:
        if len(set(self.tags)) < len(self.tags):
            raise ValueError("a tag is named twice")
        return self


class Deleted(Reply):
    """What was deleted. Requests about it get 404 from now on."""

    id: str = Field(description="run_..., std_... or ds_...")
    deleted_at: datetime = Field(description="When it was deleted.")


class CellReading(Reply):
    """A cell that may be read as two numbers."""

    cell: str = Field(description="The cell, as it is written.")
    point: float = Field(description="The number if points are the decimal sign, and commas group thousands.")
    comma: float = Field(description="The number if commas are the decimal sign, and points group thousands.")


class FieldProblem(Reply):
    """A fault in a request or a file. Of rejected values it holds cells of a file alone, for whoever sent the file."""

    model_config = ConfigDict(extra="allow", frozen=True)

    message: str = Field(description="What is wrong, for people.")
    field: str | None = Field(None, description="Path of the field in the request.")
    row: int | None = Field(None, description="Data row of a file, counted from 1 after the header.")
    line: int | None = Field(None, description="Line of a file, counted from 1.")
    column: str | None = Field(None, description="Column of a file.")
    count: int | None = None
    """Number of faults of this kind in the column, of which this is the first; null: one."""
    cell: str | None = Field(None, repr=False, description="The cell of a file, up to 100 characters.")
    spellings: list[list[str]] | None = Field(None, repr=False)
    """Ids that may be one person's: up to five, each in two spellings."""
    readings: list[CellReading] | None = Field(None, repr=False)
    """The first five cells that have two readings, where the decimal sign is not sure."""


class BudgetProblem(Reply):
    """The cap that a request would exceed. Depends only on the history of requests.

    To a modeler, only on the history of its own grant's requests: it reads nothing here about other grants.
    """

    cap: str | None = None
    """The cap of the study's budget; dataset.epsilon and dataset.delta: of its dataset's account. Null to a modeler
    whose own spending leaves room for the request, so that other spending decides."""
    row: int | None = Field(None, description="The candidate, if the cap is one for each record.")
    requested: str = Field(description="What the request would use: epsilon, or a number of measurements.")
    spent: str
    """Amount used of the cap so far; to a modeler: by the release and by its own grant's answers."""
    limit: str | None = Field(None, description="The cap; null where cap is.")
    remaining: Literal["none", "some"] | None = None
    """To a modeler: whether one answer more fits beside what its own grant spent; none, too, where one answer was
    refused. What other grants spent may leave less. Null to others."""


class Problem(Reply):
    """RFC 9457 problem document: every error of both services has this form."""

    type: str = Field(description="A URI reference that names the kind of problem.")
    title: str = Field(description="The kind of problem, for people.")
    status: int = Field(description="The HTTP status.")
    detail: str = Field(description="What happened, and what to do.")
    instance: str = Field(description="The requested path.")
    code: str = Field(description="Stable error code, for programs.")
    retryable: bool = Field(description="Whether the same request may succeed later.")
    request_id: str = Field(description="Id of this request in the logs of the service.")
    errors: list[FieldProblem] | None = Field(None, description="Faults in the request or the file.")
    errors_total: int | None = Field(None, description="Number of faults, if only the first ones are listed.")
    budget: BudgetProblem | None = Field(None, description="The exceeded cap, for the code privacy_budget_exhausted.")
