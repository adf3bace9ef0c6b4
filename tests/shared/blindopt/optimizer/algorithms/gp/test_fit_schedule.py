"""After how many outcomes fits and checks of a kernel come."""

import pytest

from blindopt.gp.fitting import ANSWERS_MAX
from blindopt.optimizer.algorithms.gp.fit_schedule import FitSchedule


def fits(schedule, counts):
    return list(dict.fromkeys(schedule.last(count) for count in counts))


@pytest.mark.parametrize(
    ("initial", "every", "expected"),
    [
        (6, 4, [0, 6, 10, 14, 18, 22, 26, 30, 34, 38]),
        (1, 4, [0, 3, 5, 9, 13, 17, 21, 25, 29, 33, 37]),
        (0, 10, [0, 3, 10, 20, 30]),
        (2, 100, [0, 3]),
        (6, None, [0, 6, 7, 8, 10, 12, 15, 18, 22, 27, 33]),
        (0, None, [0, 3, 4, 5, 6, 7, 8, 10, 12, 15, 18, 22, 27, 33]),
        (25, None, [0, 25, 31, 38]),
    ],
)
def test_a_fit_comes_after_every_few_outcomes_or_a_quarter_more(initial, every, expected):
    schedule = FitSchedule(initial, every)
    assert fits(schedule, range(40)) == expected
    assert [schedule.before(due) for due in expected[1:]] == expected[:-1]


def test_a_fit_comes_after_ten_more_outcomes_at_most_and_not_after_very_many():
    later = fits(FitSchedule(6, None), range(51, 1_000))
    assert later == list(range(51, ANSWERS_MAX, 10))
    assert fits(FitSchedule(6, 4), range(298, 10**4)) == [6 + (ANSWERS_MAX - 6) // 4 * 4]
    for every in (4, None):
        late = FitSchedule(ANSWERS_MAX + 50, every)
        assert [late.last(count) for count in (ANSWERS_MAX, ANSWERS_MAX + 50, 10**6)] == [0, *[ANSWERS_MAX + 50] * 2]


@pytest.mark.parametrize(
    ("initial", "every", "expected"),
    [(6, None, [6, 16, 26, 36]), (0, None, [3, 10, 20, 30]), (1, 4, [3, 5, 9, 13, 17, 21, 25, 29, 33, 37])],
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
    schedule = FitSchedule(6, None)
    assert schedule.is_check_due(ANSWERS_MAX, 10**4)
    assert not schedule.is_check_due(ANSWERS_MAX + 1, 10**4)
    assert FitSchedule(ANSWERS_MAX + 50, None).is_check_due(ANSWERS_MAX + 50, 10**4)
