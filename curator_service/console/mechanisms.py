"""Release mechanisms: their claims, and those that were withdrawn."""

from typing import Any

from starlette.responses import Response

from blindopt import wire
from service_kit.console import ApiProblem, Form, Page, Pages, downloads

pages = Pages()


@pages.get("/mechanisms", roles=("owner", "auditor"), nav="Mechanisms", section="Settings")
async def listed(page: Page) -> Response:
    """The list of mechanisms."""
    if page.query.get("as"):
        return await downloads.listing(page, "/v1/advisories", "advisories", "withdrawn", wire.AdvisoryView)
    return await _listed(page, Form.blank(mechanism=page.query.get("mechanism")))


async def _listed(page: Page, form: Form, status: int = 200) -> Response:
    meta: dict[str, Any] = await page.api.get("/v1/meta")
    listing = await page.api.get("/v1/advisories", page_token=page.query.get("page_token"))
    return page.show("mechanisms.html", title="Mechanisms", status=status, meta=meta, listing=listing, form=form)


@pages.post("/mechanisms:withdraw", roles=("owner",))
async def withdraw(page: Page, form: Form) -> Response:
    """Withdraw a mechanism for good."""
    name = form.text("mechanism", "A mechanism")
    reason = form.text("reason", "A reason")
    if not form.has("sure"):
        form.wrong("sure", "Say that it is for good")
    if not form.ok:
        return await _listed(page, form.again(), 422)
    meta = await page.api.get("/v1/meta")
    version = next((m["version"] for m in meta["mechanisms"] if m["name"] == name), 1)
    try:
        await page.api.post("/v1/advisories", {"mechanism": name, "version": version, "reason": reason}, key=form.key)
    except ApiProblem as problem:
        return await _listed(page, form.failed(problem), problem.status)
    return page.go("/mechanisms", f"Withdrawn: no new release uses {name.replace('_', ' ')}. Open studies stay open.")
