"""What is wrong with a value from outside, in words: where it stands, what it is, and what would be right.

pydantic finds the faults. Its words and paths are for programmers, so that none of them is shown: a path is one that
the sender wrote, or the key that is missing. A message repeats no value.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from blindopt.errors import Fault, Invalid

SHOWN = 50
"""The most faults of one value that are told."""
SMALL_BYTES = 64 << 10
"""The largest body of a modeler, and the largest one that is parsed on the event loop: a millisecond or two. Of a
larger one, no fault says what was sent in place of what is right: to look costs as much as to parse it."""
_NAMES_SHOWN = 12
_UNKNOWN = object()
_OR_TEXT = "or text"
"""In the schema of a variant: whether text is another variant of its union."""
_NEEDED = {
    "string": "text in quotes",
    "float": "a number without quotes",
    "int": "a whole number without quotes",
    "bool": "true or false without quotes",
    "list": "a list in brackets",
    "tuple": "a list in brackets",
    "dict": "an object in braces",
    "model": "an object in braces",
    "model_attributes": "an object in braces",
}
_WORDS = {
    "missing": "is missing",
    "string_too_long": "must have at most {max_length} characters",
    "string_unicode": "must be text in UTF-8",
    "greater_than": "must be larger than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be smaller than {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must have at least {min_length} items",
    "too_long": "must have at most {max_length} items",
    "finite_number": "must be a finite number",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a smaller number",
    "float_parsing": "must be a number",
    "bool_parsing": "must be true or false",
    "path_not_file": "names no file that exists",
    "json_invalid": "is not JSON: {error}",
}
_SPELLED = {
    r"^[^\x00-\x1f\x7f]+$": "must be one line of text without control characters",
    r"^[^\x00-\x08\x0b-\x1f\x7f]*$": "must have no control characters but line ends and tabs",
    r"^[^\x00-\x20\x7f,]([^\x00-\x1f\x7f,]*[^\x00-\x20\x7f,])?$": "must have no comma, and no space at its ends",
    r"^[0-9]{1,6}(\.[0-9]{1,12})?$": 'must be a decimal number without sign or exponent, in quotes, such as "2.5"',
    r"^([0-9a-f]{64})+$": "must be hexadecimal digits, 64 for each node",
    r"^([0-9a-f]{64})*$": "must be hexadecimal digits, 64 for each node, or empty",
    r"^[0-9a-f]{0,64}$": "must be at most 64 hexadecimal digits",
    r"^[\x21-\x7e]+$": "must be a token, without spaces",
    r"^(https?|link)://[!-~]+$": "must be an address such as https://curator.example",
    r"^/[!-~]*$": "must be a path such as /v1/studies",
    r"^[a-z_]{1,60}$": "must be a code such as not_found",
    r"^[0-9]{1,9}$": "must be the number of a trial",
    r"^[0-9]{1,15}$": "must be the next_page_token of the page before",
    r"^[a-z0-9_:]{1,60}$": "must be small letters, digits, _ and :",
    r"^[a-z_]{1,40}([.][a-z_]{0,40})?$": "must be a kind of record such as study.released",
    r"^[a-z]{2,4}_[0-9a-f]{16}$": "must be an id such as std_0123456789abcdef",
    r"^(process|threads|(dask|tls)://[^/\s@]+:[0-9]+)$": "must be process, threads, or dask://HOST:PORT",
}
"""What a text of each pattern must be; ``_spelled`` knows ids and digests."""


_JOINERS = "\u200c\u200d\u115f\u1160\u2800\u3164\uffa0"
"""Signs without a width: names in Persian, Hindi or Korean have them beside letters."""
_UNSEEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
"""Categories of Unicode: signs that control others, parts of signs, none, and ends of lines."""


def parse(kind: Any, body: bytes | str, rename: Callable[[str], str] = str) -> Any:
    """Read JSON as a model or another type. Raises Invalid; ``rename`` returns the sender's name of a path."""
    try:
        return adapter_of(kind).validator.validate_json(body)
    except ValidationError as error:
        errors = first_errors(error)
        is_json = errors[0]["type"] != "json_invalid"
        sent = from_json(body, allow_partial=False) if is_json and len(body) <= SMALL_BYTES else _UNKNOWN
        raise invalid(errors, kind, sent, rename) from None


@cache
def adapter_of(kind: Any) -> TypeAdapter[Any]:
    """The adapter of a type, which is built once."""
    return TypeAdapter(kind)


def first_errors(error: ValidationError) -> list[dict[str, Any]]:
    """The first errors of pydantic. Others become no Python objects: there may be one for each byte of a request."""
    text = error.json(include_url=False, include_input=False)
    decoder, errors, end = json.JSONDecoder(), [], 0
    for _ in range(min(error.error_count(), SHOWN)):
        fault, end = decoder.raw_decode(text, end + 1)  # after a bracket or a comma
        errors.append(fault)
    return errors


def invalid(
    errors: Iterable[Mapping[str, Any]], kind: Any = None, sent: Any = _UNKNOWN, rename: Callable[[str], str] = str
) -> Invalid:
    """Invalid with what pydantic found in a value of ``kind``; ``sent`` is the value, of which no more is told.

    A name that looks like a mistyped one comes first: what is missing follows from it.
    """
    schema = None if kind is None else adapter_of(kind).core_schema
    faults = [_fault(error, schema, sent, rename) for error in errors]
    return Invalid.of(sorted(faults, key=lambda fault: "did you mean" not in str(fault["message"]))[:SHOWN])


def check_name(name: str) -> None:
    """Raise Invalid for a name that nobody sees in a list, or that turns the direction of the text around it."""
    kinds = [unicodedata.category(sign) for sign in name if sign not in _JOINERS]
    if not kinds or not {kind[0] for kind in kinds} - {"Z", "M"} or any(kind in _UNSEEN for kind in kinds):
        raise Invalid.at("name", "must be one line of characters that can be seen")


def dotted(path: Iterable[str | int], rename: Callable[[str], str] = str) -> str:
    """The sender's name of a path, in characters that can be printed.

    >>> dotted(["release", "epsilon"], lambda path: path.replace("release", "privacy"))
    'privacy.epsilon'
    """
    return rename(".".join(str(name)[:60] for name in path)[:300]).encode("utf-8", "backslashreplace").decode()


def nearest(name: str, names: Iterable[str]) -> str:
    """A question for the name that was meant, or the names there are, to end a message.

    >>> nearest("mechanisme", ["mechanism", "epsilon"]), nearest("x", ["lower", "upper"]), nearest("x", [])
    (': did you mean "mechanism"?', ': it is one of "lower" and "upper"', '')
    """
    offered = sorted(names)
    if close := get_close_matches(name, offered, 1, 0.6) or get_close_matches(name.lower(), offered, 1, 0.6):
        return f': did you mean "{close[0]}"?'
    return f": it is one of {listed(offered, 'and')}" if 0 < len(offered) <= _NAMES_SHOWN else ""


def listed(names: Sequence[str], last: str = "or") -> str:
    """Names in quotes, in a sentence."""
    *most, end = [f'"{name}"' for name in names]
    return f"{', '.join(most)} {last} {end}" if most else end


def _fault(error: Mapping[str, Any], root: Any, sent: Any, rename: Callable[[str], str]) -> Fault:
    path, schema, fields = _path_of(root, error["loc"])
    value = _at(sent, path)
    kind, context = error["type"], error.get("ctx", {})
    if kind == "json_invalid":  # its location is that of a character
        path = ["body"]
    if kind.startswith("union_tag"):
        name = str(context["discriminator"]).strip("_()'")  # of a function, or in quotes
        tags = re.findall("'([^']*)'", context.get("expected_tags", "")) or [str(tag) for tag in schema["choices"]]
        path = [*path, name]
        tag = value.get(name, _UNKNOWN) if isinstance(value, Mapping) else _UNKNOWN
        message = _choice(tags, tag) if kind == "union_tag_invalid" else f"is missing: it is one of {listed(tags)}"
    elif kind == "extra_forbidden":
        message = f"is no field here{nearest(str(path[-1]), fields)}"
    elif kind == "literal_error":
        options = [str(option) for option in schema.get("expected", ())]
        message = _choice(options or re.findall("'([^']*)'", context["expected"]) or [context["expected"]], value)
    elif kind == "string_pattern_mismatch":
        message = _spelled(context["pattern"])
    elif kind == "string_too_short":
        least = context["min_length"]
        message = "must not be empty" if least == 1 else f"must have at least {least} characters"
    elif kind == "value_error":
        message = str(error["msg"]).removeprefix("Value error, ")[:300]
    elif kind.removesuffix("_type") in _NEEDED:
        right = _NEEDED[kind.removesuffix("_type")]
        if "pattern" in schema and kind == "string_type":
            right = _spelled(schema["pattern"]).removeprefix("must be ")
        if schema.get(_OR_TEXT):
            right = f"{_NEEDED['string']}, or {right}"
        message = f"must be {right}" if value is _UNKNOWN else f"is {_kind(value)}: write {right}"
    elif kind in _WORDS:
        message = _WORDS[kind].format_map({name: _number(limit) for name, limit in context.items()})
    else:
        words = {"datetime": "must be a time such as 2026-11-28T12:00:00Z", "date": "must be a date such as 2026-11-28"}
        message = words.get(kind.partition("_")[0], "is not of this kind")
    if not path and kind != "value_error":
        path = ["body"]
    return {"field": dotted(path, rename), "message": message}


def _choice(options: Sequence[str], value: Any) -> str:
    if len(options) == 1:
        return f"must be {options[0]}"
    close = get_close_matches(value.lower(), options, 1, 0.6) if isinstance(value, str) else []
    if close and len(options) > _NAMES_SHOWN:
        return f'is none of the {len(options)} that exist: did you mean "{close[0]}"?'
    return f"must be one of {listed(options)}" + (f': did you mean "{close[0]}"?' if close else "")


def _spelled(pattern: str) -> str:
    if match := re.fullmatch(r"\^([a-z]+_)\[0-9a-f\]\{16\}\$", pattern):
        return f"must be an id such as {match[1]}0123456789abcdef"
    if match := re.fullmatch(r"\^\[0-9a-f\]\{(\d+)\}\$", pattern):
        return f"must be {match[1]} hexadecimal digits"
    return _SPELLED.get(pattern, "is not written as it must be")


def _kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    kinds = {str: "text", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return next((words for kind, words in kinds.items() if isinstance(value, kind)), "something else")


def _number(limit: Any) -> str:
    return f"{limit:.12g}" if isinstance(limit, float) else str(limit)


def _at(sent: Any, path: Sequence[str | int]) -> Any:
    """What was sent at a path; ``_UNKNOWN`` if nothing was, or nobody knows."""
    for name in path:
        try:
            sent = sent[name]
        except (TypeError, LookupError):
            return _UNKNOWN
    return sent


def _path_of(root: Any, location: Sequence[str | int]) -> tuple[list[str | int], dict[str, Any], dict[str, Any]]:
    """The path of a location without the variants of unions, which nobody wrote; its schema; the fields beside it."""
    path: list[str | int] = []
    references: dict[str, Any] = {}
    schema, fields = _inner(root or {}, references), {}
    for step in location:
        if "choices" in schema:
            or_text = any(_inner(choice, references).get("type") == "str" for choice in _variants(schema))
            schema = _inner(_variant(schema, str(step)), references) | {_OR_TEXT: or_text}
            continue
        path.append(step)
        fields = schema.get("fields", {})
        items = schema.get("items_schema", {})
        if isinstance(items, list):  # of a tuple
            items = items[step] if isinstance(step, int) and step < len(items) else {}
        schema = _inner(fields.get(step) or items or schema.get("values_schema") or {}, references)
    return path, schema, fields


def _variants(union: Mapping[str, Any]) -> Iterable[Any]:
    choices = union["choices"]
    return choices.values() if isinstance(choices, Mapping) else ()


def _variant(union: Mapping[str, Any], label: str) -> Any:
    choices = union["choices"]
    return choices.get(label, {}) if isinstance(choices, Mapping) else {}


def _inner(schema: Any, references: dict[str, Any]) -> dict[str, Any]:
    """What a schema wraps: a union, a list, the fields of a model or one value."""
    references |= {part["ref"]: part for part in schema.get("definitions", ())}
    while True:
        if schema.get("type") == "definition-ref":
            schema = references[schema["schema_ref"]]
        elif isinstance(schema.get("schema"), dict):
            schema = schema["schema"]
        else:
            return dict(schema)
