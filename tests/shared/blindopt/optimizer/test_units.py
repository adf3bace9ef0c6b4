"""Choices do not depend on units: of outcomes, of columns, nor on the order of rows and columns."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from blindopt import wire
from blindopt.arrays import Matrix, Vector
from blindopt.gp import fitting
from blindopt.optimizer import chooser
from blindopt.optimizer.algorithms.gp import surrogate
from blindopt.optimizer.algorithms.gp.surrogate import OutcomeUnit
from blindopt.optimizer.optimizer import Optimizer

STEPS = 12
ALGORITHMS = ("ei", "ei_deblurred", "gp_ucb", "gp_bucb")
RNG = np.random.default_rng(5)
X = np.round(RNG.uniform(size=(120, 4)), 6)
Y = np.round(np.sin(6 * X[:, 0]) + np.cos(4 * X[:, 1]) + X[:, 2] * X[:, 3], 6)
NOISY = np.round(X[:, :2] + RNG.normal(scale=0.05, size=(120, 2)), 6)


@dataclass(frozen=True)
class Search:
    """A search, and how its outcomes y are told: as a y + b."""

    algorithm: str
    kernel: bool = False
    maximize: bool = True
    a: float = 1.0
    b: float = 0.0
    column: float = 1.0
    """What all columns are multiplied by, kernel and noise with them."""

    def run(self, candidates: Matrix | None = None, y: Vector = Y) -> tuple[list[int], Vector, Vector]:
        """Rows, and means and standard deviations of all candidates at the end, in units of y."""
        is_noisy = self.algorithm == "ei_deblurred"
        x = (NOISY if is_noisy else X) if candidates is None else candidates
        settings: dict[str, Any] = {"batch_size": 2} if self.algorithm == "gp_bucb" else {}
        if self.kernel:
            settings["kernel"] = wire.Kernel(
                lengthscale=0.3 * self.column,
                signal_variance=self.a**2,
                noise_variance=self.a**2 / 1024,
                mean=self.b + self.a,
            )
            settings["fit"] = None
        noise = wire.NoiseLaw(family="gaussian", sd=0.05 * self.column) if is_noisy else None
        optimizer = Optimizer(
            x * self.column,
            seed=3,
            iterations=STEPS,
            algorithm=self.algorithm,
            maximize=self.maximize,
            noise=noise,
            **settings,
        )
        for _ in range(STEPS):
            row = optimizer.ask()
            optimizer.tell(row, float(self.a * y[row] + self.b))
        mean, sd = optimizer.posterior()
        return [row for row, *_ in optimizer.history], (mean - self.b) / self.a, sd / abs(self.a)


def assert_same(search: tuple[list[int], Vector, Vector], other: tuple[list[int], Vector, Vector], tol: float) -> None:
    assert search[0] == other[0]
    for values, others in zip(search[1:], other[1:], strict=True):
        np.testing.assert_allclose(values, others, rtol=tol, atol=tol)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("kernel", [False, True], ids=["fitted", "kernel"])
@pytest.mark.parametrize("a", [2.0**-60, 2.0**60, 1e-20, 1e20])
def test_outcomes_in_other_units_make_the_same_choices(algorithm, kernel, a):
    usual = Search(algorithm, kernel).run()
    assert_same(Search(algorithm, kernel, a=a).run(), usual, 0.0 if np.log2(a).is_integer() else 1e-6)


@pytest.mark.parametrize("a", [1e-300, 1e-100, 1e100, 1e300])
def test_outcomes_at_the_ends_of_the_doubles_make_the_same_choices(a):
    assert_same(Search("ei", a=a).run(), Search("ei").run(), 1e-6)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("b", [-1e3, 1e6])
def test_outcomes_from_another_zero_make_the_same_choices(algorithm, b):
    assert_same(Search(algorithm, b=b).run(), Search(algorithm).run(), 1e-5)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("kernel", [False, True], ids=["fitted", "kernel"])
def test_the_smallest_is_sought_as_the_largest_of_the_opposite(algorithm, kernel):
    search = (
        Search(algorithm, kernel, maximize=False, a=-1.0) if not kernel else Search(algorithm, a=-1.0, maximize=False)
    )
    usual = Search(algorithm)
    assert_same(search.run(), usual.run(), 0.0)


SIZES = np.array([2.0**-60, 2.0**60, 2.0**-7, 1.0])


@pytest.mark.parametrize("algorithm", ["ei", "gp_ucb", "gp_bucb"])
@pytest.mark.parametrize(
    ("sizes", "tol"), [(SIZES, 0.0), (np.array([1e-30, 1e30, 1e9, 1e-9]), 1e-6)], ids=["powers of two", "of ten"]
)
def test_columns_in_other_units_make_the_same_choices(algorithm, sizes, tol):
    assert_same(Search(algorithm).run(X * sizes), Search(algorithm).run(), tol)


def test_columns_from_another_zero_make_the_same_choices():
    assert_same(Search("ei").run(X + np.array([1e3, -1e5, 0.0, 7.0])), Search("ei").run(), 1e-4)


@pytest.mark.parametrize("kernel", [False, True], ids=["fitted", "kernel"])
@pytest.mark.parametrize(("size", "tol"), [(2.0**60, 0.0), (1e-30, 1e-6)])
def test_noisy_candidates_in_another_common_unit_make_the_same_choices(kernel, size, tol):
    search = Search("ei_deblurred", kernel)
    assert_same(replace(search, column=size).run(), search.run(), tol)


def test_columns_in_another_order_and_constant_ones_make_the_same_choices():
    usual = Search("ei").run()
    assert Search("ei").run(X[:, [2, 0, 3, 1]])[0] == usual[0]
    for value in (0.0, 1e12):
        assert Search("ei").run(np.column_stack([X[:, :2], np.full(len(X), value), X[:, 2:]]))[0] == usual[0]


def test_rows_in_another_order_make_the_same_choices_after_the_same_first_one():
    usual, order = Search("ei").run(), np.random.default_rng(1).permutation(len(X))
    first, again = usual[0][0], Search("ei").run(X)[0][0]
    assert first == again  # the seed draws the number of the first row
    order[[first, int(np.flatnonzero(order == first)[0])]] = order[[int(np.flatnonzero(order == first)[0]), first]]
    assert order[first] == first
    rows = Search("ei").run(X[order], Y[order])[0]
    assert order[rows].tolist() == usual[0]


def test_the_rules_of_units_are_what_makes_choices_the_same(monkeypatch):
    columns, usual = X * SIZES, Search("ei").run()
    with monkeypatch.context() as patch:
        raw = chooser.maximin
        patch.setattr(chooser, "maximin", lambda *given, scales, **named: raw(*given, **named))
        assert Search("ei").run(columns)[0] != usual[0]
    with monkeypatch.context() as patch:  # a column that is constant beside the largest one
        ones = chooser.column_scales
        patch.setattr(surrogate, "column_scales", lambda x: np.where(x.std(0) > 1e-9 * x.std(0).max(), ones(x), 0.0))
        assert Search("ei").run(columns)[0] != usual[0]
    with monkeypatch.context() as patch:  # outcomes as they are
        patch.setattr(OutcomeUnit, "of", classmethod(lambda cls, outcomes: cls()))
        assert fitting.suggest_hyper(np.array([0.0, 1e-30]), 1.0).signal_variance == 1.0
        assert Search("ei", a=1e-30).run()[0] != usual[0]
