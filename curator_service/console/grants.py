"""Grants: a modeler's tokens for one study."""

import base64
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from starlette.responses import Response

from blindopt import wire
from blindopt.addresses import is_loopback
from service_kit.console import ApiProblem, Form, Page, Pages, downloads

pages = Pages()
DAYS = 90


def _where(page: Page) -> str:
    return f"/studies/{page.path['study_id']}/grants"


@pages.get("/studies/{study_id}/grants", roles=("owner",))
async def listed(page: Page) -> Response:
    if page.query.get("as"):
        return await downloads.listing(
            page, f"/v1{_where(page)}", "grants", f"grants-{page.path['study_id']}", wire.GrantView
        )
    return await _listed(page, Form.blank(expires_in_days=DAYS))


async def _listed(
    page: Page, form: Form, status: int = 200, limits: Mapping[str, Form] = MappingProxyType({})
) -> Response:
    study = await page.api.read(f"/v1/studies/{page.path['study_id']}", wire.StudyOwnerView)
    listing = await page.api.read(f"/v1{_where(page)}", wire.GrantPage, page_token=page.query.get("page_token"))
    trail = [("Studies", "/studies"), (study.spec.name, f"/studies/{study.id}")]
    context: dict[str, Any] = {"study": study, "listing": listing, "form": form, "limits": limits}
    return page.show("grants.html", title="Grants", trail=trail, status=status, **context)


@pages.post("/studies/{study_id}/grants", roles=("owner",))
async def make(page: Page, form: Form) -> Response:
    """Create a grant. Its token is shown on the next page alone."""
    body = {"name": form.text("name", "For whom it is"), "expires_in_days": form.integer("expires_in_days")}
    if not form.ok:
        return await _listed(page, form.again(), 422)
    try:
        made = await page.api.ask(f"/v1{_where(page)}", wire.GrantReply, body, key=form.key)
    except ApiProblem as problem:
        return await _listed(page, form.failed(problem), problem.status)
    return await _shown(page, made)


@pages.post("/studies/{study_id}/grants/{grant_id}:rotate", roles=("owner",))
async def rotate(page: Page, form: Form) -> Response:
    body = {"expires_in_days": DAYS}
    where = f"/v1{_where(page)}/{page.path['grant_id']}:rotate"
    made = await page.api.ask(where, wire.GrantReply, body, key=form.key)
    return await _shown(page, made)


async def _shown(page: Page, grant: wire.GrantReply) -> Response:
    study = await page.api.read(f"/v1/studies/{page.path['study_id']}", wire.StudyOwnerView)
    path = f"/studies/{study.id}"
    url = page.request.url  # behind a proxy that ends TLS, only the browser knows the scheme
    address = grant.url or page.request.headers.get("origin") or f"{url.scheme}://{url.netloc}"
    text = wire.GrantFile.of(grant, address).model_dump_json(indent=2)
    context: dict[str, Any] = {
        "trail": [("Studies", "/studies"), (study.spec.name, path), ("Grants", f"{path}/grants")],
        "made": grant,
        "address": address,
        "is_local": is_loopback(urlsplit(address).hostname or ""),
        "text": text,
        "download": "data:application/json;base64," + base64.b64encode(text.encode()).decode(),
    }
    return page.show("grant_made.html", title="A grant for a vendor", **context)


@pages.post("/studies/{study_id}/grants/{grant_id}/log_quota", roles=("owner",))
async def limit(page: Page, form: Form) -> Response:
    grant_id = page.path["grant_id"]
    megabytes = form.integer(field := f"quota_{grant_id}", needed=False)
    if megabytes is not None and not 2 <= megabytes < 10**9:
        form.errors[field] = "Enter 2 MB a day or more"
    if not form.ok:
        return await _listed(page, Form.blank(expires_in_days=DAYS), 422, {grant_id: form.again()})
    body = {"bytes_per_day": None if megabytes is None else megabytes * 10**6}
    await page.api.put(f"/v1{_where(page)}/{grant_id}/log_quota", body, key=form.key)
    return page.go(_where(page), "Set: the quota holds from now on.")


@pages.post("/studies/{study_id}/grants/{grant_id}:revoke", roles=("owner",))
async def revoke(page: Page, form: Form) -> Response:
    await page.api.post(f"/v1{_where(page)}/{page.path['grant_id']}:revoke", key=form.key)
    return page.go(_where(page), "Revoked: its tokens are refused from now on.")


@pages.post("/studies/{study_id}/grants/{grant_id}/tokens/{kid}:revoke", roles=("owner",))
async def revoke_token(page: Page, form: Form) -> Response:
    where = f"/v1{_where(page)}/{page.path['grant_id']}/tokens/{page.path['kid']}"
    await page.api.post(f"{where}:revoke", key=form.key)
    return page.go(_where(page), "Revoked: this token is refused from now on.")
