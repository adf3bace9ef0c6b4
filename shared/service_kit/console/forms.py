"""A form that was sent: its texts and files, its idempotency key, and the errors in its inputs.

An input is named by the path of its field in the body of the API, such as ``release.epsilon``. Items of a list of
objects are numbered (``features.3.lower``) and may have gaps: until it is sent, a body has them in a dict by number.
"""

import hmac
import math
import re
import secrets
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import Any, Self

from pydantic import BaseModel
from starlette.datastructures import FormData, UploadFile

from blindopt.formats.numbers import DecimalSigns, either, number_of, readings
from service_kit.console.api import ApiProblem, Upload
from service_kit.console.words import plain

KEY = "_key"
CSRF = "_csrf"
READING = "reading_"
"""Begins the name of a button that says how the number in a field is meant."""
_KEY_LENGTH = 32
_MISSING = {
    "name": "A name",
    "column": "A column",
    "label": "A column",
    "question": "A question",
    "epsilon": "epsilon",
    "caps.epsilon": "A cap",
    "training_dataset_id": "A public dataset",
    "validation_dataset_id": "A dataset",
}
"""What a text that is needed is called, by its path or the last part of it."""
Body = dict[Any, Any]


def fresh_key() -> str:
    return secrets.token_hex(_KEY_LENGTH // 2)


@dataclass(frozen=True, slots=True)
class Form:
    """Fields as they were sent or are to be shown. Readers collect errors by field in ``errors``.

    A page reads all the fields it needs, then checks ``ok``. If it is false, the page shows the form again.
    """

    key: str
    values: dict[str, list[str]] = field(default_factory=dict)
    files: dict[str, UploadFile] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    problem: ApiProblem | None = None
    unclear: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Fields whose number can be read in two ways, with both; a button sends the one that is meant."""
    labels: dict[str, str] = field(default_factory=dict)
    """The label of each field on the page, as the page was rendered: errors are listed by it."""

    @classmethod
    def blank(cls, **values: object) -> Self:
        """A form to show for the first time, with these defaults: values by path, or nested as in a body of the API."""
        return cls(fresh_key(), flatten(values))

    @classmethod
    def of(cls, data: FormData) -> Self:
        """The form that was sent. Control characters are dropped, except line ends and tabs."""
        values: dict[str, list[str]] = {}
        files: dict[str, UploadFile] = {}
        for name, value in data.multi_items():
            if isinstance(value, UploadFile):
                if value.filename:
                    files[name] = value
            else:
                text = "".join(sign for sign in encodable(value) if sign in "\r\n\t" or ord(sign) >= 32)
                values.setdefault(name, []).append(text)
        (key,) = values.pop(KEY, [""])[:1]
        values.pop(CSRF, None)
        return cls(key if len(key) == _KEY_LENGTH and key.isalnum() else "", values, files)

    def fill(self, values: Mapping[Any, Any]) -> None:
        self.values.update(flatten(values))

    # --- reading ----------------------------------------------------------------------------------

    def get(self, name: str, default: str = "") -> str:
        """The text of a field, without spaces around it."""
        texts = self.values.get(name)
        return texts[0].strip() if texts else default

    def all(self, name: str) -> list[str]:
        """Every text of a field that may be repeated."""
        return self.values.get(name, [])

    def has(self, name: str) -> bool:
        return name in self.values

    def text(self, name: str, what: str = "This") -> str:
        """A required text. If it is missing, record an error and return an empty text."""
        if not (text := self.get(name)):
            self.errors[name] = f"{what} is needed"
        return text

    def real(self, name: str, *, needed: bool = True) -> float | None:
        """A finite number, with a decimal point or comma. Otherwise record an error and return None.

        A number that can be read in two ways is asked back, and its reading is taken from a button of the page.
        """
        if (typed := self._number(name, needed=needed)) is None:
            return None
        meanings = readings(typed)
        if len(meanings) > 1:
            meanings = tuple(value for value in meanings if shown(value) == self.get(f"{READING}{name}"))
            if not meanings:
                self.unclear[name] = tuple(shown(value) for value in readings(typed))
                numbers = f"{typed.replace(',', '.')} or {typed.replace('.', ',')}"
                self.errors[name] = f"{numbers}? It can be read in both ways"
                return None
            self.values[name] = [filled_in(meanings[0])]
        if not meanings:
            self.errors[name] = "Enter a number, such as 5.8"
            return None
        return meanings[0]

    def interval(self, lower: str, upper: str, least: str = "the lower bound") -> tuple[float | None, float | None]:
        """Two numbers, of which the second must be larger: ``least`` names the first. Otherwise record errors."""
        ends = self.real(lower), self.real(upper)
        if ends[0] is not None and ends[1] is not None and not ends[0] < ends[1]:
            self.wrong(upper, f"Must be larger than {least}")
        return ends

    def integer(self, name: str, *, needed: bool = True) -> int | None:
        """A whole number. Otherwise record an error and return None."""
        typed = self._number(name, needed=needed)
        if typed is None:
            return None
        if len(typed) > 18 or not typed.removeprefix("-").isdecimal():
            self.errors[name] = "Enter a whole number, such as 10"
            return None
        return int(typed)

    def _number(self, name: str, *, needed: bool) -> str | None:
        typed = self.get(name)
        if not typed and needed:
            self.errors[name] = "Enter a number"
        return typed or None

    def numbers(self, name: str) -> list[float]:
        """Numbers with commas between them, or semicolons. Otherwise record an error and return an empty list."""
        typed = self.text(name, "At least one value")
        separator = ";" if ";" in typed else ","
        texts = [number.strip() for number in typed.split(separator)]
        signs = DecimalSigns(texts)
        if (sign := signs.of_file(separator)) is None:
            self.errors[name] = either(signs.unsure[0])
            return []
        values = [number_of(text, sign) for text in texts]
        if not all(value is not None and math.isfinite(value) for value in values):
            self.errors.setdefault(name, "Write numbers, separated by commas")
            return []
        return [value for value in values if value is not None]

    def items(self, name: str, *fields: str) -> list[int]:
        """The numbers of the items of a list that have a text in one of these fields, ascending."""
        matches = (re.fullmatch(rf"{re.escape(name)}\.([0-9]{{1,6}})\.(\w+)", path) for path in self.values)
        return sorted({int(m[1]) for m in matches if m and m[2] in fields and self.get(m[0])})

    def read(self, model: type[BaseModel], without: Container[str] = (), within: str = "") -> Body:
        """The body that the inputs make, of this wire model; faults are recorded. What is empty has the API's default.

        ``without``: paths to leave out, with ``*`` for a number. ``within``: the path of the body itself. A list of
        objects has the items whose first field has a text.
        """
        body: Body = self._read(inlined(model), within, without)
        return body

    def _read(self, schema: Mapping[str, Any], name: str, without: Container[str]) -> Any:
        if "oneOf" in schema:
            tag, typed, schema = self._variant(name, schema["oneOf"])
            if not schema:
                self.errors[f"{name}.{tag}"] = "Choose one of these"
                return {tag: typed}
        if "properties" in schema:
            paths = {key: f"{name}.{key}".removeprefix(".") for key in schema["properties"]}
            paths = {key: path for key, path in paths.items() if re.sub(r"\.[0-9]+", ".*", path) not in without}
            return {key: self._read(schema["properties"][key], path, without) for key, path in paths.items()}
        if "properties" in (item := schema.get("items", {})):
            return {
                i: self._read(item, f"{name}.{i}", without) for i in self.items(name, next(iter(item["properties"])))
            }
        return self._value(schema, name)

    def _variant(self, name: str, variants: list[Mapping[str, Any]]) -> tuple[str, str, Mapping[str, Any]]:
        """The tag of a union, its text, and the variant with this text; empty if there is none."""
        tag = next(key for key, schema in variants[0]["properties"].items() if "const" in schema)
        tags = [variant["properties"][tag] for variant in variants]
        typed = self.get(f"{name}.{tag}") or next((schema["const"] for schema in tags if "default" in schema), "")
        matching = (variant for variant, schema in zip(variants, tags, strict=True) if schema["const"] == typed)
        return tag, typed, next(matching, {})

    def _value(self, schema: Mapping[str, Any], name: str) -> Any:
        """What one input says: a number, a tick, a text or several."""
        needed, kind = "default" not in schema, schema.get("type")
        value: float | str | None
        if kind == "boolean":
            return self.has(name)
        if "const" in schema:
            return schema["const"]
        if kind == "array":
            return self.numbers(name) if schema["items"]["type"] == "number" else self.all(name)
        if kind in ("integer", "number"):
            value = (self.integer if kind == "integer" else self.real)(name, needed=needed)
        elif needed:
            return self.text(name, _MISSING.get(name) or _MISSING.get(name.rpartition(".")[2], "This"))
        else:
            value = self.get(name) or None
        return schema.get("default") if value is None else value

    def check_good(self) -> None:
        """Record a fault where a search for many has neither a value nor a share that says what is good, or both."""
        if self.get("goal.kind") == "many" and bool(self.get("goal.threshold")) == bool(self.get("goal.share")):
            self.wrong("goal.threshold", "State a value, or choose a share: one of them")

    def file(self, name: str) -> Upload | None:
        """A required file. If it is missing, record an error and return None."""
        if name not in self.files:
            self.errors[name] = "Choose a file"
            return None
        return Upload.of(self.files[name])

    # --- errors -----------------------------------------------------------------------------------

    @property
    def ok(self) -> bool:
        return not self.errors and self.problem is None

    def wrong(self, name: str, message: str) -> None:
        self.errors[name] = message

    def failed(
        self,
        problem: ApiProblem,
        names: Mapping[str, str] = MappingProxyType({}),
        body: Mapping[Any, Any] = MappingProxyType({}),
    ) -> "Form":
        """The form to show again, with the errors of the API beside its inputs, and a new key.

        The path of an error in ``body``, as it was read, is the input's name, but for those in ``names``.
        """
        errors = dict(self.errors)
        for fault in problem.problem.errors or []:
            errors.setdefault(input_of(fault.field or "", body, names), plain(fault.message))
        return replace(self, key=fresh_key(), errors=errors, problem=problem)

    def label(self, name: str, text: str) -> str:
        """Note the label of a field while the page is rendered; an empty text, for the template."""
        self.labels[name] = text
        return ""

    def again(self) -> "Form":
        """The form to show again after ``wrong``, with a new key."""
        return replace(self, key=fresh_key())


def same(first: str, second: str) -> bool:
    """Compare texts in constant time."""
    return hmac.compare_digest(first.encode(errors="replace"), second.encode(errors="replace"))


# --- between a body and its inputs -------------------------------------------------------------------


def flatten(body: Mapping[Any, Any], within: str = "") -> dict[str, list[str]]:
    """The texts of the inputs of a body, by path. A list of texts is one input with several; null is no input.

    >>> flatten({"budget": {"epsilon": 0.5, "delta": None}, "parts": {3: 7}, "rotate": True, "shown": ["a", "b"]})
    {'budget.epsilon': ['0.5'], 'parts.3': ['7'], 'rotate': ['yes'], 'shown': ['a', 'b']}
    """
    texts: dict[str, list[str]] = {}
    for key, value in body.items():
        name = f"{within}{key}"
        if isinstance(value, Mapping):
            texts |= flatten(value, f"{name}.")
        elif isinstance(value, list) and value and not isinstance(value[0], str):
            texts |= flatten(dict(enumerate(value)), f"{name}.")
        elif isinstance(value, list):
            texts |= {name: value} if value else {}
        elif value is not None and value is not False:
            texts[name] = ["yes" if value is True else filled_in(value)]
    return texts


def sent(body: Any) -> Any:
    """A body as the API takes it: numbered items are a list, in the order of their numbers."""
    if not isinstance(body, dict):
        return body
    if body and all(isinstance(key, int) for key in body):
        return [sent(body[number]) for number in sorted(body)]
    return {key: sent(value) for key, value in body.items()}


def input_of(path: str, body: Mapping[Any, Any], names: Mapping[str, str]) -> str:
    """The input that an error of the API is about: its path, with the inputs' numbers.

    An error about a whole object stands at its first input, if ``names`` has no other.

    >>> input_of("features.1.lower", {"features": {2: {"lower": 0.0}, 5: {"lower": 9.0}}}, {})
    'features.5.lower'
    >>> input_of("release", {"release": {"mechanism": "auto", "epsilon": "1"}}, {})
    'release.mechanism'
    """
    names_of_input: list[str] = []
    node: Any = body
    segments = path.split(".")
    for i, segment in enumerate(segments):
        if not isinstance(node, Mapping):
            names_of_input += [] if node is not None else segments[i:]  # no input for each value of a list
            break
        if segment.isdecimal() and int(segment) < len(node):
            key: Any = sorted(node)[int(segment)]
        else:
            key = segment
        names_of_input.append(str(key))
        node = node.get(key)
    while (name := ".".join(names_of_input)) not in names and isinstance(node, Mapping) and node:
        key = next(iter(node))
        names_of_input.append(str(key))
        node = node[key]
    return names.get(name, name)


@cache
def inlined(model: type[BaseModel]) -> Mapping[str, Any]:
    """The JSON Schema of a wire model, with all that it refers to in its place; of what may be null, the other."""
    whole = model.model_json_schema()

    def resolved(schema: Any) -> Any:
        if isinstance(schema, list):
            return [resolved(inner) for inner in schema]
        if not isinstance(schema, dict):
            return schema
        first, *more = [inner for inner in schema.get("anyOf", []) if inner.get("type") != "null"] or [{}]
        schema = ({"type": first.get("type")} if more else first) | schema
        if "$ref" in schema:
            schema = whole["$defs"][schema["$ref"].rpartition("/")[2]] | schema
        return {key: resolved(inner) for key, inner in schema.items() if key not in ("$ref", "$defs", "anyOf")}

    schema: Mapping[str, Any] = resolved(whole)
    return schema


def shown(value: object) -> str:
    """A value as a page shows it beside an input.

    >>> shown(20.0), shown(1e-5), shown(0.25), shown("1")
    ('20', '1e-5', '0.25', '1')
    """
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else repr(value).replace("e-0", "e-")


def filled_in(value: object) -> str:
    """A value as an input has it: a number can be read in one way only.

    >>> filled_in(0.25), filled_in(2.125)
    ('0.25', '2.1250')
    """
    is_unclear = isinstance(value, float) and len(readings(shown(value))) > 1
    return f"{shown(value)}0" if is_unclear else shown(value)


def encodable(text: str) -> str:
    """Replace lone surrogates, which a form's charset may contain and UTF-8 cannot, by the replacement character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
