"""A small tuning case: public training records, private validation records, and what is asked of them."""

from dataclasses import dataclass

import numpy as np

from blindopt import wire
from blindopt.client import Owner

NAMES = ("zt_age", "zt_dose", "zt_class")
FEATURES = [wire.Feature(column=c, lower=-2.0, upper=2.0, scale=2.0) for c in NAMES[:2]]
PENALTIES = [0.001, 0.01, 0.1, 1.0, 10.0]


def rows_of(n: int, seed: int) -> np.ndarray:
    """Two features and a class (n, 3) that they tell with noise; some rows lie outside the unit ball."""
    rng = np.random.default_rng(seed)
    x = np.round(rng.uniform(-2.2, 2.2, size=(n, 2)), 4)
    return np.column_stack([x, (x @ [1.0, -0.5] + 0.4 * rng.normal(size=n) > 0.1).astype(float)])


def csv_of(rows: np.ndarray, names: tuple[str, ...] = NAMES) -> bytes:
    lines = [",".join(names), *(",".join(map(repr, row)) for row in rows.tolist())]
    return ("\n".join(lines) + "\n").encode()


@dataclass(frozen=True)
class Case:
    """Registered datasets; ``spec`` makes a request of them."""

    training: wire.DatasetView
    validation: wire.DatasetView

    def spec(self, epsilon="1", cap="100000", method=None, name="a tuning", **changed) -> wire.TuningCreate:
        score = {"loss": "zero_one"} | changed.pop("score", {})
        said = {
            "name": name,
            "grid": [wire.TuningAxis(name="lambda", values=PENALTIES, scale="log10")],
            "score": wire.LogisticScore(
                kind="logistic",
                training_dataset_id=self.training.id,
                features=FEATURES,
                label=NAMES[2],
                **score,
            ),
            "validation_dataset_id": self.validation.id,
            "method": method or wire.GridExponential(name="grid_exponential"),
            "budget": wire.TuningBudget(epsilon=epsilon),
            "caps": wire.TuningCaps(epsilon=cap),
        }
        return wire.TuningCreate(**(said | changed))

    def http(self, epsilon="1", cap="100000", lower=0.0, upper=1.0, reply="mean", **changed) -> wire.TuningCreate:
        """The same, of an http score over two hyper-parameters."""
        axes = [wire.TuningAxis(name="depth", values=[1.0, 2.0, 3.0]), wire.TuningAxis(name="rate", values=[0.1, 0.2])]
        score = wire.HttpScore(kind="http", model="trees", lower=lower, upper=upper, reply=reply)
        spec = self.spec(epsilon, cap)
        return spec.model_copy(update={"grid": axes, "score": score} | changed)


def registered(owner: Owner, m: int = 200, seed: int = 2) -> Case:
    """A case on datasets of its own: each seed is another file, and another account."""
    return Case(
        owner.register("training", csv_of(rows_of(150, 1)), public=True),
        owner.register("validation", csv_of(rows_of(m, seed))),
    )


def scores(training: np.ndarray, validation: np.ndarray, loss) -> list[float]:
    """f at each of PENALTIES, by a slow optimizer and from the raw rows, one record after another."""
    from scipy import optimize

    def ready(rows):
        x = np.clip(rows[:, :2], -2, 2) / 2
        x = np.array([row / max(1.0, np.linalg.norm(row)) for row in x])
        return x, np.where(rows[:, 2] > 0.5, 1.0, -1.0)

    (x, y), (vx, vy), scores = ready(training), ready(validation), []
    for penalty in PENALTIES:

        def objective(w, penalty=penalty):
            return penalty / 2 * w @ w + np.mean(np.logaddexp(0, -y * (x @ w)))

        w = optimize.minimize(objective, np.zeros(2), method="BFGS", options={"gtol": 1e-10}).x
        scores.append(-float(np.mean([loss(label * (row @ w)) for row, label in zip(vx, vy, strict=True)])))
    return scores
