"""The noise itself: its law with controls that must fail, its lattice, its low bits, and what is refused."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import opendp.mod
import pytest
from scipy import stats

from blindopt.errors import NumericalFailure
from curator_service.privacy.noise import (
    PlanarLaplaceLaw,
    add_gaussian,
    add_laplace,
    bounded,
    gaussian,
    laplace_scale,
    lattice,
    selection,
)
from tests.curator_service.replaced_noise import replace_opendp_account
from tests.interventions import record_calls
from tests.scale import scaled

N = 100_000
MISTAKEN = 1e-9  # a correct mechanism fails a decision less often: there are hundreds in a run of all tests
SD = 0.7
VALUE = 1 / 3


@pytest.fixture(scope="module")
def drawn() -> np.ndarray:
    """100,000 noisy copies of one value, less the value."""
    return add_gaussian(np.full(N, VALUE), SD) - VALUE


def fits(sample: np.ndarray, sd: float) -> float:
    return stats.kstest(sample, stats.norm(scale=sd).cdf).pvalue


def chi_square(sample: np.ndarray, sd: float) -> float:
    """Two-sided, of the sum of squares: sharper than Kolmogorov-Smirnov for a wrong scale."""
    law, total = stats.chi2(len(sample)), float(((sample / sd) ** 2).sum())
    return 2 * min(law.cdf(total), law.sf(total))


def test_the_noise_is_gaussian_of_the_scale_asked_for(drawn):
    assert fits(drawn, SD) > MISTAKEN
    assert chi_square(drawn, SD) > MISTAKEN
    assert abs(drawn.mean()) < 6 * SD / math.sqrt(N)


@pytest.mark.parametrize("wrong", [0.9, 1.1])
def test_noise_a_tenth_off_would_be_caught(drawn, wrong):
    assert fits(wrong * drawn, SD) < 1e-20
    assert chi_square(wrong * drawn, SD) < 1e-20


@pytest.mark.parametrize("wrong", [0.97, 1.03])
def test_noise_three_hundredths_off_would_be_caught_by_its_squares(drawn, wrong):
    assert chi_square(wrong * drawn, SD) < MISTAKEN


def test_both_tails_are_there(drawn):
    """Beyond 3 sd: 135 expected on each side; 65 to 215 but for one chance in 10^10."""
    for tail in (drawn, -drawn):
        assert 65 < (tail > 3 * SD).sum() < 215
    assert np.abs(drawn).max() < 7.5 * SD


def test_coordinates_are_independent(drawn):
    """Neighbours are not correlated, nor are their sizes; half of them repeated would be."""
    for lag in (1, 2, 50):
        assert stats.pearsonr(drawn[:-lag], drawn[lag:]).pvalue > MISTAKEN
        assert stats.pearsonr(np.abs(drawn[:-lag]), np.abs(drawn[lag:])).pvalue > MISTAKEN
    repeated = np.repeat(drawn[: N // 2], 2)
    assert stats.pearsonr(repeated[:-1], repeated[1:]).pvalue < 1e-20


@pytest.mark.parametrize("values", [[0.0, 5.0, -5.0, 1e6], [1e-9, math.pi, 1e12, -1e-300]])
def test_the_noise_does_not_depend_on_the_value(values):
    repeats = 5_000
    out = add_gaussian(np.repeat(values, repeats), 2.0).reshape(len(values), repeats)
    for row, value in zip(out, values, strict=True):
        assert fits(row - value, 2.0) > MISTAKEN


@pytest.mark.parametrize(("sd", "k"), [(1.0, -40), (0.7, -41), (4.5, -38), (2.0**-30, -70), (1e6, -21), (0.9999, -41)])
def test_the_lattice_is_sd_over_2_to_the_40th(sd, k):
    assert lattice(sd) == k
    assert 2.0**-40 / 2 < 2.0**k / sd <= 2.0**-40


@pytest.mark.parametrize("sd", [0.7, 1.0, 3.7306, 1e-6, 1e6])
def test_every_output_lies_on_the_lattice(sd):
    """Nothing of the low bits of a value may survive: they are what floating-point attacks read."""
    values = np.random.default_rng(0).normal(size=3_000) * sd
    steps = np.ldexp(add_gaussian(values, sd), -lattice(sd))
    np.testing.assert_array_equal(steps, np.round(steps))
    assert np.ldexp(values, -lattice(sd))[0] % 1 != 0  # the values themselves do not


@pytest.mark.parametrize("sd", [2.0**-1035, 5e-324])
def test_noise_finer_than_doubles_is_refused(sd):
    """Its steps would be rounded one by one, and not the sum. At 2^-1034 the lattice is that of the least doubles."""
    with pytest.raises(NumericalFailure, match="nothing was drawn"):
        add_gaussian(np.array([0.0]), sd)
    assert add_gaussian(np.array([5e-324, 0.0]), 2.0**-1034).shape == (2,)


def test_the_sum_of_near_values_is_rounded_once(monkeypatch):
    """Against fractions, up to the last double that the lattice does not hold, with noise of as many bits."""
    noise = np.array([(1 << 53) - 1, -(1 << 53) + 1, 3, 0])
    monkeypatch.setattr(gaussian, "integers", lambda count, scale: noise)
    for sd in (1.0, 2.0**-1034, 2.0**1009):
        step = Fraction(2) ** lattice(sd)
        values = np.ldexp([2.0**53 - 1, 1.5, -(2.0**52) - 0.5, 0.5], lattice(sd))
        for value, size, noisy in zip(values.tolist(), noise.tolist(), add_gaussian(values, sd), strict=True):
            assert noisy == float((round(Fraction(value) / step) + size) * step)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_refused(bad):
    with pytest.raises(NumericalFailure):
        add_gaussian(np.array([0.0, bad, 1.0]), 1.0)


@pytest.mark.parametrize("sd", [0.0, -0.0, -1.0, math.nan, math.inf, -math.inf])
def test_a_scale_that_would_not_protect_is_refused(sd):
    with pytest.raises(ValueError, match="positive, finite"):
        lattice(sd)
    with pytest.raises(ValueError, match="positive, finite"):
        add_gaussian(np.array([1.0]), sd)


def test_nothing_in_is_nothing_out():
    empty = np.empty(0)
    out = add_gaussian(empty, 1.0)
    assert out.shape == (0,)
    assert out is not empty


def test_the_values_are_left_as_they_were():
    values = np.arange(5.0)
    out = add_gaussian(values, 1.0)
    np.testing.assert_array_equal(values, np.arange(5.0))
    assert (out != values).all()


# --- what floating point lets through ------------------------------------------------------------------------


def off_the_54th(sample: np.ndarray) -> int:
    """Mironov's (2012) event: 0 < y < 1/4 and y no multiple of 2^-54."""
    small = sample[(sample > 0) & (sample < 0.25)]
    return int((np.ldexp(small, 54) % 1 != 0).sum())


def test_the_low_bits_of_an_output_tell_nothing_of_the_value():
    """numpy's noise, the control: an event of 6.6 % around 0 that never happens around 1, so that no epsilon holds.

    Of ours 100,000 draws of each kind at full size.
    """
    rng = np.random.default_rng(0)
    assert off_the_54th(0.0 + rng.normal(size=N)) > 0.05 * N
    assert off_the_54th(1.0 + rng.normal(size=N)) == 0
    assert off_the_54th(0.0 + rng.laplace(size=N)) > 0.05 * N
    assert off_the_54th(1.0 + rng.laplace(size=N)) == 0
    planar = PlanarLaplaceLaw.of(1.0, Decimal(1), 2)
    for value in (0.0, 1.0):
        assert off_the_54th(add_gaussian(np.full(min(N, scaled(N // 5)), value), 1.0)) == 0
        assert off_the_54th(planar.add(np.full((min(N, scaled(N // 10)) // 2, 2), value))) == 0
        assert off_the_54th(add_laplace(np.full(min(N, scaled(N // 20)), value), 1.0, Decimal(1))) == 0


@pytest.mark.parametrize("value", [1e308, -1e308, 5e-324, -5e-324, 2.0**-1022, 0.0])
def test_the_largest_and_the_smallest_doubles_are_noised_on_the_lattice(value):
    out = add_gaussian(np.full(20, value), 1.0)
    assert np.isfinite(out).all()
    assert (np.fmod(out, 2.0**-40) == 0).all()


@pytest.mark.parametrize(
    "wrong", [{"bound": 0.0}, {"bound": math.inf}, {"epsilon": Decimal("Infinity")}, {"epsilon": Decimal(0)}]
)
def test_a_scale_needs_a_bound_and_an_epsilon(wrong):
    with pytest.raises(ValueError, match="positive, finite"):
        laplace_scale(**{"bound": 1.0, "epsilon": Decimal(1)} | wrong)


@pytest.mark.parametrize("epsilon", ["0.001", "0.3", "1", "7"])
def test_the_scale_pays_for_rounding_two_answers_to_the_lattice(epsilon):
    """Each of two answers moves by half a step at most: the scale covers 2 bound and a step, and hardly more."""
    scale, exact = Fraction(laplace_scale(3.0, Decimal(epsilon))), Fraction(epsilon)
    step = Fraction(2) ** lattice(float(scale))
    assert 6 + step <= scale * exact <= 6 * (1 + Fraction(2) ** -36 * max(1, 1 / exact))


# --- the library, where it would account otherwise -----------------------------------------------------------


@pytest.mark.parametrize(("law", "trusted"), [("permute_and_flip", False), ("exponential", True)])
def test_only_the_root_of_the_exponential_mechanism_may_be_off_by_its_rounding(monkeypatch, law, trusted):
    spent = 1.3 * (1 + 5e-13)
    replace_opendp_account(monkeypatch, "make_noisy_max", lambda distance: spent**2 / 8 if trusted else spent)
    if trusted:
        selection._noisy_max.__wrapped__(0.25, Decimal("1.3"), law)
    else:
        with pytest.raises(NumericalFailure, match="account"):
            selection._noisy_max.__wrapped__(0.25, Decimal("1.3"), law)


@pytest.mark.parametrize(
    "make",
    [lambda: selection._noisy_max.__wrapped__(0.25, Decimal(1), "exponential"), lambda: bounded.coin.__wrapped__(0.75)],
)
def test_each_law_opens_the_same_part_of_the_library_and_no_other(monkeypatch, make):
    calls = record_calls(monkeypatch, opendp.mod, "enable_features")
    make()
    assert calls == [("contrib",)]
