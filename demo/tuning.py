"""`make demo ARGS=--tuning`: lambda of a logistic regression on real records, chosen privately by each method.

Breast cancer (Wisconsin, 569 records, from scikit-learn): 300 public records to train on, 200 private ones to score
on. A curator on this machine does the work over HTTP. This program has the records, so it knows the true scores and
prints the error of each release.
"""

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.table import Table

from blindopt import wire
from blindopt.arrays import Matrix, Vector
from blindopt.client import Owner
from demo.parties import StartFailed, curator_alone, status_of
from demo.report import console as wide_console

PUBLIC, PRIVATE = 300, 200
PENALTIES = [float(f"{value:.3g}") for value in np.geomspace(1e-3, 10, 13)]
EPSILONS = ("0.1", "1", "10")
DELTA = 0.02
WAIT_SECONDS = 600.0
_SEARCH = {"lengthscale": 1.0, "noise_sd": 0.05, "centre": -0.25, "scale": 0.15, "evaluations": 50}
SEARCH = wire.TuningSearch.model_validate(_SEARCH)
PRIOR = wire.TuningPrior.model_validate({**_SEARCH, "one_minus_k1": 1e-4})


@dataclass(frozen=True, slots=True)
class Records:
    """Features (n, 30) and class (n,): 1 is benign."""

    x: Matrix
    y: Vector

    def csv(self, names: list[str]) -> bytes:
        rows = (",".join(map(repr, [*x, y])) for x, y in zip(self.x.tolist(), self.y.tolist(), strict=True))
        return ("\n".join([",".join([*names, "benign"]), *rows]) + "\n").encode()


def records() -> tuple[list[str], Records, Records]:
    """Return the feature names, the public and the private records, split by a fixed seed."""
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    order = np.random.default_rng(0).permutation(len(data.target))
    names = [name.replace(" ", "_") for name in data.feature_names]
    x, y = data.data[order], data.target[order].astype(float)
    return names, Records(x[:PUBLIC], y[:PUBLIC]), Records(x[PUBLIC:][:PRIVATE], y[PUBLIC:][:PRIVATE])


def true_scores(public: Records, private: Records) -> Vector:
    """Compute minus the mean ramp loss at each of PENALTIES, as the curator defines it, without its code."""
    from sklearn.linear_model import LogisticRegression

    lower, upper = public.x.min(axis=0), public.x.max(axis=0)

    def scaled(x: Matrix) -> Matrix:
        inside: Matrix = (np.clip(x, lower, upper) - (lower + upper) / 2) / (upper - lower)
        shortened: Matrix = inside / np.maximum(1.0, np.linalg.norm(inside, axis=1))[:, None]
        return shortened

    rows = []
    for penalty in PENALTIES:
        model = LogisticRegression(C=1 / (PUBLIC * penalty), fit_intercept=False, solver="newton-cholesky", tol=1e-10)
        w = model.fit(scaled(public.x), public.y).coef_[0]
        margins = np.where(private.y > 0.5, 1, -1) * (scaled(private.x) @ w)
        rows.append(-np.clip((1 - margins) / 2, 0, 1).mean())
    return np.array(rows)


METHODS: dict[str, tuple[wire.TuningMethod, bool]] = {
    "grid_exponential": (wire.GridExponential(name="grid_exponential"), False),
    "  with public weights": (wire.GridExponential(name="grid_exponential", use_weights=True), False),
    "kusner_3": (wire.Kusner3(name="kusner_3", search=SEARCH), False),
    "public_weights": (wire.PublicWeights(name="public_weights", search=SEARCH), False),
    "gp_design": (wire.GpDesign(name="gp_design", prior=PRIOR), True),
    "gp_ucb_simulated": (wire.GpUcbSimulated(name="gp_ucb_simulated", prior=PRIOR), True),
    "kusner_1": (wire.Kusner1(name="kusner_1", prior=PRIOR), True),
    "kusner_2, whole grid": (wire.Kusner2(name="kusner_2", prior=PRIOR, whole_grid=True), True),
}
"""By label: the method, and whether its guarantee is only on average over a Gaussian process (with DELTA)."""

NO_CAPS = wire.DatasetCaps(epsilon=None, delta=None, raise_caps=True, reason="to compare methods on one file")


def spec_of(
    names: list[str], public: Records, datasets: tuple[str, str], method: str, epsilon: str
) -> wire.TuningCreate:
    """Specify a tuning; the bounds of the features are those of the public records."""
    how, assumes = METHODS[method]
    bounds = zip(names, public.x.min(axis=0).tolist(), public.x.max(axis=0).tolist(), strict=True)
    return wire.TuningCreate(
        name=f"{method.strip()}, epsilon {epsilon}",
        method=how,
        budget=wire.TuningBudget(epsilon=epsilon, delta=DELTA if assumes else 0.0),
        grid=[wire.TuningAxis(name="lambda", values=PENALTIES, scale="log10")],
        score=wire.LogisticScore(
            kind="logistic",
            training_dataset_id=datasets[0],
            features=[wire.Feature(column=name, lower=low, upper=high) for name, low, high in bounds],
            label="benign",
            loss="ramp",
        ),
        validation_dataset_id=datasets[1],
        caps=wire.TuningCaps(epsilon="1000", delta=0.5),  # a real owner would allow a few
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the methods; return 0 if the table was printed. ``arguments`` replace those of the command line."""
    options = argparse.ArgumentParser(prog="python -m demo --tuning", description=__doc__)
    options.add_argument("--methods", nargs="+", choices=[m.strip() for m in METHODS], help="default: all of them")
    options.add_argument("--epsilons", nargs="+", default=list(EPSILONS), help=f"default: {' '.join(EPSILONS)}")
    chosen = options.parse_args(arguments)
    console = wide_console()

    def play_all() -> None:
        names, public, private = records()
        scores = true_scores(public, private)
        table = _table(scores)
        with (
            tempfile.TemporaryDirectory(prefix="blindopt-tuning-") as folder,
            curator_alone(Path(folder)) as curator,
            Owner(curator.url, curator.token, timeout_s=120, plain_http=True) as owner,
        ):
            datasets = (
                owner.register("public", public.csv(names), public=True).id,
                owner.register("private", private.csv(names)).id,
            )
            for method in METHODS:
                if chosen.methods is None or method.strip() in chosen.methods:
                    if METHODS[method][1]:  # no cap holds with a promise on average
                        owner.change_caps(datasets[1], NO_CAPS)
                    for epsilon in chosen.epsilons:
                        started = owner.start_tuning(spec_of(names, public, datasets, method, epsilon))
                        ended = owner.wait_tuning(started.id, timeout_s=WAIT_SECONDS)
                        table.add_row(*_cells(method, epsilon, ended, scores))
                    table.add_section()
            console.print(table)

    return status_of(play_all)


def _table(scores: Vector) -> Table:
    best, spread = int(scores.argmax()), f"{scores.min():.3f} to {scores.max():.3f}"
    result = Table(
        title=f"Breast cancer: lambda by {PRIVATE} private records (ramp loss)",
        caption="\n".join(
            [
                f"Best without privacy: lambda {PENALTIES[best]:g}, score {scores[best]:.4f}, of {spread}.",
                "Regret: how far the true score at lambda~ is below the best. Error: of v~, as the score at lambda~",
                "(the best score where lambda~ is not released). epsilon is for both releases together, halved where",
                f"both are made. On average: not worst-case; delta {DELTA} over a prior, with 1 - k1 = 1e-4 assumed.",
                "! the noise is larger than the range of the score. One run each: another one draws other noise.",
            ]
        ),
    )
    for name in ("method", "promise", "epsilon", "scale of lambda~", "lambda~", "regret", "noise of v~", "v~", "error"):
        result.add_column(name, justify="left" if name in ("method", "promise") else "right", no_wrap=True)
    return result


def _cells(method: str, epsilon: str, view: wire.TuningView, scores: Vector) -> list[str]:
    report, result = view.report, view.result
    if result is None:
        raise StartFailed(f"{view.name}: {view.problem}")

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.3g}"

    regret = None if result.index is None else float(scores.max() - scores[result.index])
    at = scores.max() if result.index is None else scores[result.index]
    error = None if result.value is None else abs(result.value - float(at))
    loud = any(caution.code == "noise_large" for caution in report.cautions)
    chosen = None if result.hyperparameters is None else result.hyperparameters["lambda"]
    return [
        method,
        "on average" if METHODS[method][1] else "worst case",
        epsilon + (" !" if loud else "  "),
        *map(number, (report.index_scale, chosen, regret, report.value_scale, result.value, error)),
    ]


if __name__ == "__main__":
    sys.exit(main())
