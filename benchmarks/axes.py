"""`python -m benchmarks.axes [RUNS]`: searches through releases on axes, beside noise on all features.

On the same functions and first rows. Runs are stored as they end, and the same command plays missing ones.
`python -m benchmarks.axes size` releases 50,000 x 768 on private axes, and prints processor time and memory.
"""

import resource
import sys
import time
from decimal import Decimal
from functools import lru_cache
from math import sqrt

import numpy as np

from benchmarks.papers.search import Domain, Search, rows_of
from benchmarks.stored_runs import mean_of, play_missing
from benchmarks.table import Cell, Table
from blindopt import wire
from blindopt.arrays import Matrix
from blindopt.gp.kernels import SquaredExponential
from curator_service.datasets.scaling import rounding_of
from curator_service.releases.mechanisms.axes import Axes
from curator_service.releases.mechanisms.row_noise import GaussianMechanism

STEPS, DELTA, RADIUS = 50, 1e-5, 20.0
CASES = {"digits, d = 64": ("0.3", "1"), "power law, d = 256": ("1", "3")}
HEAD = f"""# Axes

Written by `python -m benchmarks.axes` from the runs beside this page. Records are 1,297 of scikit-learn's digits, in
hidden changes of 2.7 of 16 levels of a pixel (500 others are the public sample), and 3,000 Gaussian ones in 256
features whose variances are j^-1.5, of norm 13 on average (the sample: 1,000 others). Functions are of a Gaussian
process on all features. `ei` knows its kernel, begins with 3 random records and queries {STEPS} more. Outcomes are
exact, delta is 1e-5, the radius of private axes {RADIUS:g}. Regret of the best queried record, with the standard
error; differences are to noise on all features in the same runs.

`python -m benchmarks.axes size` on two processors: 50,000 x 768 on private axes took 6.3 s, 7.9 seconds of processor
time and 870 MiB with the records.

"""


@lru_cache(maxsize=2)
def data(name: str) -> tuple[Domain, Matrix, Matrix]:
    """The records and the kernel, the public sample, and a root of the covariance of functions."""
    rng = np.random.default_rng(21)
    if name.startswith("digits"):
        from sklearn.datasets import load_digits

        every = load_digits().data[rng.permutation(1_797)] / 2.7
        sample, x = every[:500], every[500:]
    else:
        spread = np.sqrt(np.arange(1, 257) ** -1.5)
        every = rng.standard_normal((4_000, 256)) * spread / np.linalg.norm(spread) * 13
        sample, x = every[:1_000], every[1_000:]
    middle = sample.mean(axis=0)
    x, sample = x - middle, sample - middle
    lengthscale = 0.739 * sqrt(2 * float(sample.var(axis=0).sum()))
    kernel = wire.Kernel(lengthscale=lengthscale, signal_variance=1.0, noise_variance=1e-6)
    root = np.linalg.cholesky(SquaredExponential(lengthscale)(x, x) + 1e-8 * np.eye(len(x)))
    return Domain(x, kernel), np.asarray(sample, dtype=np.float64), np.asarray(root, dtype=np.float64)


def axes_of(domain: Domain, epsilon: str, *, is_private: bool) -> Axes:
    """The mechanism before its axes are known."""
    source = {"axes": "private", "radius": RADIUS} if is_private else {"sample_dataset_id": "a sample"}
    spec = wire.AxesRelease.model_validate({"mechanism": "axes", "epsilon": epsilon, "delta": DELTA} | source)
    return Axes(spec, domain.rows.d, rounding_of(domain.rows.features))


def play(run: int) -> dict[str, float]:
    """The last regret of each way, and the number of its columns."""
    ends: dict[str, float] = {}
    for name, epsilons in CASES.items():
        domain, sample, root = data(name)
        rng = np.random.default_rng([22, run])
        f = root @ rng.standard_normal(len(root))
        search, d = Search.draw(f, STEPS, 0.0, run, rng), domain.rows.d
        ends[f"{name}//random"] = search.random_regrets()[-1]
        for epsilon in epsilons:
            mechanisms = {
                "all features": GaussianMechanism(Decimal(epsilon), DELTA, 1.0),
                "public axes": axes_of(domain, epsilon, is_private=False).of_sample(rows_of(sample)),
                "private axes": axes_of(domain, epsilon, is_private=True).prepare(domain.rows),
            }
            for way, mechanism in mechanisms.items():
                z = domain.release(mechanism)
                ends[f"{name}/{epsilon}/{way}"] = search.regrets(
                    domain, z, mechanism.noise(d), wire.Ei(name="ei"), once=True
                )[-1]
                ends[f"{name}/{epsilon}/{way}/columns"] = z.shape[1]
    return {way: float(f"{end:.5g}") for way, end in ends.items()}


def table(runs: list[dict[str, float]]) -> Table:
    """Mean regret of each way, and its difference to noise on all features."""
    rows: list[list[Cell]] = []
    for way in (way for way in runs[0] if not way.endswith("/columns")):
        name, epsilon, release = way.split("/")
        last = np.array([ends[way] for ends in runs])
        columns, apart = "", ""
        if epsilon:
            counts = {int(ends[f"{way}/columns"]) for ends in runs}
            columns = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else str(min(counts))
        if release.endswith("axes"):
            apart = mean_of(last - np.array([ends[f"{name}/{epsilon}/all features"] for ends in runs]))
        rows.append([name, epsilon, release, columns, mean_of(last), apart])
    heads = ["records", "epsilon", "release", "columns", "regret", "difference"]
    return Table(f"Regret after {STEPS} queries, {len(runs)} runs (standard errors)", heads, rows)


def size(n: int = 50_000, d: int = 768) -> str:
    """Processor time and memory of a release of ``n`` records of ``d`` features on private axes."""
    spread = np.sqrt(np.arange(1, d + 1) ** -1.5)
    x = np.random.default_rng(23).standard_normal((n, d)) * spread / np.linalg.norm(spread) * 13
    domain = Domain(x, wire.Kernel(lengthscale=1.0, signal_variance=1.0, noise_variance=1e-6))
    rows, started_s, clock_s = domain.rows, time.process_time(), time.perf_counter()
    drawn = axes_of(domain, "1", is_private=True).release(rows, lambda *shape: np.empty(shape), lambda share: None)
    seconds, wall = time.process_time() - started_s, time.perf_counter() - clock_s
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds += children.ru_utime + children.ru_stime
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    assert drawn.mechanism is not None
    columns = drawn.mechanism.columns(d)
    return f"{n:,} x {d}: {columns} columns, {seconds:.1f} CPU-s, {wall:.1f} s, {peak:,.0f} MiB with the records"


def main() -> None:
    """Play the runs that are not stored yet, and write the table."""
    if sys.argv[1:] == ["size"]:
        print(size())
        return
    play_missing("axes", 100, play, table, HEAD)


if __name__ == "__main__":
    main()
