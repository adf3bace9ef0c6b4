"""Studies: the list, and each study from draft to closed."""

import asyncio
from contextlib import suppress
from typing import Any

from starlette.responses import Response

from blindopt import wire
from blindopt.errors import BlindoptError
from curator_service.console import figures
from curator_service.console.reading import every, follow, shares
from service_kit.console import ApiProblem, Form, Page, Pages, downloads
from service_kit.console.housekeeping import add_housekeeping, chosen

pages = Pages()
_TRAIL = [("Studies", "/studies")]
_WAIT_SECONDS = 2.0
_under_way: set["asyncio.Task[dict[str, Any] | str]"] = set()
"""Tasks of releases, one for each form: the event loop itself keeps no reference to a task."""
_CHECKS_MAX = 100
_FORECAST_SECONDS = 30
"""How long the page of a draft waits for its forecast before it offers the release."""
_CHECK_TRIES = 30
_checks: dict[str, tuple[str, "asyncio.Task[dict[str, Any] | str]"]] = {}
"""By study, the digest of its draft and the check of it: a preview, or why there is none. It is in memory alone."""
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
    if page.query.get("as") == "json":
        return page.stream(f"/v1/studies/{page.path['study_id']}")
    return await _shown(page)


@pages.get("/studies/{study_id}/promise", roles=("owner",))
async def promise(page: Page) -> Response:
    """What a study promises and what not, in words and in numbers."""
    context = await _study(page)
    report = context["study"]["report"] or await _checked(page, context["study"])
    account = await page.api.get(f"/v1/studies/{page.path['study_id']}/account")
    context |= {"report": report, "account": account}
    return page.show("study_promise.html", trail=_trail(context), tab="Promise", **context | {"title": "Promise"})


@pages.get("/studies/{study_id}/settings", roles=("owner",))
async def settings(page: Page) -> Response:
    return await _settings(page)


async def _settings(page: Page, labels: Form | None = None) -> Response:
    context = await _study(page) | {"labels": labels, "title": "Settings"}
    status = 200 if labels is None else 422
    return page.show("study_settings.html", trail=_trail(context), status=status, tab="Settings", **context)


def _trail(context: dict[str, Any]) -> list[tuple[str, str]]:
    return [*_TRAIL, (context["study"]["spec"]["name"], f"/studies/{context['study']['id']}")]


async def _study(page: Page) -> dict[str, Any]:
    view = await page.api.get(f"/v1/studies/{page.path['study_id']}")
    return {"study": view, "dataset": await page.api.get(f"/v1/datasets/{view['spec']['dataset_id']}")}


async def _checked(page: Page, view: dict[str, Any]) -> Any:
    """What public values say of a draft; None if it cannot be made, such as of a dataset that was archived."""
    with suppress(ApiProblem):
        return await page.api.post("/v1/studies:check", view["spec"])
    return None


async def _shown(page: Page, form: Form | None = None, status: int = 200) -> Response:
    study_id = page.path["study_id"]
    context = await _study(page)
    view = context["study"]
    account = await page.api.get(f"/v1/studies/{study_id}/account")
    grants = await every(page.api, f"/v1/studies/{study_id}/grants", "grants")
    messages: dict[str, list[Any]] = {"recommendation": [], "budget": []}
    for message in await every(page.api, "/v1/messages", "messages", study_id=study_id):
        messages["budget" if message["message"]["kind"] == "budget" else "recommendation"].insert(0, message)
    context |= {
        "title": view["spec"]["name"],
        "account": account,
        "shares": shares(account),
        "messages": messages,
        "live_grants": sum(grant["state"] == "live" for grant in grants),
        "report": view["report"],
        "high_risk": view["high_risk"],
        "failure": _failures.pop(study_id, None),
        "form": form,
        "tab": "Check" if view["state"] == "draft" else "Overview",
        "checking": None,
        "checked": None,
        "problem": None,
        "cautions": {"cautions": [], "record_cautions": []},
    }
    if view["state"] == "draft" and not context["dataset"]["erased_at"]:
        context |= await _draft(page, view)
    else:
        _checks.pop(study_id, None)
    return page.show("study.html", trail=_TRAIL, status=status, **context)


# --- the check of a draft ---------------------------------------------------------------------------


def start_check(page: Page, view: dict[str, Any]) -> None:
    """Check a draft in a task, once for each state of it. What it finds stays in memory until the draft changes."""
    study_id, digest = view["id"], view["spec_sha256"]
    if study_id in _checks and _checks[study_id][0] == digest and not _checks[study_id][1].done():
        return
    _checks.pop(study_id, None)
    _checks[study_id] = digest, asyncio.create_task(_check(page, study_id, view["spec"]))
    for oldest in list(_checks)[:-_CHECKS_MAX]:
        del _checks[oldest]


async def _check(page: Page, study_id: str, spec: dict[str, Any]) -> dict[str, Any] | str:
    """The preview of a draft, once no other is under way, or why there is none. Waits for its forecast."""
    await _is_forecasting(page, spec)
    for _ in range(_CHECK_TRIES):
        try:
            report: dict[str, Any] = await page.api.post(f"/v1/studies/{study_id}:preview")
            for _ in range(_FORECAST_SECONDS):
                if not await _is_forecasting(page, spec):
                    break
                await asyncio.sleep(1)
            return report
        except ApiProblem as problem:
            if problem.status != 503:
                return problem.in_words
            await asyncio.sleep(_WAIT_SECONDS)
        except (BlindoptError, OSError):
            break
    return "The draft was not checked: the service is busy, or its own log says why. Check it again."


async def _is_forecasting(page: Page, spec: dict[str, Any]) -> bool:
    """Whether the forecast of a draft is under way, which this starts unless it was made before."""
    with suppress(ApiProblem):  # such as of a dataset of one record
        made = await page.api.ask("/v1/studies:forecast", wire.PublicForecast, spec, of_answers="true")
        return made.state == "running"
    return False


async def _draft(page: Page, view: dict[str, Any]) -> dict[str, Any]:
    """What is known of a draft: from public values, and by its check."""
    digest, task = _checks.get(view["id"], ("", None))
    checking = task is not None and not task.done()
    ended = task.result() if task is not None and task.done() and digest == view["spec_sha256"] else None
    checked, report = await _checked(page, view), ended if isinstance(ended, dict) else None
    cautions: dict[str, list[Any]] = {}
    for name in ("cautions", "record_cautions"):
        # Public ones are the same, but for a forecast that has ended since.
        sources = [checked or report] if name == "cautions" else [checked, report]
        listed = [caution for source in sources for caution in (source or {}).get(name, [])]
        cautions[name] = list({caution["message"]: caution for caution in listed}.values())
    return {
        "checked": checked,
        "report": report,
        "problem": ended if isinstance(ended, str) else None,
        "cautions": cautions,
        "checking": {"progress": await _progress(page)} if checking else None,
    }


async def _progress(page: Page) -> float | None:
    jobs = (await page.api.get("/v1/jobs"))["jobs"]
    mine = (job["progress"] for job in jobs if (job["kind"], job["study_id"]) == ("preview", page.path["study_id"]))
    return next(mine, None)


@pages.get("/studies/{study_id}/events", roles=("owner",))
async def events(page: Page) -> Response:
    study_id = page.path["study_id"]

    async def look() -> object:
        view, (_, task) = await page.api.get(f"/v1/studies/{study_id}"), _checks.get(study_id, ("", None))
        is_done = task is None or task.done()
        return view["state"], view["progress"], is_done, None if is_done else await _progress(page)

    return await follow(page, look)


@pages.get("/studies/{study_id}/results", roles=("owner",))
async def results(page: Page) -> Response:
    where = f"/studies/{page.path['study_id']}"
    view, reply = await page.api.get(f"/v1{where}"), await page.api.get(f"/v1{where}/results")
    trail = [*_TRAIL, (view["spec"]["name"], where)]
    shown = {"results": reply, "charts": figures.by_feature(reply)}
    shown["direction"] = view["spec"]["measurement"]["direction"]
    return page.show("results.html", title="Results by feature", trail=trail, **shown)


@pages.post("/studies/{study_id}:preview", roles=("owner",))
async def preview(page: Page, form: Form) -> Response:
    where = f"/studies/{page.path['study_id']}"
    start_check(page, await page.api.get(f"/v1{where}"))
    return page.go(where)


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
    if form.has("consent") and not form.has("sure_consent"):
        form.wrong("sure_consent", "Tick this too before you release: a measured record leaves again.")
    form.labels.update({"sure_consent": "Consent"})
    form.labels.update({"sure": "The promise", "sure_high": "The high risk", "sure_chance": "Like chance"})
    if not form.ok:
        return await _shown(page, form.again(), 422)
    where, read = f"/studies/{study_id}", form.get("spec_sha256")  # only the draft that was shown is released
    confirmed = {"confirm_high_risk": form.has("sure_high"), "confirm_chance": form.has("sure_chance")}
    confirmed["confirm_consent"] = form.has("sure_consent")
    outcome = await _begun(
        page, form, "release", "Nothing was released", {"spec_sha256": read, **confirmed} if read else None
    )
    if outcome is None:
        return page.go(where, "The release is being drawn: this page shows how far it is.", mood="note")
    if isinstance(outcome, str):
        return page.go(where, outcome, mood="bad")
    return page.go(where, "Released: the study is open. Now give a modeler a grant.")


@pages.post("/studies/{study_id}:sandbox", roles=("owner",))
async def sandbox(page: Page, form: Form) -> Response:
    """Make a sandbox of a study. If that takes longer than a moment, it continues, and appears in the list."""
    outcome = await _begun(page, form, "sandbox", "No sandbox was made")
    if outcome is None:
        return page.go("/studies", "The sandbox is being made: it will be the last of this list.", mood="note")
    if isinstance(outcome, str):
        return page.go(f"/studies/{page.path['study_id']}", outcome, mood="bad")
    return page.go(f"/studies/{outcome['id']}", "This is the sandbox. Give a vendor a grant for this study.")


async def _begun(
    page: Page, form: Form, verb: str, failed: str, body: dict[str, Any] | None = None
) -> dict[str, Any] | str | None:
    """The study that an act makes, or why it ``failed``; None if it takes longer than a moment, and continues."""
    study_id = page.path["study_id"]
    task = asyncio.create_task(_posted(page, f"/v1/studies/{study_id}:{verb}", body, form.key, failed))
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)
    done, _ = await asyncio.wait({task}, timeout=_WAIT_SECONDS)
    if done:
        return task.result()
    task.add_done_callback(lambda ended: _keep(study_id, ended))
    return None


async def _posted(page: Page, path: str, body: dict[str, Any] | None, key: str, failed: str) -> dict[str, Any] | str:
    try:
        made: dict[str, Any] = await page.api.post(path, body, key=key)
    except ApiProblem as problem:
        return f"{failed}. {problem.in_words}"
    except (BlindoptError, OSError):
        return f"{failed}: the service's own log says why."
    return made


def _keep(study_id: str, ended: "asyncio.Task[dict[str, Any] | str]") -> None:
    if not ended.cancelled() and isinstance(failure := ended.result(), str):
        _failures[study_id] = failure


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
    _settings,
)
