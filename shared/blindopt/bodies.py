"""JSON of the other side, within bounds: its size, then its names, then the model.

A refusal must not cost much more than the message that it refuses. So at most ``faults.SHOWN`` errors are made into
Python objects, and of a large body the names of its fields are looked at before any model is built.
"""

import asyncio
import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

from pydantic import JsonValue, TypeAdapter
from pydantic_core import from_json

from blindopt import faults
from blindopt.errors import Invalid

NAMES_BYTES = 8 << 10
"""Bytes from which on names are looked at first: to build errors about as many costs a few times what a query costs."""
_STRING = re.compile(rb'"((?:[^"\\]|\\.)*+)(?:"(\s*+:)?|\\?\Z)', re.DOTALL)  # one without an end takes all that is left


def parse(body: bytes, kind: Any, most_bytes: int | None = None, rename: Callable[[str], str] = str) -> Any:
    """Read JSON as a model or another type. Raises Invalid; ``rename`` returns the sender's name of a path.

    As ``JsonValue`` it is read as it is, for a sender whose other fields are not ours to judge. As ``Any`` too, and
    NaN and Infinity are numbers then: it is the caller who refuses them.
    """
    if most_bytes is not None and len(body) > most_bytes:
        raise Invalid(f"a message of more than {most_bytes} bytes")
    if kind is JsonValue or kind is Any:
        try:
            return from_json(body, allow_inf_nan=kind is Any)
        except ValueError:
            raise Invalid("this is not JSON") from None
    if len(body) > NAMES_BYTES:
        _check_names(body, faults.adapter_of(kind))
    return faults.parse(kind, body, rename)


async def parse_beside(body: bytes, kind: Any, most_bytes: int | None = None) -> Any:
    """As ``parse``, and what is large in a thread beside the event loop."""
    if len(body) > faults.SMALL_BYTES:
        return await asyncio.to_thread(parse, body, kind, most_bytes)
    return parse(body, kind, most_bytes)


def _check_names(body: bytes, adapter: TypeAdapter[Any]) -> None:
    """Raise Invalid for more than ``faults.SHOWN`` fields of names that the model has nowhere, once so many are read.

    Each string of the body is read in turn, so a colon inside of a text is no end of a name.
    """
    names = _names(adapter)
    unknown: list[bytes] = []
    for string in _STRING.finditer(body):
        if string[2] is not None and string[1] not in names and _plain(string[1]) not in names:
            unknown.append(string[1])
            if len(unknown) > faults.SHOWN:
                shown = [name.decode(errors="replace")[:60] for name in unknown[: faults.SHOWN]]
                raise Invalid.of([{"field": name, "message": "is no field here"} for name in shown])


def _plain(name: bytes) -> bytes:
    """A name of a field without escapes; as it is if they are wrong, which the parser then reports."""
    if b"\\" not in name:
        return name
    try:
        return str(json.loads(b'"' + name + b'"')).encode()
    except ValueError:
        return name


@cache
def _names(adapter: TypeAdapter[Any]) -> frozenset[bytes]:
    """The names of all fields of a model, and of the models in it."""
    schema = adapter.json_schema()
    schemas = [schema, *schema.get("$defs", {}).values()]
    return frozenset(name.encode() for model in schemas for name in model.get("properties", {}))
