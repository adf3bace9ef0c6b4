"""The best group of records: whole records protected, by private means of groups; beside the same promise for records.

House sales by place, 20 x 20 groups, and scikit-learn's diabetes data by body mass index and blood pressure. The regret
is that of the recommended group's true mean of y, against the best true mean of a group with 20 records or more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.papers import search, sources
from benchmarks.papers.part import Curves, Size, Task
from blindopt import wire
from blindopt.arrays import Matrix, Vector
from blindopt.optimizer.algorithms.settings import NO_NOISE
from blindopt.optimizer.optimizer import Optimizer
from curator_service.datasets.scaling import ScaledRows
from curator_service.privacy.answers import Measured, release
from curator_service.privacy.measurement.groups import measure_groups, steps
from curator_service.releases.mechanisms.groups import Groups
from curator_service.releases.mechanisms.row_noise import PlanarLaplaceMechanism

EVERY = 5
LEAST = 20
"""Records of a group that counts: a mean of fewer says little of a kind."""
EPSILONS = ("1", "0.5")
SHARE = Decimal("0.5")
"""Share of epsilon for the numbers of records; the rest is for one answer."""
GROUPS = "groups, epsilon = 1"
NON_PRIVATE, ANY, RANDOM = "non-private, means of groups", "any group, without answers", "groups, epsilon = 1, random"
PLANAR, GENEROUS = "planar Laplace, epsilon = 1, whole records", "planar Laplace, epsilon = 1, y not protected"


@dataclass(frozen=True)
class Table:
    """Records x (n, d), y (n,), the public box, parts of each feature, and the public clip: centre and half-width."""

    x: Matrix
    y: Vector
    box: list[wire.Feature]
    parts: list[int]
    centre: float
    bound: float
    min_counts: dict[str, int]
    """The least noisy number of records of a candidate, by epsilon."""


def houses() -> Table:
    """Place and logarithm of the price; clipped to 100,000 and 3.2 million US dollars."""
    sales = sources.houses()
    box = [wire.Feature(column="long", lower=-122.6, upper=-121.3), wire.Feature(column="lat", lower=47.1, upper=47.8)]
    x = np.column_stack([sales["long"], sales["lat"]])
    return Table(x, sales["log10_price"], box, [20, 20], 5.75, 0.75, {"1": 22, "0.5": 43})


def diabetes() -> Table:
    """Body mass index and blood pressure of 442 patients, in standard deviations; progress of the disease."""
    from sklearn.datasets import load_diabetes

    data = load_diabetes()
    x = data.data[:, [2, 3]] * np.sqrt(len(data.data))
    box = [wire.Feature(column=name, lower=-2.5, upper=2.5) for name in ("bmi", "pressure")]
    return Table(x, data.target, box, [4, 4], 187.5, 162.5, {"1": 20, "0.5": 20})


TABLES: dict[str, Callable[[], Table]] = {"houses": houses, "diabetes": diabetes}


@dataclass(frozen=True)
class Prepared:
    """A table by groups: records scaled, the group of each, and size and true mean of each group."""

    table: Table
    rows: ScaledRows
    part: NDArray[np.int64]
    size: NDArray[np.int64]
    mean: Vector

    @property
    def best(self) -> float:
        """The largest true mean of a group that counts."""
        return float(self.mean[self.size >= LEAST].max())

    def regret(self, part: int) -> float:
        """The regret of a group; of one without records, that of the worst group."""
        mean = self.mean[part] if self.size[part] else self.mean[self.size > 0].min()
        return self.best - float(mean)


@lru_cache(maxsize=2)
def prepared(name: str) -> Prepared:
    """Scale a table, and divide it without noise."""
    table = TABLES[name]()
    n, d = table.x.shape
    rows = ScaledRows(values=table.x, columns=list(range(d)), features=table.box, order=np.arange(n))
    groups = Groups(table.box, wire.GridCells(kind="grid", parts=table.parts), Decimal(1), 1)
    part = np.concatenate([groups.parts_of(block) for _, block in rows.blocks(n)])
    size = np.bincount(part, minlength=groups.number)
    sums = np.bincount(part, table.y, minlength=groups.number)
    return Prepared(table, rows, part, size, sums / np.maximum(size, 1))


@dataclass(frozen=True, slots=True)
class GroupSearches:
    """Searches for the best group with T answers of T groups, or of T records."""

    name: str = "groups"

    def tasks(self, size: Size) -> list[Task]:
        return [(name, run) for run in range(size.groups) for name in _tables(size)]

    def marks(self, size: Size) -> Sequence[int]:
        return range(EVERY, size.pool_steps + 1, EVERY)

    def play(self, task: Task, size: Size) -> Curves:
        (name, run), steps = task, size.pool_steps
        data, curves = prepared(name), {}
        for epsilon in EPSILONS:
            problem = over_groups(data, study_of(data.table, epsilon))
            curves[f"groups, epsilon = {epsilon}"] = problem.regrets(run, "auto", steps)
            if epsilon == "1":
                curves[RANDOM] = problem.regrets(run, "random", steps)
        curves[NON_PRIVATE] = without_privacy(data).regrets(run, "auto", steps)
        # Half of epsilon for the features and half for one y, which no other answer is about; or all for the features.
        curves[PLANAR] = over_records(data, "0.5", "0.5").regrets(run, "auto", steps)
        curves[GENEROUS] = over_records(data, "1", None).regrets(run, "auto", steps)
        drawn = np.random.default_rng([run, 9]).choice(np.flatnonzero(data.size >= LEAST))
        curves[ANY] = [data.regret(int(drawn))] * len(self.marks(size))
        return curves

    def facts(self, size: Size) -> dict[str, Any]:
        facts = {}
        for name in _tables(size):
            data = prepared(name)
            counted = data.mean[data.size >= LEAST]
            facts[name] = {
                "n": len(data.part),
                "groups": len(data.size),
                "counted": len(counted),
                "sd_y": float(data.table.y.std()),
                "spread": float(np.ptp(counted)),
                "second": float(np.sort(counted)[-1] - np.sort(counted)[-2]),
                "median_size": float(np.median(data.size[data.size >= LEAST])),
            }
        return facts


def _tables(size: Size) -> list[str]:
    """The tables of a size: the small one where its pools have neither."""
    return [name for name in TABLES if name in size.pools] or ["diabetes"]


def study_of(table: Table, epsilon: str) -> wire.StudyCreate:
    """The study that an owner makes: half of epsilon for the numbers of records, half for one answer."""
    whole = Decimal(epsilon)
    return wire.StudyCreate(
        name="groups",
        dataset_id="ds_0000000000000000",
        features=table.box,
        measurement=wire.ColumnMeasurement(column="y", direction="maximize"),
        release=wire.GroupsRelease(
            mechanism="groups",
            epsilon=str(whole * SHARE),
            cells=wire.GridCells(kind="grid", parts=table.parts),
            min_count=table.min_counts[epsilon],
        ),
        answers=wire.LaplaceAnswers(
            mechanism="laplace", epsilon=str(whole * (1 - SHARE)), value_bound=table.bound, centre=table.centre
        ),
        budget=wire.Budget(epsilon_per_row=epsilon),
    )


@dataclass(frozen=True)
class Problem:
    """Candidates (m, d), the study as a vendor sees it, what answers a candidate, and the regret of choosing one."""

    z: Matrix
    study: wire.StudyView
    answer: Callable[[int], tuple[float, wire.NoisePassport]]
    regret: Callable[[int], float]

    def regrets(self, seed: int, rule: str, steps: int, *, by: str | None = None, every: int = EVERY) -> list[float]:
        """Ask so many candidates, or all, each once; the regret of the recommendation after each ``every`` of them.

        ``by`` names the algorithm that recommends: that of ``rule`` if it is None, else one that gets the same answers.
        """
        most = min(steps, len(self.z))
        optimizer = self._optimizer(seed, rule, most)
        adviser = optimizer if by is None else self._optimizer(seed, by, most)
        regrets: list[float] = []
        for step in range(1, steps + 1):
            if step <= most:
                row = optimizer.ask()
                y, passport = self.answer(row)
                optimizer.tell(row, y, passport=passport)
                if adviser is not optimizer:
                    adviser.tell(row, y, passport=passport)
            if step % every == 0:
                best = adviser.recommendation()
                assert best is not None, "there are answers"
                regrets.append(self.regret(best.row))
        return regrets

    def _optimizer(self, seed: int, rule: str, most: int) -> Optimizer:
        first = min(EVERY, most - 1)
        return Optimizer(
            self.z,
            study=self.study,
            seed=seed,
            algorithm=rule,
            iterations=most - first,
            initial_rows=first,
            repeats="never",
        )


def over_groups(data: Prepared, spec: wire.StudyCreate) -> Problem:
    """Private means of groups whose noisy numbers of records are drawn here."""
    assert isinstance(spec.release, wire.GroupsRelease)
    assert isinstance(spec.answers, wire.LaplaceAnswers)
    numbers, answers = spec.release, spec.answers
    groups = Groups(data.table.box, numbers.cells, Decimal(numbers.epsilon), numbers.min_count)
    divided = groups.divide(data.rows)

    def answer(row: int) -> tuple[float, wire.NoisePassport]:
        total = steps(data.table.y[divided.candidates == row], answers)
        (made,) = measure_groups([total], [divided.counts[row]], [wire.RowPlays(row=row)], spec)
        return made.y, made.passport

    z = divided.centres
    study = view(z, spec, mechanism="groups", epsilon=numbers.epsilon)
    return Problem(z, study, answer, lambda row: data.regret(int(divided.kept[row])))


def without_privacy(data: Prepared) -> Problem:
    """True means of all groups that count."""
    kept = np.flatnonzero(data.size >= LEAST)
    spec = study_of(data.table, "1").model_copy(update={"answers": wire.NONE})
    z = Groups(data.table.box, wire.GridCells(kind="grid", parts=data.table.parts), Decimal(1), 1).centres()[kept]
    exact = wire.NoisePassport(measurement_variance=0.0)
    study = view(z, spec, mechanism="identity", epsilon=None)
    return Problem(z, study, lambda row: (float(data.mean[kept[row]]), exact), lambda row: data.regret(int(kept[row])))


def over_records(data: Prepared, epsilon: str, answers: str | None, hidden: float | None = None) -> Problem:
    """Records of which a change of all features at once is hidden, or one of this share of each range.

    The regret is that of the chosen record's group.
    """
    d = data.rows.d
    mechanism = PlanarLaplaceMechanism(Decimal(epsilon), sqrt(d) if hidden is None else hidden)
    spec = study_of(data.table, "1")
    given = wire.NONE if answers is None else spec.answers.model_copy(update={"epsilon": answers})
    spec = spec.model_copy(update={"answers": given})

    def answer(row: int) -> tuple[float, wire.NoisePassport]:
        (made,) = release([Measured(row, [1], [float(data.table.y[row])])], spec)
        return made.y, made.passport

    z = search.release(data.rows, mechanism)
    study = view(z, spec, mechanism="planar_laplace", epsilon=epsilon, noise=mechanism.noise(d))
    return Problem(z, study, answer, lambda row: data.regret(int(data.part[row])))


def view(
    z: Matrix, spec: wire.StudyCreate, *, mechanism: str, epsilon: str | None, noise: wire.NoiseLaw = NO_NOISE
) -> wire.StudyView:
    """A study as the vendor sees it."""
    n, r = z.shape
    return wire.StudyView(
        id="std_0000000000000000",
        state="open",
        n=n,
        r=r,
        release_id="rel_0000000000000000",
        release_sha256="0" * 64,
        mechanism=mechanism,
        status="sound",
        epsilon=epsilon,
        delta=None,
        sensitivity=None,
        noise=noise,
        answers=spec.answers,
        privacy_unit="row",
        budget=spec.budget,
        grant_id="grt_0000000000000000",
        log_key="x",
        direction=spec.measurement.direction,
        measurement_noise_variance=0.0,
        kernel=None,
        limits=wire.Limits(rows_per_query=1000, plays_per_row=1000),
        reply_after_ms=None,
        guarantee="",
        not_protected=[],
    )
