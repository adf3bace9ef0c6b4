"""Planar Laplace noise: its law by radius and angle, each decision of its sampler exactly, and what is refused."""

import math
from decimal import Decimal
from fractions import Fraction
from functools import partial

import mpmath
import numpy as np
import pytest
from scipy import stats

from blindopt.errors import NumericalFailure
from curator_service.privacy.noise import PLANAR_FEATURES_MAX, PlanarLaplaceLaw, planar
from curator_service.privacy.noise.lattice import surely_below
from curator_service.releases.mechanisms.row_noise import PlanarLaplaceMechanism
from tests.curator_service.replaced_noise import (
    entropy_in_parts,
    leave_decisions_to_decimals,
    replace_entropy,
    without_entropy,
)
from tests.scale import scaled

MISTAKEN = 1e-9  # a correct mechanism fails a decision less often: there are hundreds in a run of all tests
DIMENSIONS = {1: 40_000, 2: 20_000, 3: 10_000, 7: 5_000, 12: 1_500, 20: 1_000}
DELTA, EPSILON = 0.5, Decimal("1.5")


@pytest.fixture(scope="module", params=DIMENSIONS)
def drawn(request) -> tuple[int, np.ndarray]:
    """Noisy copies of one row off the lattice, less the row, in units of Delta / epsilon."""
    d = request.param
    row = np.linspace(-1 / 3, 0.7, d)
    noisy = PlanarLaplaceLaw.of(DELTA, EPSILON, d).add(np.tile(row, (scaled(DIMENSIONS[d]), 1)))
    return d, (noisy - row) * float(EPSILON) / DELTA


def by_radius(sample: np.ndarray) -> float:
    """The radius of density exp(-|u|) in d dimensions is Gamma(d)."""
    return stats.kstest(np.linalg.norm(sample, axis=1), stats.gamma(sample.shape[1]).cdf).pvalue


def by_squares(sample: np.ndarray) -> float:
    """The mean squared radius is d (d + 1), of variance E r^4 - (E r^2)^2; a two-sided normal tail."""
    n, d = sample.shape
    variance = math.prod(range(d, d + 4)) - (d * (d + 1)) ** 2
    return 2 * stats.norm.sf(abs((sample**2).sum(axis=1).mean() - d * (d + 1)) / math.sqrt(variance / n))


def by_angle(sample: np.ndarray, direction: np.ndarray) -> float:
    """(1 + cosine of the angle to any direction) / 2 is Beta((d - 1) / 2, (d - 1) / 2); for d = 1 a fair sign."""
    n, d = sample.shape
    cosine = sample @ direction / np.linalg.norm(sample, axis=1) / np.linalg.norm(direction)
    if d == 1:
        return stats.binomtest(int((cosine > 0).sum()), n).pvalue
    return stats.kstest((1 + cosine) / 2, stats.beta((d - 1) / 2, (d - 1) / 2).cdf).pvalue


@pytest.mark.slow(every=3)
def test_the_radius_is_that_of_the_law(drawn):
    _, sample = drawn
    assert by_radius(sample) > MISTAKEN
    assert by_squares(sample) > MISTAKEN


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("wrong", [0.9, 1.1])
def test_noise_a_tenth_off_would_be_caught(drawn, wrong):
    d, sample = drawn
    assert min(by_radius(wrong * sample), by_squares(wrong * sample)) < MISTAKEN, d


def test_every_direction_is_as_likely(drawn):
    """Along an axis, the diagonal, and between the halves that are joined."""
    d, sample = drawn
    for direction in (np.eye(d)[0], np.eye(d)[-1], np.ones(d), np.where(np.arange(d) < d // 2, 1.0, -1.0)):
        assert by_angle(sample, direction) > MISTAKEN


def test_independent_laplace_coordinates_would_be_caught():
    """The control of the angle: what is proposed is not uniform in direction, nor is its radius the law's."""
    rng = np.random.default_rng(0)
    for d in (2, 3, 7):
        proposed = rng.laplace(size=(DIMENSIONS[d], d)) / math.sqrt(d)
        assert by_angle(proposed, np.eye(d)[0]) < MISTAKEN
        assert by_squares(proposed) < MISTAKEN


def test_the_standard_deviation_is_the_stated_one(drawn):
    d, sample = drawn
    sd = PlanarLaplaceLaw.of(DELTA, EPSILON, d).sd
    assert sd == pytest.approx(math.sqrt(d + 1) * DELTA / float(EPSILON), rel=1e-9)
    assert sample.std() == pytest.approx(math.sqrt(d + 1), rel=6 * math.sqrt(2) / math.sqrt(len(sample)))
    assert np.abs(sample.mean(axis=0)).max() < 6 * math.sqrt((d + 1) / len(sample))


def test_rows_have_noise_of_their_own(drawn):
    _, sample = drawn
    first, second = np.linalg.norm(sample[:-1], axis=1), np.linalg.norm(sample[1:], axis=1)
    assert stats.pearsonr(first, second).pvalue > MISTAKEN
    assert len(np.unique(sample)) >= sample.size - 4  # two are equal by chance once in 10^4 times, five never


@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize(("sensitivity", "epsilon"), [(1.0, "1"), (0.37, "0.000001"), (1e-50, "1000"), (1e50, "7.3")])
def test_every_output_lies_on_the_lattice(d, sensitivity, epsilon):
    law = PlanarLaplaceLaw.of(sensitivity, Decimal(epsilon), d)
    unit = sensitivity / float(epsilon)
    assert 2.0**-41 < 2.0**law.k / unit <= 2.0**-40
    values = np.random.default_rng(0).normal(size=(200, d)) * unit
    steps = np.ldexp(law.add(values), -law.k)
    np.testing.assert_array_equal(steps, np.rint(steps))
    assert (np.ldexp(values, -law.k) % 1 != 0).any()  # the values themselves do not


@pytest.mark.parametrize("d", [1, 3, 40])
def test_laplace_noise_in_each_coordinate_is_that_of_one_dimension(d):
    """Each coordinate Laplace with the scale Delta / epsilon, whatever the others are; the control is 5 % off."""
    law = PlanarLaplaceLaw.of(DELTA, EPSILON, d, per_coordinate=True)
    row = np.linspace(-1 / 3, 0.7, d)
    sample = (law.add(np.tile(row, (60_000 // d, 1))) - row) * float(EPSILON) / DELTA
    assert law.sd == pytest.approx(math.sqrt(2) * DELTA / float(EPSILON), rel=1e-9)
    assert stats.kstest(sample.ravel(), "laplace").pvalue > MISTAKEN
    assert stats.gamma(sample.size).sf(1.05 * np.abs(sample).sum()) < MISTAKEN
    if d > 1:
        assert stats.pearsonr(np.abs(sample[:, 0]), np.abs(sample[:, 1])).pvalue > MISTAKEN
    steps = np.ldexp(law.add(np.tile(row, (4, 1))), -law.k)
    np.testing.assert_array_equal(steps, np.rint(steps))


# --- the sampler's argument, piece by piece ------------------------------------------------------------


def test_the_scale_pays_for_delta_and_for_rounding_to_the_lattice():
    """In integers and rationals: sqrt(d) (Delta / g + sqrt(d)) / s <= epsilon, squared to be rid of the root."""
    for d in range(1, PLANAR_FEATURES_MAX + 1):
        for sensitivity, epsilon in (
            (1.0, "1"),
            (0.1, "0.3"),
            (3e-50, "1000"),
            (1e50, "0.000001"),
            (7.7, "123.456789"),
        ):
            law = PlanarLaplaceLaw.of(sensitivity, Decimal(epsilon), d)
            steps, needed = Fraction(sensitivity) / Fraction(2) ** law.k, Fraction(epsilon) * Fraction(law.scale) - d
            assert needed > 0
            assert d * steps**2 <= needed**2
            assert needed**2 <= d * steps**2 * (1 + Fraction(1, 10**14))  # and hardly more


def exceeds(law: PlanarLaplaceLaw, moved: Fraction, epsilon: Decimal) -> bool:
    """Whether a row that moves by ``moved`` costs more than epsilon, in rationals: as in the test above."""
    steps, needed = moved / Fraction(2) ** law.k, Fraction(epsilon) * Fraction(law.scale) - law.d
    return needed <= 0 or (1 if law.per_coordinate else law.d) * steps**2 > needed**2


def test_the_sum_of_delta_and_rounding_is_never_below_what_a_row_moves():
    """1,000 random studies in rationals: none costs more than its epsilon.

    The control, a sum of doubles that is rounded to the nearest one, exceeds it in some.
    """
    rng, control = np.random.default_rng(0), 0
    for _ in range(1_000):
        d, epsilon = int(rng.integers(1, PLANAR_FEATURES_MAX + 1)), Decimal(str(round(10 ** rng.uniform(-2, 1), 3)))
        sensitivity = float(10 ** rng.uniform(-3, 3))
        rounding = float(sensitivity * 10 ** rng.uniform(-16, -3))
        moved = Fraction(sensitivity) + Fraction(rounding)
        for promise in ("euclidean", "one_feature"):
            law = PlanarLaplaceMechanism(epsilon, sensitivity, rounding, promise=promise).law(d)
            assert not exceeds(law, moved, epsilon)
        control += exceeds(PlanarLaplaceLaw.of(sensitivity + rounding, epsilon, d), moved, epsilon)
    assert control > 4


def test_by_halves_the_law_is_that_of_the_whole():
    """Integrals of exp(-sqrt(d) |u|) over space, and shares computed by hand: 0.79, 0.60, 0.21, 0.05."""
    for d in (1, 2, 3, 7, 12, 20):
        radial = mpmath.quad(lambda r, d=d: r ** (d - 1) * mpmath.exp(-mpmath.sqrt(d) * r), [0, 5, 20, mpmath.inf])
        sphere = 2 * mpmath.pi ** (mpmath.mpf(d) / 2) / mpmath.gamma(mpmath.mpf(d) / 2)
        assert planar.acceptance(d) == pytest.approx(float(sphere * radial / 2**d), rel=1e-9)
    assert [round(planar.acceptance(d), 2) for d in (2, 3, 7, 12)] == [0.79, 0.6, 0.21, 0.05]


@pytest.mark.slow(every=2)
@pytest.mark.parametrize(("d", "kept_coordinates"), [(2, 1), (3, 1), (7, 3), (12, 6)])
def test_the_share_that_is_kept_is_the_one_computed(d, kept_coordinates):
    n, scale = scaled(4_000), 2.0**40
    pairs = np.hstack([planar.vectors(kept_coordinates, n, scale), planar.vectors(d - kept_coordinates, n, scale)])
    share = planar.acceptance(d) / planar.acceptance(kept_coordinates) / planar.acceptance(d - kept_coordinates)
    assert stats.binomtest(int(planar.keep(pairs, kept_coordinates, scale).sum()), n, share).pvalue > MISTAKEN
    whole = planar.acceptance(7)  # the control: another dimension's share
    assert stats.binomtest(round(n * share), n, whole).pvalue < MISTAKEN


def test_on_a_coarse_lattice_the_law_is_the_discrete_one():
    """Scale 3 in two dimensions: every vector's own probability, exp(-sqrt(2) |v| / 3) over the sum."""
    n, reach = scaled(30_000), 60
    axis = np.arange(-reach, reach + 1)
    weight = np.exp(-math.sqrt(2) * np.hypot(axis[:, None], axis[None, :]) / 3.0)
    weight /= weight.sum()
    vectors = planar.vectors(2, n, 3.0)
    counts = np.zeros_like(weight)
    np.add.at(counts, (vectors[:, 0] + reach, vectors[:, 1] + reach), 1)
    often = weight * n >= 20

    def p_value(expected: np.ndarray) -> float:
        observed = np.append(counts[often], counts[~often].sum())
        return stats.chisquare(observed, n * np.append(expected[often], 1 - expected[often].sum())).pvalue

    assert p_value(weight) > MISTAKEN
    proposed = np.exp(-(np.abs(axis)[:, None] + np.abs(axis)[None, :]) / 3.0)
    assert p_value(proposed / proposed.sum()) < MISTAKEN


def kept_probability(pair, rest: int, scale: float) -> mpmath.mpf:
    d = len(pair)
    norms = [mpmath.sqrt(sum(mpmath.mpf(x) ** 2 for x in part)) for part in (pair, pair[:rest], pair[rest:])]
    terms = [mpmath.sqrt(size) * norm for size, norm in zip((d, rest, d - rest), norms, strict=True)]
    return mpmath.exp(-(terms[0] - terms[1] - terms[2]) / mpmath.mpf(scale))


PAIRS = [
    ([3, 4], 1, 5.0),
    ([2**40, -(2**41), 7], 1, 1.7 * 2.0**40),
    ([2**45, 0, 0, 0, 1, 2, 3], 3, 2.0**41),
    ([2**52 + 1, 2**53 - 1], 1, 2.0**43),
    ([0, 0, 1], 1, 2.0**43),
]


@pytest.mark.parametrize(("pair", "rest", "scale"), PAIRS)
@pytest.mark.parametrize(("nudge", "kept"), [(-2, True), (2, False)])
def test_a_uniform_just_below_p_keeps_and_just_above_does_not(monkeypatch, pair, rest, scale, nudge, kept):
    """U agrees with p for 53 + 128 bits and parts from it in the last of 64 more: it is compared to the end."""
    with mpmath.workdps(150):
        digits = int(mpmath.floor(kept_probability(pair, rest, scale) * mpmath.mpf(2) ** 245)) + nudge
    parts = [(digits >> 192 << 11 | 5).to_bytes(8, "little")]
    parts += [(digits >> shift & (2**64 - 1)).to_bytes(8) for shift in (128, 64, 0)]
    unread = entropy_in_parts(monkeypatch, parts)
    assert planar.keep(np.array([pair]), rest, scale).tolist() == [kept]
    assert not unread


@pytest.mark.parametrize("digits", [8, 12, 40])
def test_the_error_of_a_probability_in_decimals_is_within_its_bound(digits):
    """Random vectors with few digits, against 120: the bound holds in each, and is not idle."""
    rng, worst = np.random.default_rng(digits), mpmath.mpf(0)
    for _ in range(300):
        d = int(rng.integers(2, 8))
        rest, scale = d // 2, float(2.0 ** rng.uniform(0, 20))
        pair = np.rint(rng.laplace(scale=scale, size=d)).astype(int).tolist()
        p, error = planar.probability(pair, rest, scale, digits)
        with mpmath.workdps(120):
            computed = mpmath.log(mpmath.mpf(p.numerator) / p.denominator)
            off = abs(computed - mpmath.log(kept_probability(pair, rest, scale)))
            worst = max(worst, off / (mpmath.mpf(error.numerator) / error.denominator))
    assert 0.05 < worst <= 1


@pytest.mark.parametrize("pair", [[0, 0], [1, 0], [1, 2], [3, -50, 7]])
@pytest.mark.parametrize("digits", [8, 12, 40])
def test_the_error_of_the_probability_of_a_vector_far_shorter_than_the_scale_is_within_its_bound(digits, pair):
    """Its exponent is nearly 0: what is left is the rounding of its exponential."""
    p, error = planar.probability(pair, 1, 2.0**40, digits)
    with mpmath.workdps(120):
        off = abs(mpmath.log(mpmath.mpf(p.numerator) / p.denominator) - mpmath.log(kept_probability(pair, 1, 2.0**40)))
        assert off <= mpmath.mpf(error.numerator) / error.denominator


@pytest.mark.parametrize(("pair", "rest", "scale"), PAIRS[:3])
@pytest.mark.parametrize(("nudge", "kept"), [(-1_000, True), (1_000, False)])
def test_where_53_bits_are_enough_no_more_are_asked_for(monkeypatch, pair, rest, scale, nudge, kept):
    word = int(kept_probability(pair, rest, scale) * 2**53) + nudge
    entropy_in_parts(monkeypatch, [(max(word, 0) << 11).to_bytes(8, "little")])
    assert planar.keep(np.array([pair]), rest, scale).tolist() == [kept]


def test_doubles_decide_only_what_is_certain():
    """Random vectors over many scales: p in 50 digits lies inside the interval that the doubles claim."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        d = int(rng.integers(2, 21))
        rest, scale = d // 2, float(2.0 ** rng.uniform(0, 44))
        pair = np.rint(rng.laplace(scale=scale, size=d)).astype(np.int64)
        real = pair.astype(float)
        whole = math.sqrt(d * (real**2).sum())
        parts = math.sqrt(rest * (real[:rest] ** 2).sum()) + math.sqrt((d - rest) * (real[rest:] ** 2).sum())
        with mpmath.workdps(50):
            p = kept_probability(pair.tolist(), rest, scale)
            off = abs(mpmath.log(p) - mpmath.mpf((parts - whole) / scale))
            assert off <= (d + 8) * mpmath.mpf(2) ** -53 * (whole + parts) / scale
            assert p <= 1 + mpmath.mpf(10) ** -40


def test_a_decision_that_doubles_never_make_has_the_same_law(monkeypatch):
    """Every comparison sent to integers and decimals: the kept share stays what it is."""
    n, scale = 1_500, 2.0**40
    leave_decisions_to_decimals(monkeypatch, planar)
    pairs = planar.vectors(1, 2 * n, scale).reshape(n, 2)
    kept = int(planar.keep(pairs, 1, scale).sum())
    assert stats.binomtest(kept, n, planar.acceptance(2)).pvalue > MISTAKEN


def test_vectors_beyond_the_exact_doubles_are_added_in_integers(monkeypatch):
    law = PlanarLaplaceLaw(d=2, k=0, scale=2.0**40)
    for huge in (np.array([[2**53 + 1, -(2**60) - 1]]), np.array([[2**70 + 2**17 + 1, -(2**60) - 1]], dtype=object)):
        monkeypatch.setattr(planar, "vectors", lambda d, count, scale, huge=huge: huge)
        assert law.add(np.array([[1.0, 1.0]])).tolist() == [[float(int(huge[0, 0]) + 1), float(-(2**60))]]


def test_a_coordinate_that_64_bits_do_not_hold_is_joined_to_a_vector(monkeypatch):
    """Two that are equal are kept always: p is 1."""
    monkeypatch.setattr(planar, "integers", lambda count, scale: np.array([2**70] * count, dtype=object))
    assert planar.vectors(2, 3, 2.0**57).tolist() == [[2**70, 2**70]] * 3


# --- what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e308])
def test_a_value_that_is_not_finite_in_lattice_steps_is_refused(bad):
    rows = np.zeros((4, 2))
    rows[2, 1] = bad
    with pytest.raises(NumericalFailure), np.errstate(over="ignore"):
        PlanarLaplaceLaw.of(1.0, Decimal(1), 2).add(rows)


def test_denormals_are_zero_to_the_lattice():
    rows = np.full((50, 2), 5e-324)
    law = PlanarLaplaceLaw.of(1.0, Decimal(1), 2)
    steps = np.ldexp(law.add(rows), -law.k)
    np.testing.assert_array_equal(steps, np.rint(steps))


@pytest.mark.parametrize(
    ("sensitivity", "epsilon", "d"),
    [
        *((bad, "1", 2) for bad in (0.0, -1.0, math.nan, math.inf)),
        *((1.0, bad, 2) for bad in ("0", "-1", "Infinity")),
        *((1.0, "1", bad) for bad in (0, -1, PLANAR_FEATURES_MAX + 1)),
    ],
)
def test_noise_that_would_not_protect_is_refused(sensitivity, epsilon, d):
    with pytest.raises(ValueError, match="noise"):
        PlanarLaplaceLaw.of(sensitivity, Decimal(epsilon), d)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, 2.0**58])
def test_a_scale_that_would_not_protect_draws_nothing(scale):
    with pytest.raises(ValueError, match="scale"):
        planar.vectors(2, 5, scale)


def test_rows_of_another_length_are_refused():
    with pytest.raises(ValueError, match="rows of 3"):
        PlanarLaplaceLaw.of(1.0, Decimal(1), 3).add(np.zeros((4, 2)))


def test_no_rows_are_no_noise():
    assert PlanarLaplaceLaw.of(1.0, Decimal(1), 3).add(np.empty((0, 3))).shape == (0, 3)


def test_without_entropy_nothing_is_drawn(monkeypatch):
    without_entropy(monkeypatch)
    with pytest.raises(OSError, match="no entropy"):
        PlanarLaplaceLaw.of(1.0, Decimal(1), 2).add(np.zeros((4, 2)))


def exact_probability(pair, rest: int, scale: float) -> Fraction:
    """The p of ``keep`` in 80 digits, as a fraction."""
    with mpmath.workdps(80):
        norms = [mpmath.sqrt(sum(mpmath.mpf(x) ** 2 for x in part)) for part in (pair, pair[:rest], pair[rest:])]
        whole, *parts = (mpmath.sqrt(n) * r for n, r in zip((len(pair), rest, len(pair) - rest), norms, strict=True))
        p = mpmath.exp((sum(parts) - whole) / mpmath.mpf(scale))
        return Fraction(int(mpmath.floor(p * mpmath.mpf(2) ** 230)), 2**230)


def far_pair(rng, d: int, rest: int, scale: float, reach: float):
    """A vector whose whole length is ``reach`` scales, and yet p is neither 0 nor 1: its halves nearly balance."""
    halves = [rng.normal(size=rest), rng.normal(size=d - rest)]
    length = reach * scale / d
    stretch = 1 + rng.uniform(0, 4) / np.sqrt(reach)
    sizes = (length * np.sqrt(rest), length * stretch * np.sqrt(d - rest))
    joined = [half / np.linalg.norm(half) * size for half, size in zip(halves, sizes, strict=True)]
    return np.rint(np.concatenate(joined)).astype(np.int64)


def entropy_of(words, more: int):
    """Stands in for ``os.urandom``: first the 53 bits of each word, then ``more`` in every further 64."""

    def urandom(size: int) -> bytes:
        if size == 8 * len(words):
            return b"".join((word << 11).to_bytes(8, "little") for word in words)
        assert size == 8
        return more.to_bytes(8)

    return urandom


@pytest.mark.parametrize("reach", [1.0, 20.0, 2.0**8, 2.0**14])
def test_every_decision_near_p_is_the_right_one(monkeypatch, reach):
    """Also where an error of the exponent in doubles is as large as its bound allows."""
    rng = np.random.default_rng(int(reach))
    for _ in range(40):
        d = int(rng.integers(2, 9))
        rest, scale = int(rng.integers(1, d)), float(2.0 ** rng.uniform(18, 36))
        pair = far_pair(rng, d, rest, scale, reach)
        p = exact_probability(pair.tolist(), rest, scale)
        base, most = int(p * 2**53), int(2 * (d + 8) * reach) + 600
        nudges = [*range(-3, 4), *rng.integers(-most, most + 1, size=40).tolist()]
        words = [min(max(base + nudge, 0), 2**53 - 1) for nudge in nudges]
        more = int(rng.integers(1, 2**63))
        rest_of_u = Fraction(more, 2**64 - 1)  # 0.mmm... in base 2^64
        replace_entropy(monkeypatch, entropy_of(words, more))
        kept = planar.keep(np.tile(pair, (len(words), 1)), rest, scale)
        assert kept.tolist() == [(word + rest_of_u) / 2**53 < p for word in words]


@pytest.mark.parametrize("share", [-0.5, 0.5])
def test_with_too_few_digits_nothing_is_decided(monkeypatch, share):
    """A vector so long that 40 digits leave an error of 4 %: a number within it needs 60."""
    pair, requests = [5 * 10**36, 5 * 10**36 + 45 * 10**17], []
    _, error = planar.probability(pair, 1, 1.0, 40)
    assert Fraction(1, 100) < error < Fraction(1, 10)
    replace_entropy(monkeypatch, lambda size: requests.append(size) or bytes(size))
    word = int(exact_probability(pair, 1, 1.0) * (1 + 2 * share * error) * 2**53)
    assert surely_below(word, partial(planar.probability, pair, 1, 1.0)) is (share < 0)
    assert requests == [8]


def test_an_error_above_one_decides_nothing(monkeypatch):
    """e^x - 1 <= 2x only up to 1.25: at 1.9 a p of 0.9 may come out as 0.13, and 0.8 is below p all the same."""
    answers = [(Fraction(13, 100), Fraction(19, 10)), (Fraction(9, 10), Fraction(1, 10**6))]
    replace_entropy(monkeypatch, bytes)
    assert surely_below(int(0.8 * 2**53), lambda digits: answers.pop(0))
    assert not answers


@pytest.mark.parametrize("coordinate", [2**53, 2**53 + 1, -(2**53)])
def test_a_coordinate_that_a_double_may_not_hold_is_decided_in_integers(monkeypatch, coordinate):
    requests = []
    monkeypatch.setattr(planar, "surely_below", lambda word, p: requests.append(p.args[0]) or True)
    assert planar.keep(np.array([[1, coordinate]]), 1, 2.0**43).tolist() == [True]
    assert requests == [[1, coordinate]]


@pytest.mark.parametrize("d", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_there_are_as_many_vectors_as_were_requested(monkeypatch, d, count):
    """Also where a round keeps all but one."""
    drawn = planar.vectors(d, count, 50.0)
    assert drawn.shape == (count, d)
    assert drawn.dtype == np.int64
    rounds = iter([count - 1] + [10] * 50)
    monkeypatch.setattr(planar, "keep", lambda pairs, *law: np.arange(len(pairs)) < next(rounds))
    assert len(planar.vectors(d, count, 50.0)) == count


@pytest.mark.parametrize("scale", [0.3, 1.0])
def test_a_scale_below_a_lattice_step_is_drawn_with(scale):
    assert planar.vectors(1, 5, scale).shape == (5, 1)


def test_the_draws_of_a_row_are_counted():
    """By halves: both halves for each proposal, and 1 / share proposals; at d = 12 and 20 the numbers of the text."""
    draws = {d: PlanarLaplaceLaw.of(1.0, Decimal(1), d).draws_per_row for d in (1, 2, 3, 12, 20)}
    assert draws[1] == 1
    assert draws[2] == pytest.approx(2 / planar.acceptance(2))
    assert draws[3] == pytest.approx((1 + draws[2]) * planar.acceptance(2) / planar.acceptance(3))
    assert [round(draws[d]) for d in (12, 20)] == [35, 74]
