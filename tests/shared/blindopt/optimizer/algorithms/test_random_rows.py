"""Random rows: every row once, by the seed, whatever the outcomes are."""

import numpy as np
import pytest
from scipy import stats

from blindopt.optimizer.algorithms.random_rows import RandomRows


def run(n: int, seed: int, outcome: float = 0.0) -> list[int]:
    algorithm, rows = RandomRows(n, seed), []
    while (choice := algorithm.choose(len(rows) + 1)) is not None:
        assert (choice.mean, choice.sd, choice.acquisition, choice.ties) == (None, None, None, 1)
        rows.append(choice.row)
        algorithm.observe(choice.row, outcome)
        assert len(rows) <= n
    assert algorithm.choose(n + 1) is None
    return rows


@pytest.mark.parametrize("n", [0, 1, 2, 100])
@pytest.mark.parametrize("seed", [0, 1, 2**53 - 1])
def test_every_row_is_chosen_once_and_then_none(n, seed):
    assert sorted(run(n, seed)) == list(range(n))


def test_the_same_seed_chooses_the_same_rows_whatever_the_outcomes():
    assert run(50, 7, outcome=1.0) == run(50, 7, outcome=-3e9)
    assert run(50, 7) != run(50, 8)


def test_rows_that_were_observed_before_are_not_chosen():
    """The initial rows of a run, or those of a run that goes on after a crash."""
    algorithm = RandomRows(10, 3)
    for row in (0, 4, 9):
        algorithm.observe(row, 1.0)
    rest = []
    while (choice := algorithm.choose(len(rest) + 1)) is not None:
        rest.append(choice.row)
        algorithm.observe(choice.row, 1.0)
    assert sorted(rest) == [1, 2, 3, 5, 6, 7, 8]
    assert rest == [row for row in run(10, 3) if row not in (0, 4, 9)]


def test_a_choice_that_was_not_answered_is_made_again():
    algorithm = RandomRows(10, 3)
    assert algorithm.choose(1) == algorithm.choose(1)


def test_every_row_is_as_likely_to_come_first():
    """6,000 seeds over six rows."""
    first = [RandomRows(6, seed).choose(1).row for seed in range(6_000)]
    assert stats.chisquare(np.bincount(first, minlength=6)).pvalue > 1e-6


def test_the_order_is_not_that_of_the_initial_rows():
    """A run draws its initial rows from [seed, 0]."""
    same = [run(20, seed) == np.random.default_rng([seed, 0]).permutation(20).tolist() for seed in range(20)]
    assert not any(same)
