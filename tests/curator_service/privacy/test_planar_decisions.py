"""Every decision of the planar sampler against exact probabilities, and each number at the edge of a branch."""

from decimal import Decimal
from fractions import Fraction
from functools import partial

import mpmath
import numpy as np
import pytest

from curator_service.privacy.noise import PlanarLaplaceLaw, planar
from curator_service.privacy.noise.lattice import surely_below
from tests.curator_service.replaced_noise import replace_entropy


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
