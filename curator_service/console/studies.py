"""Studies: the list, and each study from draft to closed."""

import asyncio
from contextlib import suppress
from typing import Any

from starlette.responses import Response

from blindopt import wire
from blindopt.errors import BlindoptError
from curator_service.console import figures
from curator_service.console.live import follow_job
from curator_service.console.reading import every, shares
from service_kit.console import ApiProblem, Form, Page, Pages, downloads
from service_kit.console.housekeeping import add_housekeeping, chosen

pages = Pages()
_TRAIL = [("Studies", "/studies")]
_WAIT_SECONDS = 2.0
_under_way: set["asyncio.Task[str | None]"] = set()
"""Tasks of releases, one for each form: the event loop itself keeps no reference to a task."""
_failures: dict[str, str] = {}
"""By study, why a release failed after its page was sent; shown once."""


@pages.get("/studies", roles=("owner",), nav="Studies", section="Studies")
async def listed(page: Page) -> Response:
    if page.query.get("as"):
        return await downloads.listing(page, "/v1/studies", "studies", "studies", wire.StudyOwnerView, **chosen(page))
    listing = await page.api.get("/v1/studies", page_token=page.query.get("page_token"), **chosen(page))
    return page.show("studies.html", title="Studies", listing=listing)


@pages.get("/studies/{study_id}", roles=("owner",))
async def study(page: Page) -> Response:
    """One study: its state, and the actions that are possible."""
    context = await _context(page)
    if page.query.get("as") == "json":
        return page.stream(f"/v1/studies/{page.path['study_id']}")
    return _shown(page, context)


def _shown(page: Page, context: dict[str, Any], form: Form | None = None, status: int = 200) -> Response:
    return page.show("study.html", trail=_TRAIL, status=status, **{"form": form, "labels": None} | context)


async def _shown_with_labels(page: Page, labels: Form) -> Response:
    return _shown(page, await _context(page) | {"labels": labels}, status=422)


async def _context(page: Page) -> dict[str, Any]:
    study_id = page.path["study_id"]
    view = await page.api.get(f"/v1/studies/{study_id}")
    account = await page.api.get(f"/v1/studies/{study_id}/account")
    dataset = await page.api.get(f"/v1/datasets/{view['spec']['dataset_id']}")
    forecasts = await every(page.api, f"/v1/studies/{study_id}/forecasts", "forecasts")
    grants = await every(page.api, f"/v1/studies/{study_id}/grants", "grants")
    messages: dict[str, list[Any]] = {"recommendation": [], "budget": []}
    for message in await every(page.api, "/v1/messages", "messages", study_id=study_id):
        messages[message["message"]["kind"]].insert(0, message)
    checked = None
    if view["state"] == "draft":
        with suppress(ApiProblem):  # such as of a dataset that was archived meanwhile
            checked = await page.api.post("/v1/studies:check", view["spec"])
    return {
        "title": view["spec"]["name"],
        "study": view,
        "account": account,
        "shares": shares(account),
        "dataset": dataset,
        "forecasts": forecasts[::-1][:5],
        "messages": messages,
        "live_grants": sum(grant["state"] == "live" for grant in grants),
        "report": view["report"],
        "checked": checked,
        "chance": checked is not None and any(c["code"] == "answers_hide_search" for c in checked["cautions"]),
        "previewed": False,
        "high_risk": view["high_risk"],
        "failure": _failures.pop(study_id, None),
    }


@pages.get("/studies/{study_id}/state", roles=("owner",))
async def state(page: Page) -> Response:
    """The state of a release, as a part of the page."""
    view = await page.api.get(f"/v1/studies/{page.path['study_id']}")
    return page.fragment("study_state.html", study=view)


@pages.get("/studies/{study_id}/events", roles=("owner",))
async def events(page: Page) -> Response:
    return await follow_job(page, f"/v1/studies/{page.path['study_id']}")


@pages.get("/studies/{study_id}/results", roles=("owner",))
async def results(page: Page) -> Response:
    """The answers against each feature, and how much each matters."""
    where = f"/studies/{page.path['study_id']}"
    view, reply = await page.api.get(f"/v1{where}"), await page.api.get(f"/v1{where}/results")
    trail = [*_TRAIL, (view["spec"]["name"], where)]
    return page.show(
        "results.html", title="Results by feature", trail=trail, results=reply, charts=figures.by_feature(reply)
    )


@pages.post("/studies/{study_id}:preview", roles=("owner",))
async def preview(page: Page, form: Form) -> Response:
    """The preview of a release, with attacks on one that is thrown away."""
    context = await _context(page)
    try:
        report = await page.api.post(f"/v1/studies/{page.path['study_id']}:preview")
    except ApiProblem as problem:
        return _shown(page, context, form.failed(problem), problem.status)
    high = (report["verdict"] or {}).get("level") == "high"
    return _shown(page, context | {"report": report, "previewed": True, "high_risk": high})


@pages.get("/studies/{study_id}/previewing", roles=("owner",))
async def previewing(page: Page) -> Response:
    """The progress of a preview under way, as a part of the page."""
    jobs = (await page.api.get("/v1/jobs"))["jobs"]
    mine = (job for job in jobs if (job["kind"], job["study_id"]) == ("preview", page.path["study_id"]))
    return page.fragment("previewing_part.html", job=next(mine, None))


@pages.post("/studies/{study_id}:release", roles=("owner",))
async def release(page: Page, form: Form) -> Response:
    """Release a study. If that takes longer than a moment, it continues, and the study's page shows its progress."""
    study_id = page.path["study_id"]
    if not form.has("sure"):
        form.wrong("sure", 'Tick "I have read what is promised" before you release.')
    if form.has("high_risk") and not form.has("sure_high"):
        form.wrong("sure_high", "Tick this too before you release: the preview found a high risk.")
    if form.has("chance") and not form.has("sure_chance"):
        form.wrong("sure_chance", "Tick this too before you release: the vendor finds no better record than chance.")
    if not form.ok:
        return _shown(page, await _context(page), form.again(), 422)
    task = asyncio.create_task(_release(page, form))
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)
    done, _ = await asyncio.wait({task}, timeout=_WAIT_SECONDS)
    where = f"/studies/{study_id}"
    if not done:
        task.add_done_callback(lambda ended: _keep(study_id, ended))
        return page.go(where, "The release is being drawn: this page shows how far it is.", mood="note")
    if (failure := task.result()) is not None:
        return page.go(where, failure, mood="bad")
    return page.go(where, "Released: the study is open. Now give a modeler a grant.")


async def _release(page: Page, form: Form) -> str | None:
    """Why nothing was released; None if the release succeeded."""
    read = form.get("spec_sha256")  # only the draft that was shown is released
    confirmed = {"confirm_high_risk": form.has("sure_high"), "confirm_chance": form.has("sure_chance")}
    body = {"spec_sha256": read, **confirmed} if read else None
    try:
        await page.api.post(f"/v1/studies/{page.path['study_id']}:release", body, key=form.key)
    except ApiProblem as problem:
        return f"Nothing was released. {problem.in_words}"
    except (BlindoptError, OSError):
        return "Nothing was released: the service's own log says why."
    return None


def _keep(study_id: str, ended: "asyncio.Task[str | None]") -> None:
    if not ended.cancelled() and (failure := ended.result()) is not None:
        _failures[study_id] = failure


@pages.post("/studies/{study_id}:sandbox", roles=("owner",))
async def sandbox(page: Page, form: Form) -> Response:
    """Make a sandbox of a study. If that takes longer than a moment, it continues, and appears in the list."""
    study_id = page.path["study_id"]
    made: list[str] = []
    task = asyncio.create_task(_sandbox(page, form, made))
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)
    done, _ = await asyncio.wait({task}, timeout=_WAIT_SECONDS)
    if not done:
        task.add_done_callback(lambda ended: _keep(study_id, ended))
        return page.go("/studies", "The sandbox is being made: it will be the last of this list.", mood="note")
    if (failure := task.result()) is not None:
        return page.go(f"/studies/{study_id}", failure, mood="bad")
    return page.go(f"/studies/{made[0]}", "This is the sandbox. Give a vendor a grant for this study.")


async def _sandbox(page: Page, form: Form, made: list[str]) -> str | None:
    """Why no sandbox was made; None if it was, with its id in ``made``."""
    try:
        reply = await page.api.post(f"/v1/studies/{page.path['study_id']}:sandbox", key=form.key)
    except ApiProblem as problem:
        return f"No sandbox was made. {problem.in_words}"
    except (BlindoptError, OSError):
        return "No sandbox was made: the service's own log says why."
    made.append(reply["id"])
    return None


@pages.post("/studies/{study_id}:close", roles=("owner",))
async def close(page: Page, form: Form) -> Response:
    where = f"/studies/{page.path['study_id']}"
    await page.api.post(f"/v1{where}:close", key=form.key)
    return page.go(where, "Closed: the curator answers no further query. The vendor keeps what it received.")


add_housekeeping(
    pages,
    "/studies",
    "study_id",
    "owner",
    {
        "archive": "The study is archived: it is under Studies, archived.",
        "unarchive": "The study is out of the archive.",
        "label": "Note and tags are saved.",
        "delete": "The draft is deleted. The log keeps its records of the draft.",
    },
    _shown_with_labels,
)
