"""The audit of a study's own mechanisms: a right one passes, one with the noise of 8 epsilon is caught."""

import math
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest

from blindopt import wire
from curator_service.attacks import audit
from curator_service.attacks.audit import Claim
from curator_service.privacy.answers import mechanism_of as answers_of
from curator_service.release.gaussian import GaussianMechanism
from curator_service.release.registry import choice_of
from tests.curator_service.replaced_noise import replace_answer_mechanism

CLAIM = Claim(Decimal(1))
RELEASES = {
    "planar_laplace": (wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1"), 2),
    "turned": (wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1", rotate=True), 2),
    "with delta": (wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1", delta=0.01), 5),
    "gaussian": (wire.GaussianRelease(mechanism="gaussian", epsilon="1", delta=1e-5), 3),
    "projection": (
        wire.GaussianProjectionRelease(mechanism="gaussian_projection", epsilon="1", delta=1e-5, r=4),
        13,
    ),
}
ANSWERS = {
    "laplace": wire.LaplaceAnswers(mechanism="laplace", epsilon="1", value_bound=2.0, centre=3.0),
    "one_bit": wire.OneBitAnswers(mechanism="one_bit", epsilon="1", value_bound=2.0),
    "piecewise": wire.PiecewiseAnswers(mechanism="piecewise", epsilon="1", value_bound=2.0),
}


def study(release=None, d=2, answers=None, upper=5.0):
    return wire.StudyCreate(
        name="s",
        dataset_id="dst_1",
        features=[wire.Feature(column=f"c{j}", lower=-3.0, upper=upper, scale=1.0) for j in range(d)],
        measurement=wire.ColumnMeasurement(column="y", direction="maximize"),
        release=release or RELEASES["planar_laplace"][0],
        answers=answers or wire.NoAnswerNoise(mechanism="none"),
    )


def released(name, epsilon="1", draws=200):
    """The audit of a claim of epsilon 1, by a mechanism with the noise of ``epsilon``."""
    release, d = RELEASES[name]
    wrong = choice_of(study(release.model_copy(update={"epsilon": epsilon}), d)).mechanism
    claim = Claim(Decimal(1), release.delta or 0.0)
    return audit.audit_release(study(release, d), wrong, claim, draws=draws)


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("name", RELEASES)
def test_a_right_release_is_not_contradicted(name):
    result = released(name)
    assert not result.exceeds
    assert 0 <= result.bound <= 1 < result.most
    assert (result.draws, result.confidence) == (200, 0.999)


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("name", RELEASES)
def test_the_noise_of_eight_epsilon_is_caught(name):
    """Of the averaged projection, which hides a part of the row's move, that of 20 epsilon.

    By 250 draws of planar Laplace noise, whose bounds in 36 trials were 2.1 to 3.2; of Gaussian noise 500.
    """
    draws = 250 if RELEASES[name][0].mechanism == "planar_laplace" else 500
    assert released(name, "20" if name == "projection" else "8", draws).exceeds


class OneNoiseForAllRows(GaussianMechanism):
    """A mechanism that is broken in another way: each row alone has the right law, their difference has no noise."""

    __slots__ = ()

    def draw(self, rows, out, on_progress=None):
        shared = np.random.default_rng().normal(0, self.sd(rows.d), size=rows.d)
        for index, block in rows.blocks():
            out[index] = block + shared


def test_noise_that_rows_share_is_caught():
    broken = OneNoiseForAllRows(Decimal(1), 1e-5, 1.0)
    claim = Claim(Decimal(1), 1e-5)
    assert audit.audit_release(study(d=2), broken, claim, draws=300).exceeds


def test_a_person_with_several_rows_moves_all_of_them():
    """16 rows that each cost epsilon 1 cost 16 together: noise for one row does not keep a promise for 16."""
    mechanism = choice_of(study()).mechanism
    assert audit.audit_release(study(), mechanism, CLAIM, rows=16, draws=300).exceeds
    assert not audit.audit_release(study(), mechanism, Claim(Decimal(16)), rows=16, draws=100).exceeds
    of_persons = study().model_copy(update={"rows_per_person": 16, "person_column": True})
    assert of_persons.protected_rows == 16
    right = choice_of(of_persons).mechanism
    assert not audit.audit_release(of_persons, right, CLAIM, rows=16, draws=300).exceeds


def test_a_box_that_is_smaller_than_delta_bounds_the_move():
    tight = study(upper=-2.9)
    neighbours = audit.Neighbours.of(tight, choice_of(tight).mechanism, 1)
    np.testing.assert_allclose(np.abs(neighbours.shift), 0.05)
    for dataset in neighbours.datasets:
        assert dataset.min() >= -3.0
        assert dataset.max() <= -2.9
    assert (neighbours.datasets[0] != neighbours.datasets[1]).any(axis=1).sum() == 1


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("name", ANSWERS)
def test_a_right_answer_is_not_contradicted_and_the_noise_of_eight_epsilon_is(name, monkeypatch):
    """Answers spend epsilon whole at the ends of the clip: 4,000 draws prove more than half of it."""
    right = audit.audit_answers(study(answers=ANSWERS[name]), CLAIM, draws=4_000)
    assert 0.5 < right.bound <= 1
    broken = answers_of(ANSWERS[name].model_copy(update={"epsilon": "8"}))
    replace_answer_mechanism(monkeypatch, lambda answers, persons=1: broken)
    assert audit.audit_answers(study(answers=ANSWERS[name]), CLAIM, draws=1_000).exceeds


@pytest.mark.slow(sibling="test_a_person_with_several_rows_moves_all_of_them")
def test_a_mean_of_several_people_is_audited_for_a_move_of_a_single_person(monkeypatch):
    """Three people: epsilon is spent whole. Noise for nine, which is a third of it, is caught."""
    inbox = wire.InboxMeasurement(direction="maximize", question="How well did it go?")
    apart = {"privacy_unit": "answer", "measurement": inbox}
    means = study(answers=ANSWERS["laplace"].model_copy(update={"plays": "mean"})).model_copy(update=apart)
    assert 0.5 < audit.audit_answers(means, CLAIM, draws=4_000).bound <= 1
    replace_answer_mechanism(monkeypatch, lambda answers, persons=1: answers_of(answers, 3 * persons))
    assert audit.audit_answers(means, CLAIM, draws=2_000).exceeds


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
    claim = Claim(Decimal(1), 0.1)
    bounds = [audit.audit_of(coin(1.0, 0.1, rng), claim, 400, 0.9, lambda share: None).bound for _ in range(400)]
    assert sum(bound > 1 for bound in bounds) < 68
    assert np.median(bounds) > 0.3


def test_delta_is_taken_off():
    """What is given away with probability 0.1 contradicts epsilon 1 at delta 0, and not at delta 0.1."""
    rng = np.random.default_rng(1)
    results = [
        audit.audit_of(coin(1.0, 0.1, rng), Claim(Decimal(1), delta), 4_000, 0.999, lambda share: None)
        for delta in (0.0, 0.1)
    ]
    assert [result.exceeds for result in results] == [True, False]


def test_draws_are_held_a_few_at_a_time_and_progress_ends_at_one():
    counts, shares = [], []
    rng = np.random.default_rng(2)

    def draw(moved, count):
        counts.append(count)
        return rng.normal(size=(count, 2))

    audit.audit_of(draw, CLAIM, 100_000, 0.999, shares.append)
    assert max(counts) <= audit.BATCH
    assert sum(counts) == 2 * (100_000 + audit.LEARNT_MAX)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


@pytest.mark.parametrize(("draws", "confidence"), [(99, 0.9), (10**7 + 1, 0.9), (100, 0.0), (100, 1.0)])
def test_an_audit_without_meaning_is_refused(draws, confidence):
    with pytest.raises(ValueError, match="draws"):
        audit.audit_answers(study(answers=ANSWERS["laplace"]), CLAIM, draws=draws, confidence=confidence)


def test_an_audit_is_what_it_says():
    result = audit.Audit(CLAIM, 0.9, 5.0, 100, 0.99)
    assert not result.exceeds
    assert replace(result, bound=1.1).exceeds
