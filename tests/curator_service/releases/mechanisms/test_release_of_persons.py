"""Releases of datasets with a person column: epsilon and delta are the person's, by the noise that is really drawn."""

from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
import pytest
from mpmath import mp
from scipy import stats

from blindopt import wire
from blindopt.errors import Invalid
from curator_service.privacy import accounting
from curator_service.privacy.calibration import concrete
from curator_service.privacy.guarantees import guarantee, not_protected
from curator_service.releases.attacks.scene import as_rows
from curator_service.releases.mechanisms.registry import planned_mechanism
from curator_service.releases.mechanisms.row_noise import GaussianMechanism, PlanarLaplaceMechanism
from tests.builders import a_study
from tests.curator_service.privacy.epsilon_audit import lower_bound

DELTA = 0.3


def study(release, k=3, d=2, *, column=True, **more):
    return a_study(release, d=d, rows_per_person=k, person_column=column, **more)


def planar(epsilon="1"):
    return wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon=epsilon, sensitivity=DELTA)


def gaussian(epsilon="1", delta=1e-5):
    return wire.GaussianRelease(mechanism="gaussian", epsilon=epsilon, delta=delta, sensitivity=DELTA)


def loss_of_rows(mechanism: PlanarLaplaceMechanism, d: int, k: int) -> Fraction:
    """The largest loss of k rows, each moved by Delta and rounded to the lattice, in fractions."""
    law = mechanism.law(d)
    step, root = Fraction(2) ** law.k, Fraction(Context(60).sqrt(Decimal(d)))
    moved = Fraction(mechanism.sensitivity) / step + root
    return k * root * moved / Fraction(law.scale)


@pytest.mark.parametrize("d", [1, 2, 7])
@pytest.mark.parametrize("k", [1, 2, 7, 1_000])
@pytest.mark.parametrize("epsilon", ["0.01", "1", "7.3"])
def test_planar_noise_of_k_rows_costs_a_person_epsilon(d, k, epsilon):
    mechanism = PlanarLaplaceMechanism(Decimal(epsilon), DELTA, rows=k)
    loss = loss_of_rows(mechanism, d, k)
    assert Fraction(epsilon) * Fraction(999_999, 1_000_000) < loss <= Fraction(epsilon) * (1 + Fraction(10) ** -30)
    if k > 1:  # the noise of one row would cost k times as much
        assert loss_of_rows(PlanarLaplaceMechanism(Decimal(epsilon), DELTA), d, k) > Fraction(epsilon) * (k - 1)


def delta_of(epsilon: float, shift: float) -> float:
    """Balle and Wang (2018), Theorem 8, in 60 digits."""
    e, s = mp.mpf(epsilon), mp.mpf(shift)
    return float(mp.ncdf(s / 2 - e / s) - mp.exp(e) * mp.ncdf(-s / 2 - e / s))


@pytest.mark.parametrize("k", [1, 2, 10, 1_000])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-5), (8.0, 1e-9)])
def test_gaussian_noise_of_k_rows_costs_a_person_epsilon_and_delta(k, epsilon, delta):
    mp.dps = 60
    mechanism = GaussianMechanism(Decimal(repr(epsilon)), delta, DELTA, rows=k)
    shift = float(np.sqrt(k)) * DELTA / mechanism.sd(3)
    assert 0.999 * delta < delta_of(epsilon, shift) <= delta
    if k > 1:
        alone = GaussianMechanism(Decimal(repr(epsilon)), delta, DELTA).sd(3)
        assert delta_of(epsilon, float(np.sqrt(k)) * DELTA / alone) > 2 * delta
        assert mechanism.sd(3) == pytest.approx(np.sqrt(k) * alone, rel=1e-8)


def records(mechanism, k: int, moved: float, trials: int):
    """The best attacker's sum over the k rows of one person, in one dimension: log-likelihoods of Laplace noise."""
    z = np.empty((k * trials, 1))
    mechanism.draw(as_rows(np.full((k * trials, 1), moved)), z)
    scale = mechanism.noise(1).sd / np.sqrt(2)
    return ((np.abs(z) - np.abs(z - DELTA)) / scale).reshape(trials, k).sum(axis=1)


@pytest.mark.slow(every=2)
@pytest.mark.parametrize(("rows", "holds"), [(4, True), (1, False)])
def test_drawn_noise_keeps_a_person_of_four_rows_below_epsilon_and_that_of_a_row_does_not(rows, holds):
    mechanism = PlanarLaplaceMechanism(Decimal(1), DELTA, rows=rows)
    moved, unmoved = (records(mechanism, 4, centre, 20_000) for centre in (DELTA, 0.0))
    assert (lower_bound(moved, unmoved) <= 1.0) is holds


def test_a_projection_has_no_proof_for_several_rows_and_auto_takes_none():
    release = wire.GaussianProjectionRelease(mechanism="gaussian_projection", epsilon="1", delta=1e-5, r=3)
    assert planned_mechanism(study(release, 1, 20)).name == "gaussian_projection"
    assert planned_mechanism(study(release, 5, 20, column=False)).name == "gaussian_projection"  # a declaration
    with pytest.raises(Invalid, match="take gaussian") as refused:
        planned_mechanism(study(release, 2, 20))
    assert refused.value.errors[0]["field"] == "release.mechanism"


def test_auto_compares_the_noise_of_all_rows():
    """Noise grows by k with planar Laplace and by sqrt(k) with Gaussian noise: three features change sides."""
    auto = wire.AutoRelease(epsilon="1", delta=1e-5, sensitivity=DELTA)
    assert planned_mechanism(study(auto, 1, 3)).name == "planar_laplace"
    mechanism, why = planned_mechanism(study(auto, 9, 3)), concrete(study(auto, 9, 3))[1]
    assert mechanism.name == "gaussian"
    both = [planned_mechanism(study(release, 9, 3)).noise(3).sd for release in (planar(), gaussian())]
    assert mechanism.noise(3).sd == min(both)
    assert all(f"{sd:.4g}" in why for sd in both)
    pure = wire.AutoRelease(epsilon="1", sensitivity=DELTA)
    assert planned_mechanism(study(pure, 9, 3)).name == "planar_laplace"
    assert concrete(study(auto, 9, 3, column=False))[0].mechanism == "planar_laplace"  # calibrated to one row


def test_words_and_figures_are_a_persons():
    laplace = wire.LaplaceAnswers(mechanism="laplace", epsilon="0.5", value_bound=1.0)
    spec = study(gaussian(), 3, answers=laplace, epsilon_per_row="4")
    text = guarantee(spec)
    assert "privacy of each person's features" in text
    assert "differ in the records of one person, 3 at most, each moved by at most 0.3" in text
    assert "Answers about the records of one person add up, with the release, to (4, 1e-05) at most." in text
    assert "differ in the record of one person, moved" in guarantee(study(planar(), 1))
    assert any(gap.startswith("Records of one person:") for gap in not_protected(spec))
    price = accounting.price(spec)
    assert (price.release_epsilon, price.row_epsilon, price.answers_per_row) == ("1", "4", 6)
    assert "epsilon 1 and delta 1e-05 for each person" in price.sentence
    assert "about each person" in price.sentence
    same_person = accounting.price(study(gaussian(), 1, answers=laplace, epsilon_per_row="4"))
    assert price.tight_row_epsilon == same_person.tight_row_epsilon  # noise and move both grow by sqrt(k)


def test_the_tight_figure_of_several_rows_in_one_dimension_claims_no_single_laplace_variable():
    """Two Laplace variables of epsilon / 2 each may reveal more at a delta than one of epsilon."""
    single = accounting.report(study(planar(), 1, 1), {0: 1}, 0, 0.1)
    double = accounting.report(study(planar(), 2, 1), {0: 1}, 0, 0.1)
    assert single.rows[0].epsilon == double.rows[0].epsilon == "1"
    mechanism = PlanarLaplaceMechanism(Decimal(1), DELTA, rows=2)
    scale, draws = mechanism.noise(1).sd / np.sqrt(2), 200_000
    noise = stats.laplace(scale=scale).rvs(size=(draws, 2), random_state=5)
    loss = ((np.abs(noise - DELTA) - np.abs(noise)) / scale).sum(axis=1)
    delta = float(np.maximum(0, 1 - np.exp(double.rows[0].tight_epsilon - loss)).mean())
    assert delta <= 0.1
