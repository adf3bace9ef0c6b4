"""Measurements: one answer per play, each with measurement noise of its own, or none."""

import math

import numpy as np
import pytest
from scipy import stats

from blindopt.errors import NumericalFailure
from blindopt.wire import NoisePassport, RowPlays, StudyCreate
from curator_service.privacy.measurement.privatize import measure
from tests.builders import a_study
from tests.curator_service.replaced_noise import replace_measurement_noise

MISTAKEN = 1e-9  # a correct mechanism fails a decision less often: there are hundreds in a run of all tests


def study(noise_variance: float) -> StudyCreate:
    return a_study(variance=noise_variance)


def test_every_play_gives_one_answer_in_the_order_asked():
    request = [RowPlays(row=7, plays=2), RowPlays(row=0), RowPlays(row=7, plays=1), RowPlays(row=3, plays=3)]
    answers = measure(np.array([1.5, -2.0, 1.5, 9.0]), request, study(0.0))
    released = [(a.row, a.play, a.y) for a in answers]
    assert released == [
        *((7, 1, 1.5), (7, 2, 1.5), (0, 1, -2.0), (7, 1, 1.5)),
        *((3, 1, 9.0), (3, 2, 9.0), (3, 3, 9.0)),
    ]


def test_without_noise_an_answer_is_exact_and_nothing_is_drawn(monkeypatch):
    replace_measurement_noise(monkeypatch, lambda values, sd: pytest.fail("noise was drawn"))
    outcomes = np.array([0.1, 1e300, -1e-300, 5e-324])
    answers = measure(outcomes, [RowPlays(row=i) for i in range(4)], study(0.0))
    assert [a.y for a in answers] == outcomes.tolist()
    assert {a.passport for a in answers} == {NoisePassport(measurement_variance=0.0)}


@pytest.fixture(scope="module")
def noisy() -> np.ndarray:
    """50 rows, 1,000 plays each, less their outcome; declared variance 0.04."""
    outcomes = np.linspace(-100, 100, 50)
    answers = measure(outcomes, [RowPlays(row=i, plays=1_000) for i in range(50)], study(0.04))
    assert {a.passport for a in answers} == {NoisePassport(measurement_variance=0.04)}
    assert [a.play for a in answers[:1_000]] == list(range(1, 1_001))
    return np.array([a.y for a in answers]).reshape(50, 1_000) - outcomes[:, None]


def test_the_noise_has_the_declared_variance(noisy):
    """The variance is 0.04, so the scale is 0.2; the scale 0.04, or one an eighth off, fails."""
    flat = noisy.ravel()
    assert stats.kstest(flat, stats.norm(scale=0.2).cdf).pvalue > MISTAKEN
    for wrong in (0.04, 0.175, 0.23):
        assert stats.kstest(flat, stats.norm(scale=wrong).cdf).pvalue < MISTAKEN


def test_every_play_of_a_row_has_noise_of_its_own(noisy):
    assert len(np.unique(np.round(noisy, 9))) > 0.999 * noisy.size
    assert stats.pearsonr(noisy[:, :-1].ravel(), noisy[:, 1:].ravel()).pvalue > MISTAKEN
    assert stats.pearsonr(noisy[:-1].ravel(), noisy[1:].ravel()).pvalue > MISTAKEN
    spread = noisy.mean(axis=1).std()
    assert spread < 2 * 0.2 / math.sqrt(1_000)  # one draw shared by a row's plays would leave 0.2


def test_repeating_a_request_draws_anew():
    """A retry must not come here: the stored answer is what it gets."""
    request = [RowPlays(row=0, plays=100)]
    first, second = (measure(np.array([1.0]), request, study(1.0)) for _ in range(2))
    assert all(a.y != b.y for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_outcome_that_is_no_number_is_never_answered(bad):
    with pytest.raises((NumericalFailure, ValueError)):
        measure(np.array([bad]), [RowPlays(row=0)], study(1.0))
    with pytest.raises((NumericalFailure, ValueError)):
        measure(np.array([bad]), [RowPlays(row=0)], study(0.0))
