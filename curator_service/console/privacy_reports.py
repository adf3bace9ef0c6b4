"""Privacy reports: a page to print, and the signed file."""

import base64
import json
from hashlib import sha256

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
    content = json.dumps(signed, indent=2).encode()  # the page and the file are of one report: attacks draw anew
    return page.show(
        "privacy_report.html",
        title="Privacy report",
        trail=[(listing, f"/{listing.lower()}")],
        signed=signed,
        name=file_name("privacy-report-" + where.rpartition("/")[2]) + ".json",
        digest=sha256(content).hexdigest(),
        download="data:application/json;base64," + base64.b64encode(content).decode(),
    )
