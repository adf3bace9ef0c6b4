"""Private centres: the exact privacy loss of all rounds over all neighbours, and what they are good for."""

import itertools
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import qmc

from blindopt import wire
from curator_service.datasets.scaling import ScaledRows
from curator_service.releases.mechanisms import private_centres
from curator_service.releases.mechanisms.groups import Groups
from curator_service.releases.mechanisms.private_centres import LEVELS, ROUNDS, PrivateCentres
from tests.curator_service.privacy.test_groups import FAR, Forced, loss
from tests.curator_service.replaced_noise import forget_the_clip, replace_integer_laplace, replace_moves_of_centres

OF_CENTRES = Fraction("0.5")


class Near(PrivateCentres):
    """A short reach makes every offset one of the largest, so that nothing is lost by where centres are."""

    __slots__ = ()

    def _reach(self):
        return np.full(len(self.features), 2.0**-20)


def centres_of(d, number=2, k=1, epsilon="0.5", kind=PrivateCentres, rounds=ROUNDS):
    features = [wire.Feature(column=f"x{j}", lower=0.0, upper=1.0) for j in range(d)]
    return kind(features, number, Decimal(epsilon), k, rounds)


def rows_of(private, points):
    values = np.array(points, dtype=float)
    return ScaledRows(values, list(range(values.shape[1])), private.features, np.arange(len(values)))


def corners(d):
    return [(low,) * d for low in (0.0, 1.0)] + [(0.0,) + (1.0,) * (d - 1)] * (d > 1)


def largest_loss(monkeypatch, d, k=1, rounds=1):
    """The largest loss over all neighbours at all transcripts of extreme values: two persons, k records each."""
    private, worst = centres_of(d, k=k, kind=Near, rounds=rounds), Fraction(0)
    persons = list(itertools.product(corners(d), repeat=k))
    sizes, sums = [*itertools.product((1, FAR), repeat=2)], [*itertools.product((-FAR, FAR), repeat=2 * d)]
    one_round = [(*size, *total) for size in sizes for total in sums]
    for outputs in itertools.product(one_round, repeat=rounds):
        seen = []
        for person in persons:
            forced = Forced(itertools.chain(*outputs))
            replace_integer_laplace(monkeypatch, forced)
            centres = private.seek(rows_of(private, [*[corners(d)[0]] * k, *person]))
            seen.append((centres.tolist(), forced.calls))
        assert all(centres == seen[0][0] for centres, _ in seen), "centres depend on the records beside the noise"
        worst = max(worst, loss([calls for _, calls in seen]))
    return worst


CASES = [(1, 1, 1), (1, 1, 2), (2, 1, 1), (1, 2, 1)]
"""Features, records of a person, rounds."""


@pytest.mark.parametrize(("d", "k", "rounds"), CASES)
def test_the_largest_loss_of_all_rounds_is_what_they_are_charged(d, k, rounds, monkeypatch):
    assert largest_loss(monkeypatch, d, k, rounds) == OF_CENTRES


@pytest.mark.parametrize("which", [0, 1], ids=["numbers", "sums"])
def test_half_of_either_noise_loses_more(which, monkeypatch):
    def halved(moves):
        return tuple(move // 2 if i == which else move for i, move in enumerate(moves))

    replace_moves_of_centres(monkeypatch, halved)
    assert largest_loss(monkeypatch, 1) == Fraction(3, 2) * OF_CENTRES


def test_sums_without_the_clip_lose_more(monkeypatch):
    forget_the_clip(monkeypatch)
    assert largest_loss(monkeypatch, 1) > OF_CENTRES


def test_every_round_draws_each_total_once_and_the_shares_are_all_of_epsilon(monkeypatch):
    laws = []

    def add(values, sensitivity, epsilon):
        laws.append((len(values), sensitivity, epsilon))
        return values

    replace_integer_laplace(monkeypatch, add)
    private = centres_of(3, number=5, k=2, epsilon="0.123456789012")
    private.seek(rows_of(private, np.random.default_rng(1).random((50, 3))))
    share = Decimal("0.123456789012") / (2 * ROUNDS)
    assert laws == [(5, 4, share), (15, 2 * LEVELS * 3 * 2, share)] * ROUNDS
    assert 2 * ROUNDS * share == private.epsilon


def test_without_noise_a_round_is_one_of_lloyds(monkeypatch):
    """Against means of the nearest points, by a loop."""
    replace_integer_laplace(monkeypatch, lambda values, sensitivity, epsilon: values)
    private = centres_of(2, number=3, epsilon="1000")
    points = np.random.default_rng(2).random((90, 2))
    before = private.start()
    after = private.moved(before, private.noisy(private.totals(rows_of(private, points), before)), 90, ROUNDS - 1)
    scaled = points - 0.5
    part = ((scaled[:, None] - before) ** 2).sum(axis=2).argmin(axis=1)
    assert after == pytest.approx(np.array([scaled[part == i].mean(axis=0) for i in range(3)]), abs=0.01)


WIDE = [
    wire.Feature(column="a", lower=-1.0, upper=7.0, scale=2.0),
    wire.Feature(column="b", lower=10.0, upper=16.0, scale=0.5),
]
"""4 by 12 scaled units."""


def by_hand(private, centres, drawn, n, turn):
    """The centres after a round, one by one, by the definition: a box of 4 by 12 scaled units."""
    (sizes, sums), number = drawn, private.number
    sides, even = [4.0, 12.0], qmc.Halton(2, scramble=False).random(number + 1)[1:]
    reach = [side / number**0.5 for side in sides]
    variance = 2 * (4 * 16 / float(private.epsilon)) ** 2  # of a sum in whole offsets: 2 d at a sixteenth of epsilon
    ranked = sorted(range(number), key=lambda i: (-sizes[i], i))
    small = [i for i in range(number) if 4 * sizes[i] * number < n]
    after = [list(centre) for centre in centres]
    for i in range(number):
        for j in range(2):
            if i not in small:
                count = max(sizes[i], 1)
                offset = min(max(sums[i][j] / 2**30 / count, -1), 1)
                after[i][j] += offset * reach[j] * 0.09 / (0.09 + variance / count**2)
    moved = [row.copy() for row in after]
    if turn < 7:
        for beside, i in zip(ranked, small[: number // 2], strict=False):
            for j in range(2):
                moved[i][j] = after[beside][j] + (even[i][j] - 0.5) * reach[j] / 2**turn
    return [[min(max(at, -side / 2), side / 2) for at, side in zip(row, sides, strict=True)] for row in moved]


@pytest.mark.parametrize("turn", [0, 3, 6, 7])
def test_a_round_moves_centres_as_it_is_defined(turn):
    """Five centres of 40 records, of which 2 are just enough; offsets beyond one reach, and centres beyond the box."""
    private = PrivateCentres(WIDE, 5, Decimal(64))
    centres = np.array([[-1.9, 5.9], [1.9, -5.9], [0.5, -2.0], [0.25, 1.0], [-1.0, 4.0]])
    sizes = np.array([30, 2, 1, 30, -4])
    sums = np.array([[-9, 20], [5, -5], [3, 3], [-8, 12], [1, 1]]) * np.int64(2**30)
    moved = private.moved(centres, (sizes, sums), 40, turn)
    np.testing.assert_allclose(moved, by_hand(private, centres, (sizes, sums), 40, turn), rtol=1e-12)
    few = np.array([3, 1, 0, 1, -4])  # of four records: a single one is enough, and counts as one
    moved = private.moved(centres, (few, sums), 4, turn)
    np.testing.assert_allclose(moved, by_hand(private, centres, (few, sums), 4, turn), rtol=1e-12)


def test_centres_without_records_move_beside_equal_groups_in_their_order():
    private = PrivateCentres(WIDE, 60, Decimal(64))
    sizes, sums = np.repeat([0, 50], 30), np.zeros((60, 2), dtype=np.int64)
    moved = private.moved(private.start(), (sizes, sums), 1_500, 1)
    expected = by_hand(private, private.start(), (sizes, sums), 1_500, 1)
    np.testing.assert_allclose(moved, expected, rtol=1e-12, atol=1e-12)


def test_public_points_are_haltons_spread_over_the_box():
    spread = (qmc.Halton(2, scramble=False).random(41)[1:] - 0.5) * [4.0, 12.0]
    np.testing.assert_allclose(PrivateCentres(WIDE, 40, Decimal(1)).start(), spread, atol=1e-12)


def test_sums_are_exact_where_doubles_are_not(monkeypatch):
    """2^53 steps of one record and one step of another: their sum is no double."""
    monkeypatch.setattr(private_centres, "LEVELS", 2**53)
    private = centres_of(1, number=1)
    private.features[0] = wire.Feature(column="x0", lower=-0.5, upper=0.5)
    sizes, sums = private.totals(rows_of(private, [[0.5], [-0.5 + 2.0**-53]]), np.array([[-0.5]]))
    assert (sizes.tolist(), sums.tolist()) == ([2], [[2**53 + 1]])


def test_the_least_epsilon_is_the_last_whose_noise_fits():
    """2^31 / 2^57, rounded up, for each of sixteen draws: a person's two records in three features take six times."""
    private = centres_of(1)
    assert private.least == 16 * Decimal("0.000000014902")
    assert centres_of(3, k=2).least == 16 * Decimal("0.000000089407")
    zeros = np.zeros(2, dtype=np.int64), np.zeros((2, 1), dtype=np.int64)
    replace(private, epsilon=private.least).noisy(zeros)
    with pytest.raises(ValueError, match="64 bits"):
        replace(private, epsilon=private.least - Decimal("0.000000000016")).noisy(zeros)


def test_centres_come_to_the_records_and_stay_within_the_bounds(monkeypatch):
    """20,000 records in a hundredth of the box: of the public centres one in a hundred is there."""
    rng = np.random.default_rng(3)

    def laplace(values, move, epsilon):
        return [round(value + rng.laplace(scale=move / float(epsilon))) for value in values]

    replace_integer_laplace(monkeypatch, laplace)
    private = centres_of(2, number=60, epsilon="0.5")
    points = 0.7 + 0.1 * rng.random((20_000, 2))
    rows = rows_of(private, points)
    centres = private.seek(rows)
    assert np.abs(centres).max() <= 0.5
    used = [np.unique(private_centres.nearest(points - 0.5, each)).size for each in (private.start(), centres)]
    assert used[0] < 6
    assert used[1] > 20


@pytest.mark.parametrize(("d", "n"), [(1, 1), (20, 2), (3, 40)])
def test_few_records_have_centres_with_the_real_noise(d, n):
    private = centres_of(d, number=7)
    centres = private.seek(rows_of(private, np.random.default_rng(4).random((n, d))))
    assert centres.shape == (7, d)
    assert np.abs(centres).max() <= 0.5


def test_the_noise_of_a_round_has_the_scale_of_its_moves():
    """Mean absolute deviations within 6 standard errors; the draws are the curator's own."""
    private = centres_of(2, epsilon="1.6")
    numbers, sums = private.noisy((np.zeros(800, dtype=np.int64), np.zeros((400, 2), dtype=np.int64)))
    for drawn, move in zip((numbers, sums), private.moves, strict=True):
        scale = move / 0.1
        assert abs(np.abs(drawn).mean() / scale - 1) < 6 / np.sqrt(drawn.size)


def test_progress_of_a_division_never_falls_and_moves_within_a_round():
    """A service that stops ends a draw by it, so it comes with every block of records."""
    private, shares = centres_of(1, number=3), []
    cells = wire.PrivateCells(kind="private", number=3, epsilon="0.5")
    groups = Groups(private.features, cells, Decimal(1), 1)
    groups.divide(rows_of(private, np.random.default_rng(5).random((8_000, 1))), shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert len(shares) == 4 * (ROUNDS + 1)
