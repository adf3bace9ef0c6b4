"""The first page: open work of the person who has logged in."""

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from curator_service.console.reading import PAGE, every, follow, shares
from service_kit.console import ApiProblem, Page, Pages
from service_kit.console.notices import certificate_problems

pages = Pages()
_NEAR = 0.8
_SHOWN = 8


@pages.get("/", roles=("owner", "measurer", "auditor"), nav="Home")
async def home(page: Page) -> Response:
    context = await _waiting(page)
    if "verification" in context:  # not in what is followed: a log grows all the time
        newest = await page.api.get("/v1/audit/entries", order="newest", page_size=1)
        context["log_size"] = newest["entries"][0]["seq"] + 1
    return page.show("home.html", title="Needs your attention", **context)


@pages.get("/waiting/events", roles=("owner", "measurer", "auditor"))
async def events(page: Page) -> Response:
    return await follow(page, lambda: _waiting(page))


async def _waiting(page: Page) -> dict[str, Any]:
    context: dict[str, Any] = {
        "open": None,
        "drafts": [],
        "near": [],
        "jobs": [],
        "messages": [],
        "certificates": [],
        "links": [],
        "datasets": None,
        "undecided": [],
        "uploads": [],
        "steps": (),
    }
    if page.may("owner", "measurer"):
        context["open"] = await open_measurements(page)
    if page.may("owner", "auditor"):
        accounts = await every(page.api, "/v1/accounts", "accounts")
        context["studies"] = len(accounts)
        context["near"] = [
            (account, spent)
            for account in accounts
            if account["state"] == "open" and (spent := [part for part in shares(account) if part["share"] >= _NEAR])
        ][:_SHOWN]
        context["verification"] = await page.api.get("/v1/audit/verification")
        context["certificates"] = await certificate_problems(page)
    if page.may("owner"):
        names = {account["study_id"]: account["name"] for account in accounts}
        messages = await every(page.api, "/v1/messages", "messages", only_open=True)
        context["messages"] = [message | {"study": names[message["study_id"]]} for message in messages]
        drafts = [a for a in accounts if a["state"] == "draft" and a["archived_at"] is None]
        context["drafts"] = drafts[-_SHOWN:][::-1]
        context["jobs"] = await _jobs(page)
        context["links"] = (await page.api.get("/v1/links"))["links"]
        context["datasets"] = len((await page.api.get("/v1/datasets", page_size=2))["datasets"])
        context["undecided"] = (await page.api.get("/v1/datasets", undecided=True, page_size=_SHOWN))["datasets"]
        context["uploads"] = [
            {name: upload[name] for name in ("id", "filename", "rows", "expires_at")}
            for upload in (await page.api.get("/v1/uploads"))["uploads"]
        ]
        context["steps"] = await _first_steps(page, context, accounts)
    return context


async def _first_steps(
    page: Page, context: Mapping[str, Any], accounts: list[dict[str, Any]]
) -> list[tuple[str, str | None, bool]]:
    """Name, path and whether it is done, of each step to a first recommendation; none once one was decided about."""
    is_answered = any(account["total_plays"] for account in accounts)
    messages = (await page.api.get("/v1/messages", page_size=PAGE))["messages"] if is_answered else []
    recommended = [message for message in messages if message["message"]["kind"] != "budget"]
    if any(message["state"] != "open" for message in recommended):
        return []
    draft, opened = (
        next((a["study_id"] for a in accounts if a["state"] == state), None) for state in ("draft", "open")
    )
    granted = opened is not None and (await page.api.get(f"/v1/studies/{opened}/grants", page_size=1))["grants"]
    decide = f"/messages/{recommended[0]['id']}" if recommended else None
    uploads = context["uploads"]
    first = (
        ("Decide how your file is read", f"/datasets/uploads/{uploads[0]['id']}")
        if uploads and not context["datasets"]
        else ("Upload a dataset", "/datasets/new")
    )
    return [
        (*first, context["datasets"] > 0),
        ("Define a study: features, outcome, privacy, budget", "/studies/new", bool(accounts)),
        ("Preview and release the study", draft and f"/studies/{draft}", opened is not None),
        ("Give a vendor a grant", opened and f"/studies/{opened}/grants", bool(granted)),
        ("Answer the measurements that the vendor requests", "/inbox", is_answered),
        ("Decide about the record that the vendor recommends", decide, False),
    ]


async def _jobs(page: Page) -> list[dict[str, Any]]:
    """What is under way, and files that wait: in one request, since the page sends it each second."""
    jobs = []
    for job in (await page.api.get("/v1/jobs"))["jobs"][:_SHOWN]:
        path = {
            "preview": f"/studies/{job['study_id']}",
            "reading": "/datasets",
            "release": f"/studies/{job['study_id']}",
            "forecast": f"/studies/{job['study_id']}/forecasts/{job['id']}",
            "tuning": f"/tunings/{job['id']}",
        }[job["kind"]]
        jobs.append(job | {"what": job["kind"].capitalize(), "path": path})
    return jobs


async def open_measurements(page: Page) -> int | None:
    """How many measurements are open; None if there is no inbox."""
    try:
        return int((await page.api.get("/v1/inbox", page_size=1))["open"])
    except ApiProblem as problem:
        if problem.status == 404:
            return None
        raise
