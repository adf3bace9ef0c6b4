"""The incremental posterior, against the textbook's O(t^3) one."""

import itertools
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import cho_factor, cho_solve

from blindopt.errors import Invalid, NumericalFailure
from blindopt.gp.acquisition import UpperConfidenceBound
from blindopt.gp.candidates import Candidates, Scaling, span_of
from blindopt.gp.kernels import Matern52, SquaredExponential
from blindopt.gp.observations import OUTCOME_MAX
from blindopt.gp.posterior import Posterior
from tests.interventions import act_before
from tests.shared.blindopt.gp import slow_posterior


def textbook(candidates, rows, outcomes, *, lengthscale, variance, noise_variance, prior_mean):
    """Rasmussen & Williams (2006), eqs. 2.25-2.26, from scratch."""

    def k(a, b):
        return variance * np.exp(-((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=2) / (2 * lengthscale**2))

    seen = candidates[rows]
    factor = cho_factor(k(seen, seen) + noise_variance * np.eye(len(rows)))
    cross = k(candidates, seen)
    mean = prior_mean + cross @ cho_solve(factor, np.asarray(outcomes) - prior_mean)
    reduction = np.einsum("ij,ji->i", cross, cho_solve(factor, cross.T))
    return mean, variance - reduction


@pytest.mark.parametrize(("noise_variance", "prior_mean"), [(1e-3, -7.5), (0.1, 0.0)])
def test_after_each_of_200_outcomes_the_posterior_is_the_textbooks(noise_variance, prior_mean):
    """200 outcomes at 60 rows of 150: every row is observed again, a few many times."""
    rng = np.random.default_rng(1)
    candidates = rng.normal(size=(150, 3))
    rows = rng.integers(0, 60, size=200)
    outcomes = prior_mean + rng.normal(size=200)
    settings_ = {"lengthscale": 0.9, "variance": 2.0, "noise_variance": noise_variance, "prior_mean": prior_mean}
    posterior = Posterior(
        candidates, SquaredExponential(0.9, 2.0), noise_variance=noise_variance, prior_mean=prior_mean, capacity=200
    )
    np.testing.assert_array_equal(posterior.mean, prior_mean)
    np.testing.assert_array_equal(posterior.variance, 2.0)
    for t, (row, outcome) in enumerate(zip(rows, outcomes, strict=True), start=1):
        posterior.observe(int(row), float(outcome))
        assert posterior.count == t
        mean, variance = textbook(candidates, rows[:t], outcomes[:t], **settings_)
        np.testing.assert_allclose(posterior.mean, mean, rtol=0, atol=1e-8)
        np.testing.assert_allclose(posterior.variance, variance, rtol=0, atol=1e-8)
    assert len(set(rows.tolist())) < len(rows)


def test_one_outcome_worked_by_hand():
    """Variance 1, noise 1, y = 2 at row 0: mean k y / 2, variance 1 - k^2 / 2."""
    posterior = Posterior(np.array([[0.0], [1.0]]), SquaredExponential(1.0), noise_variance=1.0, capacity=1)
    posterior.observe(0, 2.0)
    k = math.exp(-0.5)
    np.testing.assert_allclose(posterior.mean, [1.0, k], rtol=1e-15)
    np.testing.assert_allclose(posterior.variance, [0.5, 1 - k * k / 2], rtol=1e-15)


def test_asking_one_row_t_times_averages_its_noise():
    """Conjugate normal: precision 1/variance + t/noise, mean weighted by it."""
    posterior = Posterior(
        np.zeros((1, 1)), SquaredExponential(1.0, 4.0), noise_variance=0.5, capacity=30, prior_mean=1.0
    )
    outcomes = np.random.default_rng(2).normal(3.0, 1.0, size=30)
    for t, outcome in enumerate(outcomes, start=1):
        posterior.observe(0, float(outcome))
        precision = 1 / 4.0 + t / 0.5
        assert posterior.variance[0] == pytest.approx(1 / precision, rel=1e-12)
        assert posterior.mean[0] == pytest.approx((1.0 / 4.0 + outcomes[:t].sum() / 0.5) / precision, rel=1e-12)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(order=st.permutations(range(5)))
def test_the_order_of_the_outcomes_does_not_matter(order):
    candidates = np.linspace(0, 3, 12).reshape(6, 2)
    observations = [(0, 1.0), (3, -2.0), (0, 0.5), (5, 4.0), (3, -1.0)]

    def after(sequence):
        posterior = Posterior(candidates, SquaredExponential(1.0), noise_variance=0.01, capacity=5)
        for i in sequence:
            posterior.observe(*observations[i])
        return posterior

    in_order, permuted = after(range(5)), after(order)
    np.testing.assert_allclose(in_order.mean, permuted.mean, atol=1e-11)
    np.testing.assert_allclose(in_order.variance, permuted.variance, atol=1e-11)


def small():
    posterior = Posterior(np.array([[0.0], [1.0], [2.0]]), SquaredExponential(1.0), noise_variance=1e-5, capacity=4)
    posterior.observe(0, 1.0)
    return posterior


@pytest.mark.parametrize(
    ("row", "outcome", "error"),
    [
        *((1, bad, NumericalFailure) for bad in (math.nan, math.inf, -math.inf)),
        *((1, bad, NumericalFailure) for bad in (1.7e308, -1.7e308)),  # finite, but the update overflows
        *((bad, 1.0, Invalid) for bad in (-1, 3, 10**12)),
    ],
)
def test_an_outcome_that_is_refused_changes_nothing(row, outcome, error):
    """Not even what later outcomes give."""
    posterior, untouched = small(), small()
    with np.errstate(over="ignore", invalid="ignore"), pytest.raises(error):
        posterior.observe(row, outcome)
    for _ in range(2):
        assert posterior.count == untouched.count
        np.testing.assert_array_equal(posterior.mean, untouched.mean)
        np.testing.assert_array_equal(posterior.variance, untouched.variance)
        posterior.observe(2, -1.0)
        untouched.observe(2, -1.0)


def test_the_largest_outcome_is_taken_and_a_larger_one_refused_however_wide_the_prior():
    """Each is judged by itself, and by its weight: (outcome - mean) / pivot."""
    candidates = np.zeros((2, 1))
    exact = Posterior(candidates, SquaredExponential(1.0, 0.75), noise_variance=0.25, capacity=2)  # a pivot of 1
    exact.observe(0, OUTCOME_MAX)
    assert exact.count == 1
    wide = Posterior(candidates, SquaredExponential(1.0, 75.0), noise_variance=25.0, capacity=2)  # a pivot of 10
    with pytest.raises(NumericalFailure):
        wide.observe(0, 5 * OUTCOME_MAX)
    narrow = Posterior(candidates, SquaredExponential(1.0, 0.0075), noise_variance=0.0025, capacity=2)  # a pivot of 0.1
    with pytest.raises(NumericalFailure):
        narrow.observe(0, 0.5 * OUTCOME_MAX)


def test_what_is_solved_for_is_forgotten_when_observations_go():
    """The row observed next is the one solved for last, with other moments than it has now."""
    rng = np.random.default_rng(8)
    candidates = rng.normal(size=(5, 2))
    posterior, untouched = (
        Posterior(candidates, SquaredExponential(1.0, 2.0), noise_variance=0.1, capacity=3) for _ in range(2)
    )
    posterior.observe(0, 1.5)
    posterior.solve(np.array([1, 2]))
    posterior.retract(0)
    for each in (posterior, untouched):
        each.observe(1, -1.0)
    np.testing.assert_array_equal(posterior.mean, untouched.mean)


@pytest.mark.parametrize("spanned", [2, 3])
def test_scales_multiply_each_coordinate(spanned):
    """Candidates (40, 3) that span two directions or three, and a scale for each column."""
    rng = np.random.default_rng(9)
    candidates = rng.normal(size=(40, spanned)) @ rng.normal(size=(spanned, 3))
    scales, rows, outcomes = np.array([0.5, 2.0, 0.1]), [3, 8, 8, 20], [1.0, -0.5, -0.25, 2.0]
    posterior = Posterior(candidates, SquaredExponential(1.5, 2.0), noise_variance=0.1, capacity=4, scales=scales)
    for row, outcome in zip(rows, outcomes, strict=True):
        posterior.observe(row, outcome)
    mean, variance = textbook(
        candidates * scales, rows, outcomes, lengthscale=1.5, variance=2.0, noise_variance=0.1, prior_mean=0.0
    )
    np.testing.assert_allclose(posterior.mean, mean, atol=1e-9)
    np.testing.assert_allclose(posterior.variance, variance, atol=1e-9)
    solved = posterior.solve(np.array([5, 20]))
    np.testing.assert_allclose(solved.mean, mean[[5, 20]], atol=1e-9)


def test_a_refusal_does_not_tell_the_outcome():
    with pytest.raises(NumericalFailure) as refusal:
        small().observe(1, -math.inf)
    assert "inf" not in str(refusal.value)


@pytest.mark.parametrize("at_once", [1, 7])
def test_outcomes_past_the_capacity_are_taken_as_those_before(at_once):
    candidates = np.random.default_rng(3).uniform(size=(30, 2))
    posteriors = [
        Posterior(candidates, SquaredExponential(0.4), noise_variance=0.1, capacity=capacity) for capacity in (3, 60)
    ]
    for row in range(30):
        for posterior in posteriors:
            posterior.observe(row, float(candidates[row, 0]))
            if row % at_once == 0:
                _ = posterior.mean  # brings all candidates up to date
    small, large = posteriors
    np.testing.assert_array_equal(small.mean, large.mean)
    np.testing.assert_array_equal(small.variance, large.variance)


@pytest.mark.parametrize("noise_variance", [0.0, -1.0, math.nan, math.inf])
def test_noise_variance_must_be_positive_and_finite(noise_variance):
    with pytest.raises(Invalid, match="noise_variance"):
        Posterior(np.zeros((2, 1)), SquaredExponential(1.0), noise_variance=noise_variance, capacity=1)


@pytest.mark.parametrize(("position", "bad"), list(itertools.product([(0, 0), (1, 1)], [math.nan, math.inf])))
def test_candidates_must_be_finite(position, bad):
    candidates = np.zeros((2, 2))
    candidates[position] = bad
    with pytest.raises(NumericalFailure, match="not finite"):
        Posterior(candidates, SquaredExponential(1.0), noise_variance=1.0, capacity=1)


def test_the_candidates_are_not_changed():
    candidates = np.random.default_rng(3).normal(size=(5, 2))
    before = candidates.copy()
    posterior = Posterior(candidates, SquaredExponential(1.0), noise_variance=1.0, capacity=2)
    posterior.observe(4, 1.0)
    np.testing.assert_array_equal(candidates, before)


# --- choosing --------------------------------------------------------------------------------------

WEIGHTS = [20.0 + 2 * math.log(step) for step in range(1, 41)]
PRECISIONS = [np.float64, np.float32]


def in_long_double(candidates, kernel, rows, outcomes, weight, *, noise, mean=0.0, nugget=0.0):
    """Every bound from scratch in 64-bit mantissas."""

    def matern(squared):
        u = np.sqrt(5 * squared) / np.longdouble(kernel.lengthscale)
        return np.longdouble(kernel.variance) * (1 + u + u**2 / 3) * np.exp(-u)

    is_smooth = isinstance(kernel, SquaredExponential)
    plain = (
        slow_posterior.squared_exponential(kernel.lengthscale, kernel.variance, np.longdouble) if is_smooth else matern
    )
    given = {"noise": noise, "mean": mean, "nugget": nugget}
    mu, variance = slow_posterior.in_long_double(candidates, plain, rows, outcomes, **given)
    return mu + np.sqrt(np.longdouble(weight) * variance)


def first():
    return np.random.default_rng(0)


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("kernel", [SquaredExponential(0.8, 2.0), Matern52(1.5, 2.0)], ids=repr)
@pytest.mark.parametrize("nugget", [0.0, 0.5])
def test_the_chosen_row_has_the_true_maximum_at_every_step(dtype, kernel, nugget):
    """40 steps of 300 candidates, also in single precision: the gap is below 1e-9."""
    z = slow_posterior.candidates()
    y = slow_posterior.outcome_of(z)
    posterior = Posterior(z, kernel, noise_variance=1e-3, prior_mean=0.3, nugget=nugget, capacity=41, dtype=dtype)
    rows = [7]
    posterior.observe(7, float(y[7]))
    for weight in WEIGHTS:
        choice = posterior.argmax(UpperConfidenceBound(weight), first)
        bound = in_long_double(z, kernel, rows, y[rows], weight, noise=1e-3, mean=0.3, nugget=nugget)
        assert abs(bound[choice.row] - bound.max()) <= 1e-9 * abs(bound.max())
        assert choice.acquisition == pytest.approx(float(bound.max()), rel=1e-9)
        rows.append(choice.row)
        posterior.observe(choice.row, float(y[choice.row]))
    assert len(set(rows)) > 10


def walk(posterior, y, *, steps=40, after=lambda posterior: None):
    """The choices of a run that starts with row 7; ``after`` is called after each observation."""
    posterior.observe(7, float(y[7]))
    after(posterior)
    choices = []
    for weight in WEIGHTS[:steps]:
        choices.append(posterior.argmax(UpperConfidenceBound(weight), first))
        row = choices[-1].row
        posterior.observe(row, float(y[row]))
        after(posterior)
    return choices


def test_single_precision_chooses_the_same_to_the_last_bit():
    z = np.random.default_rng(1).uniform(0, 4, size=(500, 3))
    y = np.sin(2 * z).sum(axis=1)
    runs = [
        walk(Posterior(z, SquaredExponential(1.0), noise_variance=1e-4, capacity=50, dtype=dtype), y)
        for dtype in PRECISIONS
    ]
    assert runs[0] == runs[1]


def test_a_flag_that_blas_leaves_stops_no_choice(monkeypatch):
    """Unused entries of its vectors may be signalling numbers; the results are right all the same."""
    z = np.random.default_rng(1).uniform(0, 4, size=(500, 3))
    y = np.sin(2 * z).sum(axis=1)

    def posterior():
        return Posterior(z, SquaredExponential(1.0), noise_variance=1e-4, capacity=50)

    expected = walk(posterior(), y, steps=5)

    def raise_flag(*_):
        assert np.isnan(np.subtract(np.inf, [np.inf])).all()  # an error in tests

    with pytest.raises(RuntimeWarning, match="invalid value"):
        raise_flag()
    act_before(monkeypatch, Candidates, "covariance", raise_flag)
    assert walk(posterior(), y, steps=5) == expected
    posterior().moments(np.arange(3))


@pytest.mark.slow(every=3)
def test_a_run_that_goes_on_after_a_crash_makes_the_same_choices(dtype):
    """Given all outcomes without choosing once, it chooses the same row with the same bits; duplicates tie."""
    z = np.repeat(np.random.default_rng(2).uniform(0, 4, size=(150, 2)), 2, axis=0)
    y = np.sin(2 * z).sum(axis=1)
    through = Posterior(z, SquaredExponential(1.0), noise_variance=1e-4, capacity=50, dtype=dtype)
    rows = [7]
    through.observe(7, float(y[7]))
    for weight in WEIGHTS:
        choice = through.argmax(UpperConfidenceBound(weight), first)
        restarted = Posterior(z, SquaredExponential(1.0), noise_variance=1e-4, capacity=50, dtype=dtype)
        for row in rows:
            restarted.observe(row, float(y[row]))
        assert restarted.argmax(UpperConfidenceBound(weight), first) == choice
        assert choice.ties % 2 == 0
        rows.append(choice.row)
        through.observe(choice.row, float(y[choice.row]))


def test_the_variance_is_never_negative_however_small_the_noise(dtype):
    """Rows far closer than the lengthscale, so nearly singular: after each outcome, and after ten together."""
    candidates = np.linspace(0, 1, 50).reshape(-1, 1)
    for together in (1, 10):
        posterior = Posterior(candidates, SquaredExponential(1.0), noise_variance=1e-12, capacity=60, dtype=dtype)
        for t in range(60):
            posterior.observe(t % 50, math.sin(t % 50))
            choice = posterior.argmax(UpperConfidenceBound(1.0), first)
            assert choice.sd >= 0.0  # without a root of a negative number, which would warn
            if t % together == together - 1:
                assert posterior.variance.min() >= 0.0


@pytest.mark.slow(every=3)
def test_any_hidden_rows_leave_a_choice_among_the_others(dtype):
    """Hide all but one row, whole stripes, the best, or none: a choice ends, and is the best row shown."""
    z = np.random.default_rng(10).uniform(0, 4, size=(300, 2))
    y = np.sin(2 * z[:, 0]) + np.cos(3 * z[:, 1])
    posterior = Posterior(z, SquaredExponential(0.8), noise_variance=1e-3, capacity=60, dtype=dtype)
    posterior.observe(7, float(y[7]))
    rows = [7]
    for step in range(40):
        bound = in_long_double(z, SquaredExponential(0.8), rows, y[rows], 4.0, noise=1e-3)
        order = np.argsort(-bound)
        shown = (order[-1:], np.arange(296, 300), order[64 + step :], order[::7], order, order)[step % 6]
        choice = posterior.argmax(UpperConfidenceBound(4.0), first, np.setdiff1d(np.arange(300), shown))
        assert choice.row in shown
        assert bound[choice.row] == pytest.approx(float(bound[shown].max()), rel=1e-9)
        rows.append(choice.row)
        posterior.observe(choice.row, float(y[choice.row]))


def test_moments_of_all_are_the_textbooks_whenever_they_are_asked_for(dtype):
    z = np.random.default_rng(4).normal(size=(300, 3))
    y = np.sin(z).sum(axis=1)
    posterior = Posterior(z, SquaredExponential(1.2, 2.0), noise_variance=0.01, capacity=50, dtype=dtype)
    rows, tolerance = [], 1e-9 if dtype is np.float64 else 3e-4
    for step in range(30):
        if step % 3:
            posterior.argmax(UpperConfidenceBound(9.0), first)
        rows.append(step * 7 % 300)
        posterior.observe(rows[-1], float(y[rows[-1]]))
        if step % 4 == 0:
            mean, variance = textbook(
                z, rows, y[rows], lengthscale=1.2, variance=2.0, noise_variance=0.01, prior_mean=0.0
            )
            np.testing.assert_allclose(posterior.mean, mean, atol=tolerance)
            np.testing.assert_allclose(posterior.variance, variance, atol=tolerance)


def test_each_answer_may_have_its_own_noise(dtype):
    rng = np.random.default_rng(5)
    z, noise = rng.normal(size=(200, 2)), rng.uniform(1e-3, 2.0, size=40)
    y = np.sin(z).sum(axis=1)
    rows = rng.integers(0, 60, size=40)
    posterior = Posterior(z, SquaredExponential(1.2), noise_variance=1e-3, capacity=41, dtype=dtype)
    for row, own in zip(rows, noise, strict=True):
        posterior.observe(int(row), float(y[row]), float(own))
    bound = in_long_double(z, SquaredExponential(1.2), rows, y[rows], 9.0, noise=noise)
    choice = posterior.argmax(UpperConfidenceBound(9.0), first)
    assert choice.acquisition == pytest.approx(float(bound.max()), rel=1e-9)
    assert bound[choice.row] == pytest.approx(float(bound.max()), rel=1e-9)
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(Invalid, match="noise_variance"):
            posterior.observe(0, 1.0, bad)


def test_candidates_that_span_two_directions_are_kept_in_two_and_choose_the_same():
    flat = np.random.default_rng(6).normal(size=(400, 2))
    lift, shift = np.random.default_rng(7).normal(size=(2, 6)), 5.0
    deep = flat @ lift + shift
    y = np.sin(3 * flat).sum(axis=1)
    kernel = SquaredExponential(1.5)
    assert Scaling.of(deep, kernel, span_of(deep)).rank == 2
    thick = deep + 1e-6 * np.random.default_rng(8).normal(size=deep.shape)
    assert Scaling.of(thick, kernel, span_of(thick)).rank == 6
    posterior = Posterior(deep, kernel, noise_variance=1e-3, capacity=41)
    rows = [7]
    posterior.observe(7, float(y[7]))
    for weight in WEIGHTS:
        choice = posterior.argmax(UpperConfidenceBound(weight), first)
        bound = in_long_double(deep, kernel, rows, y[rows], weight, noise=1e-3)
        assert abs(bound[choice.row] - bound.max()) <= 1e-9 * abs(bound.max())
        rows.append(choice.row)
        posterior.observe(choice.row, float(y[choice.row]))


def test_memory_is_what_is_stated():
    """8 n (T + r + 6) bytes and 50 MiB, with 100,000 candidates and many brought up to date at once."""
    n, r, steps = 100_000, 5, 10
    z = np.random.default_rng(9).normal(size=(n, r))
    y = np.sin(z).sum(axis=1)
    tracemalloc.start()
    posterior = Posterior(z, SquaredExponential(2.0), noise_variance=1e-3, capacity=steps + 1)
    walk(posterior, y, steps=steps)
    assert posterior.variance.min() >= 0
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= 8 * n * (steps + 1 + r + 6) + 16 * n + 6 * 2**20  # the allowance for n = 1,000,000 is not used up
