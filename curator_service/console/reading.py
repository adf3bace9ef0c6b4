"""Reading the API for pages: whole short listings, and amounts as numbers."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from blindopt import wire
from service_kit.console import Api

PAGE = 200
_PAGES_MAX = 20


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


def real(text: str | None) -> float | None:
    """An exact amount as a number for a chart; None for None."""
    return None if text is None else float(Decimal(text))


def shares(account: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each cap of a study: its name, the amount spent, the cap, and the share that is spent."""
    caps = account["budget"]
    spent = {
        "epsilon_per_row": account["row_epsilon"],
        "epsilon_total": account["total_epsilon"],
        "queries": account["total_plays"],
    }
    names = {"epsilon_per_row": "epsilon of the row that spent most", "epsilon_total": "epsilon in all"}
    parts = []
    for cap, so_far in spent.items():
        if (limit := caps.get(cap)) is None or so_far is None:
            continue
        part = float(Decimal(str(so_far)) / Decimal(str(limit)))
        parts.append({"name": names.get(cap, "measurements"), "spent": so_far, "cap": limit, "share": part})
    return parts
