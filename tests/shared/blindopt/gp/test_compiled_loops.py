"""Compiled loops beside plain numpy, and what is done where there is no numba."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import numpy as np
import pytest

from blindopt.errors import NumericalFailure
from blindopt.gp import compiled, compiled_loops
from blindopt.gp.candidates import Candidates, Frame, Lift, frame_of
from blindopt.gp.compiled import CompiledUpdates
from blindopt.gp.input_noise import noise_aware
from blindopt.gp.kernels import KERNELS, SquaredExponential, kernel_of
from blindopt.gp.posterior import Posterior
from blindopt.gp.updates import THRESHOLDS, Thresholds
from blindopt.wire.releases import NoiseLaw

N = 2_200  # enough for compiled loops, and the last tile is not full


PLAIN = Thresholds(compiled_min=10**9)


def build_pair(z, kernel, **more):
    """The same posterior by compiled loops and in plain numpy."""
    pair = [
        Posterior(z, kernel, noise_variance=1e-2, capacity=60, thresholds=thresholds, **more)
        for thresholds in (THRESHOLDS, PLAIN)
    ]
    assert [is_compiled(posterior) for posterior in pair] == [True, False]
    return pair


def is_compiled(posterior):
    return isinstance(posterior.parts.parts[0].updates, CompiledUpdates)


def generator():
    return np.random.default_rng(0)


def test_exp_is_numpys_to_two_units_in_the_last_place():
    x = -np.concatenate([np.linspace(0, 708, 200_001)[:-1], np.geomspace(1e-300, 1, 1_001)])
    ours = np.array([compiled_loops.exponential(v) for v in x])
    exact = np.exp(x.astype(np.longdouble))
    assert np.abs(ours / exact - 1).max() < 4.5e-16
    assert compiled_loops.exponential(0.0) == 1.0
    for tiny in (-708.1, -745.0, -1e300, -np.inf):
        assert compiled_loops.exponential(tiny) == 0.0


def written(z, dtype, frame, factor, scales):
    """Candidates that compiled loops write; the other way to write them is out of reach."""
    with patch.object(Lift, "write", None):
        return Candidates(
            z, SquaredExponential(1.0), dtype, Lift(frame, factor, scales), loops=compiled_loops, order=frame.order
        )


@pytest.mark.parametrize("scales", [False, True], ids=["plain", "scales"])
@pytest.mark.parametrize("factors", [False, True], ids=["factor", "factors"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("n", "r"), [(1, 1), (15, 3), (16, 15), (1_003, 2), (2_200, 17)])
def test_coordinates_are_numpys_to_the_last_bit(n, r, dtype, factors, scales):
    """Each operation is rounded by itself, in the order of the rows, also in a group of rows that is not full."""
    rng = np.random.default_rng(n)
    z, order, centre = rng.normal(size=(n, r)), rng.permutation(n), rng.normal(size=r)
    own_scales, factor = rng.uniform(size=r) if scales else None, rng.uniform(size=r) if factors else 1 / 0.7
    expected = ((z * own_scales if scales else z) - centre) * factor
    candidates = written(z, dtype, Frame(centre, None, order), factor, own_scales)
    assert candidates.lifted.dtype == dtype
    np.testing.assert_array_equal(candidates.lifted[:, :-2], expected[order].astype(dtype))
    norms = (expected**2).sum(axis=1)
    np.testing.assert_allclose(candidates.lifted[:, -2], norms[order], rtol=4 * r * float(np.finfo(dtype).eps))
    np.testing.assert_array_equal(candidates.lifted[:, -1], 1)
    assert candidates.largest == pytest.approx(norms.max(), rel=1e-14)
    np.testing.assert_array_equal(order[candidates.positions(np.arange(n))], np.arange(n))


@pytest.mark.parametrize("n", [15, 1_003])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_number_that_is_not_finite_ends_the_writing_and_a_norm_that_is_not_does_not(n, dtype):
    rng = np.random.default_rng(0)
    frame = Frame(np.zeros(2), None, rng.permutation(n))
    for row, number in ((0, np.nan), (n - 1, -np.nan), (n // 2, np.inf), (n - 1, -np.inf), (3, 1e308)):
        z = rng.normal(size=(n, 2))
        z[row, 1] = number
        with pytest.raises(NumericalFailure, match="too far apart"):
            written(z, dtype, frame, 1e3, None)
    z[3, 1] = 1e170
    if dtype is np.float64:
        assert written(z, dtype, frame, 1.0, None).largest == np.inf


def test_candidates_that_compiled_loops_do_not_read_are_written_the_same():
    """Rows that lie otherwise in memory, that may not be written, or that have no order."""
    z, kernel = np.random.default_rng(0).normal(size=(500, 3)), SquaredExponential(0.7)
    frame = frame_of(z)
    lift, read_only = Lift.of(z, kernel, frame), z.view()
    read_only.setflags(write=False)
    first = written(z, np.float64, frame, 1 / 0.7, None).lifted
    for same in (read_only, np.asfortranarray(z), np.repeat(z, 2, axis=1)[:, ::2]):
        again = Candidates(same, kernel, np.float64, lift, loops=compiled_loops, order=frame.order)
        np.testing.assert_array_equal(again.lifted[:, :-2], first[:, :-2])
    unordered = Candidates(z, kernel, np.float64, lift, loops=compiled_loops)
    np.testing.assert_array_equal(unordered.lifted[frame.order, :-2], first[:, :-2])


@pytest.mark.slow(every=5)
@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("lengthscale", [0.7, 0.004], ids=["products", "differences"])
@pytest.mark.parametrize("nugget", [0.0, 0.3])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 3e-4)])
def test_moments_are_those_of_plain_numpy(kind, lengthscale, nugget, dtype, tolerance):
    """To 1e-12 (float32: 3e-4) of their scale, after outcomes one by one or many, supposed ones and a retreat."""
    rng = np.random.default_rng(1)
    z = rng.uniform(size=(N, 3))
    z[1_000:1_100] = z[0]  # duplicates: distance zero
    rows, y = rng.integers(0, N, size=60), rng.normal(size=60)
    pair = build_pair(z, kernel_of(kind, lengthscale, 2.0), nugget=nugget, dtype=dtype)

    def agree():
        loops, plain = pair
        scale = 1 + np.abs(plain.mean).max()
        np.testing.assert_allclose(loops.mean, plain.mean, rtol=0, atol=tolerance * scale)
        np.testing.assert_allclose(loops.variance, plain.variance, rtol=0, atol=tolerance * (2.0 + nugget))

    for start, end in ((0, 1), (1, 2), (2, 19), (19, 40)):
        for posterior in pair:
            for row, outcome in zip(rows[start:end], y[start:end], strict=True):
                posterior.observe(int(row), float(outcome))
        agree()
    for posterior in pair:
        for row in rows[40:45]:
            posterior.suppose(int(row))
    agree()
    for posterior in pair:
        posterior.retract(33)
    agree()
    for posterior in pair:
        posterior.observe(5, 1.0)
    agree()


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize(("dtype", "r"), [(np.float64, 1), (np.float64, 2), (np.float64, 4), (np.float32, 2)])
def test_the_same_rows_are_chosen_to_the_last_bit_also_where_some_are_hidden(kind, dtype, r):
    """In one, two and more columns, by which candidates are sorted in other ways; and after supposed answers."""
    z = np.random.default_rng(2).uniform(0, 4, size=(N, r))
    y = np.sin(2 * z).sum(axis=1)
    pair, hidden = build_pair(z, kernel_of(kind, 0.8, 1.0), dtype=dtype), []
    for step in range(24):
        choice, plain_choice = (posterior.choose(20.0 + step, generator) for posterior in pair)
        assert choice == plain_choice
        hidden.append(choice.row)
        for posterior in pair:
            posterior.suppose(choice.row)
        assert len({posterior.choose(20.0 + step, generator) for posterior in pair}) == 1
        for posterior in pair:
            posterior.retract(step)
            posterior.observe(choice.row, float(y[choice.row]))
            posterior.hide(np.array(hidden if step >= 12 else [], dtype=np.intp))
    assert len(set(hidden)) > 12


@pytest.mark.parametrize("count", [1, 2, 3, 12, 35])
@pytest.mark.parametrize("weight", [0.0, 4.0, 40.0])
def test_after_a_refit_the_same_row_is_chosen_although_most_tiles_stop_early(count, weight):
    """All observations are new to all tiles: one that can no longer win is left where it is, and goes on later."""
    z = np.random.default_rng(6).normal(size=(N, 8))
    y, rng = np.sin(z).sum(axis=1), np.random.default_rng(count)
    rows = rng.integers(0, N, size=count + 6)
    loops, plain = build_pair(z, SquaredExponential(4.0))
    for posterior in (loops, plain):
        for row in rows[:count]:
            posterior.observe(int(row), float(y[row]))
    assert loops.choose(weight, generator) == plain.choose(weight, generator)
    counts = loops.parts.parts[0].updates._synced_counts
    if count == 35:
        assert (counts < count).any()
        assert (counts == count).any()
    for row in rows[count:]:
        for posterior in (loops, plain):
            posterior.observe(int(row), float(y[row]))
        assert loops.choose(weight, generator) == plain.choose(weight, generator)
    np.testing.assert_allclose(loops.mean, plain.mean, rtol=0, atol=1e-10)
    np.testing.assert_allclose(loops.variance, plain.variance, rtol=0, atol=1e-10)


def test_a_hidden_row_is_not_chosen_however_few_are_shown():
    z = np.random.default_rng(3).normal(size=(N, 2))
    posterior, _ = build_pair(z, SquaredExponential(1.0))
    posterior.observe(0, 1.0)
    for shown in (np.arange(700, 800), np.array([2_199]), np.array([256])):
        posterior.hide(np.setdiff1d(np.arange(N), shown))
        assert posterior.choose(9.0, generator).row in shown
    posterior.hide(np.arange(N))
    with pytest.raises(IndexError):
        posterior.choose(9.0, generator)


def test_candidates_far_apart_and_kernels_without_loops_are_left_to_numpy():
    z = np.random.default_rng(4).normal(size=(N, 2))
    assert is_compiled(Posterior(z, SquaredExponential(1.0), noise_variance=1.0, capacity=2))
    averaged, nugget = noise_aware(kernel_of("matern_32", 1.0, 1.0), NoiseLaw(family="planar_laplace", sd=0.3), 2)
    far = Posterior(1e150 * z, SquaredExponential(1.0), noise_variance=1.0, capacity=2)
    unknown = Posterior(z, averaged, noise_variance=1.0, nugget=nugget, capacity=2)
    few = Posterior(z[:100], SquaredExponential(1.0), noise_variance=1.0, capacity=2)
    for posterior in (far, unknown, few):
        assert not is_compiled(posterior)
        posterior.observe(0, 1.0)
        assert posterior.choose(9.0, generator).row != 0


def test_several_runs_at_once_choose_as_each_does_alone():
    z = np.random.default_rng(5).uniform(0, 4, size=(N, 2))
    y = np.sin(2 * z).sum(axis=1)

    def walk(seed):
        posterior = Posterior(z, SquaredExponential(0.5 + seed / 10), noise_variance=1e-4, capacity=40)
        row, rows = seed, []
        for _ in range(40):
            posterior.observe(row, float(y[row]))
            row = posterior.choose(20.0, generator).row
            rows.append(row)
        return rows

    alone = [walk(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(walk, range(4))) == alone


def test_numba_is_loaded_by_a_run_that_is_large_enough_for_it_to_pay():
    code = """
import sys, numpy as np
from blindopt.gp.compiled import CompiledUpdates
from blindopt.gp.kernels import SquaredExponential
from blindopt.gp.posterior import Posterior
z = np.random.default_rng(0).normal(size=(2_200, 2))
for capacity in (50, 1_300, 50):
    posterior = Posterior(z, SquaredExponential(1.0), noise_variance=1.0, capacity=capacity)
    print(isinstance(posterior.parts.parts[0].updates, CompiledUpdates), "numba" in sys.modules)
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["False", "False", "True", "True", "True", "True"]


@pytest.mark.parametrize("error", [ImportError, RuntimeError])
def test_without_numba_or_a_directory_for_its_cache_there_are_no_compiled_loops(error, monkeypatch):
    """A module that is None in sys.modules cannot be imported; numba raises RuntimeError if it has no directory."""
    compiled.compiled.cache_clear()
    with monkeypatch.context() as patch:
        patch.delattr("blindopt.gp.compiled_loops")
        if error is ImportError:
            patch.setitem(sys.modules, "blindopt.gp.compiled_loops", None)
        else:
            patch.delitem(sys.modules, "blindopt.gp.compiled_loops")
            patch.setattr("numba.njit", lambda **_: (_ for _ in ()).throw(RuntimeError("no locator")))
        assert compiled.compiled() is None
    compiled.compiled.cache_clear()
    assert compiled.compiled() is compiled_loops


def test_numba_is_not_imported_before_a_run_needs_it():
    """By any of them: one process imports them all."""
    modules = "modeler_service.cli, modeler_service.app, curator_service.cli, demo, blindopt.gp.posterior"
    code = f"import sys, {modules}; print('numba' in sys.modules)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "False"
