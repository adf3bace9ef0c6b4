"""What is said of measurements that come from outside, and of plays that have none."""

import pytest

from blindopt import wire
from curator_service.privacy.measurement.privatize import Measured, added_variance, is_exact, passport_of, release
from tests.builders import a_study
from tests.curator_service.replaced_noise import replace_answer_release

EXACT = wire.NoAnswerNoise(mechanism="none")
LAPLACE = wire.LaplaceAnswers(mechanism="laplace", epsilon="2", value_bound=1.0, plays="mean")


def study(answers, variance=0.0):
    system = wire.WebhookMeasurement(direction="maximize", lower=-10.0, upper=10.0, unit="kg", noise_variance=variance)
    return a_study(answers=answers, measurement=system)


@pytest.mark.parametrize("answers", [EXACT, LAPLACE], ids=["exact", "private"])
@pytest.mark.parametrize(("variance", "is_known"), [(0.0, False), (1e-9, True), (0.75, True)])
def test_the_noise_of_a_system_is_known_only_if_its_owner_declared_some(answers, variance, is_known):
    passport = passport_of(study(answers, variance), plays=1)
    assert (passport.measurement_variance, passport.measurement_variance_known) == (variance, is_known)


def test_an_item_without_a_measurement_has_no_answer_and_the_others_keep_theirs():
    answers = release(
        [Measured(4, [], []), Measured(7, [2, 3], [1.5, -2.5]), Measured(1, [], [])], study(EXACT, variance=0.5)
    )
    assert [(a.row, a.play, a.plays, a.y) for a in answers] == [(7, 2, 1, 1.5), (7, 3, 1, -2.5)]
    assert {a.passport.measurement_variance for a in answers} == {0.5}
    assert release([Measured(4, [], [])], study(LAPLACE)) == []


def test_a_mechanism_that_returns_too_few_numbers_releases_nothing(monkeypatch):
    replace_answer_release(monkeypatch, lambda mechanism, offsets: offsets[:-1])
    with pytest.raises(ValueError, match="shorter"):
        release([Measured(1, [1], [0.5]), Measured(2, [1], [0.5])], study(LAPLACE))


def test_the_curator_adds_no_measurement_noise_to_what_a_system_measured():
    assert added_variance(study(EXACT)) == added_variance(study(EXACT, variance=0.5)) == 0.0
    assert is_exact(study(EXACT, variance=0.5))
    assert not is_exact(study(LAPLACE))
