"""The steps of the data owner and the vendor, over REST.

The question: in which place do houses sell best?

Each run has a study, and so a release and its noise, of its own. Every search has the same algorithm; random places are
queried as often, under the same studies.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from blindopt import wire
from blindopt.client import Owner, Vendor
from demo.parties import Party
from demo.places import BOX, PARTS, Sales
from demo.property_data import OUTCOME, csv_bytes

LEVELS = (None, "1", "0.25")
"""Epsilon of a sale, in total; None: no privacy."""
QUERIES, INITIAL = 45, 5
CENTRE, BOUND = 5.75, 0.75
"""Prices are clipped to 100,000 and 3.2 million US dollars, public bounds: 5.0 to 6.5 in log10."""
RUN_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class Method:
    """A search, or random places, at a level of privacy."""

    epsilon: str | None
    is_random: bool = False

    @property
    def name(self) -> str:
        level = "no privacy" if self.epsilon is None else f"epsilon {self.epsilon}"
        return f"{level}, {'random places' if self.is_random else 'search'}"

    def study(self, dataset_id: str) -> wire.StudyCreate:
        """Half of epsilon is for the numbers of sales, half for the one answer about each place."""
        release: wire.ReleaseSpec = wire.IdentityRelease(mechanism="identity")
        answers: wire.Answers = wire.NONE
        if self.epsilon is not None:
            half = repr(float(self.epsilon) / 2)
            cells = wire.GridCells(kind="grid", parts=[PARTS, PARTS])
            # An empty place passes seldom: the scale of the noise times log(400).
            least = math.ceil(2 / float(half) * math.log(PARTS**2))
            release = wire.GroupsRelease(mechanism="groups", epsilon=half, cells=cells, min_count=least)
            answers = wire.LaplaceAnswers(mechanism="laplace", epsilon=half, value_bound=BOUND, centre=CENTRE)
        return wire.StudyCreate(
            name=self.name,
            dataset_id=dataset_id,
            features=BOX,
            measurement=wire.ColumnMeasurement(column=OUTCOME, direction="maximize"),
            release=release,
            answers=answers,
            budget=wire.Budget(queries=QUERIES, epsilon_per_row=self.epsilon),
        )

    def run(self, curator_url: str, study_id: str, token: str, seed: int) -> wire.RunCreate:
        initial = 0 if self.is_random else INITIAL
        return wire.RunCreate(
            name=self.name,
            curator_url=curator_url,
            study_id=study_id,
            token=token,
            algorithm=wire.RandomRows(name="random") if self.is_random else wire.Ei(name="ei"),
            initial_rows=initial,
            iterations=QUERIES - initial,
            batch_size=QUERIES if self.is_random else 1,  # random places do not wait for answers: one query for all
            seed=seed,
        )


METHODS = tuple(Method(epsilon, is_random) for epsilon in LEVELS for is_random in (False, True))


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a run: how much lower prices are in the recommended place than in the best one, a share from 0 to 1."""

    run_id: str
    study_id: str
    seed: int
    queries: int
    seconds: float
    regret: float


@dataclass(frozen=True, slots=True)
class Played:
    """All results, and for each epsilon the verdict of the curator's attacks on a trial release."""

    outcomes: dict[Method, list[Outcome]]
    verdicts: dict[str, wire.Verdict]


def play(curator: Party, modeler: Party, curator_url: str, seeds: range, watch: Callable[[str, int], None]) -> Played:
    """Run both parts to the end, once per seed. ``watch`` is called with a method and its answered queries."""
    with (
        Owner(curator.url, curator.token, timeout_s=300, plain_http=True) as owner,
        Vendor(modeler.url, modeler.token, plain_http=True) as vendor,
    ):
        sales, columns = Sales(), [*(feature.column for feature in BOX), OUTCOME]
        private = owner.register("King County house sales", csv_bytes(), columns=columns).id
        public = owner.register("their places", sales.centres_csv(), public=True).id
        verdicts: dict[str, wire.Verdict] = {}
        runs: dict[Method, list[str]] = {method: [] for method in METHODS}
        for seed in seeds:
            for method in METHODS:  # interleaves the methods
                study = owner.create_study(method.study(public if method.epsilon is None else private)).id
                if method.epsilon is not None and method.epsilon not in verdicts:
                    verdict = owner.preview(study).verdict
                    assert verdict is not None
                    verdicts[method.epsilon] = verdict
                owner.release(study)
                token = owner.grant(study, wire.GrantCreate(name="vendor")).token
                runs[method].append(vendor.start(method.run(curator_url, study, token, seed)).id)
        _wait(vendor, runs, watch)
        outcomes = {method: [_outcome(owner, vendor, sales, run_id) for run_id in runs[method]] for method in METHODS}
        return Played(outcomes, verdicts)


def _wait(vendor: Vendor, runs: dict[Method, list[str]], watch: Callable[[str, int], None]) -> None:
    deadline = time.monotonic() + RUN_SECONDS
    ended = False
    while not ended and time.monotonic() < deadline:
        now = {run.id: run.view for run in vendor.runs()}
        for method, run_ids in runs.items():
            watch(method.name, sum(now[run_id].trials for run_id in run_ids))
        ended = all(now[run_id].ended_at for run_ids in runs.values() for run_id in run_ids)
        time.sleep(0.3)


def _outcome(owner: Owner, vendor: Vendor, sales: Sales, run_id: str) -> Outcome:
    run = vendor.run(run_id).view
    if run.state != "completed" or run.recommendation is None or run.started_at is None or run.ended_at is None:
        raise RuntimeError(f"run {run.id} ({run.name}) is {run.state}: {run.problem}")
    return Outcome(
        run_id=run.id,
        study_id=run.study_id,
        seed=run.seed,
        queries=run.trials,
        seconds=(run.ended_at - run.started_at).total_seconds(),
        regret=sales.regret(_point(owner, run.study_id, run.recommendation.row)),
    )


def _point(owner: Owner, study_id: str, candidate: int) -> list[float]:
    """Where a recommended place is: the owner opens the group, or the record of a place."""
    study = owner.study(study_id)
    if study.view.spec.release.mechanism == "groups":
        return study.open_group(candidate).centre
    record = study.open_record(candidate)
    return [float(record[feature.column]) for feature in BOX]
