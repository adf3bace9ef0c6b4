"""Choosing rows: GP-UCB's loop over finite candidates beside scikit-learn's, BoTorch's and plain numpy's.

All have equal settings. BoTorch is measured if it is installed (the extra ``peers``).

Times are processor times of one thread: wall time on a busy machine includes other work.
"""

import mmap
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF
from threadpoolctl import threadpool_limits

from benchmarks import botorch_loop
from benchmarks.table import Cell, Table
from blindopt import wire
from blindopt.arrays import Matrix, Vector
from blindopt.gp.acquisition import UpperConfidenceBound, beta, choose_maximum, upper_confidence_bound
from blindopt.gp.candidates import Precision
from blindopt.gp.kernels import SquaredExponential
from blindopt.gp.posterior import Posterior
from blindopt.optimizer.algorithms.factory import build_algorithm
from blindopt.optimizer.algorithms.settings import AlgorithmSettings

STEPS = 50
NOISE_VARIANCE = 1e-4
DELTA_PRIME = 0.025
LARGE = 1_000_000
TIMES = (25, 100, 400, 1_000, 2_000)  # steps of D that are reported, each as a mean of the steps just before it


@dataclass(frozen=True, slots=True)
class Problem:
    """Candidates (n, r), a length-scale, and the outcome of every row."""

    name: str
    candidates: Matrix
    lengthscale: float
    outcomes: Vector
    steps: int = STEPS

    def weight(self, step: int) -> float:
        """Exploration weight beta_t of a step."""
        return beta(len(self.candidates), step, DELTA_PRIME)


Loop = Callable[[Problem], Iterator[int]]


def problems() -> list[Problem]:
    """A: a 100 x 100 grid; B: 36,000 random candidates of 15 columns."""
    return [
        Problem("A: n = 10,000, r = 2", _grid(), 0.2, np.sin(7 * _grid()).sum(axis=1)),
        cloud("B", 36_000),
    ]


def dispersed(steps: int) -> Problem:
    """D: the grid of A with noise of 20 length-scales in its coordinates. Most candidates tie at the prior bound."""
    grid = _grid()
    noisy = grid + np.random.default_rng(5).normal(scale=20 * 0.2, size=grid.shape)
    return Problem("D: n = 10,000, r = 2, noise of 20 length-scales", noisy, 0.2, np.sin(7 * grid).sum(axis=1), steps)


def _grid() -> Matrix:
    axis = np.linspace(0.0, 1.0, 100)
    return np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)


def cloud(name: str, n: int) -> Problem:
    """Make a problem of normal candidates with 15 columns."""
    z = np.random.default_rng(0).normal(size=(n, 15))
    return Problem(f"{name}: n = {n:,}, r = 15", z, 4.0, np.sin(z).sum(axis=1) / 4)


def ours(problem: Problem, dtype: Precision = np.float64) -> Iterator[int]:
    """Yield the rows that the modeler's engine chooses."""
    kernel, ties = SquaredExponential(problem.lengthscale), np.random.default_rng(0)
    posterior = Posterior(
        problem.candidates, kernel, noise_variance=NOISE_VARIANCE, capacity=problem.steps, dtype=dtype
    )
    for step in range(1, problem.steps + 1):
        row = posterior.argmax(UpperConfidenceBound(problem.weight(step)), lambda: ties).row
        posterior.observe(row, float(problem.outcomes[row]))
        yield row


def plain(problem: Problem) -> Iterator[int]:
    """The baseline: incremental columns in plain numpy, with every candidate updated at each step."""
    z, n, ties = problem.candidates, len(problem.candidates), np.random.default_rng(0)
    whitened, mean, variance = np.empty((problem.steps, n)), np.zeros(n), np.ones(n)
    squares = np.einsum("ij,ij->i", z, z)
    for t in range(problem.steps):
        bound = upper_confidence_bound(mean, variance, problem.weight(t + 1))
        row = choose_maximum(bound, mean, variance, ties).row
        column = z @ z[row]
        column *= -2.0
        column += squares
        column += squares[row]
        column *= -0.5 / problem.lengthscale**2
        np.exp(column, out=column)
        column -= whitened[:t, row] @ whitened[:t]
        pivot = np.sqrt(variance[row] + NOISE_VARIANCE)
        column /= pivot
        mean += column * ((problem.outcomes[row] - mean[row]) / pivot)
        variance -= column * column
        np.maximum(variance, 0.0, out=variance)
        whitened[t] = column
        yield row


def scikit_learn(problem: Problem, replayed: list[int] | None = None) -> Iterator[int]:
    """GaussianProcessRegressor, refitted at each step with fixed hyper-parameters; only one step after ``replayed``."""
    kernel, ties, rows = RBF(problem.lengthscale), np.random.default_rng(0), list(replayed or [])
    for step in range(len(rows) + 1, problem.steps + 1 if replayed is None else len(rows) + 2):
        model = GaussianProcessRegressor(kernel, alpha=NOISE_VARIANCE, optimizer=None)
        if rows:
            model.fit(problem.candidates[rows], problem.outcomes[rows])
        mean, sd = model.predict(problem.candidates, return_std=True)
        bound = mean + np.sqrt(problem.weight(step)) * sd
        rows.append(choose_maximum(bound, mean, sd**2, ties).row)
        yield rows[-1]


def botorch(problem: Problem, replayed: list[int] | None = None) -> Iterator[int]:
    """SingleTaskGP and optimize_acqf_discrete, rebuilt at each step; only one step after ``replayed``."""
    rows = list(replayed or [])
    choose = botorch_loop.chooser(problem.candidates, problem.outcomes, problem.lengthscale, NOISE_VARIANCE)
    if not rows:  # BoTorch has no model without an outcome: the first row is drawn from all
        rows.append(int(np.random.default_rng(0).integers(len(problem.candidates))))
        yield rows[0]
    for step in range(len(rows) + 1, problem.steps + 1 if replayed is None else len(rows) + 2):
        rows.append(choose(rows, problem.weight(step)))
        yield rows[-1]


def worst_gap(problem: Problem, rows: list[int]) -> float:
    """Largest relative gap of a chosen row's bound to the true maximum, with the same outcomes, in long double."""
    long = np.longdouble
    z, n = problem.candidates.astype(long), len(problem.candidates)
    whitened, mean, variance = np.empty((len(rows), n), long), np.zeros(n, long), np.ones(n, long)
    worst = 0.0
    for t, row in enumerate(rows):
        bound = mean + np.sqrt(long(problem.weight(t + 1)) * variance)
        worst = max(worst, float((bound.max() - bound[row]) / bound.max()))
        column = np.exp(-((z - z[row]) ** 2).sum(axis=1) / (2 * long(problem.lengthscale) ** 2))
        column -= whitened[:t, row] @ whitened[:t]
        pivot = np.sqrt(variance[row] + long(NOISE_VARIANCE))
        column /= pivot
        mean += column * ((long(problem.outcomes[row]) - mean[row]) / pivot)
        variance = np.maximum(variance - column * column, 0)
        whitened[t] = column
    return worst


def take_memory() -> None:
    """Touch 1 GiB and give it back: the next loop pays for no page that a host has to find for its guest first.

    A host takes back what its guests do not use. New memory is most of a late step then.
    """
    pages = np.empty((1 << 30) // 8)
    pages[:: mmap.PAGESIZE // 8] = 1


def timed(loop: Loop, problem: Problem) -> tuple[list[int], list[float]]:
    """Run a loop; return its rows and the processor time of each step, set-up counted with the first."""
    rows, times, last = [], [], time.process_time()
    for row in loop(problem):
        now = time.process_time()
        rows.append(row)
        times.append(now - last)
        last = now
    return rows, times


def peak(loop: Loop, problem: Problem) -> float:
    """Peak memory of a loop in MiB, without the candidates."""
    tracemalloc.start()
    for _ in loop(problem):
        pass
    peak_mib = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    return peak_mib


LOOPS: dict[str, Loop] = {
    "plain numpy": plain,
    "blindopt": ours,
    "blindopt, float32": partial(ours, dtype=np.float32),
    "scikit-learn": scikit_learn,
}
if botorch_loop.INSTALLED:
    LOOPS["BoTorch"] = botorch
SLOW = ("scikit-learn", "BoTorch")


def whole(problem: Problem, repeats: int) -> Table:
    """Time the loop of 50 choices: the median of interleaved repeats."""
    times: dict[str, list[float]] = {name: [] for name in LOOPS}
    rows: dict[str, list[int]] = {}
    for repeat in range(repeats):
        for name, loop in LOOPS.items():
            if name not in SLOW or repeat < 2:
                rows[name], steps = timed(loop, problem)
                times[name].append(sum(steps))
    seconds = {name: float(np.median(samples)) for name, samples in times.items()}
    lines: list[list[Cell]] = [
        [
            name,
            seconds[name],
            seconds[name] / seconds["plain numpy"],
            seconds["plain numpy"] / seconds[name],
            seconds["scikit-learn"] / seconds[name],
            seconds["BoTorch"] / seconds[name] if "BoTorch" in seconds else None,
            None if name == "BoTorch" else peak(loop, problem),  # its memory is not Python's: it cannot be seen here
            worst_gap(problem, rows[name]),
        ]
        for name, loop in LOOPS.items()
    ]
    columns = [
        "loop",
        "CPU s",
        "to plain numpy",
        "times faster than plain numpy",
        "than scikit-learn",
        "than BoTorch",
        "extra MiB",
        "worst gap of UCB",
    ]
    absent = "" if botorch_loop.INSTALLED else f"; {botorch_loop.ABSENT}"
    return Table(f"{problem.steps} choices, {problem.name}{absent}", columns, lines)


def by_rule(problem: Problem, goals: Mapping[str, wire.Goal]) -> Table:
    """Time the late choices of a search for many beside those of one for the best: the median of the last 25.

    No candidate is queried twice.
    """
    lines: list[list[Cell]] = []
    for name, goal in goals.items():
        take_memory()
        _, times = timed(partial(chosen_for, goal=goal), problem)
        late = np.array(times[-25:]) * 1e3
        lines.append([name, sum(times), float(np.median(late)), float(late.max())])
    first = lines[0][2]
    for line in lines:
        assert isinstance(first, float)
        assert isinstance(line[2], float)
        line.append(line[2] / first)
    columns = ["goal", "CPU s of all", "ms a step", "longest ms", "to the best"]
    title = f"Late choices by goal, {problem.name} (goal: at most 1.3 times the best; the last 25 of {problem.steps})"
    return Table(title, columns, lines)


def chosen_for(problem: Problem, goal: wire.Goal) -> Iterator[int]:
    """Yield the rows that ``ei`` chooses, or ``reach`` where the goal is many."""
    kernel = wire.Kernel(lengthscale=problem.lengthscale, signal_variance=1.0, noise_variance=NOISE_VARIANCE)
    spec = wire.Ei(name="ei") if isinstance(goal, wire.FindBest) else wire.Reach(name="reach")
    settings = AlgorithmSettings(kernel, 1, 0, problem.steps, exact=True, goal=goal)
    algorithm, rows = build_algorithm(spec, problem.candidates, settings), list[int]()
    for step in range(1, problem.steps + 1):
        algorithm.hide(np.unique(np.array(rows, dtype=np.intp)))
        choice = algorithm.choose(step)
        assert choice is not None, "there are more candidates than steps"
        rows.append(choice.row)
        algorithm.observe(rows[-1], float(problem.outcomes[rows[-1]]))
        yield rows[-1]


def step_by_step(problem: Problem) -> Table:
    """Time the late steps of problem M. Lazy steps differ, so the table has the mean of the last 25 and the longest."""
    n, r = problem.candidates.shape
    limit = 8 * n * (problem.steps + r + 6) / bandwidth()
    lines: list[list[Cell]] = []
    rows: list[int] = []
    for name in ("plain numpy", "blindopt", "blindopt, float32"):
        take_memory()
        rows, times = timed(LOOPS[name], problem)
        late = np.array(times[-25:]) * 1e3
        memory = peak(LOOPS[name], problem)
        lines.append(
            [name, sum(times), float(late.mean()), float(late.max()), float(late.mean()) / limit / 1e3, memory]
        )
    peers: dict[str, Loop] = {"scikit-learn": partial(scikit_learn, replayed=rows[:-1])}
    if botorch_loop.INSTALLED:
        peers["BoTorch"] = partial(botorch, replayed=rows[:-1])
    for name, step in peers.items():
        _, (once,) = timed(step, problem)
        lines.append([f"{name}, step 50", None, once * 1e3, once * 1e3, once / limit, None])
        if name != "BoTorch":  # its memory is not Python's: it cannot be seen here
            lines[-1][-1] = peak(step, problem)
    mean = lines[1][2]
    assert isinstance(mean, float)
    for line in lines:
        assert isinstance(line[2], float)
        line.append(line[2] / mean)
    columns = ["loop", "CPU s of all", "ms a step", "longest ms", "to the byte bound", "extra MiB", "to blindopt"]
    stated = 8 * n * (problem.steps + r + 6) / 2**20 + 50
    return Table(
        f"The last 25 of {problem.steps} steps, {problem.name} (goal: at most {stated:.0f} MiB)", columns, lines
    )


def growth(problem: Problem) -> Table:
    """Time single steps of problem D as outcomes grow in number."""
    reported = [t for t in TIMES if t <= problem.steps]
    rows, times = timed(ours, problem)
    floor = timed(plain, problem)[1]
    lines: list[list[Cell]] = []
    for t in reported:
        last = slice(t - t // 8 - 1, t)
        own, plainly = (float(np.mean(each[last])) * 1e3 for each in (times, floor))
        (peer,) = timed(partial(scikit_learn, replayed=rows[: t - 1]), problem)[1]
        line: list[Cell] = [t, plainly, own, own / plainly, peer * 1e3 / own]
        if botorch_loop.INSTALLED:
            (peer,) = timed(partial(botorch, replayed=rows[: t - 1]), problem)[1]
        line.append(peer * 1e3 / own if botorch_loop.INSTALLED else None)
        lines.append(line)
    columns = [
        "t",
        "plain numpy, ms",
        "blindopt, ms",
        "to plain numpy",
        "times faster than scikit-learn",
        "than BoTorch",
    ]
    return Table(f"A choice after t outcomes, {problem.name} (goal: at most 2 times plain numpy)", columns, lines)


def bandwidth() -> float:
    """Bytes per second that one thread reads from memory: the best of five sums of 256 MiB."""
    numbers, best = np.ones(1 << 25), np.inf
    for _ in range(5):
        started = time.process_time()
        numbers.sum()
        best = min(best, time.process_time() - started)
    return numbers.nbytes / best


def tables(large: bool = False) -> list[Table]:
    """Tables of A, B and D; with ``large``, of M too, which takes a minute and 2 GiB."""
    with threadpool_limits(1):
        tables = [whole(problem, 7) for problem in problems()]
        tables.append(growth(dispersed(TIMES[-1])))
        if not large:
            return tables
        problem = cloud("M", LARGE)
        good = float(np.quantile(problem.outcomes, 0.99))
        goals: dict[str, wire.Goal] = {"best": wire.BEST, "many, stated": wire.FindMany(threshold=good)}
        goals["many, by share"] = wire.FindMany(share=0.01)
        return [*tables, step_by_step(problem), by_rule(problem, goals)]
