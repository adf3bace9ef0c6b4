"""The owner's own system that measures: its state, the measurements that wait for it, and retries."""

from typing import Any

from starlette.responses import Response

from blindopt import wire
from service_kit.console import ApiProblem, Form, Page, Pages
from service_kit.console.downloads import listing

pages = Pages()
_TRAIL = [("Inbox", "/inbox")]
_SHOWN = 50
_COLUMNS = ("id", "query_id", "study", "record", "play", "asked_at", "system")


@pages.get("/inbox/system", roles=("owner", "measurer"))
async def system(page: Page) -> Response:
    """The state of the system, with the measurements that were given up, or else those that wait for it."""
    view = await page.api.read("/v1/inbox/system", wire.MeasuringSystem)
    state = "given_up" if view.given_up and page.query.get("list") != "waiting" else "waiting"
    if page.query.get("as"):
        return await listing(page, "/v1/inbox", "items", f"measurements-{state}", _COLUMNS, system=state)
    token = page.query.get("page_token")
    items = await page.api.read("/v1/inbox", wire.InboxPage, system=state, page_size=_SHOWN, page_token=token)
    context: dict[str, Any] = {"system": view, "listing": items, "list": state}
    return page.show("system.html", title="The system that measures", trail=_TRAIL, **context)


@pages.post("/inbox/system:try_again", roles=("owner", "measurer"))
async def try_all_again(page: Page, form: Form) -> Response:
    """Call the system now for all measurements that wait or were given up."""
    try:
        tried = await page.api.post("/v1/inbox/system:try_again", key=form.key)
    except ApiProblem as problem:
        return page.go("/inbox/system", problem.in_words, mood="bad")
    return page.go("/inbox/system", f"Your system is called now. Brought forward: {tried['measurements']:,}.")


@pages.post("/inbox/{measurement_id}:try_again", roles=("owner", "measurer"))
async def try_again(page: Page, form: Form) -> Response:
    path = f"/inbox/{page.path['measurement_id']}"
    try:
        await page.api.post(f"/v1/inbox/measurements/{page.path['measurement_id']}:try_again", key=form.key)
    except ApiProblem as problem:
        if problem.status == 404:
            raise
        return page.go(path, problem.in_words, mood="bad")
    return page.go(path, "Your system is called for it now. Look again in a moment.")
