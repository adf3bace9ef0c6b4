"""The steps of the data owner and the vendor, over REST."""

import csv
import io
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from blindopt import wire
from blindopt.client import Owner, Vendor
from blindopt.client.vendor import Run
from demo.parties import Party
from demo.property_data import FEATURES, KERNEL, OUTCOME, csv_bytes

EPSILON = "4"
DELTA = 1e-5  # smaller than 1 / 21,613
MOVES = "1 km, or 15 % of living area"  # sensitivity 1, in the features' units
GUARANTEES = {
    "identity": "nothing: the records themselves",
    "po_gp_ucb": "no DP: as published, refuted",
    "gaussian": f"({EPSILON}, {DELTA:g})-DP",
    "planar_laplace": f"{EPSILON}-DP",
}
QUERIES = 60
INITIAL_ROWS = 5
RUN_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Method:
    """A line of the table: a study, and the algorithm with which the vendor optimizes."""

    name: str
    study_id: str
    guarantee: str
    epsilon: str | None
    rebuilt: wire.Finding | None
    """Result of the curator's attack with d+1 known rows, on a trial release."""
    algorithm: wire.AlgorithmSpec


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a run: its simple regret after each query, in units of the measurement."""

    run_id: str
    seed: int
    queries: int
    seconds: float
    best: float
    regrets: list[float]


def prepare(owner: Owner) -> list[Method]:
    """The owner's part: register the data, preview the attacks on each release, release it in four ways."""
    columns = [*(feature.column for feature in FEATURES), OUTCOME]
    dataset = owner.register("King County house sales", csv_bytes(), public=True, columns=columns)

    def study(name: str, release: wire.ReleaseSpec) -> tuple[str, wire.ReleaseReport]:
        spec = wire.StudyCreate(
            name=name,
            dataset_id=dataset.id,
            features=FEATURES,
            measurement=wire.ColumnMeasurement(column=OUTCOME, direction="minimize"),
            release=release,
            answers=wire.NONE,
            kernel=KERNEL,
        )
        draft = owner.create_study(spec).id
        return draft, owner.preview(draft)

    # The paper's rule (section 3.4): the largest r whose threshold the data reach; only the owner sees it.
    rule = study("po_gp_ucb: which r?", _published(1))[1].largest_r or 1
    methods, gp_ucb = [], wire.GpUcb(name="gp_ucb")
    for name, release in _releases(rule).items():
        identity, report = study(name, release)
        owner.release(identity)
        method = f"auto: {report.mechanism}" if isinstance(release, wire.AutoRelease) else name
        epsilon = None if isinstance(release, wire.IdentityRelease) else EPSILON
        guarantee = GUARANTEES[report.mechanism]
        methods.append(Method(method, identity, guarantee, epsilon, _rebuilt(report), gp_ucb))
    # The last release again, with a rule that wastes fewer queries on exploring.
    methods.append(replace(methods[-1], name="auto, ei", algorithm=wire.Ei(name="ei")))
    random = wire.RandomRows(name="random")
    return [*methods, Method("uniform random rows", methods[0].study_id, "(does not look at Z)", None, None, random)]


def _releases(rule: int) -> dict[str, wire.ReleaseSpec]:
    return {
        "non-private GP-UCB": wire.IdentityRelease(mechanism="identity"),
        f"po_gp_ucb, r = {rule}": _published(rule),
        "gaussian": wire.GaussianRelease(mechanism="gaussian", epsilon=EPSILON, delta=DELTA),
        "auto": wire.AutoRelease(mechanism="auto", epsilon=EPSILON, delta=DELTA),
    }


def _published(r: int) -> wire.ReleaseSpec:
    return wire.PoGpUcbRelease(mechanism="po_gp_ucb", epsilon=EPSILON, delta=DELTA, r=r, acknowledge_refuted=True)


def _rebuilt(report: wire.ReleaseReport) -> wire.Finding | None:
    return next((finding for finding in report.attacks if finding.attack == "known_rows"), None)


def start(owner: Owner, vendor: Vendor, curator_url: str, method: Method, seed: int) -> Run:
    """Grant access as the owner, start a run as the vendor."""
    grant = owner.grant(method.study_id, wire.GrantCreate(name=f"vendor: {method.name}"))
    # Random rows do not wait for answers: one query for all.
    initial, batch = (0, QUERIES) if isinstance(method.algorithm, wire.RandomRows) else (INITIAL_ROWS, 1)
    return vendor.start(
        wire.RunCreate(
            name=method.name,
            curator_url=curator_url,
            study_id=method.study_id,
            token=grant.token,
            algorithm=method.algorithm,
            iterations=QUERIES - initial,
            initial_rows=initial,
            initial_design="random",
            batch_size=batch,
            repeats="never",
            fit=None,
            seed=seed,
        )
    )


def play(
    curator: Party, modeler: Party, curator_url: str, seeds: range, watch: Callable[[str, int], None]
) -> dict[Method, list[Outcome]]:
    """Run both parts to the end, once per seed. ``watch`` is called with a method and its answered queries."""
    with (
        Owner(curator.url, curator.token, timeout_s=300, plain_http=True) as owner,
        Vendor(modeler.url, modeler.token, plain_http=True) as vendor,
    ):
        methods = prepare(owner)
        for method in methods:
            watch(method.name, 0)
        runs: dict[Method, list[str]] = {method: [] for method in methods}
        for seed in seeds:
            for method in methods:  # interleaves the methods
                runs[method].append(start(owner, vendor, curator_url, method, seed).id)
        _wait(vendor, runs, watch)
        return {method: [_outcome(vendor, identity) for identity in runs[method]] for method in methods}


def _wait(vendor: Vendor, runs: dict[Method, list[str]], watch: Callable[[str, int], None]) -> None:
    deadline = time.monotonic() + RUN_SECONDS
    ended = False
    while not ended and time.monotonic() < deadline:
        now = {run.id: run.view for run in vendor.runs()}
        for method, identities in runs.items():
            watch(method.name, sum(now[identity].trials for identity in identities))
        ended = all(now[identity].ended_at for identities in runs.values() for identity in identities)
        time.sleep(0.3)


def _outcome(vendor: Vendor, run_id: str) -> Outcome:
    export = vendor.export(run_id)
    run = export.run
    if run.state != "completed" or run.started_at is None or run.ended_at is None:
        raise RuntimeError(f"run {run.id} ({run.name}) is {run.state}: {run.problem}")
    outcomes = [trial.y for trial in export.trials if trial.y is not None]
    best_so_far = np.minimum.accumulate(outcomes)
    return Outcome(
        run_id=run.id,
        seed=run.seed,
        queries=len(outcomes),
        seconds=(run.ended_at - run.started_at).total_seconds(),
        best=float(best_so_far[-1]),
        regrets=[float(b) for b in best_so_far - optimum()],
    )


@cache
def optimum() -> float:
    """Return the smallest outcome of all records, which the demo knows because its data are public."""
    return min(float(row[OUTCOME]) for row in csv.DictReader(io.StringIO(csv_bytes().decode())))
