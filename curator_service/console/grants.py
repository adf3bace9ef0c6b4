"""Grants: a modeler's tokens for one study."""

from typing import Any

from starlette.responses import Response

from blindopt import wire
from service_kit.console import ApiProblem, Form, Page, Pages, downloads

pages = Pages()
DAYS = 90


def _where(page: Page) -> str:
    return f"/studies/{page.path['study_id']}/grants"


@pages.get("/studies/{study_id}/grants", roles=("owner",))
async def listed(page: Page) -> Response:
    """Those of a study, and a new one."""
    if page.query.get("as"):
        return await downloads.listing(
            page, f"/v1{_where(page)}", "grants", f"grants-{page.path['study_id']}", wire.GrantView
        )
    return await _listed(page, Form.blank(days=DAYS))


async def _listed(page: Page, form: Form, status: int = 200) -> Response:
    study = await page.api.get(f"/v1/studies/{page.path['study_id']}")
    found = await page.api.get(f"/v1{_where(page)}", page_token=page.query.get("page_token"))
    trail = [("Studies", "/studies"), (study["spec"]["name"], f"/studies/{study['id']}")]
    return page.show("grants.html", title="Grants", trail=trail, status=status, study=study, found=found, form=form)


@pages.post("/studies/{study_id}/grants", roles=("owner",))
async def make(page: Page, form: Form) -> Response:
    """Make one; its token is shown on the very page that answers, and never again."""
    body = {"name": form.text("name", "For whom it is"), "expires_in_days": form.integer("days")}
    if not form.ok:
        return await _listed(page, form.again(), 422)
    try:
        made = await page.api.post(f"/v1{_where(page)}", body, key=form.key)
    except ApiProblem as problem:
        return await _listed(page, form.failed(problem, {"expires_in_days": "days"}), problem.status)
    return await _shown(page, made)


@pages.post("/studies/{study_id}/grants/{grant_id}:rotate", roles=("owner",))
async def rotate(page: Page, form: Form) -> Response:
    """A further token, shown once."""
    body = {"expires_in_days": DAYS}
    made = await page.api.post(f"/v1{_where(page)}/{page.path['grant_id']}:rotate", body, key=form.key)
    return await _shown(page, made)


async def _shown(page: Page, made: dict[str, object]) -> Response:
    study = await page.api.get(f"/v1/studies/{page.path['study_id']}")
    here = f"/studies/{study['id']}"
    seen = page.request.url  # behind a proxy that ends TLS, the browser alone knows its scheme
    told: dict[str, Any] = {
        "trail": [("Studies", "/studies"), (study["spec"]["name"], here), ("Grants", f"{here}/grants")],
        "address": page.request.headers.get("origin") or f"{seen.scheme}://{seen.netloc}",
        "made": made,
    }
    return page.show("grant_made.html", title="A token for a modeler", **told)


@pages.post("/studies/{study_id}/grants/{grant_id}:revoke", roles=("owner",))
async def revoke(page: Page, form: Form) -> Response:
    """Refuse all of its tokens."""
    await page.api.post(f"/v1{_where(page)}/{page.path['grant_id']}:revoke", key=form.key)
    return page.go(_where(page), "Revoked: its tokens are refused from now on.")


@pages.post("/studies/{study_id}/grants/{grant_id}/tokens/{kid}:revoke", roles=("owner",))
async def revoke_token(page: Page, form: Form) -> Response:
    """Refuse one token."""
    where = f"/v1{_where(page)}/{page.path['grant_id']}/tokens/{page.path['kid']}"
    await page.api.post(f"{where}:revoke", key=form.key)
    return page.go(_where(page), "Revoked: this token is refused from now on.")
