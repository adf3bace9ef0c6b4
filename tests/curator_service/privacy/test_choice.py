"""What `auto` takes: the smaller noise, from public values alone, with the reason in words."""

import math
from decimal import Decimal

import pytest

from blindopt import wire
from curator_service.privacy import calibration
from curator_service.privacy.calibration import as_run, concrete, gaussian_sd, planar_slope
from curator_service.privacy.noise import PLANAR_FEATURES_MAX
from curator_service.releases.mechanisms.registry import choice_of
from tests.builders import a_study


def study(d: int, **release) -> wire.StudyCreate:
    return a_study(wire.AutoRelease(mechanism="auto", **({"epsilon": "1", "delta": 1e-5} | release)), d=d)


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("d", range(1, 26))
def test_at_epsilon_1_and_delta_1e5_planar_laplace_wins_up_to_twenty_features_and_spends_delta_from_five_on(d):
    chosen, why = concrete(study(d))
    assert chosen.mechanism == ("planar_laplace" if d <= PLANAR_FEATURES_MAX else "gaussian")
    assert chosen.delta == (None if d < 5 else 1e-5)
    assert why.startswith("Chosen: planar Laplace" if d <= PLANAR_FEATURES_MAX else "Chosen: Gaussian")


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("epsilon", ["0.1", "1", "8"])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 1e-2])
@pytest.mark.parametrize("d", [1, 3, 8, 14, PLANAR_FEATURES_MAX])
def test_the_mechanism_with_the_smaller_noise_is_taken(epsilon, delta, d):
    pure, slope = math.sqrt(d + 1) * 0.25 / float(epsilon), planar_slope(Decimal(epsilon), delta, d)
    with_delta = math.sqrt(d + 1) * 0.25 / float(slope)
    spends = d >= 5 and with_delta <= 0.98 * pure
    planar = with_delta if spends else pure
    gaussian = gaussian_sd(Decimal(epsilon), delta, 0.25, d)
    draft = study(d, epsilon=epsilon, delta=delta, sensitivity=0.25)
    mechanism = choice_of(draft).mechanism
    assert mechanism.name == ("planar_laplace" if planar <= gaussian else "gaussian")
    assert mechanism.noise(d).sd == pytest.approx(min(planar, gaussian), rel=1e-6)
    assert mechanism.noise(d).family == mechanism.name
    if mechanism.name == "planar_laplace":
        assert mechanism.delta == (delta if spends else None)


def test_the_reason_names_both():
    assert concrete(study(2))[1] == (
        "Chosen: planar Laplace, the smaller noise (1.732 per coordinate; Gaussian 3.731). No delta needed."
    )
    why = concrete(study(15))[1]
    assert why == "Chosen: planar Laplace, the smaller noise (3.137 per coordinate; Gaussian 3.731)."
    loose = {"epsilon": "0.1", "delta": 1e-2}
    chosen = "Chosen: Gaussian, the smaller noise (9.542 per coordinate; planar Laplace 20)."
    assert concrete(study(3, **loose))[1] == chosen
    assert (
        concrete(study(PLANAR_FEATURES_MAX + 1))[1] == "Chosen: Gaussian, as planar Laplace is for 20 features at most."
    )
    assert concrete(study(2, delta=None))[1] == "Chosen: planar Laplace, the noise that needs no delta."


def test_what_the_owner_chose_is_left_alone():
    release = wire.GaussianRelease(mechanism="gaussian", epsilon="1", delta=1e-5)
    assert concrete(study(2).model_copy(update={"release": release})) == (release, None)


def test_parameters_are_handed_on():
    chosen, _ = concrete(study(2, epsilon="0.7", sensitivity=0.3, rotate=True))
    assert (chosen.epsilon, chosen.sensitivity, chosen.rotate) == ("0.7", 0.3, True)
    chosen, _ = concrete(study(18, epsilon="0.7", sensitivity=0.3, rotate=True, delta=1e-6))
    assert (chosen.mechanism, chosen.delta) == ("planar_laplace", 1e-6)
    chosen, _ = concrete(study(21, epsilon="0.7", sensitivity=0.3, rotate=True, delta=1e-6))
    assert (chosen.epsilon, chosen.sensitivity, chosen.rotate, chosen.delta) == ("0.7", 0.3, True, 1e-6)


def test_of_equal_noise_the_one_without_a_delta_is_taken(monkeypatch):
    monkeypatch.setattr(calibration, "gaussian_sd", lambda epsilon, delta, sensitivity, d, k: math.sqrt(d + 1))
    assert concrete(study(4))[0].mechanism == "planar_laplace"


def test_a_person_with_several_rows_counts_in_the_choice():
    """With four rows the Gaussian needs twice the noise, planar Laplace four times and more than the delta saves."""
    draft = study(8).model_copy(update={"rows_per_person": 4, "person_column": True})
    chosen, why = concrete(draft)
    each = planar_slope(Decimal("0.25"), 2.5e-6, 8)
    assert chosen.mechanism == "gaussian"
    assert f"planar Laplace {3 / float(each):.4g})" in why


def test_a_release_that_ran_is_made_again_whatever_auto_would_take_today():
    draft = study(2, epsilon="0.7", sensitivity=0.3)
    planar, gaussian = (as_run(draft, name) for name in ("planar_laplace", "gaussian"))
    assert (planar.mechanism, planar.epsilon, planar.sensitivity) == ("planar_laplace", "0.7", 0.3)
    assert (gaussian.mechanism, gaussian.epsilon, gaussian.delta) == ("gaussian", "0.7", 1e-5)
    assert planar.delta is None
    assert as_run(study(8), "planar_laplace", 1e-5).delta == 1e-5
    assert as_run(study(8), "planar_laplace").delta is None  # a release of an earlier version
    with pytest.raises(ValueError, match="never took identity"):
        as_run(draft, "identity")
    with pytest.raises(ValueError, match="never took gaussian"):
        as_run(study(2, delta=None), "gaussian")
    chosen = draft.model_copy(update={"release": wire.IdentityRelease(mechanism="identity")})
    assert as_run(chosen, "gaussian") == chosen.release


def test_public_candidates_have_no_epsilon_and_what_promises_pure_epsilon_has_no_delta():
    public = wire.IdentityRelease(mechanism="identity")
    planar = wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="0.7")
    assert (calibration.epsilon_of(public), calibration.failure(public)) == (None, 0.0)
    assert (calibration.epsilon_of(planar), calibration.failure(planar)) == (Decimal("0.7"), 0.0)
    assert calibration.failure(planar.model_copy(update={"delta": 1e-6})) == 1e-6
