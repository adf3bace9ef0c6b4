"""Pages of the audit log in both consoles: its records as rows, its verification, and the log as a file."""

import json
from typing import Any

from starlette.responses import Response

from blindopt import wire
from service_kit.console import downloads
from service_kit.console.forms import Form
from service_kit.console.pages import Page, Pages
from service_kit.identity.tokens import Role


def row_of(entry: dict[str, Any]) -> dict[str, Any]:
    """A record as a row. A body that is no JSON is shown as unreadable."""
    try:
        body = json.loads(entry["body"])
        assert isinstance(body, dict)
    except (ValueError, RecursionError, AssertionError):
        body = {"kind": "unreadable"}
    exchange = body.get("exchange") or body  # each record of a shared log is an exchange
    what = f"{exchange['method']} {exchange['path']} → {exchange['status']}" if "method" in exchange else ""
    details = body.get("details") or {}
    return {
        "seq": entry["seq"],
        "time": body.get("time"),
        "kind": body.get("kind", "exchange"),
        "actor": body.get("actor", ""),
        "what": what,
        "details": details.items() if isinstance(details, dict) else (),
        "leaf": entry["leaf"],
    }


async def log_values(page: Page, kind: str | None = None, grant_id: str | None = None) -> dict[str, Any]:
    """Values of a page of the log: its records, newest first, the next page, its verification and its head."""
    query = {"order": "newest", "kind": kind, "grant_id": grant_id, "page_token": page.query.get("page_token")}
    listing = await page.api.get("/v1/audit/entries", **query)
    return {
        "entries": [row_of(entry) for entry in listing["entries"]],
        "next": listing["next_page_token"],
        "state": await page.api.get("/v1/audit/verification"),
        "head": await page.api.get("/v1/audit/checkpoint", grant_id=grant_id),
    }


def add_log_pages(pages: Pages, roles: tuple[Role, ...]) -> None:
    """Add the verification of the log, and the log as a file."""

    @pages.post("/log:verify", roles=roles)
    async def verify(page: Page, form: Form) -> Response:
        """Verify the whole log now."""
        return await _verify(page)

    @pages.get("/log/file", roles=roles)
    async def file(page: Page) -> Response:
        """Send the whole log as a file, from its first record."""
        query = {"kind": page.query.get("kind") or None, "grant_id": page.query.get("grant") or None}
        return await downloads.listing(page, "/v1/audit/entries", "entries", "audit-log", wire.AuditEntry, **query)


async def _verify(page: Page) -> Response:
    result = await page.api.post("/v1/audit:verify")
    if not result["sound"]:
        return page.go("/log", f"The log does not verify: {result['problem']}", mood="bad")
    shared = result["shared_logs"]
    logs = f" and {shared:,} shared log{'' if shared == 1 else 's'}" if shared else ""
    return page.go("/log", f"Verified: {result['size']:,} records{logs}, in {result['seconds']:.2g} s.")
