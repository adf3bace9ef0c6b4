"""The audit log: its records, newest first, and whether it verifies."""

from starlette.responses import Response

from service_kit.console import Page, Pages
from service_kit.console.records import add_log_pages, log_values

pages = Pages()


@pages.get("/log", roles=("vendor", "viewer"), nav="Audit")
async def log(page: Page) -> Response:
    """Records, and the state of the log."""
    return page.show("log.html", title="Audit log", **await log_values(page))


add_log_pages(pages, ("vendor", "viewer"))
