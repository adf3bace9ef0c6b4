"""Reading the API for pages: whole short listings, amounts as numbers, and streams that say when a reply changed."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from starlette.responses import Response, StreamingResponse

from blindopt import wire
from service_kit.console import Api, ApiProblem, Page
from service_kit.web.server_sent_events import MEDIA_TYPE, Batches, EventStreams, event

PAGE = 200
_PAGES_MAX = 20
Look = Callable[[], Awaitable[object]]
POLL_SECONDS = 1.0
STREAM_SECONDS = 300.0
"""After this time a stream ends, and the page opens it again."""
_streams = EventStreams()


async def datasets(api: Api) -> list[wire.DatasetView]:
    return [
        wire.DatasetView.model_validate(item, strict=False) for item in await every(api, "/v1/datasets", "datasets")
    ]


async def every(api: Api, path: str, member: str, **query: object) -> list[Any]:
    """All items of a listing whose items people create by hand: at most 4,000."""
    items: list[Any] = []
    token: str | None = None
    for _ in range(_PAGES_MAX):
        page = await api.get(path, page_size=PAGE, page_token=token, **query)
        items += page[member]
        token = page["next_page_token"]
        if token is None:
            break
    return items


def row_of(item: Mapping[str, Any]) -> str:
    """Where the record of a measurement or of a page is in the file, as a person counts.

    >>> row_of({"record": 127, "file_row": 128}), row_of({"record": 127, "file_row": None})
    ('row 128 of the file', 'record 127')
    """
    return f"record {item['record']}" if item["file_row"] is None else f"row {item['file_row']} of the file"


def whose(item: Mapping[str, Any]) -> str:
    """The labels of the record, and where it is in the file."""
    labels = ", ".join(label["text"] for label in item["labels"])
    return f"{labels} ({row_of(item)})" if labels else row_of(item)


def real(text: str | None) -> float | None:
    """An exact amount as a number for a chart; None for None."""
    return None if text is None else float(Decimal(text))


def shares(account: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each cap of a study: its name, the amount used, the cap, and the share that is used."""
    caps = account["budget"]
    used = {
        "epsilon_per_row": account["row_epsilon"],
        "epsilon_total": account["total_epsilon"],
        "queries": account["total_plays"],
    }
    names = {"epsilon_per_row": "epsilon of the record that has used most", "epsilon_total": "epsilon in total"}
    parts = []
    for cap, so_far in used.items():
        if (limit := caps.get(cap)) is None or so_far is None:
            continue
        parts.append(_share(names.get(cap, "measurements"), so_far, limit))
    return parts


def _share(name: str, used: object, cap: object) -> dict[str, Any]:
    return {"name": name, "used": used, "cap": cap, "share": float(Decimal(str(used)) / Decimal(str(cap)))}


def file_line(account: Mapping[str, Any], studies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A dataset on the page of all budgets: its path, its name, the epsilon used, and the share of its cap.

    ``studies``: the accounts of its studies; auditors read the name of one in place of the dataset's.
    """
    dataset_id = studies[0]["dataset_id"]
    names = {each["dataset_id"]: each["name"] for each in account["registrations"]}
    used, cap = account["epsilon"], account["cap_epsilon"]
    most = f"One {account['unit']} has used at most"
    return {
        "path": f"/datasets/{dataset_id}/account",
        "name": names.get(dataset_id) or f"The dataset of {studies[0]['name']}",
        "records": studies[0]["records"],
        "studies": len(studies),
        "most": most,
        "epsilon": used,
        "shares": [_share(f"{most} epsilon", used, cap)] if used is not None and cap else [],
    }


async def follow(page: Page, look: Look) -> Response:
    """A stream with an event ``change`` at its start and whenever the result of ``look`` differs. Raises RateLimited.

    It ends with its session, and with the service.
    """
    stream = await _streams.open(page.session.principal.id, _changes(page, look), retry_ms=2_000)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(stream, headers=headers, media_type=MEDIA_TYPE)


async def follow_job(page: Page, path: str) -> Response:
    """A stream with an event ``change`` whenever the state or the progress of the job at ``path`` differs."""

    async def look() -> object:
        view = await page.api.get(path)
        return view["state"], view["progress"]

    return await follow(page, look)


async def _changes(page: Page, look: Look) -> Batches:
    end = time.monotonic() + STREAM_SECONDS
    last = None
    # A service that is stopping ends its streams: they would delay the stop.
    while (
        time.monotonic() < end
        and await page.site.is_live(page.session)
        and not getattr(page.request.app.state, "leaving", False)
    ):
        try:
            state = json.dumps(await look(), sort_keys=True, default=str)
        except ApiProblem:
            return  # its subject is gone, or may not be read any more
        yield [] if state == last else [event("change", "{}")]
        last = state
        await asyncio.sleep(POLL_SECONDS)
