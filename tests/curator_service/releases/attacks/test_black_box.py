"""What draws alone prove of a study's mechanisms: no more than epsilon, and more with the noise of 8 epsilon."""

import math
from decimal import Decimal

import numpy as np
import pytest

from blindopt import wire
from curator_service.privacy.answers import mechanism_of as answers_of
from curator_service.releases.mechanisms.registry import planned_mechanism
from curator_service.releases.mechanisms.row_noise import GaussianMechanism
from tests.builders import BY_HAND, EXACT, a_study, laplace
from tests.curator_service.releases.attacks import black_box
from tests.curator_service.replaced_noise import replace_answer_mechanism

RELEASES = {
    "planar_laplace": (wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1"), 2),
    "one feature": (wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1", promise="one_feature"), 3),
    "turned": (wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1", rotate=True), 2),
    "with delta": (wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1", delta=0.01), 5),
    "gaussian": (wire.GaussianRelease(mechanism="gaussian", epsilon="1", delta=1e-5), 3),
    "projection": (wire.GaussianProjectionRelease(mechanism="gaussian_projection", epsilon="1", delta=1e-5, r=4), 13),
}
ANSWERS = {
    "laplace": laplace("1", 2.0, centre=3.0),
    "one_bit": wire.OneBitAnswers(mechanism="one_bit", epsilon="1", value_bound=2.0),
    "piecewise": wire.PiecewiseAnswers(mechanism="piecewise", epsilon="1", value_bound=2.0),
}


def study(release=RELEASES["planar_laplace"][0], d=2, answers=EXACT, upper=5.0):
    return a_study(release, answers, d=d, lower=-3.0, upper=upper, scale=1.0)


def released(name, epsilon="1", draws=200):
    """What the noise of ``epsilon`` proves."""
    release, d = RELEASES[name]
    mechanism = planned_mechanism(study(release.model_copy(update={"epsilon": epsilon}), d))
    return black_box.audit_release(study(release, d), mechanism, release.delta or 0.0, draws=draws)


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("name", RELEASES)
def test_a_right_release_is_not_contradicted(name):
    assert 0 <= released(name) <= 1


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("name", RELEASES)
def test_the_noise_of_eight_epsilon_is_caught(name):
    """Of the averaged projection, which hides a part of the row's move, that of 20 epsilon.

    By 250 draws of planar Laplace noise, whose bounds in 36 trials were 2.1 to 3.2; of Gaussian noise 500.
    """
    draws = 250 if RELEASES[name][0].mechanism == "planar_laplace" else 500
    assert released(name, "20" if name == "projection" else "8", draws) > 1


class OneNoiseForAllRows(GaussianMechanism):
    """A mechanism that is broken in another way: each row alone has the right law, their difference has no noise."""

    __slots__ = ()

    def draw(self, rows, out, on_progress=None):
        shared = np.random.default_rng().normal(0, self.sd(rows.d), size=rows.d)
        for index, block in rows.blocks():
            out[index] = block + shared


def test_noise_that_rows_share_is_caught():
    broken = OneNoiseForAllRows(Decimal(1), 1e-5, 1.0)
    assert black_box.audit_release(study(d=2), broken, 1e-5, draws=300) > 1


def test_a_person_with_several_rows_moves_all_of_them():
    """16 rows that each cost epsilon 1 cost 16 together: noise for one row does not keep a promise for 16."""
    mechanism = planned_mechanism(study())
    assert 1 < black_box.audit_release(study(), mechanism, rows=16, draws=300) <= 16
    of_persons = study().model_copy(update={"rows_per_person": 16, "person_column": True})
    assert of_persons.protected_rows == 16
    right = planned_mechanism(of_persons)
    assert black_box.audit_release(of_persons, right, rows=16, draws=300) <= 1


def test_a_box_that_is_smaller_than_delta_bounds_the_move():
    tight = study(upper=-2.9)
    neighbours = black_box.Neighbours.of(tight, planned_mechanism(tight), 1)
    np.testing.assert_allclose(np.abs(neighbours.shift), 0.05)
    for dataset in neighbours.datasets:
        assert dataset.min() >= -3.0
        assert dataset.max() <= -2.9
    assert (neighbours.datasets[0] != neighbours.datasets[1]).any(axis=1).sum() == 1


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("name", ANSWERS)
def test_a_right_answer_is_not_contradicted_and_the_noise_of_eight_epsilon_is(name, monkeypatch):
    """Answers spend epsilon whole at the ends of the clip: 4,000 draws prove more than half of it."""
    assert 0.5 < black_box.audit_answers(study(answers=ANSWERS[name]), draws=4_000) <= 1
    broken = answers_of(ANSWERS[name].model_copy(update={"epsilon": "8"}))
    replace_answer_mechanism(monkeypatch, lambda answers, persons=1: broken)
    assert black_box.audit_answers(study(answers=ANSWERS[name]), draws=1_000) > 1


@pytest.mark.slow(sibling="test_a_person_with_several_rows_moves_all_of_them")
def test_a_mean_of_several_people_is_audited_for_a_move_of_a_single_person(monkeypatch):
    """Three people: epsilon is spent whole. Noise for nine, which is a third of it, is caught."""
    apart = {"privacy_unit": "answer", "measurement": BY_HAND}
    means = study(answers=ANSWERS["laplace"].model_copy(update={"plays": "mean"})).model_copy(update=apart)
    assert 0.5 < black_box.audit_answers(means, draws=4_000) <= 1
    replace_answer_mechanism(monkeypatch, lambda answers, persons=1: answers_of(answers, 3 * persons))
    assert black_box.audit_answers(means, draws=2_000) > 1


def coin(epsilon, delta, rng):
    """Randomized response that loses (epsilon, delta) exactly, as scores: with probability delta it gives all away."""
    stay = 1 / (1 + math.exp(-epsilon))

    def draw(moved, count):
        bits = (rng.random(count) < stay) == moved
        given_away = rng.random(count) < delta
        return np.where(given_away, 3.0 if moved else -3.0, bits).reshape(-1, 1)

    return draw


def test_bounds_are_wrong_no_more_often_than_is_said():
    """400 audits of a coin that spends epsilon and delta whole, at 90 %: 40 above it are expected at most, 68 never."""
    rng = np.random.default_rng(0)
    bounds = [black_box.bound_of(coin(1.0, 0.1, rng), 0.1, 400, 0.1) for _ in range(400)]
    assert sum(bound > 1 for bound in bounds) < 68
    assert np.median(bounds) > 0.3
