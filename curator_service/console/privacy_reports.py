"""Privacy reports: a page to print, and the signed file."""

import json

from starlette.responses import Response

from service_kit.console import Form, Page, Pages
from service_kit.console.exports import file_name

pages = Pages()


@pages.post("/studies/{study_id}:report", roles=("owner",))
async def of_study(page: Page, form: Form) -> Response:
    return await _report(page, form, f"/studies/{page.path['study_id']}", "Studies")


@pages.post("/datasets/{dataset_id}:report", roles=("owner",))
async def of_dataset(page: Page, form: Form) -> Response:
    return await _report(page, form, f"/datasets/{page.path['dataset_id']}", "Datasets")


async def _report(page: Page, form: Form, where: str, listing: str) -> Response:
    signed = await page.api.post(f"/v1{where}:report")
    if form.get("as") == "json":
        name = file_name(f"privacy-report-{where.rpartition('/')[2]}")
        headers = {"content-disposition": f'attachment; filename="{name}.json"'}
        return Response(json.dumps(signed, indent=2), media_type="application/json", headers=headers)
    trail = [(listing, f"/{listing.lower()}")]
    return page.show("privacy_report.html", title="Privacy report", trail=trail, where=where, signed=signed)
