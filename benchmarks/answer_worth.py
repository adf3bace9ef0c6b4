"""Whether a draft's verdict on its answers is right: the caution before the release, against what runs really reach.

`python -m benchmarks.answer_worth [RUNS]` prints the table of results/answer_worth.md, a row at a time.

Three outcomes of three uniform features, two sizes of table and cap, answers of epsilon 1, 4 and 8 and exact ones, all
others defaults: a twentieth of each range is hidden at epsilon 2. A run has the default algorithm and a fitted kernel,
and knows the laws of release and answers. Its regret is that of the recommended record, in standard deviations of the
outcome, less what as many random records, measured exactly, miss on average. A run is like chance unless the mean of
that difference is below 0 by two standard errors. The verdict is bad where the caution ``answers_hide_search`` stands.
"""

import sys
from collections.abc import Callable
from math import sqrt
from typing import Any

import numpy as np

from blindopt import wire
from blindopt.arrays import Matrix, Vector
from blindopt.optimizer.optimizer import Optimizer
from curator_service.datasets.scaling import ScaledRows
from curator_service.privacy import accounting, search_noise
from curator_service.privacy.answers import mechanism_of
from curator_service.releases.attacks.scene import draw
from curator_service.releases.forecast_jobs import FUNCTIONS, ROWS
from curator_service.releases.forecasts.cells import uniform_rows
from curator_service.releases.forecasts.simulation import chance_regret, simulate
from curator_service.releases.mechanisms.registry import planned_mechanism

D = 3
SIZES = ((300, 30), (1000, 60))
EPSILONS = ("1", "4", "8", None)
OUTCOMES: dict[str, Callable[[Matrix], Vector]] = {
    "bump": lambda x: 8 + 8 * np.exp(-((x - [0.3, 0.6, 0.5]) ** 2).sum(axis=1) / 0.18),
    "ridge": lambda x: 10 + 4 * np.sin(4 * (x[:, 0] + x[:, 1])) + 2 * x[:, 2],
    "additive": lambda x: 4 + 6 * x[:, 0] ** 2 + 4 * np.sqrt(x[:, 1]) - 3 * x[:, 2],
}


def draft(epsilon: str | None, queries: int) -> wire.StudyCreate:
    """A study that people measure, with outcomes from 3 to 20."""
    private: dict[str, Any] = {"mechanism": "auto", "epsilon": epsilon, "centre": 11.5, "value_bound": 8.5}
    return wire.StudyCreate(
        name="s",
        dataset_id="ds_0000000000000000",
        features=[wire.Feature(column=f"x{i}", lower=0, upper=1, hidden_change=0.05) for i in range(D)],
        measurement=wire.InboxMeasurement(question="?", direction="maximize", lower=3, upper=20),
        release=wire.AutoRelease(epsilon="2"),
        answers=wire.NONE if epsilon is None else wire.AutoAnswers(**private),
        budget=wire.Budget(queries=queries),
    )


def is_cautioned(spec: wire.StudyCreate) -> bool:
    """Whether the draft has the caution, with its public forecast."""
    levels = [] if isinstance(spec.answers, wire.NoAnswerNoise) else [spec.answers.epsilon]
    queries = spec.budget.queries or 0
    forecast = wire.ForecastCreate(functions=FUNCTIONS, queries=queries, rows_max=ROWS, answers=levels)
    values = uniform_rows(spec.features, ROWS, 1)
    rows = ScaledRows(values, list(range(D)), spec.features, np.arange(ROWS))
    points = simulate(spec, forecast, rows, seed=1, on_progress=lambda _: None)
    return bool(search_noise.of_answers(spec, accounting.price(spec), points))


def difference(spec: wire.StudyCreate, outcome: Callable[[Matrix], Vector], n: int, run: int) -> float:
    """The regret of one run less that of random records, in standard deviations."""
    x, queries = uniform_rows(spec.features, n, run), spec.budget.queries or 0
    y = outcome(x)
    mechanism = planned_mechanism(spec)
    z, law, answers = draw(mechanism, x / 0.05), mechanism.noise(D), mechanism_of(spec.answers)
    public: dict[str, Any] = {
        "n": n,
        "r": D,
        "direction": "maximize",
        "kernel": None,
        "noise": law,
        "privacy_unit": "row",
    }
    public |= {"epsilon": "2", "mechanism": "planar_laplace", "measurement_source": "inbox", "left_out": []}
    public |= {"measurement_noise_variance": 0.0, "budget": spec.budget}
    study = wire.StudyView.model_construct(**public, answers=wire.concrete_answers(spec.answers))
    first = min(10, queries // 2)
    optimizer = Optimizer(z, noise=law, study=study, queries=queries, initial_rows=first, seed=run)
    for _ in range(queries):
        row = optimizer.ask()
        if answers is None:
            optimizer.tell(row, y[row])
            continue
        passport = wire.NoisePassport(privacy=answers.noise, clip=answers.clip, measurement_variance=0.0)
        sent = float(answers.release(answers.clipped(y[[row]]))[0])
        optimizer.tell(row, sent, passport=passport)
    best = optimizer.recommendation()
    assert best is not None
    return float((y.max() - y[best.row] - chance_regret(y, queries)) / y.std())


if __name__ == "__main__":
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    head = ["epsilon of answers", "records, queries", "outcome", "verdict", "less than random (SE)", "truth"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for n, queries in SIZES:
        for epsilon in EPSILONS:
            spec = draft(epsilon, queries)
            verdict = "chance" if is_cautioned(spec) else "good"
            for name, outcome in OUTCOMES.items():
                less = np.array([difference(spec, outcome, n, run) for run in range(runs)])
                error = float(less.std(ddof=1)) / sqrt(runs)
                truth = "good" if less.mean() < -2 * error else "chance"
                cell = f"{epsilon or 'exact'} | {n:,}, {queries} | {name} | {verdict}"
                print(f"| {cell} | {less.mean():+.2f} ({error:.2f}) | {truth} |", flush=True)
