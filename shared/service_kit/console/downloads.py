"""Whole listings of the API as files, read and sent page by page."""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

from pydantic import BaseModel
from starlette.responses import Response, StreamingResponse

from service_kit.console.api import ApiProblem
from service_kit.console.exports import csv_text, file_name
from service_kit.console.pages import Page

PAGE = 1_000
Columns = Sequence[str] | type[BaseModel]


async def listing(page: Page, path: str, member: str, name: str, columns: Columns, **query: object) -> Response:
    """All items of a listing as CSV, or with ``?as=json`` as one JSON object a line.

    ``columns`` are those of the CSV, or the model of an item for all of its fields. Cells other than numbers and text
    are JSON. The first page is read before anything is sent, so that a refusal is still a page. Raises ApiProblem.
    """
    head = columns if isinstance(columns, Sequence) else tuple(columns.model_fields)
    first = await page.api.get(path, page_size=PAGE, **query)
    as_json = page.query.get("as") == "json"
    pages = _pages(page, path, member, first, query)
    pieces = _lines(pages) if as_json else _rows(pages, head)
    media, ending = ("application/x-ndjson", "jsonl") if as_json else ("text/csv; charset=utf-8", "csv")
    headers = {"content-disposition": f'attachment; filename="{file_name(name)}.{ending}"'}
    return StreamingResponse(pieces, headers=headers, media_type=media)


async def _pages(
    page: Page, path: str, member: str, first: dict[str, Any], query: dict[str, object]
) -> AsyncIterator[list[dict[str, Any]]]:
    reply = first
    while True:
        yield reply[member]
        if (token := reply["next_page_token"]) is None:
            return
        if not await page.site.is_live(page.session):
            raise ConnectionAbortedError("the session has ended")
        try:
            reply = await page.api.get(path, page_size=PAGE, page_token=token, **query)
        except ApiProblem as problem:  # the head was sent: only a cut connection can show it
            raise ConnectionAbortedError(str(problem)) from None


async def _lines(pages: AsyncIterator[list[dict[str, Any]]]) -> AsyncIterator[str]:
    async for items in pages:
        yield "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items)


async def _rows(pages: AsyncIterator[list[dict[str, Any]]], columns: Sequence[str]) -> AsyncIterator[str]:
    yield csv_text([columns])
    async for items in pages:
        yield csv_text([_cell(item.get(name)) for name in columns] for item in items)


def _cell(value: object) -> object:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else value
