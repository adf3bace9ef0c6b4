"""The audit log: its records, newest first, and its verification."""

from starlette.responses import Response

from curator_service.console.reading import every
from service_kit.console import Page, Pages
from service_kit.console.records import add_log_pages, log_values

pages = Pages()

KINDS = (
    *("charge", "charge.refused", "checkpoint.countersigned", "dataset.archived", "dataset.caps", "dataset.registered"),
    "exchange",
    *("forecast.cancelled", "forecast.started", "grant.created", "grant.revoked", "grant.rotated", "log.restored"),
    *("measurement.answered", "measurement.corrected", "measurement.declined", "measurement.tried_again"),
    *("mechanism.withdrawn", "query.answered", "query.corrected", "query.declined", "query.mean_released"),
    *(
        "release.abandoned",
        "release.begun",
        "session.ended",
        "session.opened",
        "study.caps_raised",
        "study.closed",
        "study.created",
        "study.released",
    ),
    *("token.issued", "token.revoked", "tuning.cancelled", "tuning.ended", "tuning.refused", "tuning.started"),
    *("user.added", "user.disabled", "user.password_set"),
)
_STUDIES = 20


@pages.get("/log", roles=("owner", "auditor"), nav="Audit")
async def log(page: Page) -> Response:
    """Records, and the state of the log."""
    kind, grant = page.query.get("kind") or None, page.query.get("grant") or None
    context = {
        "kind": kind,
        "kinds": KINDS,
        "grant": grant,
        "grants": await _grants(page, grant),
        "meta": await page.api.get("/v1/meta"),
        **await log_values(page, kind, grant),
    }
    return page.show("log.html", title="Audit log", **context)


async def _grants(page: Page, chosen: str | None) -> list[tuple[str, str]]:
    """Ids and names of the chosen grant and of those of the newest studies; none for an auditor."""
    if not page.may("owner"):
        return []
    named = [(chosen, chosen)] if chosen else []
    opened = [a for a in await every(page.api, "/v1/accounts", "accounts") if a["opened_at"]]
    for study in opened[: -_STUDIES - 1 : -1]:
        grants = await every(page.api, f"/v1/studies/{study['study_id']}/grants", "grants")
        named += [(grant["id"], f"{study['name']}: {grant['name']}") for grant in grants]
    return list(dict(named).items())


add_log_pages(pages, ("owner", "auditor"))
