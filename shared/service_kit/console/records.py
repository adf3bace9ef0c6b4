"""Records of the audit log as rows of a table, and verification of the log."""

import json
from typing import Any

from starlette.responses import Response

from service_kit.console.pages import Page


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


async def verify_log(page: Page) -> Response:
    """Verify every record of the log now, and show the result on its page."""
    result = await page.api.post("/v1/audit:verify")
    if not result["sound"]:
        return page.go("/log", f"The log does not verify: {result['problem']}", mood="bad")
    shared = result["shared_logs"]
    logs = f" and {shared:,} shared log{'' if shared == 1 else 's'}" if shared else ""
    return page.go("/log", f"Verified: {result['size']:,} records{logs}, in {result['seconds']:.2g} s.")
