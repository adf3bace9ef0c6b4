"""Notices: what the service told its people by webhook."""

from starlette.responses import Response

from shared.serving.console import ApiProblem, Form, Page, Pages

pages = Pages()


@pages.get("/notices", roles=("owner", "auditor"))
async def listed(page: Page) -> Response:
    """All of them."""
    found = await page.api.get("/v1/notices", page_token=page.query.get("page_token"))
    return page.show("notices.html", title="Notices", found=found)


@pages.post("/notices:test", roles=("owner",))
async def test(page: Page, form: Form) -> Response:
    """Send one now, and say what is wrong with the receiver."""
    try:
        told = await page.api.post("/v1/notices:test")
    except ApiProblem as problem:
        return page.go("/notices", problem.problem.detail, mood="bad")
    if told["delivered"]:
        return page.go("/notices", "The test notice arrived.")
    return page.go("/notices", f"The test notice did not arrive: {told['problem']}", mood="bad")
