"""Several plays of a row released once, as their mean."""

import math

import numpy as np
import pytest
from scipy import stats

from blindopt import wire
from blindopt.errors import NumericalFailure
from curator_service.privacy.answers import mechanism_of
from curator_service.privacy.measurement.privatize import Measured, measure, passport_of, release, releases_mean
from tests.builders import a_study
from tests.curator_service.replaced_noise import replace_answer_release
from tests.scale import scaled

KINDS = {"laplace": wire.LaplaceAnswers, "one_bit": wire.OneBitAnswers, "piecewise": wire.PiecewiseAnswers}


def study(kind="laplace", plays="mean", variance=0.0, centre=0.0, epsilon="1"):
    parameters = {"epsilon": epsilon, "value_bound": 1.0, "centre": centre, "plays": plays}
    return a_study(answers=KINDS[kind](mechanism=kind, **parameters), variance=variance)


@pytest.fixture
def offsets_seen(monkeypatch):
    """What reaches the mechanism, which then adds nothing."""
    offsets = []
    replace_answer_release(
        monkeypatch, lambda mechanism, values: (offsets.append(values.copy()), mechanism.centre + values)[1]
    )
    return offsets


@pytest.mark.parametrize("kind", KINDS)
def test_each_item_of_a_query_gets_one_answer_that_says_how_many_it_is_the_mean_of(kind):
    request = [wire.RowPlays(row=5, plays=3), wire.RowPlays(row=2), wire.RowPlays(row=5, plays=2)]
    spec = study(kind, variance=0.6)
    assert releases_mean(spec)
    means = measure(np.zeros(3), request, spec)
    assert [(a.row, a.play, a.plays) for a in means] == [(5, 1, 3), (2, 1, 1), (5, 1, 2)]
    assert [a.passport.measurement_variance for a in means] == pytest.approx([0.2, 0.6, 0.3])
    assert [a.passport for a in means] == [passport_of(spec, n) for n in (3, 1, 2)]
    each = measure(np.zeros(3), request, study(kind, "each", variance=0.6))
    assert [(a.row, a.play, a.plays) for a in each] == [
        (5, 1, 1),
        (5, 2, 1),
        (5, 3, 1),
        (2, 1, 1),
        (5, 1, 1),
        (5, 2, 1),
    ]
    assert {a.passport.measurement_variance for a in each} == {0.6}


def test_what_is_released_is_the_mean_of_an_item_s_own_measurements(offsets_seen):
    request = [wire.RowPlays(row=0, plays=2), wire.RowPlays(row=1, plays=1), wire.RowPlays(row=0, plays=4)]
    assert [a.y for a in measure(np.array([10.5, 9.25, 10.5]), request, study(centre=10.0))] == [10.5, 9.25, 10.5]
    (offsets,) = offsets_seen
    assert offsets.tolist() == [0.5, -0.75, 0.5]


def test_each_measurement_is_clipped_before_the_mean_is_taken(offsets_seen):
    """One measurement gone astray moves a mean of four by a quarter of the clip's width at most."""
    (answer,) = release([Measured(0, [1, 2, 3, 4], [0.2, 0.2, 0.2, 1e6])], study(variance=1.0))
    assert answer.y == pytest.approx((3 * 0.2 + 1) / 4)
    assert answer.y < 1.0  # the control: of the unclipped ones the mean lies far beyond the bound


@pytest.mark.parametrize(("value", "offset"), [(-5.0, -1.0), (11.5, 1.0), (9.25, -0.75)])
@pytest.mark.parametrize("kind", KINDS)
def test_an_offset_is_clipped_at_both_ends_before_it_is_randomized(kind, value, offset):
    mechanism = mechanism_of(study(kind, centre=10.0).answers)
    assert mechanism.clip == (9.0, 11.0)
    assert mechanism.clipped(np.array([value])).tolist() == [offset]


@pytest.mark.parametrize("kind", KINDS)
def test_the_noise_of_a_mean_is_that_of_one_release(kind):
    """40 plays, one draw of privacy noise; the measurement noise shrinks by 40."""
    count, plays = scaled(1_000), 40
    request = [wire.RowPlays(row=0, plays=plays)] * count
    parameters = study(kind, variance=1e-4, centre=3.0, epsilon="2")
    drawn = np.array([a.y for a in measure(np.full(count, 3.25), request, parameters)])
    size = mechanism_of(parameters.answers).noise.variance
    variance = size - 0.25**2 if kind == "one_bit" else size
    if kind == "piecewise":  # at y = 1/4 instead of 1: Lemma 3 of Wang et al.
        variance -= (1 - 0.25**2) / (math.e - 1)
    assert abs(drawn.mean() - 3.25) < 6 * math.sqrt(variance / count)
    spread = drawn.var() / variance
    if kind == "laplace":
        assert stats.kstest(drawn - 3.25, stats.laplace(scale=1.0).cdf).pvalue > 1e-9
        assert stats.kstest(drawn - 3.25, stats.laplace(scale=0.1).cdf).pvalue < 1e-9  # the control: a mean of draws
    else:  # bounded: the square of a draw is at most 3 (one_bit) or 8 (piecewise) times its mean
        assert abs(spread - 1) < 5 * math.sqrt(7 / count)
    assert spread > 10 / plays  # the control: a mean of draws has 1 / plays


def test_a_measurement_that_is_no_number_is_refused_though_its_mean_would_be_clipped():
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(NumericalFailure, match="not finite"):
            measure(np.array([bad]), [wire.RowPlays(row=0, plays=2)], study())


def test_answers_without_noise_are_never_means():
    spec = study().model_copy(update={"answers": wire.NoAnswerNoise(mechanism="none")})
    assert not releases_mean(spec)
    assert len(measure(np.zeros(1), [wire.RowPlays(row=0, plays=3)], spec)) == 3
