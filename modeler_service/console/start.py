"""Starting a run: a form whose empty fields are left to the service, and a test of the connection before it."""

from typing import Any

from starlette.responses import Response

from blindopt import bodies, wire
from blindopt.errors import Invalid
from blindopt.offers import Offer
from service_kit.console import ApiProblem, Form, Page, Pages, id_of
from service_kit.console.forms import Body

pages = Pages()
_TRAIL = [("Runs", "/runs")]
_EARLIER_MAX = 200
"""Newest runs among which the form looks for answers to begin with."""
_QUERIES = 50
"""Queries of a run without a cap."""
AUTO = "auto"
ALGORITHMS = [
    (AUTO, "The one that suits the study"),
    ("ei", "Expected improvement: one candidate at a time, or several"),
    ("gp_ucb", "GP-UCB: one candidate at a time"),
    ("gp_bucb", "GP-BUCB: several candidates at once"),
    ("laplace_adf", "Laplace-ADF: answers with Laplace noise, few candidates"),
    ("bounded_igp", "Bounded IGP-UCB: one-bit or piecewise answers, few candidates"),
    ("thompson", "Thompson sampling: few candidates"),
    ("igp_ucb", "IGP-UCB: few candidates"),
    ("ldp_ata", "ATA-GP-UCB as published, for private answers"),
    ("ldp_tgp", "TGP-UCB as published, for private answers"),
    ("ldp_moma", "MoMA-GP-UCB as published, for private answers"),
    ("random", "Random candidates, to compare with"),
]
KERNELS = [
    ("squared_exponential", "Squared exponential"),
    ("matern_52", "Matern 5/2"),
    ("matern_32", "Matern 3/2"),
    ("matern_12", "Matern 1/2"),
]
_NO_FILE = "Choose the file grant.json that the data owner sent, or paste its whole text."
_NO_GRANT = f"This is not a grant. {_NO_FILE}"
_ONE_BY_ONE = ("curator_url", "study_id", "token")


@pages.get("/start", roles=("vendor",))
async def start_form(page: Page) -> Response:
    """An empty form; filled from another run where ``?like=`` names one."""
    return await _show(page, await _like(page) if page.query.get("like") else _blank())


def _blank() -> Form:
    values: dict[str, object] = {"name": "run", "algorithm.name": AUTO, "batch_size": 1}
    return Form.blank(**values, hyper=AUTO, kernel={"kind": "squared_exponential"})


async def _like(page: Page) -> Form:
    run = await page.api.read(f"/v1/runs/{id_of('run', page.query['like'])}", wire.RunView)
    names = {"name", "curator_url", "study_id", "initial_rows", "batch_size", "initial_design", "repeats"}
    form = _blank()
    form.fill(run.model_dump(include=names | {"stop", "kernel", "goal"}))
    form.fill({"algorithm.name": run.algorithm.name, "queries": run.queries_max})
    if run.trials or run.observations:
        form.fill({"continue_from": run.id})
    if run.kernel is not None or run.fit != AUTO:
        form.fill({"hyper": "given" if run.kernel is not None else "fixed" if run.fit is None else "fitted"})
    return form


async def _earlier(page: Page) -> list[wire.RunView]:
    """Return runs with answers, the newest first: a new run on the same study can begin with these."""
    listed = await page.api.read("/v1/runs", wire.RunPage, order="newest", page_size=_EARLIER_MAX)
    return [run for run in listed.runs if run.trials or run.observations]


async def _show(page: Page, form: Form, *, status: int = 200, report: wire.ConnectionReport | None = None) -> Response:
    """Show the form with the values that were entered, but without the token, which is never shown again."""
    earlier = await _earlier(page)
    values: dict[str, Any] = {"form": form, "report": report, "algorithms": ALGORITHMS, "kernels": KERNELS}
    offer = _offer(report, earlier)
    if offer is not None and not form.get("queries"):
        form.fill({"queries": offer.queries or _QUERIES})
    values |= {"earlier": earlier, "offer": offer, "fill": None}
    return page.show("start.html", title="Start a run", trail=_TRAIL, status=status, **values)


def _offer(report: wire.ConnectionReport | None, earlier: list[wire.RunView]) -> Offer | None:
    if report is None or report.study is None or not report.ok:
        return None
    return Offer(report.study, sum(run.trials for run in earlier if run.study_id == report.study.id))


# --- the connection -----------------------------------------------------------------------------------


async def _access(form: Form) -> dict[str, Any]:
    """What the owner handed over: a file, its text, or its values one by one. All but the token are shown again."""
    file = form.files.get("grant_file")
    grant = (await file.read(wire.GRANT_FILE_MAX_BYTES + 1)).decode(errors="replace") if file else form.get("grant")
    form.values.pop("grant", None)
    if grant:
        try:
            if len(grant) > wire.GRANT_FILE_MAX_BYTES:
                raise ValueError("too long")
            grant_file: wire.GrantFile = bodies.parse(grant.removeprefix("\ufeff").encode(), wire.GrantFile)
        except (Invalid, ValueError):
            form.wrong("grant_file" if file else "grant", _NO_GRANT)
            return {}
        access = grant_file.access.model_dump()
        form.values.update({name: [access[name]] for name in ("curator_url", "study_id", "log_key")})
        return access
    if not any(form.get(name) for name in _ONE_BY_ONE):
        form.wrong("grant_file", _NO_FILE)
        return {}
    values = {name: form.text(name) for name in _ONE_BY_ONE}
    return values | ({"log_key": form.get("log_key")} if form.get("log_key") else {})


async def _try_connection(page: Page, form: Form, access: dict[str, Any]) -> tuple[Form, wire.ConnectionReport | None]:
    """Test the connection; return its report, or None and the form with its faults."""
    if not form.ok:
        return form.again(), None
    try:
        report = await page.api.post("/v1/connections:test", access)
    except ApiProblem as problem:
        return form.failed(problem), None
    return form, wire.ConnectionReport.model_validate(report, strict=False)


@pages.post("/start:test", roles=("vendor",))
async def test(page: Page, form: Form) -> Response:
    """Test the connection without starting a run."""
    form, report = await _try_connection(page, form, await _access(form))
    if page.request.headers.get("x-fragment"):
        earlier = await _earlier(page)
        offer = _offer(report, earlier)
        fill = offer and (offer.queries or _QUERIES)
        return page.fragment("connection.html", report=report, form=form, earlier=earlier, offer=offer, fill=fill)
    return await _show(page, form.again() if form.ok else form, report=report, status=200 if form.ok else 422)


# --- the run ------------------------------------------------------------------------------------------


def _spec(form: Form, access: dict[str, Any]) -> Body:
    """Return the body of the request. What was left empty has its default: the service decides it from the study."""
    hyper = form.get("hyper", AUTO)
    without = {*wire.StudyAccess.model_fields, "algorithm", "observations", "fit"}
    without |= set() if hyper == "given" else {"kernel"}
    without |= set() if form.get("goal.kind") else {"goal"}
    form.check_good()
    body = access | form.read(wire.RunCreate, without) | {"algorithm": {"name": form.get("algorithm.name", AUTO)}}
    if hyper in ("fixed", "fitted"):
        body["fit"] = {} if hyper == "fitted" else None
    return body


@pages.post("/start", roles=("vendor",))
async def start(page: Page, form: Form) -> Response:
    """Queue the run, once its connection works."""
    access = await _access(form)
    body = _spec(form, access)
    if not form.ok:
        return await _show(page, form.again(), status=422)
    form, report = await _try_connection(page, form, access)
    if report is None or not report.ok:
        return await _show(page, form.again() if form.ok else form, report=report, status=422)
    if not form.get("queries") and (offer := _offer(report, await _earlier(page))) is not None:
        body["queries"] = offer.queries or _QUERIES
    try:
        run = await page.api.post("/v1/runs", body, key=form.key)
    except ApiProblem as problem:
        return await _show(page, form.failed(problem, body=body), status=422)
    return page.go(f"/runs/{run['id']}")
