"""Functions of a Gaussian process on the 100 x 100 grid: Tables 1 to 3 of PO-GP-UCB, and sound releases."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from math import exp, sqrt
from typing import Any

import numpy as np

from benchmarks.papers.oracle import oracle_regrets
from benchmarks.papers.part import Curves, Size, Task
from benchmarks.papers.search import NORM, Domain, Search
from blindopt import wire
from blindopt.arrays import Matrix, Vector
from blindopt.gp.kernels import SquaredExponential
from blindopt.optimizer.algorithms.settings import NO_NOISE
from curator_service.releases.mechanisms.po_gp_ucb import PoGpUcb, largest_r, spectrum
from curator_service.releases.mechanisms.row_noise import GaussianMechanism, PlanarLaplaceMechanism

SIDE_PER_LENGTHSCALE = 6.4
"""The printed length-scale of 1.25 with inputs of norm 25 would be 28.3, which benchmarks/papers/results rules out."""
NOISE_VARIANCE = 1e-5
DELTA = 1e-5
STEPS = 50
GROUP = "synthetic"
TABLES: dict[float, tuple[int, ...]] = {
    1.1: (3, 6, 8, 10, 15, 20),
    1.3: (3, 9, 12, 15, 20, 30),
    1.5: (5, 10, 15, 20, 30, 50),
}
"""r of Tables 1, 2 and 3, by the logarithm of epsilon."""
QUOTED = {0.9: 10, 0.0: 10}
FRONTIER = {"1": Decimal(1), "e^1.1": Decimal(repr(exp(1.1)))}
NON_PRIVATE, RANDOM = "non-private", "random rows"
LAWS = {
    "published, r = 10": "po_gp_ucb",
    "Gaussian, naive kernel": "gaussian",
    "Gaussian, noise-aware kernel": "gaussian",
    "planar Laplace, naive kernel": "planar_laplace",
    "planar Laplace, noise-aware kernel": "planar_laplace",
}
"""Mechanism by column: GP-UCB, as in the article."""
RULES: dict[str, wire.AlgorithmSpec] = {
    "gp_ucb, nugget out, scale 0.2": wire.GpUcb(name="gp_ucb", nugget="out", scale=0.2),
    "ei": wire.Ei(name="ei"),
    "ei_deblurred": wire.EiDeblurred(name="ei_deblurred"),
}
"""Other rules, on the same releases with the noise-aware kernel; no row is queried twice."""
SOUND = {"Gaussian": "gaussian", "planar Laplace": "planar_laplace"}
ORACLE = "f known, rows hidden"
"""The best that a search can hope for: expected improvement by the true f, which knows Z only."""


def cell(power: float, r: int) -> str:
    """Name of the column for epsilon = e^power."""
    return f"e^{power:.1f}, r = {r}"


def published(power: float, r: int, delta: float = DELTA) -> PoGpUcb:
    """Algorithm 1 at epsilon = e^power."""
    return PoGpUcb(Decimal(repr(exp(power))), delta, 1.0, r)


@lru_cache(maxsize=1)
def domain(side: int) -> Domain:
    """Make the grid, centred, with its corners at norm 25."""
    axis = np.linspace(-1.0, 1.0, side) * NORM / sqrt(2)
    x = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    lengthscale = NORM * sqrt(2) / SIDE_PER_LENGTHSCALE
    return Domain(x, wire.Kernel(lengthscale=lengthscale, signal_variance=1.0, noise_variance=NOISE_VARIANCE))


@lru_cache(maxsize=1)
def _root(side: int) -> Matrix:
    """Return A (side, side) such that A A^T is the kernel matrix of one axis."""
    axis = np.linspace(-1.0, 1.0, side)[:, None] * NORM / sqrt(2)
    values, vectors = np.linalg.eigh(SquaredExponential(domain(side).kernel.lengthscale)(axis, axis))
    root: Matrix = vectors * np.sqrt(np.maximum(values, 0.0))
    return root


def draw(side: int, rng: np.random.Generator) -> Vector:
    """Draw f ~ GP(0, kernel) on the grid exactly: its covariance is the Kronecker product of those of the axes.

    vec(A G A^T) has covariance (A A^T) x (A A^T) for a matrix G of independent N(0, 1).
    """
    root = _root(side)
    f: Vector = (root @ rng.standard_normal((side, side)) @ root.T).ravel()
    return f


def search_of(stream: int, run: int, side: int) -> Search:
    """Draw a function and the first rows of a run."""
    rng = np.random.default_rng([stream, run])
    return Search.draw(draw(side, rng), STEPS, NOISE_VARIANCE, run, rng)


@dataclass(frozen=True, slots=True)
class Tables:
    """Tables 1 to 3 and the epsilons that the paper quotes beside them, all on the same functions."""

    name: str = "synthetic"

    def tasks(self, size: Size) -> list[Task]:
        return [(GROUP, run) for run in range(size.tables)]

    def marks(self, size: Size) -> Sequence[int]:
        return range(1, STEPS + 1)

    def play(self, task: Task, size: Size) -> Curves:
        grid, search = domain(size.side), search_of(1, task[1], size.side)
        cells = [(power, r) for power, rs in TABLES.items() for r in rs] + list(QUOTED.items())
        curves = {NON_PRIVATE: search.regrets(grid, grid.x), RANDOM: search.random_regrets()}
        return curves | {cell(power, r): search.regrets(grid, grid.release(published(power, r))) for power, r in cells}

    def facts(self, size: Size) -> dict[str, Any]:
        sigma_min = spectrum(domain(size.side).rows).sigma_min
        largest = {f"e^{power:.1f}": largest_r(sigma_min, exp(power), DELTA) for power in TABLES}
        return {"sigma_min": sigma_min, "largest_r": largest, "n": len(domain(size.side).x)}


@dataclass(frozen=True, slots=True)
class Frontier:
    """Releases that are provably private beside the published one, at two levels."""

    name: str = "frontier"

    def tasks(self, size: Size) -> list[Task]:
        return [(GROUP, run) for run in range(size.frontier)]

    def marks(self, size: Size) -> Sequence[int]:
        return range(1, STEPS + 1)

    def play(self, task: Task, size: Size) -> Curves:
        grid, search = domain(size.side), search_of(2, task[1], size.side)
        curves = {NON_PRIVATE: search.regrets(grid, grid.x), RANDOM: search.random_regrets()}
        curves[f"{NON_PRIVATE}, ei"] = search.regrets(grid, grid.x, rule=RULES["ei"], once=True)
        for level, epsilon in FRONTIER.items():
            mechanisms = (PoGpUcb(epsilon, DELTA, 1.0, 10), *_sound(epsilon))
            released = {mechanism.name: (mechanism, grid.release(mechanism)) for mechanism in mechanisms}
            for column, name in LAWS.items():
                mechanism, z = released[name]
                law = mechanism.noise(grid.rows.d) if "aware" in column else NO_NOISE
                curves[f"{column}, {level}"] = search.regrets(grid, z, law)
            for label, name in SOUND.items():
                mechanism, z = released[name]
                law = mechanism.noise(grid.rows.d)
                for rule, spec in RULES.items():
                    curves[f"{label}, {rule}, {level}"] = search.regrets(grid, z, law, spec, once=True)
                curves[f"{label}, {ORACLE}, {level}"] = oracle_regrets(search, size.side, z, law)
        return curves

    def facts(self, size: Size) -> dict[str, Any]:
        sds = {level: {m.name: m.noise(2).sd for m in _sound(epsilon)} for level, epsilon in FRONTIER.items()}
        return {"noise_sd": sds}


def _sound(epsilon: Decimal) -> tuple[GaussianMechanism, PlanarLaplaceMechanism]:
    return GaussianMechanism(epsilon, DELTA, 1.0), PlanarLaplaceMechanism(epsilon, 1.0)
