"""Starting a run: a form with sensible defaults, and a test of the connection before it."""

from typing import Any

from starlette.responses import Response

from blindopt import wire
from service_kit.console import ApiProblem, Form, Page, Pages, id_of

pages = Pages()
_TRAIL = [("Runs", "/runs")]
AUTO = "auto"
_FEW_ARMS_MAX = 2_000
ALGORITHMS = [
    (AUTO, "Recommended for the study"),
    ("gp_ucb", "GP-UCB: one row at a time"),
    ("gp_bucb", "GP-BUCB: several rows at once"),
    ("laplace_adf", "Laplace-ADF: answers with Laplace noise, few candidates"),
    ("bounded_igp", "Bounded IGP-UCB: one-bit or piecewise answers, few candidates"),
    ("thompson", "Thompson sampling: few candidates"),
    ("igp_ucb", "IGP-UCB: few candidates"),
    ("ldp_ata", "ATA-GP-UCB as published, for private answers"),
    ("ldp_tgp", "TGP-UCB as published, for private answers"),
    ("ldp_moma", "MoMA-GP-UCB as published, for private answers"),
    ("random", "Random rows: the yardstick"),
]
KERNELS = [
    ("squared_exponential", "Squared exponential"),
    ("matern_52", "Matern 5/2"),
    ("matern_32", "Matern 3/2"),
    ("matern_12", "Matern 1/2"),
]
_NAMES = {"stop.target": "target", "stop.improvement": "improvement", "algorithm.name": "algorithm"}


@pages.get("/start", roles=("vendor",))
async def start_form(page: Page) -> Response:
    """An empty form; filled from another run where ``?like=`` names one."""
    return _show(page, await _like(page) if page.query.get("like") else _blank())


def _blank(**more: object) -> Form:
    values: dict[str, object] = {"name": "run", "algorithm": AUTO, "iterations": 50, "initial_rows": 5}
    values |= {"batch_size": 1, "seed": 0, "initial_design": "random", "repeats": "algorithm", "hyper": "study"}
    return Form.blank(**(values | {"kernel": "squared_exponential"} | more))


async def _like(page: Page) -> Form:
    run = await page.api.read(f"/v1/runs/{id_of('run', page.query['like'])}", wire.RunView)
    names = {"name", "curator_url", "study_id", "iterations", "initial_rows", "batch_size", "initial_design"}
    values = run.model_dump(include=names)
    values |= {"algorithm": run.algorithm.name, "repeats": run.repeats, "seed": run.seed + 1}
    values |= {"target": run.stop.target, "improvement": run.stop.improvement}
    if run.kernel is not None:
        values |= run.kernel.model_dump(include={"lengthscale", "signal_variance", "noise_variance", "mean"})
        values |= {"hyper": "given", "kernel": run.kernel.kind}
    if run.fit is not None:
        values["hyper"] = "fitted"
    return _blank(**values)


def _show(page: Page, form: Form, *, status: int = 200, report: wire.ConnectionReport | None = None) -> Response:
    """Show the form with the values that were entered, but without the token, which is never shown again."""
    values = {"form": form, "report": report, "algorithms": ALGORITHMS, "kernels": KERNELS}
    return page.show("start.html", title="Start a run", trail=_TRAIL, status=status, **values)


# --- the connection -----------------------------------------------------------------------------------


def _access(form: Form) -> dict[str, Any]:
    access: dict[str, Any] = {name: form.text(name) for name in ("curator_url", "study_id", "token")}
    return access | ({"log_key": form.get("log_key")} if form.get("log_key") else {})


async def _try_connection(page: Page, form: Form) -> tuple[Form, wire.ConnectionReport | None]:
    """Test the connection; return its report, or None and the form with its faults."""
    access = _access(form)
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
    form, report = await _try_connection(page, form)
    if page.request.headers.get("x-fragment"):
        return page.fragment("connection.html", report=report, form=form)
    return _show(page, form.again() if form.ok else form, report=report, status=200 if form.ok else 422)


# --- the run ------------------------------------------------------------------------------------------


def recommended_algorithm(study: wire.StudyView, batch: int) -> str:
    """Return the recommended algorithm for a study (docs/algorithms.md)."""
    # Algorithms for few arms repeat rows, which adds up in the budget where the privacy unit is the row.
    few = study.n <= _FEW_ARMS_MAX and study.kernel is not None and study.privacy_unit == "answer"
    if batch > 1:
        return "gp_bucb"
    if few and study.answers.mechanism == "laplace":
        return "laplace_adf"
    if few and study.answers.mechanism in ("one_bit", "piecewise"):
        return "bounded_igp"
    return "gp_ucb"


def _spec(form: Form) -> dict[str, Any]:
    """Return the body of the request, without the algorithm."""
    body: dict[str, Any] = _access(form) | {"name": form.text("name")}
    for name in ("iterations", "initial_rows", "batch_size", "seed"):
        body[name] = form.integer(name)
    body |= {"initial_design": form.get("initial_design", "random"), "repeats": form.get("repeats", "algorithm")}
    rules = {name: form.real(name, needed=False) for name in ("target", "improvement")}
    if any(value is not None for value in rules.values()):
        body["stop"] = rules | {"target_by": form.get("target_by", "observed")}
    if form.get("hyper") == "given":
        numbers = {name: form.real(name) for name in ("lengthscale", "signal_variance", "noise_variance")}
        mean = form.real("mean", needed=False) or 0.0
        body["kernel"] = numbers | {"kind": form.get("kernel", "squared_exponential"), "mean": mean}
    elif form.get("hyper") == "fitted":
        body["fit"] = {}
    if form.has("hold"):
        body["hold"] = True
    return body


@pages.post("/start", roles=("vendor",))
async def start(page: Page, form: Form) -> Response:
    """Queue the run; with the recommended algorithm once the study is known."""
    body = _spec(form)
    name = form.get("algorithm", AUTO)
    if not form.ok:
        return _show(page, form.again(), status=422)
    if name == AUTO:
        form, report = await _try_connection(page, form)
        if report is None or report.study is None or not report.ok:
            return _show(page, form.again() if form.ok else form, report=report, status=422)
        name = (
            "gp_ucb"
            if "fit" in body and body["batch_size"] == 1
            else recommended_algorithm(report.study, body["batch_size"])
        )
        if report.study.kernel is None and "kernel" not in body and "fit" not in body:
            body["fit"] = {}  # neither the study nor the form has a kernel
    try:
        run = await page.api.post("/v1/runs", body | {"algorithm": {"name": name}}, key=form.key)
    except ApiProblem as problem:
        return _show(page, form.failed(problem, _NAMES), status=422)
    return page.go(f"/runs/{run['id']}", f"The run is queued, with {name}.")
