"""The exact discrete Laplace: its law on the integers, each coin in 80 digits, and controls that must fail."""

import math
from decimal import Decimal
from fractions import Fraction
from functools import partial

import mpmath
import numpy as np
import opendp.prelude as dp
import pytest
from scipy import stats

from curator_service.privacy.noise import (
    add_integer_laplace,
    add_laplace_to_number,
    laplace,
    lattice,
    sensitivity_scale,
)
from curator_service.privacy.noise.lattice import add_on_lattice
from tests.curator_service.privacy import exact_masses
from tests.curator_service.replaced_noise import entropy_in_parts, replace_entropy, without_entropy
from tests.interventions import record_calls
from tests.scale import scaled

N = 40_000
MISTAKEN = 1e-9
LARGE = 1.3 * 2.0**40


def misfit(drawn: np.ndarray, scale: float) -> float:
    return exact_masses.misfit(drawn, int(40 * scale) + 40, lambda x: np.exp(-np.abs(x) / scale))


# --- the law --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.3, 1.0, 1.7, 6.3, 30.0])
def test_small_scales_have_the_exact_masses(scale):
    assert misfit(laplace.integers(scaled(N), scale), scale) > MISTAKEN


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_another_scale_a_zero_that_counts_twice_and_a_missing_bit_are_caught(monkeypatch, factor):
    """Controls: each changes some masses by a tenth or more."""
    assert misfit(laplace.integers(N, factor * 6.3), 6.3) < 1e-20
    proposals = laplace.proposals

    def unsigned(count: int, scale: float):
        negative, size = proposals(count, scale)
        return negative & (size > 0), size

    def without_a_bit(count: int, scale: float):
        negative, size = proposals(count, scale)
        return negative, size & ~2

    for wrong in (unsigned, without_a_bit):
        monkeypatch.setattr(laplace, "proposals", wrong)
        assert misfit(laplace.integers(N, 1.7), 1.7) < 1e-20


def test_it_is_the_law_of_another_sampler():
    """OpenDP's discrete Laplace, which takes another way: a geometric number by rejection."""
    n = scaled(20_000)
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64")
    theirs = np.array(dp.m.make_laplace(*space, scale=LARGE)([0] * n), dtype=np.int64)
    ours = laplace.integers(n, LARGE)
    assert stats.ks_2samp(ours, theirs).pvalue > MISTAKEN
    assert stats.ks_2samp(1.1 * ours, theirs).pvalue < stats.ks_2samp(ours, theirs).pvalue
    assert stats.kstest(ours / LARGE, stats.laplace.cdf).pvalue > MISTAKEN
    assert abs(np.abs(ours).mean() / LARGE - 1) < 6 / math.sqrt(n)  # the mean size is s, with a deviation of s too


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_large_scale_that_is_a_tenth_off_is_caught(factor):
    assert stats.kstest(laplace.integers(4 * N, factor * LARGE) / LARGE, stats.laplace.cdf).pvalue < MISTAKEN


def test_low_bits_signs_and_sizes_are_independent():
    drawn = laplace.integers(scaled(N), LARGE)
    for bit in range(4):  # far below the scale a bit is fair, whatever the others are
        fair = (np.abs(drawn) >> bit) & 1
        assert stats.binomtest(int(fair.sum()), len(drawn)).pvalue > MISTAKEN
        assert stats.ks_2samp(np.abs(drawn[fair == 1]), np.abs(drawn[fair == 0])).pvalue > MISTAKEN
    assert stats.ks_2samp(drawn[drawn > 0], -drawn[drawn < 0]).pvalue > MISTAKEN
    assert stats.pearsonr(np.abs(drawn[:-1]), np.abs(drawn[1:])).pvalue > MISTAKEN
    # Two of 800,000 at full size are equal by chance once in 16 times, five pairs never.
    assert len(np.unique(drawn)) >= len(drawn) - 4


def coin_of(scale: float, m: int, coin: int) -> mpmath.mpf:
    power = mpmath.exp(-(mpmath.mpf(2) ** coin) / mpmath.mpf(scale))
    return power if coin == m else power / (1 + power)


@pytest.mark.parametrize("scale", [0.3, 1.7, 5.0])
def test_the_coins_together_are_the_geometric_law(scale):
    """Every number below 2^6: the product of its bits' probabilities, and of the last coin's, is its own."""
    m = 6
    with mpmath.workdps(60):
        q = mpmath.exp(-1 / mpmath.mpf(scale))
        for number in range(1 << m):
            product = 1 - coin_of(scale, m, m)
            for bit in range(m):
                p = coin_of(scale, m, bit)
                product *= p if number >> bit & 1 else 1 - p
            assert abs(product - (1 - q) * q**number) < mpmath.mpf(10) ** -50


# --- each decision ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [2.0**-20, 0.3, 1.0, 1.7, 50.0, LARGE, 2.0**41, 2.0**57])
def test_a_threshold_is_the_floor_of_a_probability(scale):
    thresholds = laplace._thresholds(scale)
    m = len(thresholds) - 1
    assert 64 * scale <= 2**m or m == 0
    assert m <= 63
    with mpmath.workdps(80):
        for coin, threshold in enumerate(thresholds.tolist()):
            assert threshold == int(mpmath.floor(coin_of(scale, m, coin) * 2**53))


@pytest.mark.parametrize("digits", [8, 12, 40])
def test_the_bound_on_an_error_of_decimals_holds(digits):
    rng, worst = np.random.default_rng(digits), mpmath.mpf(0)
    for _ in range(300):
        scale = float(2.0 ** rng.uniform(-3, 44))
        coin = int(rng.integers(0, max(1, math.ceil(math.log2(scale)) + 7)))
        for m in (coin, 60):  # the last coin, and a bit
            p, error = laplace.probability(scale, m, coin, digits)
            with mpmath.workdps(120):
                exact = coin_of(scale, m, coin)
                off = abs(mpmath.log(mpmath.mpf(p.numerator) / p.denominator) - mpmath.log(exact))
                worst = max(worst, off / (mpmath.mpf(error.numerator) / error.denominator))
    assert 0.05 < worst <= 1


@pytest.mark.parametrize("seed", range(3))
def test_every_decision_near_p_is_the_right_one(monkeypatch, seed):
    """Words below, at and above the threshold, with more bits where these do not decide."""
    rng = np.random.default_rng(seed)
    for _ in range(20):
        scale = float(2.0 ** rng.uniform(40, 41))
        thresholds = laplace._thresholds(scale)
        m = len(thresholds) - 1
        words = np.clip(thresholds.astype(np.int64) + rng.integers(-1, 2, size=m + 1), 0, 2**53 - 1)
        words[m] = 1  # else the tail is drawn, which is tested below
        more = int(rng.integers(1, 2**63))
        drawn = np.append(words << 11, 0).astype(np.uint64).tobytes()
        replace_entropy(monkeypatch, lambda size, drawn=drawn, more=more: drawn if size > 8 else more.to_bytes(8))
        negative, size = laplace.proposals(1, scale)
        rest = Fraction(more, 2**64 - 1)
        with mpmath.workdps(120):
            for bit in range(m):
                p = coin_of(scale, m, bit)
                exact = Fraction(int(mpmath.floor(p * mpmath.mpf(2) ** 230)), 2**230)
                assert (int(size[0]) >> bit & 1) == ((int(words[bit]) + rest) / 2**53 < exact)
        assert (int(size[0]) >> m, bool(negative[0])) == (0, False)


@pytest.mark.parametrize(("nudge", "is_one"), [(-2, True), (2, False)])
def test_a_uniform_that_agrees_with_p_for_many_bits_is_compared_to_the_end(monkeypatch, nudge, is_one):
    """It parts from p in the last of 53 + 64 + 64 bits."""
    thresholds, bit = laplace._thresholds(LARGE), 38
    m = len(thresholds) - 1
    with mpmath.workdps(120):
        digits = int(mpmath.floor(coin_of(LARGE, m, bit) * mpmath.mpf(2) ** 181)) + nudge
    words = np.full(m + 2, 2**53 - 1, dtype=np.uint64)
    words[bit] = digits >> 128
    parts = [(words << np.uint64(11)).tobytes(), *((digits >> at & (2**64 - 1)).to_bytes(8) for at in (64, 0))]
    unread = entropy_in_parts(monkeypatch, parts)
    negative, size = laplace.proposals(1, LARGE)
    assert (bool(negative[0]), int(size[0])) == (True, is_one << bit)
    assert not unread


def test_where_53_bits_are_enough_no_more_are_taken(monkeypatch):
    calls = record_calls(monkeypatch, laplace, "surely_below")
    laplace.integers(2_000, LARGE)
    assert calls == []  # a chance of 10^-10


@pytest.mark.parametrize("again", [0, 1, 3])
def test_a_size_beyond_the_bits_is_counted_on(monkeypatch, again):
    """The last coin falls on 1 so many times more; the bits stay what they are."""
    thresholds = laplace._thresholds(LARGE)
    m = len(thresholds) - 1
    falls = iter([True] + [True] * again + [False])
    monkeypatch.setattr(laplace, "surely_below", lambda word, exactly: next(falls))
    words = np.full(m + 2, 2**53 - 1, dtype=np.uint64)
    words[3], words[m], words[m + 1] = 0, thresholds[m], 0
    drawn = (words << np.uint64(11)).tobytes()
    replace_entropy(monkeypatch, lambda size: drawn if size > 8 else bytes(8))
    assert laplace.integers(1, LARGE).tolist() == [((1 + again) << m) + 8]


@pytest.mark.parametrize("again", [1, 1 << 20])
def test_noise_has_no_bound(monkeypatch, again):
    """Also where 64 bits do not hold it. A sum of doubles is rounded once, and one of integers ends at 64 bits."""
    thresholds = laplace._thresholds(2.0**57)
    assert len(thresholds) == 64
    falls = iter([True] * again + [False])
    monkeypatch.setattr(laplace, "surely_below", lambda word, exactly: next(falls))
    words = np.full(65, 2**53 - 1, dtype=np.uint64)
    words[62], words[63], words[64] = 0, thresholds[63], 2**52
    drawn = (words << np.uint64(11)).tobytes()
    replace_entropy(monkeypatch, lambda size: drawn if size > 8 else bytes(8))
    noise = laplace.integers(1, 2.0**57)
    assert noise.tolist() == [-((again << 63) + (1 << 62))]
    added = add_on_lattice(np.array([2.0**55]), 0, lambda count: noise)
    assert added.tolist() == [float(2**55 - (again << 63) - (1 << 62))]
    monkeypatch.setattr(laplace, "integers", lambda count, scale: noise)
    assert add_integer_laplace([5], 1, Decimal(1)) == [-(2**63)]


@pytest.mark.parametrize(("sensitivity", "epsilon"), [(1, "3"), (2**31, "0.7"), (2**61, "1000"), (7, "1000000000000")])
def test_integer_noise_costs_its_epsilon_and_hardly_less(sensitivity, epsilon):
    """In fractions; beyond 2^20 for each step there is more noise than needed."""
    scale = Fraction(laplace._integer_scale(sensitivity, Decimal(epsilon)))
    needed = max(Fraction(sensitivity) / Fraction(epsilon), Fraction(laplace.SCALE_MIN))
    assert needed <= scale <= needed * (1 + Fraction(1, 2**52))


# --- what is drawn and what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 3, 10_000])
@pytest.mark.parametrize("scale", [0.3, LARGE])
def test_there_are_as_many_integers_as_were_requested(count, scale):
    """Also where many negative zeros are rejected, and where the draws are more than one block."""
    drawn = laplace.integers(count, scale)
    assert (drawn.dtype, drawn.shape) == (np.int64, (count,))


def test_a_draw_that_is_rejected_is_replaced_and_no_other(monkeypatch):
    rounds = iter([([True, False, True], [0, 0, 5]), ([True], [0]), ([False], [7])])

    def proposals(count: int, scale: float):
        negative, size = next(rounds)
        assert len(size) == count
        return np.array(negative), np.array(size)

    monkeypatch.setattr(laplace, "proposals", proposals)
    assert laplace.integers(3, 1.0).tolist() == [0, -5, 7]


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, 2.0**-21, 2.0**58])
def test_a_scale_that_would_not_protect_is_refused(scale):
    with pytest.raises(ValueError, match="scale"):
        laplace.integers(1, scale)


def test_all_randomness_is_that_of_the_operating_system(monkeypatch):
    """The same bytes give the same noise: nothing else has a part in it. Without them there is none."""
    drawn = []
    for seed in (1, 1, 2):
        replace_entropy(monkeypatch, np.random.default_rng(seed).bytes)
        drawn.append(laplace.integers(200, LARGE).tolist())
    assert drawn[0] == drawn[1] != drawn[2]
    without_entropy(monkeypatch)
    with pytest.raises(OSError, match="no entropy"):
        laplace.integers(1, LARGE)


@pytest.mark.parametrize("value", [1e300, -1e300, 1.7e308, 5e-324, 0.0, 2.0**60, 1 / 3])
def test_a_number_of_any_size_is_noised_on_the_lattice(monkeypatch, value):
    """Against fractions: rounded to the lattice where it is not on it, and the sum rounded once."""
    noise = (1 << 43) + 12_345
    monkeypatch.setattr(laplace, "integers", lambda count, scale: np.full(count, noise))
    epsilon = Decimal("0.5")
    step = Fraction(2) ** lattice(sensitivity_scale(0.3, epsilon))
    noisy = add_laplace_to_number(value, 0.3, epsilon)
    assert noisy == float((round(Fraction(value) / step) + noise) * step)


def test_decisions_by_decimals_alone_have_the_same_law():
    """No word decides by itself here: integers and decimals do, for each coin."""
    rng, scale, m, n = np.random.default_rng(0), 1.7, 7, 2_000
    coins = [partial(laplace.probability, scale, m, coin) for coin in range(m)]
    drawn = [
        sum(laplace.surely_below(int(rng.integers(2**53)), coin) << bit for bit, coin in enumerate(coins))
        for _ in range(n)
    ]
    q = math.exp(-1 / scale)
    expected = n * (1 - q) * q ** np.arange(8)
    observed = np.bincount(drawn, minlength=8)[:8]
    assert stats.chi2.sf(((observed - expected) ** 2 / expected).sum(), 8) > MISTAKEN
