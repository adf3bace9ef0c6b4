"""The audit log: its records, newest first, and its verification; and the notices that the curator sent."""

from typing import Any

from starlette.responses import Response

from blindopt import wire
from blindopt.display import counted
from curator_service.console.reading import every
from service_kit.console import Page, Pages
from service_kit.console.acts import Acts
from service_kit.console.notices import pages_of
from service_kit.console.records import GROUPS, add_log_pages, log_state, log_values

pages = Pages()

_STUDIES = 20
_ACTS: Acts = {
    "bounds.started": ("used epsilon {epsilon} of each record of {dataset_id} to find bounds",),
    "bounds.released": ("released private bounds of {dataset_id}",),
    "bounds.refused": ("was refused private bounds of {dataset_id}: the cap is reached",),
    "candidates.left_out": ("left withheld records out of what {grant_id} gets of {study_id}",),
    "charge": (
        "used epsilon {epsilon} of {study_id} for {rows} of its candidates",
        "is sent exact answers about {study_id}",
    ),
    "charge.refused": ("was refused a query of {study_id}: the cap is reached",),
    "correction.refused": ("was refused a correction in {study_id}: the cap is reached",),
    "dataset.registered": ("registered the dataset {dataset_id}",),
    "dataset.archived": ("archived the dataset {dataset_id}",),
    "dataset.unarchived": ("took the dataset {dataset_id} out of the archive",),
    "dataset.labelled": ("changed note and tags of the dataset {dataset_id}",),
    "dataset.caps": ("changed the caps of the account of {dataset_id}",),
    "dataset.compared": ("compared the people of {dataset_id} with those of earlier files",),
    "dataset.decided": ("decided whose account {dataset_id} continues",),
    "dataset.deleted": ("deleted the dataset {dataset_id}",),
    "dataset.erased": ("erased the dataset {dataset_id}",),
    "exchange": ("sent a request about {about}", "sent a request"),
    "exchange.query": ("queried {about}",),
    "forecast.started": ("started a forecast of {study_id}",),
    "forecast.ended": ("ended a forecast of {study_id}: {state}",),
    "forecast.cancelled": ("cancelled a forecast of {study_id}",),
    "grant.created": ("gave {grant_id} a grant of {study_id}",),
    "grant.limited": ("set how many bytes {grant_id} may add to the logs in a day",),
    "grant.revoked": ("revoked the grant of {study_id} for {grant_id}",),
    "grant.rotated": ("issued a further token of {study_id} for {grant_id}",),
    "inbox.imported": ("imported a spreadsheet: {answered} answered, {declined} declined, {corrected} corrected",),
    "letter.written": ("wrote a letter to a person in {dataset_id}",),
    "measurement.answered": ("entered measurements for {study_id}",),
    "measurement.corrected": ("corrected measurements for {study_id}",),
    "measurement.declined": ("declined measurements for {study_id}",),
    "measurement.overdue": ("declined measurements for {study_id}, because their time had passed",),
    "measurement.tried_again": ("called the measuring system again",),
    "mechanism.withdrawn": ("withdrew a mechanism: its studies promise nothing",),
    "message.decided": ("answered a message of a vendor about {study_id}: {decision}",),
    "message.received": ("sent the owner a message about {study_id}",),
    "query.all_answered": ("had every group of {study_id} answered at once",),
    "query.answered": ("sent answers for {study_id}",),
    "query.mean_released": ("released the mean of other measurements for {study_id}",),
    "record.opened": ("opened {records} records behind candidates of {study_id}", "opened a record of {study_id}"),
    "record.withheld": ("withheld a record of {dataset_id}",),
    "release.begun": ("began to draw the candidates of {study_id}",),
    "release.abandoned": ("gave up the release of {study_id}",),
    "study.archived": ("archived {study_id}",),
    "study.unarchived": ("took {study_id} out of the archive",),
    "study.labelled": ("changed note and tags of {study_id}",),
    "study.created": ("made the draft {study_id}",),
    "study.changed": ("changed the draft {study_id}",),
    "study.deleted": ("deleted the draft {study_id}",),
    "study.released": ("released {study_id}: {known}", "released {study_id}"),
    "study.caps_raised": ("raised caps of {study_id}",),
    "study.closed": ("closed {study_id}",),
    "tuning.started": ("used epsilon {epsilon} of each record of {dataset_id} for a tuning", "began a tuning"),
    "tuning.ended": ("ended a tuning: {state}",),
    "tuning.cancelled": ("cancelled a tuning",),
    "tuning.refused": ("was refused a tuning on {dataset_id}: the cap is reached",),
    "upload.kept": ("uploaded a file",),
    "upload.discarded": ("deleted a file that waited for a decision",),
}


@pages.get("/log", roles=("owner", "auditor"), nav="Audit")
async def log(page: Page) -> Response:
    accounts = await every(page.api, "/v1/accounts", "accounts")
    names = {account["study_id"]: account["name"] for account in accounts}
    names |= {account["dataset_id"]: f"the dataset of {account['name']}" for account in accounts[::-1]}
    if page.may("owner"):
        names |= {item["id"]: item["name"] for item in await every(page.api, "/v1/datasets", "datasets")}
    for account in accounts:
        if account["release_epsilon"] is not None:
            used = f"epsilon {account['release_epsilon']} for each of {counted(account['records'], 'record')}"
            names[f"study.released:{account['study_id']}"] = used
    context = {
        "abouts": [(account["study_id"], account["name"]) for account in accounts[::-1]],
        "about_label": "Study",
        "grants": await _grants(page, accounts, page.query.get("grant")),
        "meta": await page.api.get("/v1/meta"),
        **await log_values(page, [name for name in GROUPS if name != "runs"], _ACTS, names),
        **await log_state(page),
    }
    return page.show("log.html", title="Audit log", **context)


async def _grants(page: Page, accounts: list[dict[str, Any]], chosen: str | None) -> list[tuple[str, str]]:
    """Ids and names of the chosen grant and of those of the newest studies; none for an auditor."""
    if not page.may("owner"):
        return []
    named = [(chosen, chosen)] if chosen else []
    opened = [a for a in accounts if a["opened_at"]]
    for study in opened[: -_STUDIES - 1 : -1]:
        grants = await every(page.api, f"/v1/studies/{study['study_id']}/grants", "grants")
        named += [(grant["id"], f"{study['name']}: {grant['name']}") for grant in grants]
    return list(dict(named).items())


add_log_pages(pages, ("owner", "auditor"))


def _about(page: Page, subject: wire.NoticeSubject) -> tuple[str, str] | None:
    if subject.study_id is None:
        return None
    return "study", f"/{'studies' if page.may('owner') else 'accounts'}/{subject.study_id}"


notices = pages_of(_about, readers=("owner", "auditor"), testers=("owner",))
"""Notices that the curator sent to its people by webhook."""
