"""`python -m benchmarks.one_feature [RUNS]`: searches through a release that hides one feature at a time.

Beside the default promise, on the same functions, first rows and epsilon. Runs are stored as they end, and the same
command plays missing ones.
"""

from decimal import Decimal
from functools import lru_cache
from math import sqrt
from typing import Literal

import numpy as np

from benchmarks.papers.pools import hartmann
from benchmarks.papers.records import learned
from benchmarks.papers.search import NORM, Domain, Search
from benchmarks.stored_runs import mean_of, play_missing
from benchmarks.table import Cell, Table
from blindopt import wire
from blindopt.arrays import Matrix, Vector
from blindopt.gp.kernels import SquaredExponential
from curator_service.releases.mechanisms.row_noise import PlanarLaplaceMechanism

STEPS, ROWS = 50, {"Hartmann 6": 10_000, "process, 8 dimensions": 2_000}
PROMISES: tuple[Literal["euclidean", "one_feature"], ...] = ("euclidean", "one_feature")
EPSILONS = ("1", "3")
HEAD = f"""# One feature at a time

Written by `python -m benchmarks.one_feature` from the runs beside this page. Records are uniform in a cube whose
corners have norm {NORM:g} in hidden changes: 10,000 with Hartmann's function of six variables in standard deviations,
and 2,000 with functions of a Gaussian process in eight. `ei` knows the kernel (of Hartmann's function, one fitted to
600 exact records), begins with 3 random records and queries {STEPS} more. Outcomes are exact. Regret of the best
queried record, with the standard error; differences are to `euclidean` in the same runs.

"""


@lru_cache(maxsize=1)
def hartmann_kernel() -> wire.Kernel:
    """The kernel of Hartmann's function, fitted to 600 records of another draw."""
    x, y = _hartmann(np.random.default_rng([11]))
    return learned(x, y, "squared_exponential", 600)


def _cube(rng: np.random.Generator, n: int, d: int) -> Matrix:
    return rng.uniform(-1.0, 1.0, size=(n, d)) * NORM / sqrt(d)


def _hartmann(rng: np.random.Generator) -> tuple[Matrix, Vector]:
    x = _cube(rng, ROWS["Hartmann 6"], 6)
    y = hartmann(x * sqrt(6) / NORM / 2 + 0.5)
    return x, (y - y.mean()) / y.std()


def problem(name: str, run: int) -> tuple[Domain, Search]:
    """The records of a run, the kernel that the modeler knows, and the function to be maximized."""
    rng = np.random.default_rng([12, run])
    if name == "Hartmann 6":
        x, f = _hartmann(rng)
        kernel = hartmann_kernel()
    else:
        x = _cube(rng, ROWS[name], 8)
        kernel = wire.Kernel(lengthscale=0.739 * NORM * sqrt(2 / 3), signal_variance=1.0, noise_variance=1e-6)
        covariance = SquaredExponential(kernel.lengthscale)(x, x) + 1e-8 * np.eye(len(x))
        f = np.linalg.cholesky(covariance) @ rng.standard_normal(len(x))
    return Domain(x, kernel), Search.draw(f, STEPS, 0.0, run, rng)


def play(run: int) -> dict[str, float]:
    """The last regret of each way."""
    regrets: dict[str, float] = {}
    for name in ROWS:
        domain, search = problem(name, run)
        regrets[f"{name}//random"] = search.random_regrets()[-1]
        for epsilon in EPSILONS:
            for promise in PROMISES:
                mechanism = PlanarLaplaceMechanism(Decimal(epsilon), 1.0, promise=promise)
                law, z = mechanism.noise(domain.rows.d), domain.release(mechanism)
                regret = search.regrets(domain, z, law, wire.Ei(name="ei"), once=True)[-1]
                regrets[f"{name}/{epsilon}/{promise}"] = regret
    return {way: float(f"{regret:.5g}") for way, regret in regrets.items()}


def table(runs: list[dict[str, float]]) -> Table:
    """Mean regret of each way, and its difference to the default promise."""
    rows: list[list[Cell]] = []
    for way in runs[0]:
        name, epsilon, promise = way.split("/")
        last = np.array([regrets[way] for regrets in runs])
        apart = ""
        if promise == "one_feature":
            apart = mean_of(last - np.array([regrets[f"{name}/{epsilon}/euclidean"] for regrets in runs]))
        rows.append([name, epsilon, promise, mean_of(last), apart])
    columns = ["records", "epsilon", "promise", "regret", "difference"]
    return Table(f"Regret after {STEPS} queries, {len(runs)} runs (standard errors)", columns, rows)


def main() -> None:
    """Play the runs that are not stored yet, and write the table."""
    play_missing("one_feature", 100, play, table, HEAD)


if __name__ == "__main__":
    main()
