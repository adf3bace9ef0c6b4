"""Initial designs against their definitions."""

import numpy as np
import pytest

from blindopt.errors import NumericalFailure
from blindopt.optimizer.chooser import maximin, random_rows

NONE = np.empty(0, dtype=np.intp)


def slow(z, count, first, taken=()):
    rows = [first]
    while len(rows) < count:
        rest = [i for i in range(len(z)) if i not in rows and i not in taken]
        rows.append(max(rest, key=lambda i: (min(((z[i] - z[j]) ** 2).sum() for j in rows), -i)))
    return rows


@pytest.mark.parametrize("block", [7, 1 << 17])
@pytest.mark.parametrize("seed", range(4))
def test_maximin_takes_each_time_the_row_farthest_from_those_chosen(seed, block):
    z = np.random.default_rng(seed).normal(size=(80, 3))
    design = maximin(z, 25, seed, NONE, block=block)
    assert design[0] == np.random.default_rng([seed, 0]).permutation(80)[0]
    assert design.tolist() == slow(z, 25, int(design[0]))


def test_rows_that_are_taken_are_in_no_design():
    z = np.random.default_rng(1).normal(size=(40, 2))
    taken = np.array([3, 4, 20, 39])
    design = maximin(z, 12, 5, taken)
    assert design.tolist() == slow(z, 12, int(design[0]), taken.tolist())
    for rows in (maximin(z, 100, 5, taken), random_rows(40, 100, 5, taken)):
        assert sorted(rows.tolist()) == sorted(set(range(40)) - set(taken.tolist()))


def test_equal_rows_are_taken_once_each_and_the_first_of_equals_first():
    z = np.array([[0.0], [0.0], [1.0], [1.0], [1.0]])
    design = maximin(z, 5, 0, NONE).tolist()
    first = design[0]
    assert sorted(design) == [0, 1, 2, 3, 4]
    assert design[1] == (2 if first < 2 else 0)


def test_random_rows_are_those_of_the_seed_without_repetition():
    plain = np.random.default_rng([9, 0]).permutation(50)
    assert random_rows(50, 10, 9, NONE).tolist() == plain[:10].tolist()
    assert random_rows(50, 10, 9, plain[:3]).tolist() == plain[3:13].tolist()
    assert len(maximin(np.zeros((3, 1)), 0, 0, NONE)) == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
def test_candidates_without_distances_are_refused(bad):
    with pytest.raises(NumericalFailure, match="finite"):
        maximin(np.array([[0.0], [1.0], [bad]]), 3, 0, NONE)
