"""An outsourced search: the curator's mechanism makes Z, the modeler's GP-UCB queries T candidates."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from blindopt import wire
from blindopt.arrays import Matrix, Vector
from blindopt.optimizer.algorithms.factory import Learner, build_algorithm
from blindopt.optimizer.algorithms.gp.rules import GpRule
from blindopt.optimizer.algorithms.settings import NO_NOISE, AlgorithmSettings
from curator_service.datasets.scaling import ScaledRows
from curator_service.releases.mechanisms.mechanism import Mechanism

NORM = 25.0
"""Largest norm of a row, as in the papers' experiments."""
START = 3
"""Number of random first rows: the paper's "different set of initializations", whose size is not printed."""
GP_UCB = wire.GpUcb(name="gp_ucb")


@dataclass(frozen=True)
class Domain:
    """Rows x (n, d) of largest norm 25, in the modeler's order, and the kernel, which both parties know."""

    x: Matrix
    kernel: wire.Kernel

    @cached_property
    def rows(self) -> ScaledRows:
        """The rows as input of the curator's mechanisms."""
        return rows_of(self.x)

    def release(self, mechanism: Mechanism) -> Matrix:
        """Draw a fresh Z (n, r)."""
        return release(self.rows, mechanism)


def rows_of(x: Matrix) -> ScaledRows:
    """Rows (n, d) as input of the curator's mechanisms: bounds of +-25, a unit of 1."""
    n, d = x.shape
    features = [wire.Feature(column=f"x{j}", lower=-NORM, upper=NORM, scale=1.0) for j in range(d)]
    return ScaledRows(values=x, columns=list(range(d)), features=features, order=np.arange(n))


def release(rows: ScaledRows, mechanism: Mechanism) -> Matrix:
    """Draw a fresh Z (n, r)."""
    z = np.empty((rows.n, mechanism.columns(rows.d)))
    mechanism.draw(rows, z)
    return z


@dataclass(frozen=True, slots=True)
class Regrets:
    """Regret of the best queried row, and of the recommended one, after each step."""

    best: list[float]
    recommended: list[float]


@dataclass(frozen=True, slots=True)
class Search:
    """A function f (n,) on a domain, to be maximized; the first rows to query; the noise of y for each query."""

    f: Vector
    first: NDArray[np.intp]
    noise: Vector
    seed: int

    @classmethod
    def draw(cls, f: Vector, steps: int, noise_variance: float, seed: int, rng: np.random.Generator) -> "Search":
        """Draw random first rows and Gaussian noise of y."""
        first = rng.choice(len(f), START, replace=False)
        return cls(f, first, np.sqrt(noise_variance) * rng.standard_normal(START + steps), seed)

    @property
    def steps(self) -> int:
        """T: queries after the first rows."""
        return len(self.noise) - len(self.first)

    def regrets(
        self,
        domain: Domain,
        z: Matrix,
        law: wire.NoiseLaw = NO_NOISE,
        rule: wire.AlgorithmSpec = GP_UCB,
        *,
        once: bool = False,
        second: tuple[Matrix, float] | None = None,
    ) -> list[float]:
        """Simple regret after each of the T steps: see ``play``."""
        return self.play(domain, z, law, rule, once=once, recommends=False, second=second).best

    def play(
        self,
        domain: Domain,
        z: Matrix,
        law: wire.NoiseLaw,
        rule: wire.AlgorithmSpec,
        *,
        once: bool,
        recommends: bool = True,
        second: tuple[Matrix, float] | None = None,
    ) -> "Regrets":
        """Search by a rule on ``z`` (n, r), with noise of law ``law``.

        ``once``: outcomes are taken for exact, and no row is queried twice. ``recommends``: whether the row of the
        largest posterior mean is looked for after each step. ``second``: second draws (n, r), which come with outcomes,
        and the standard deviation of their noise.
        """
        modeler = build_algorithm(
            rule,
            z,
            AlgorithmSettings(
                domain.kernel,
                sign=1,
                seed=self.seed,
                capacity=len(self.noise),
                horizon=self.steps,
                initial=len(self.first),
                noise=law,
                exact=once,
                refine_sd=None if second is None else second[1],
            ),
        )

        def observe(row: int, error: float) -> None:
            if second is not None and isinstance(modeler, GpRule):
                modeler.refine(row, second[0][row])
            modeler.observe(row, float(self.f[row] + error))

        assert isinstance(modeler, Learner), "a rule of a Gaussian process"
        for row, error in zip(self.first, self.noise, strict=False):
            observe(int(row), error)
        rows: list[int] = []
        recommended: list[float] = []
        for step, error in enumerate(self.noise[len(self.first) :], start=1):
            if once:
                modeler.hide(np.unique([*self.first, *rows]))
            choice = modeler.choose(step)
            assert choice is not None, "fewer steps than rows"
            observe(choice.row, error)
            rows.append(choice.row)
            if recommends:
                best = modeler.best(np.unique([*self.first, *rows]))
                recommended.append(float(self.f.max() - self.f[best.row]))
        return Regrets(self.simple_regrets(rows), recommended)

    def random_regrets(self) -> list[float]:
        """Simple regret of T random rows instead of chosen ones."""
        return self.simple_regrets(np.random.default_rng([self.seed, 1]).choice(len(self.f), self.steps, replace=False))

    def simple_regrets(self, rows: "list[int] | NDArray[np.intp]") -> list[float]:
        """The best f minus the best queried one, the first rows included, after each of ``rows``."""
        best = np.maximum.accumulate(np.concatenate([[self.f[self.first].max()], self.f[rows]]))[1:]
        return [float(gap) for gap in self.f.max() - best]
