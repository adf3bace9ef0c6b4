"""Candidates in parts: the same choices to the last bit as those of the whole, whatever the parts are."""

from dataclasses import replace
from functools import cache
from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindopt.gp import parts
from blindopt.gp.acquisition import UpperConfidenceBound, beta
from blindopt.gp.kernels import Matern12, SquaredExponential
from blindopt.gp.parts import Leaders, Threads, edges
from blindopt.gp.posterior import Posterior

N = 900


def grid():
    """30 x 30 candidates in no order: every choice has ties."""
    axis = np.linspace(0, 1, 30)
    z = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    return z[np.random.default_rng(5).permutation(len(z))]


def cloud():
    return np.random.default_rng(6).normal(size=(N, 4))


def walk(z, executor=None, *, dtype=np.float64, case="plain", version=2, steps=14):
    """Rows, ties and acquisitions of a run over ``z`` that repeats, hides, supposes or learns by improvement."""
    kernel = (Matern12 if case == "rough" else SquaredExponential)(0.2 if z.shape[1] == 2 else 1.5)
    nugget = 0.05 if case in ("nugget", "improvement", "refined") else 0.0
    posterior = Posterior(
        z,
        kernel,
        noise_variance=1e-3,
        nugget=nugget,
        capacity=4 * steps,
        dtype=dtype,
        engine=version,
        executor=executor,
        refined=(replace(kernel, variance=0.97), replace(kernel, variance=0.99)) if case == "refined" else None,
    )
    y, chosen = np.sin(5 * z).sum(axis=1), []
    for step in range(1, steps + 1):
        rng = lambda step=step: np.random.default_rng([3, step])  # noqa: E731
        hidden = np.unique([*(c.row for c in chosen), *range(40)] if case == "hidden" else []).astype(np.intp)
        if case == "improvement":
            chosen.append(posterior.argmax(posterior.improvement(0.5), rng))
        else:
            chosen.append(posterior.argmax(UpperConfidenceBound(beta(len(z), step, 0.025)), rng, hidden))
        if case == "batch":
            before = posterior.count
            for _ in range(3):
                posterior.suppose(chosen[-1].row)
                chosen.append(posterior.argmax(UpperConfidenceBound(beta(len(z), step, 0.025)), rng, hidden))
            posterior.retract(before)
        for choice in chosen[-4 if case == "batch" else -1 :]:
            if case == "refined" and choice.row % 3 and choice.row not in posterior.observations.places:
                posterior.refine(choice.row, z[choice.row] + 0.1 * kernel.lengthscale)
            posterior.observe(choice.row, float(y[choice.row]))
        posterior.best(np.unique(posterior.observations.rows[: posterior.count]))
    return [(c.row, c.ties, c.acquisition, c.mean, c.sd) for c in chosen]


@cache
def whole_of(z, case="plain", version=2):
    """The choices of one part."""
    return walk(z(), case=case, version=version)


@pytest.mark.slow(every=5)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("case", ["plain", "nugget", "hidden", "batch", "improvement", "rough", "refined"])
def test_the_number_of_parts_changes_no_bit_of_a_choice(case, count, dtype):
    for z in (grid, cloud):
        assert walk(z(), Threads(count), dtype=dtype, case=case) == whole_of(z, case)


@pytest.mark.parametrize("version", [1, 2])
def test_each_version_divides_into_parts_and_threads(version):
    executor = Threads(3, threads=2)
    assert walk(grid(), executor, version=version) == whole_of(grid, version=version)
    assert len(executor.parts) == 3
    executor.drop()


@settings(max_examples=25, deadline=None, derandomize=True)
@given(cuts=st.sets(st.integers(1, N - 1), max_size=8), order=st.randoms(use_true_random=False))
def test_any_edges_and_any_order_of_work_give_the_same_choices(cuts, order):
    """Parts may have one row only."""

    class Anyhow(Threads):
        def _map(self, work, items):
            items = list(items)
            results = {index: work(items[index]) for index in order.sample(range(len(items)), len(items))}
            return [results[index] for index in range(len(items))]

    limits = [0, *sorted(cuts), N]
    ranges = [range(first, last) for first, last in pairwise(limits)]
    with patch.object(parts, "edges", lambda rows, count: ranges):
        chosen = walk(grid(), Anyhow(), steps=6)
    assert chosen == whole_of(grid)[:6]


class Repeated(Threads):
    """Makes each call twice, as a caller that lost the reply would."""

    def each(self, method, arguments):
        super().each(method, arguments)
        return super().each(method, arguments)


def test_a_call_that_is_repeated_gets_the_same_choice():
    assert walk(cloud(), Repeated(3), case="batch") == whole_of(cloud, "batch")


def wrong_tie(leaders):
    """The second part withholds the first of its equal rows."""
    rows, low, high = leaders[1]
    leaders[1] = Leaders(rows[1:], low[1:], high[1:])


def small_bounds(leaders):
    """The second part claims that its rows are worth less than they are."""
    rows, low, high = leaders[1]
    leaders[1] = Leaders(rows, low - 1e6, high - 1e6)


def wrong_number(leaders):
    """The first part answers with the row beside the right one."""
    rows, low, high = leaders[0]
    leaders[0] = Leaders((rows + 1) % 300, low, high)


@pytest.mark.parametrize("fault", [wrong_tie, small_bounds, wrong_number])
def test_the_comparison_finds_a_part_that_leaders_wrongly(fault):
    """A negative control: without a fault the same walk is equal."""

    class Faulty(Threads):
        def each(self, method, arguments):
            results = super().each(method, arguments)
            if method == "leaders":
                fault(results)
            return results

    whole = whole_of(grid)
    assert walk(grid(), Threads(3)) == whole
    assert walk(grid(), Faulty(3)) != whole


def test_parts_have_almost_equal_sizes_and_none_is_empty():
    for n in (1, 2, 7, 100):
        for count in range(1, 9):
            ranges = edges(range(n), count)
            assert [row for rows in ranges for row in rows] == list(range(n))
            sizes = [len(rows) for rows in ranges]
            assert min(sizes) >= 1
            assert max(sizes) - min(sizes) <= 1


def test_moments_of_parts_are_those_of_the_whole():
    z = cloud()
    moments = []
    for executor in (Threads(), Threads(5)):
        posterior = Posterior(z, SquaredExponential(1.5), noise_variance=1e-3, capacity=5, executor=executor)
        for row in (3, 500, 3, 899):
            posterior.observe(row, float(row % 7))
        moments.append(np.stack([*posterior.moments(np.array([899, 3, 3, 450])), *posterior.moments(np.arange(4))]))
        moments.append(np.stack([posterior.mean, posterior.variance]))
    np.testing.assert_allclose(moments[2], moments[0], rtol=0, atol=1e-11)
    np.testing.assert_allclose(moments[3], moments[1], rtol=0, atol=1e-11)


def gaps(z, chosen):
    """By how much each chosen row's bound misses the largest, and its own value: plain numpy in long double."""
    long = np.longdouble
    exact, y = z.astype(long), np.sin(5 * z).sum(axis=1).astype(long)
    whitened, mean, variance = np.empty((len(chosen), len(z)), long), np.zeros(len(z), long), np.ones(len(z), long)
    for t, (row, _, acquisition, _, _) in enumerate(chosen):
        bound = mean + np.sqrt(long(beta(len(z), t + 1, 0.025)) * variance)
        yield float(bound.max() - bound[row]), float(abs(bound[row] - acquisition))
        column = np.exp(-((exact - exact[row]) ** 2).sum(axis=1) / (2 * long(1.5) ** 2))
        column -= whitened[:t, row] @ whitened[:t]
        column /= np.sqrt(variance[row] + long(1e-3))
        mean += column * (y[row] - mean[row]) / np.sqrt(variance[row] + long(1e-3))
        variance = np.maximum(variance - column**2, 0)
        whitened[t] = column


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_parts_choose_the_largest_bound_of_plain_numpy_in_long_double(dtype):
    z = np.random.default_rng(8).normal(size=(2_000, 4))
    chosen = walk(z, Threads(3), dtype=dtype)
    assert np.max(list(gaps(z, chosen))) < 1e-9
    assert np.max(list(gaps(z, [(c[0] + 1, *c[1:]) for c in chosen]))) > 1e-3  # a control
