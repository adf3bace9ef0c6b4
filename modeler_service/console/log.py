"""The audit log: its records, newest first, and whether it verifies."""

from starlette.responses import Response

from blindopt import wire
from service_kit.console import Form, Page, Pages, downloads
from service_kit.console.records import row_of, verify_log

pages = Pages()


@pages.get("/log", roles=("vendor", "viewer"), nav="Log")
async def log(page: Page) -> Response:
    """Records, and the state of the log."""
    entries = await page.api.get("/v1/audit/entries", order="newest", page_token=page.query.get("page_token"))
    values = {
        "entries": [row_of(entry) for entry in entries["entries"]],
        "next": entries["next_page_token"],
        "state": await page.api.get("/v1/audit/verification"),
        "head": await page.api.get("/v1/audit/checkpoint"),
    }
    return page.show("log.html", title="Audit log", **values)


@pages.post("/log:verify", roles=("vendor", "viewer"))
async def verify(page: Page, form: Form) -> Response:
    """Verify the whole log now."""
    return await verify_log(page)


@pages.get("/log/file", roles=("vendor", "viewer"))
async def file(page: Page) -> Response:
    """Send the whole log as a file, from its first record."""
    return await downloads.listing(page, "/v1/audit/entries", "entries", "audit-log", wire.AuditEntry)
