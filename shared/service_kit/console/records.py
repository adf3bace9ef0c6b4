"""Records of the audit log as rows of a table, and the log verified upon request."""

import json
from typing import Any

from starlette.responses import Response

from service_kit.console.pages import Page


def row_of(entry: dict[str, Any]) -> dict[str, Any]:
    """A record as a row; one whose body is no JSON is shown as it is."""
    try:
        body = json.loads(entry["body"])
        assert isinstance(body, dict)
    except (ValueError, RecursionError, AssertionError):
        body = {"kind": "unreadable"}
    told = body.get("exchange") or body  # a shared log holds exchanges alone
    what = f"{told['method']} {told['path']} → {told['status']}" if "method" in told else ""
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


async def verified(page: Page) -> Response:
    """Walk all of the log now, and tell on its page what came of it."""
    found = await page.api.post("/v1/audit:verify")
    if not found["sound"]:
        return page.go("/log", f"The log does not verify: {found['problem']}", mood="bad")
    shared = found["shared_logs"]
    logs = f" and {shared:,} shared log{'' if shared == 1 else 's'}" if shared else ""
    return page.go("/log", f"Verified: {found['size']:,} records{logs}, in {found['seconds']:.2g} s.")
