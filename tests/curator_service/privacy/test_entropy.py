"""Secrets that are not noise: the projection's law and the row order's, from the operating system and nothing else."""

import io

import numpy as np
import pytest
from scipy import stats

from curator_service.privacy import entropy
from tests.curator_service.replaced_noise import replace_entropy, replace_gaussian_matrix, without_entropy

N = 100_000
MISTAKEN = 1e-9  # a correct mechanism fails a decision less often: there are hundreds in a run of all tests


@pytest.fixture(scope="module")
def entries() -> np.ndarray:
    return entropy.gaussian_matrix(1_000, 100)


def test_entries_are_standard_normal(entries):
    assert entries.shape == (1_000, 100)
    assert stats.kstest(entries.ravel(), stats.norm.cdf).pvalue > MISTAKEN
    for wrong in (0.9, 1.1):
        assert stats.kstest(wrong * entries.ravel(), stats.norm.cdf).pvalue < MISTAKEN


def test_both_tails_are_alike(entries):
    """Beyond 3: 135 expected on each side; and the magnitudes of each sign follow the half-normal law."""
    flat = entries.ravel()
    for tail in (flat, -flat):
        assert 65 < (tail > 3).sum() < 215
        assert stats.kstest(tail[tail > 0], stats.halfnorm.cdf).pvalue > MISTAKEN
    assert stats.binomtest(int((flat > 0).sum()), N).pvalue > MISTAKEN


def test_entries_are_independent(entries):
    for a, b in [(entries[:, :-1], entries[:, 1:]), (entries[:-1], entries[1:])]:
        assert stats.pearsonr(a.ravel(), b.ravel()).pvalue > MISTAKEN
        assert stats.pearsonr(np.abs(a).ravel(), np.abs(b).ravel()).pvalue > MISTAKEN
    assert len(np.unique(entries)) >= N - 1  # two doubles are equal by chance once in 10^7 times


@pytest.mark.parametrize(
    ("word", "quantile"),
    [
        (0x0000000000000000, stats.norm.ppf(2.0**-65)),  # the far end of the lower tail
        (0x8000000000000000, -stats.norm.ppf(2.0**-65)),
        (0x0000000000000001, stats.norm.ppf(1.5 * 2.0**-64)),  # the last bit counts
        (0x7FFFFFFFFFFFFFFF, 0.0),  # the middle, from both sides
        (0xFFFFFFFFFFFFFFFF, 0.0),
        (0x4000000000000000, stats.norm.ppf(0.25)),
        (0xC000000000000000, stats.norm.ppf(0.75)),
        (0x2000000000000000, stats.norm.ppf(0.125)),
    ],
)
def test_a_word_of_entropy_becomes_its_quantile(monkeypatch, word, quantile):
    replace_entropy(monkeypatch, lambda size: int(word).to_bytes(8, "little") * (size // 8))
    got = entropy.gaussian_matrix(2, 3)
    assert got.shape == (2, 3)
    np.testing.assert_allclose(got, quantile, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("n", [0, 1, 2, 1_000])
def test_a_permutation_holds_every_row_once(n):
    order = entropy.permutation(n)
    assert order.dtype == np.int64
    np.testing.assert_array_equal(np.sort(order), np.arange(n))


def orders_of_five(rows, draws=6_000):
    """How often each of the 120 orders of five rows came, in buckets of about so many."""
    five = np.arange(5, dtype=np.int64)
    drawn = np.array([np.concatenate([*entropy.shuffled_pieces(five, rows, io.BytesIO)]) for _ in range(draws)])
    assert (np.sort(drawn) == five).all()
    counts = np.bincount(drawn @ [625, 125, 25, 5, 1], minlength=5**5)
    orders = [order for order in np.ndindex((5,) * 5) if len(set(order)) == 5]
    return counts[np.array(orders) @ [625, 125, 25, 5, 1]]


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_every_order_in_two_passes_is_as_likely(rows):
    """50 draws expected of each of 120 orders, in 8, 4 and 1 buckets."""
    assert stats.chisquare(orders_of_five(rows)).pvalue > MISTAKEN


@pytest.mark.parametrize("broken", ["buckets as they were filled", "buckets that take turns"])
def test_an_order_without_one_of_the_two_passes_is_found(monkeypatch, broken):
    permute = np.arange
    if broken == "buckets that take turns":
        permute = np.random.default_rng().permutation
        replace_entropy(monkeypatch, lambda size: np.arange(size // 2, dtype=np.uint16).tobytes())
    monkeypatch.setattr(entropy, "permutation", permute)
    assert stats.chisquare(orders_of_five(2)).pvalue < MISTAKEN


def test_a_large_order_is_in_a_file_that_has_no_name(tmp_path):
    values = np.arange(7, 50_007, dtype=np.int64)
    order = entropy.shuffled(values, tmp_path, in_memory=1_000)
    assert isinstance(order, np.memmap)
    np.testing.assert_array_equal(np.sort(order), values)
    assert not (order[:-1] + 1 == order[1:]).mean() > 0.001
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="too many"):
        next(entropy.shuffled_pieces(np.arange(200_000, dtype=np.int64), 1, io.BytesIO))


def test_every_order_of_four_rows_is_as_likely():
    """24,000 draws over 24 orders; an order half as often again would fail."""
    drawn = np.array([entropy.permutation(4) for _ in range(24_000)])
    counts = np.unique(drawn @ [64, 16, 4, 1], return_counts=True)[1]
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > MISTAKEN
    counts[0], counts[1] = counts[0] * 3 // 2, counts[1] // 2  # the control
    assert stats.chisquare(counts, counts.sum() / 24 * np.ones(24)).pvalue < MISTAKEN


def test_every_row_is_as_likely_in_every_place():
    """3,000 orders of 10 rows: where each row lands."""
    places = np.zeros((10, 10))
    for _ in range(3_000):
        places[entropy.permutation(10), np.arange(10)] += 1
    statistic = ((places - 300) ** 2 / 300).sum() * 9 / 10  # each row and each column sums to 3,000: 81 degrees
    assert stats.chi2(81).sf(statistic) > MISTAKEN


def test_no_seed_reaches_the_secrets():
    """Seeding every generator a test could seed changes nothing."""
    drawn = []
    for _ in range(2):
        np.random.seed(0)  # noqa: NPY002
        __import__("random").seed(0)
        drawn.append((entropy.gaussian_matrix(3, 3), entropy.permutation(50)))
    assert (drawn[0][0] != drawn[1][0]).all()
    assert (drawn[0][1] != drawn[1][1]).any()


@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (13, 1), (13, 12), (50, 7), (300, 299)], ids=str)
def test_columns_are_orthonormal(shape):
    drawn = entropy.orthonormal(*shape)
    assert drawn.shape == shape
    np.testing.assert_allclose(drawn.T @ drawn, np.eye(shape[1]), atol=1e-13)


def uniformity(matrices: np.ndarray) -> float:
    """The least p-value that any entry of (n, d, r) is not that of a uniform point of the sphere, a Beta law."""
    d = matrices.shape[1]
    law = stats.beta((d - 1) / 2, (d - 1) / 2)
    entries = matrices.reshape(len(matrices), -1).T
    return min(stats.kstest((1 + entry) / 2, law.cdf).pvalue for entry in entries)


def test_a_projection_is_uniform_in_every_entry_and_what_it_keeps_of_a_row_is_beta():
    """3,000 projections of 5 features to 3; without the sign fix, LAPACK's negative diagonal shows at once."""
    drawn = np.array([entropy.orthonormal(5, 3) for _ in range(3_000)])
    assert uniformity(drawn) > MISTAKEN
    row = np.array([0.1, -2.0, 0.3, 0.7, 1.1])
    kept = ((row @ drawn) ** 2).sum(axis=1) / (row @ row)
    assert stats.kstest(kept, stats.beta(1.5, 1.0).cdf).pvalue > MISTAKEN
    assert stats.kstest(kept, stats.beta(1.0, 1.5).cdf).pvalue < MISTAKEN
    unsigned = np.array([np.linalg.qr(entropy.gaussian_matrix(5, 3))[0] for _ in range(3_000)])
    assert uniformity(unsigned) < MISTAKEN


def test_a_badly_conditioned_draw_is_drawn_again(monkeypatch):
    bad = np.array([[1.0, 1.0], [1.0, 1.0 + 1e-9], [0.0, 0.0]])
    good = np.array([[1.0, 0.5], [-1.0, 2.0], [0.3, 0.0]])
    draws = [bad, good]
    replace_gaussian_matrix(monkeypatch, lambda d, r: draws.pop(0))
    drawn = entropy.orthonormal(3, 2)
    assert not draws
    np.testing.assert_allclose(drawn[:, 0], good[:, 0] / np.linalg.norm(good[:, 0]))


@pytest.mark.parametrize(
    "draw",
    [
        lambda: entropy.gaussian_matrix(2, 2),
        lambda: entropy.orthonormal(3, 2),
        lambda: entropy.permutation(5),
        lambda: entropy.choose_rows(9, 2),
    ],
)
def test_without_entropy_nothing_is_drawn(monkeypatch, draw):
    without_entropy(monkeypatch)
    with pytest.raises(OSError, match="no entropy"):
        draw()


def test_a_sample_is_of_different_rows_and_every_set_is_as_likely():
    """10 sets of 3 rows of 5; a sample of the first rows alone would be caught by far."""
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(5_000):
        drawn = tuple(entropy.sample(5, 3).tolist())
        assert len(set(drawn)) == 3
        assert drawn == tuple(sorted(drawn))
        counts[drawn] = counts.get(drawn, 0) + 1
    assert len(counts) == 10
    assert stats.chisquare(list(counts.values())).pvalue > MISTAKEN
    assert entropy.sample(4, 4).tolist() == [0, 1, 2, 3]


def test_chosen_rows_are_different_and_every_row_is_as_likely_at_every_position():
    """12 ordered pairs of 4 rows."""
    drawn = np.array([entropy.choose_rows(4, 2) for _ in range(6_000)])
    assert drawn.dtype == np.int64
    pairs, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(pairs) == 12
    assert (pairs[:, 0] != pairs[:, 1]).all()
    assert (pairs.min(), pairs.max()) == (0, 3)
    assert stats.chisquare(counts).pvalue > MISTAKEN


def test_no_more_rows_are_chosen_than_there_are():
    assert sorted(entropy.choose_rows(3, 10).tolist()) == [0, 1, 2]
    for none in (entropy.choose_rows(3, 0), entropy.sample(3, 0)):
        assert none.shape == (0,)
        assert none.dtype == np.int64
