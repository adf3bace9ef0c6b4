"""The exact discrete Gaussian: its law on the integers, each decision in 60 digits, and controls that must fail."""

from fractions import Fraction
from functools import partial

import mpmath
import numpy as np
import pytest
from scipy import stats

from blindopt.errors import NumericalFailure
from curator_service.privacy.noise import add_gaussian, gaussian, lattice
from tests.curator_service.privacy import exact_masses
from tests.curator_service.replaced_noise import entropy_in_parts, leave_decisions_to_decimals, replace_entropy
from tests.interventions import record_calls
from tests.scale import scaled

N = 40_000
MISTAKEN = 1e-9


def misfit(drawn: np.ndarray, scale: float) -> float:
    return exact_masses.misfit(drawn, int(40 * scale) + 40, lambda x: np.exp(-(x**2) / (2 * scale**2)))


@pytest.mark.parametrize("scale", [0.4, 1.0, 1.7, 6.3, 30.0])
def test_small_scales_have_the_exact_masses(scale):
    assert misfit(gaussian.integers(scaled(N), scale), scale) > MISTAKEN


def test_a_zero_that_counts_twice_and_a_block_that_is_too_narrow_are_caught(monkeypatch):
    """Controls: both signs of 0, and proposals whose probability would have to exceed 1."""
    with monkeypatch.context() as patch:
        patch.setattr(gaussian, "_BLOCK_MIN", 0.3)
        assert misfit(gaussian.integers(N, 6.3), 6.3) < 1e-20
    proposals = gaussian.proposals

    def unsigned(count: int, width: int):
        negative, block, size = proposals(count, width)
        return negative & (size > 0), block, size

    monkeypatch.setattr(gaussian, "proposals", unsigned)
    assert misfit(gaussian.integers(N, 1.7), 1.7) < 1e-20


@pytest.mark.parametrize("scale", [1.0, 2.0**40, 1.698 * 2.0**40, 1.699 * 2.0**40, 2.0**41 - 1])
def test_no_probability_exceeds_one(scale):
    """Also at the first integer of each block, where it is largest."""
    width = 0
    while 2.0**width < gaussian._BLOCK_MIN * scale:
        width += 1
    for block in range(12):
        p, error = gaussian.probability(block, block << width, scale, 60)
        assert p <= 1
        assert error < Fraction(1, 10**50)


def exact(block: int, size: int, scale: float) -> Fraction:
    with mpmath.workdps(80):
        p = mpmath.mpf(2) ** block * mpmath.exp(-(mpmath.mpf(size) ** 2) / (2 * mpmath.mpf(scale) ** 2))
        return Fraction(int(mpmath.floor(p * mpmath.mpf(2) ** 230)), 2**230)


@pytest.mark.parametrize("seed", range(3))
def test_every_decision_near_p_is_the_right_one(monkeypatch, seed):
    rng = np.random.default_rng(seed)
    for _ in range(60):
        scale, block = float(2.0 ** rng.uniform(40, 41)), int(rng.integers(0, 5))
        size = (block << 42) + int(rng.integers(0, 1 << 42))
        p = exact(block, size, scale)
        base = int(p * 2**53)
        nudges = np.concatenate([np.arange(-3, 4), rng.integers(-4000, 4000, size=40)])
        words = np.clip(base + nudges, 0, 2**53 - 1)
        more = int(rng.integers(1, 2**63))

        def urandom(size: int, words=words, more=more) -> bytes:
            return (words.astype(np.uint64) << np.uint64(11)).tobytes() if size > 8 else more.to_bytes(8)

        replace_entropy(monkeypatch, urandom)
        kept = gaussian.keep(np.full(len(words), block), np.full(len(words), size), scale)
        rest = Fraction(more, 2**64 - 1)
        assert kept.tolist() == [(int(word) + rest) / 2**53 < p for word in words]


def test_decisions_by_decimals_alone_have_the_same_law(monkeypatch):
    """All of them are left to integers and decimals: the doubles only save time."""
    leave_decisions_to_decimals(monkeypatch, gaussian)
    calls = record_calls(monkeypatch, gaussian, "surely_below")
    assert misfit(gaussian.integers(2_000, 3.7), 3.7) > MISTAKEN
    assert len(calls) > 2_000


@pytest.mark.parametrize("digits", [20, 40])
def test_the_bound_on_an_error_of_decimals_holds(digits):
    rng = np.random.default_rng(digits)
    for _ in range(200):
        scale, size = float(2.0 ** rng.uniform(40, 41)), int(rng.integers(0, 1 << 45))
        p, error = gaussian.probability(2, size, scale, digits)
        with mpmath.workdps(90):
            exponent = 2 * mpmath.log(2) - mpmath.mpf(size) ** 2 / (2 * mpmath.mpf(scale) ** 2)
            off = abs(mpmath.log(mpmath.mpf(p.numerator) / p.denominator) - exponent)
            assert off <= mpmath.mpf(error.numerator) / error.denominator


def test_blocks_halve_in_probability_and_go_on_beyond_64(monkeypatch):
    negative, block, size = gaussian.proposals(scaled(N), 5)
    observed = np.bincount(block, minlength=12)[:10]
    expected = len(block) * 0.5 ** np.arange(1, 11)
    assert stats.chi2.sf(((observed - expected) ** 2 / expected).sum(), 10) > MISTAKEN
    assert stats.chisquare(np.bincount(size - (block << 5))).pvalue > MISTAKEN
    assert stats.binomtest(int(negative.sum()), len(negative)).pvalue > MISTAKEN
    entropy_in_parts(monkeypatch, [bytes(8) + (3).to_bytes(8, "little"), bytes(8), (12).to_bytes(8)])
    negative, block, size = gaussian.proposals(1, 5)
    assert (negative[0], block[0], size[0]) == (False, 64 + 64 + 2, ((64 + 64 + 2) << 5) + 3)


def test_all_randomness_is_that_of_the_operating_system(monkeypatch):
    """The same bytes give the same noise: nothing else has a part in it."""
    drawn = []
    for seed in (1, 1, 2):
        replace_entropy(monkeypatch, np.random.default_rng(seed).bytes)
        drawn.append(add_gaussian(np.zeros(200), 1.0).tolist())
    assert drawn[0] == drawn[1] != drawn[2]


def test_the_sum_on_the_lattice_is_rounded_once(monkeypatch):
    """Against fractions: values that are rounded to the lattice, on it, and so large that they hide it."""
    monkeypatch.setattr(gaussian, "integers", partial(lambda count, scale, noise: noise, noise=np.arange(-3, 4) << 39))
    for sd in (1.0, 2.0**-300, 3e200):
        k = lattice(sd)
        values = np.array([1.3, -(2.0**13), 2.0**14, 2.0**15 + 1, -1e30, 0.0, 5e-324]) * sd
        step = Fraction(2) ** k
        for value, noise, noisy in zip(values, np.arange(-3, 4) << 39, add_gaussian(values, sd), strict=True):
            assert noisy == float((round(Fraction(float(value)) / step) + int(noise)) * step)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_beyond_the_largest_double_is_the_largest_double(monkeypatch, sign):
    """At either end, and without a warning."""
    monkeypatch.setattr(gaussian, "integers", lambda count, scale: np.full(count, sign * 2**44))
    largest, sd = float(np.finfo(np.float64).max), 2.0**1010
    noisy = add_gaussian(np.array([sign * largest, -sign * largest, 0.0]), sd)
    assert noisy.tolist() == [sign * largest, sign * (16 * sd - largest), sign * 16 * sd]


@pytest.mark.parametrize("count", [0, 3])
def test_noise_is_drawn_in_whole_numbers(count):
    drawn = gaussian.integers(count, 2.0**40)
    assert (drawn.dtype, drawn.shape) == (np.int64, (count,))


def test_noise_that_no_double_holds_is_refused_before_a_draw(monkeypatch):
    """It was an OverflowError. On a lattice of 2^971 or more the largest double may round to infinity, on 2^970 not."""
    largest = float(np.finfo(np.float64).max)
    assert np.isfinite(add_gaussian(np.array([largest, 0.0]), 0.999 * 2.0**1011)).all()
    drawn = record_calls(monkeypatch, gaussian, "integers")
    for sd in (2.0**1011, 2.0**1023, largest):
        with pytest.raises(NumericalFailure, match="nothing was drawn"):
            add_gaussian(np.array([largest, 0.0]), sd)
    assert not drawn
