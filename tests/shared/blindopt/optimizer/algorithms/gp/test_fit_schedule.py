"""After how many outcomes fits and checks of a kernel come."""

import pytest

from blindopt.gp.fitting import ANSWERS_MAX
from blindopt.optimizer.algorithms.gp.surrogate import FitSchedule


def fits(schedule, counts):
    return list(dict.fromkeys(schedule.last(count) for count in counts))


@pytest.mark.parametrize(
    ("initial", "every", "engine", "expected"),
    [
        (6, 4, 1, [0, 6, 10, 14, 18, 22, 26, 30, 34, 38]),
        (1, 4, 1, [0, 3, 5, 9, 13, 17, 21, 25, 29, 33, 37]),
        (0, 10, 1, [0, 3, 10, 20, 30]),
        (2, 100, 1, [0, 3]),
        (6, 10, 2, [0, 6, 7, 8, 10, 12, 15, 18, 22, 27, 33]),
        (6, 3, 2, [0, 6, 7, 8, 10, 12, 15, 18, 21, 24, 27, 30, 33, 36, 39]),
        (0, 1, 2, [0, *range(3, 40)]),
        (25, 10, 2, [0, 25, 31, 38]),
    ],
)
def test_a_fit_comes_after_a_quarter_more_outcomes_or_every_few(initial, every, engine, expected):
    schedule = FitSchedule(initial, every, engine)
    assert fits(schedule, range(40)) == expected
    assert [schedule.before(due) for due in expected[1:]] == expected[:-1]


def test_a_fit_comes_after_every_few_more_outcomes_at_most_and_not_after_very_many():
    assert fits(FitSchedule(6, 10), range(51, 1_000)) == list(range(51, ANSWERS_MAX, 10))
    assert fits(FitSchedule(6, 4, 1), range(298, 10**4)) == [6 + (ANSWERS_MAX - 6) // 4 * 4]
    for engine in (1, 2):
        late = FitSchedule(ANSWERS_MAX + 50, 4, engine)
        assert [late.last(count) for count in (ANSWERS_MAX, ANSWERS_MAX + 50, 10**6)] == [0, *[ANSWERS_MAX + 50] * 2]


@pytest.mark.parametrize(
    ("initial", "every", "expected"),
    [(6, 10, [6, 16, 26, 36]), (0, 10, [3, 10, 20, 30]), (1, 4, [3, 5, 9, 13, 17, 21, 25, 29, 33, 37])],
)
def test_a_kernel_is_checked_every_few_outcomes(initial, every, expected):
    schedule, check, seen = FitSchedule(initial, every), FitSchedule(initial, every).first, []
    for count in range(40):
        while schedule.is_check_due(check, count):
            seen.append(count)
            assert check == count
            check = schedule.next_check(check)
    assert seen == expected


def test_after_very_many_outcomes_a_kernel_is_not_checked():
    schedule = FitSchedule(6, 10)
    assert schedule.is_check_due(ANSWERS_MAX, 10**4)
    assert not schedule.is_check_due(ANSWERS_MAX + 1, 10**4)
    assert FitSchedule(ANSWERS_MAX + 50, 10).is_check_due(ANSWERS_MAX + 50, 10**4)
