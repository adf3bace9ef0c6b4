"""The audit log: its records, newest first, and its verification; and the notices that the curator sent."""

from typing import Any

from starlette.responses import Response

from blindopt import wire
from curator_service.console.reading import every
from service_kit.console import Page, Pages
from service_kit.console.notices import pages_of
from service_kit.console.records import GROUPS, add_log_pages, log_state, log_values

pages = Pages()

_STUDIES = 20


@pages.get("/log", roles=("owner", "auditor"), nav="Audit")
async def log(page: Page) -> Response:
    """Records, and the state of the log."""
    accounts = await every(page.api, "/v1/accounts", "accounts")
    context = {
        "abouts": [(account["study_id"], account["name"]) for account in accounts[::-1]],
        "about_label": "Study",
        "grants": await _grants(page, accounts, page.query.get("grant")),
        "meta": await page.api.get("/v1/meta"),
        **await log_values(page, [name for name in GROUPS if name != "runs"]),
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
