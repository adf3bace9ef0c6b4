"""Measurements of groups: each play a draw of its own about the group's sum, and the owner's exact means."""

from decimal import Decimal

import numpy as np
import pytest

from blindopt import wire
from curator_service.privacy.measurement import groups as of_answers
from curator_service.privacy.measurement.groups import clipped_mean, measure_groups
from tests.builders import a_study, group_release

ANSWERS = wire.LaplaceAnswers(mechanism="laplace", epsilon="0.5", value_bound=2.0, noise_bound=0.5, centre=3.0)
"""Values are clipped to 0.5 to 5.5."""


def spec():
    return a_study(group_release("0.25", (3,), 1), ANSWERS, upper=3.0)


def test_each_play_of_each_group_is_a_draw_with_the_description_of_its_number(monkeypatch):
    """The noise is 0, 1, 2 and so on times C: values -9, 4, 100 and 1 are 0.5, 4, 5.5 and 1."""
    calls = []

    def add(values, sensitivity, epsilon):
        calls.append((sensitivity, epsilon))
        return [values[0] + (len(calls) - 1) * of_answers.LEVELS]

    monkeypatch.setattr(of_answers, "add_integer_laplace", add)
    plan = [wire.RowPlays(row=4, plays=2), wire.RowPlays(row=1, plays=1)]
    sums = [of_answers.steps(np.array(values), ANSWERS) for values in ([-9.0, 4.0, 100.0], [1.0])]
    answers = measure_groups(sums, [4, -3], plan, spec())
    assert [(answer.row, answer.play) for answer in answers] == [(4, 1), (4, 2), (1, 1)]
    # The sum about the centre is -2.5 + 1 + 2.5, over 4; and -2 over 1, as a number below 1 counts.
    expected = [3 + 1 / 4, 3 + (1 + 2.5) / 4, 3 - 2 + 2 * 2.5]
    assert [answer.y for answer in answers] == pytest.approx(expected, abs=1e-8)
    mechanism = of_answers.GroupAnswers.of(spec())
    assert [answer.passport for answer in answers] == [mechanism.passport(n) for n in (4, 4, -3)]
    assert calls == [(2 * of_answers.LEVELS, Decimal("0.5"))] * 3


def test_groups_and_their_numbers_belong_together():
    with pytest.raises(ValueError, match="longer"):
        measure_groups([1], [1, 2], [wire.RowPlays(row=0)], spec())
    with pytest.raises(ValueError, match="shorter"):
        measure_groups([], [1], [wire.RowPlays(row=0)], spec())


def test_the_owners_mean_is_of_clipped_values_and_exact():
    assert clipped_mean(np.array([-9.0, 4.0, 100.0, 2.0]), ANSWERS) == 3.0
    assert clipped_mean(np.array([5.5, 0.5]), ANSWERS) == 3.0
    assert clipped_mean(np.array([]), ANSWERS) is None
