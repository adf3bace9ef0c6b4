"""The first page."""

from starlette.responses import Response

from shared.serving.console import Page, Pages

pages = Pages()


@pages.get("/", roles=("owner", "measurer", "auditor"), nav="Home")
async def home(page: Page) -> Response:
    """Where one lands after the login."""
    meta = await page.api.get("/v1/meta")
    return page.show("home.html", title="Home", meta=meta)
