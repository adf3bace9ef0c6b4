"""JSON bodies: parsed within bounds, and large ones beside the event loop.

A refusal must not cost much more than the request that it refuses. So at most ``problems.ERRORS_SHOWN`` errors are
made into Python objects, and of a large body the names of its fields are looked at before any model is built.
"""

import json
import re
from collections.abc import Callable, Coroutine
from functools import cache
from typing import Any, TypeVar, cast

from fastapi import Request
from fastapi.params import Form
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Receive

from blindopt.errors import Invalid
from service_kit.web.problems import ERRORS_SHOWN, first_errors, invalid

B = TypeVar("B", bound=BaseModel)
SMALL_BYTES = 64 << 10
"""The largest body of a modeler, and the largest one that is parsed on the event loop: a millisecond or two."""
_STRING = re.compile(rb'"((?:[^"\\]|\\.)*+)"(\s*+:)?', re.DOTALL)
_EXTRA = "Extra inputs are not permitted"


async def body_of(request: Request, model: type[B]) -> B:
    """The JSON body of a hot route as ``model``. Raises Invalid, as the other routes do."""
    _check_media(request)
    return cast(B, await _parsed(await _received(request.receive), model))


async def _received(receive: Receive) -> bytes:
    """A whole body: what ``Request.body`` does, without its generator and its cache. Raises Invalid for less."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise Invalid("the request ended before its body did: nothing happened")
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _parsed(body: bytes, annotation: Any) -> Any:
    if len(body) > SMALL_BYTES:
        return await run_in_threadpool(parse, body, annotation)
    return parse(body, annotation)


def _check_media(request: Request) -> None:
    media = header(request, b"content-type").partition(";")[0].strip().lower()
    if media != "application/json" and not (media.startswith("application/") and media.endswith("+json")):
        raise Invalid("send a JSON body", [{"field": "body", "message": "Content-Type must be application/json"}])


def header(request: Request, name: bytes) -> str:
    """The first header with a ``name`` (in lower case), without an index of all of them; empty if there is none."""
    for key, value in request.scope["headers"]:
        if key == name:
            return str(value, "latin-1")
    return ""


def parse(body: bytes, annotation: Any) -> Any:
    """Parse a JSON body as a model, or what a route declares. Raises Invalid."""
    adapter = _adapter(annotation)
    if len(body) > SMALL_BYTES:
        _check_names(body, adapter)
    try:
        return adapter.validator.validate_json(body)  # without the options of the adapter
    except ValidationError as error:
        raise invalid(first_errors(error)) from None


@cache
def _adapter(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation)


def _check_names(body: bytes, adapter: TypeAdapter[Any]) -> None:
    """Raise Invalid for more than ``ERRORS_SHOWN`` fields of names that the model has nowhere, once so many are read.

    Each string of the body is read in turn, so a colon inside of a text is no end of a name.
    """
    names = _names(adapter)
    unknown: list[bytes] = []
    for string in _STRING.finditer(body):
        if string[2] is not None and string[1] not in names and _plain(string[1]) not in names:
            unknown.append(string[1])
            if len(unknown) > ERRORS_SHOWN:
                shown = [name.decode(errors="replace")[:60] for name in unknown[:ERRORS_SHOWN]]
                raise invalid([{"type": "extra_forbidden", "loc": (name,), "msg": _EXTRA} for name in shown])


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
    parts = [schema, *schema.get("$defs", {}).values()]
    return frozenset(name.encode() for part in parts for name in part.get("properties", {}))


class BoundedRoute(APIRoute):
    """A route whose JSON body is parsed here, where FastAPI parses and validates any body on the event loop.

    FastAPI is given the model that was made, and takes it as it is. A refusal waits until the dependencies have
    passed: who may not send the request at all gets that reply.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of FastAPI, with another way to read JSON."""
        handle, field = super().get_route_handler(), self.body_field
        if field is None or isinstance(field.field_info, Form):
            return handle
        annotation = field.field_info.annotation

        async def bounded(request: Request) -> Response:
            return await handle(_JsonRequest(request, annotation))

        return bounded


class _JsonRequest(Request):
    def __init__(self, request: Request, annotation: Any) -> None:
        super().__init__(request.scope, request.receive)
        self._annotation = annotation

    async def json(self) -> Any:
        """The body as its model; what is no model, after a note of the refusal, where it cannot be one."""
        try:
            return await _parsed(await self.body(), self._annotation)
        except Invalid as error:
            self.state.wrong_body = error
            return b""
