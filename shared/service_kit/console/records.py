"""Pages of the audit log in both consoles: its records as rows, its verification, and the log as a file."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response

from blindopt import wire
from service_kit.console import downloads
from service_kit.console.acts import ACTS, Acts, act, who
from service_kit.console.forms import Form
from service_kit.console.listings import days, turned
from service_kit.console.pages import Page, Pages
from service_kit.identity.tokens import Role


def row_of(entry: dict[str, Any], acts: Acts, names: Mapping[str, str]) -> dict[str, Any]:
    """A record as a row. A body that is no JSON is shown as unreadable."""
    try:
        body = json.loads(entry["body"])
        assert isinstance(body, dict)
    except (ValueError, RecursionError, AssertionError):
        body = {"kind": "unreadable"}
    exchange = body.get("exchange") or body  # each record of a shared log is an exchange
    what = f"{exchange['method']} {exchange['path']} → {exchange['status']}" if "method" in exchange else ""
    details = body.get("details") or {}
    details = details if isinstance(details, dict) else {}
    kind, actor = str(body.get("kind", "exchange")), str(body.get("actor", ""))
    about = _STUDY.search(what)
    fields = details if about is None else {"about": about[1], **details}
    said = act(acts, "exchange.query", fields, names) if what.startswith("POST") and "/queries →" in what else None
    return {
        "seq": entry["seq"],
        "time": body.get("time"),
        "kind": kind,
        "actor": actor,
        "who": who(actor, names),
        "act": said or act(acts, kind, fields, names),
        "what": what,
        "details": details.items(),
        "leaf": entry["leaf"],
    }


GROUPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "data": ("Data", ("upload.", "dataset.", "bounds.")),
    "studies": ("Studies and releases", ("study.", "release.", "mechanism.")),
    "grants": ("Grants and tokens", ("grant.", "token.")),
    "queries": ("Queries and answers", ("query.", "exchange")),
    "measurements": ("Measurements", ("measurement.", "inbox.", "correction.")),
    "budget": ("Budget", ("charge", "charge.", "dataset.caps", "study.caps_raised")),
    "messages": ("Messages to the owner", ("message.",)),
    "records": ("Opened and withheld records", ("record.",)),
    "jobs": ("Forecasts and tunings", ("forecast.", "tuning.")),
    "runs": ("Runs", ("run.",)),
    "people": ("Users and sessions", ("user.", "session.")),
    "log": ("The log", ("log.", "checkpoint.")),
}
"""By the name in the address: kinds of records in words, and the kinds."""
_SIZE = 50
_STUDY = re.compile(r" /v1/studies/(std_[0-9a-f]{16})")


def _chosen(page: Page) -> dict[str, Any]:
    group = GROUPS.get(page.query.get("group", ""))
    return {
        "kind": group[1] if group else page.query.get("kind") or None,
        "actor": page.query.get("actor", "").strip().lower() or None,
        "about": page.query.get("about") or None,
        "grant_id": page.query.get("grant") or None,
        **days(page),
    }


async def log_values(
    page: Page, kinds: Sequence[str], acts: Acts, names: Mapping[str, str], **fixed: str
) -> dict[str, Any]:
    """Values of a page of the log: its records, newest first, the filter, and the pages before and after.

    ``kinds`` are the groups that can be chosen; ``acts`` are the service's own sentences and ``names`` what they call
    its things, by id; ``fixed`` replaces parts of the filter in the address.
    """
    query = _chosen(page) | fixed | {"page_size": _SIZE}
    order = {"order": "newest", "back": "oldest"}
    listing, newer, older = await turned(page, "/v1/audit/entries", "entries", "seq", **order, **query)
    names = {**{named["id"]: named["name"] for named in listing["names"]}, **names}
    return {
        "entries": [row_of(entry, {**ACTS, **acts}, names) for entry in listing["entries"]],
        "older": older,
        "newer": newer,
        "groups": [("", "all"), *((name, GROUPS[name][0]) for name in kinds)],
    }


async def log_state(page: Page) -> dict[str, Any]:
    return {
        "state": await page.api.get("/v1/audit/verification"),
        "head": await page.api.get("/v1/audit/checkpoint", grant_id=page.query.get("grant") or None),
    }


def add_log_pages(pages: Pages, roles: tuple[Role, ...]) -> None:
    @pages.post("/log:verify", roles=roles)
    async def verify(page: Page, form: Form) -> Response:
        return await _verify(page)

    @pages.get("/log/file", roles=roles)
    async def file(page: Page) -> Response:
        return await downloads.listing(
            page, "/v1/audit/entries", "entries", "audit-log", wire.AuditEntry, **_chosen(page)
        )


async def _verify(page: Page) -> Response:
    result = await page.api.post("/v1/audit:verify")
    if not result["sound"]:
        return page.go("/log", f"The log does not verify: {result['problem']}", mood="bad")
    shared = result["shared_logs"]
    logs = f" and {shared:,} shared log{'' if shared == 1 else 's'}" if shared else ""
    return page.go("/log", f"Verified: {result['size']:,} records{logs}, in {result['seconds']:.2g} s.")
