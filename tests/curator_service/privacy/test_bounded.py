"""Bounded answers: their laws against the papers', their epsilon in fractions and by an audit, what auto takes."""

import itertools
import math
import os
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import mpmath
import numpy as np
import opendp.prelude as dp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from blindopt import wire
from blindopt.errors import NumericalFailure
from curator_service.privacy.answers import faults, measure, mechanism_of, passport_of
from curator_service.privacy.noise import bounded
from curator_service.privacy.noise.bounded import OneBit, Piecewise, one_bit, piecewise
from tests.builders import a_study
from tests.curator_service.privacy.epsilon_audit import lower_bound
from tests.curator_service.replaced_noise import forget_the_clip, replace_opendp_maker, replace_secrets
from tests.scale import scaled

MISTAKEN = 1e-9  # a correct mechanism fails a decision less often: there are hundreds in a run of all tests
C = 1.5
KINDS = {"laplace": wire.LaplaceAnswers, "one_bit": wire.OneBitAnswers, "piecewise": wire.PiecewiseAnswers}
EPSILONS = ["0.000001", "0.01", "0.1", "0.7", "1", "1.29", "3", "10", "20"]
MAKERS = {"one_bit": one_bit, "piecewise": piecewise}


def study(kind, epsilon="1", variance=0.0, **more):
    answers = KINDS[kind](mechanism=kind, epsilon=epsilon, **({"value_bound": C, "centre": 0.0} | more))
    return a_study(answers=answers, variance=variance)


def ask(y, count, spec):
    """``count`` answers about one row whose outcome is ``y``, as the service makes them."""
    most = wire.PLAYS_MAX
    plays = [wire.RowPlays(row=0, plays=min(most, count - done)) for done in range(0, count, most)]
    return np.array([answer.y for answer in measure(np.full(len(plays), float(y)), plays, spec)])


# --- the papers, written again ---------------------------------------------------------------------------------


def duchi(epsilon):
    """(size, worst variance) of one-bit answers about t in [-1, 1]."""
    size = (math.exp(epsilon) + 1) / (math.exp(epsilon) - 1)
    return size, size**2


def wang(epsilon, t=1.0):
    """(size, variance at t) of piecewise answers about t in [-1, 1]: Algorithm 2 and Lemma 3."""
    s = math.exp(epsilon / 2)
    return (s + 1) / (s - 1), t * t / (s - 1) + (s + 3) / (3 * (s - 1) ** 2)


def wang_cdf(epsilon, t):
    """The distribution function of Algorithm 2: density p' in [l, r], p' / e^epsilon elsewhere in [-c, c]."""
    s = math.exp(epsilon / 2)
    c = (s + 1) / (s - 1)
    lower = (c + 1) / 2 * t - (c - 1) / 2
    right = lower + c - 1
    dense = (math.exp(epsilon) - s) / (2 * s + 2)

    def cdf(x):
        inside = np.clip(x, lower, right) - lower
        return dense * inside + dense / math.exp(epsilon) * (np.clip(x, -c, c) + c - inside)

    return cdf


# --- epsilon, exactly ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("kind", MAKERS)
def test_no_answer_is_more_than_e_to_epsilon_times_likelier_under_one_y_than_under_another(kind, epsilon):
    """In fractions, against e^epsilon to 80 digits by another library; and not far below it."""
    law = MAKERS[kind](C, Decimal(epsilon))
    p = Fraction(law.prob)
    if kind == "one_bit":
        ratio = p / (1 - p)
    else:
        n, m = 2**46 + 1, 2 * law.half + 1
        ratio = (p / m) / ((1 - p) / (n - m))
        assert ratio == law.loss
    with mpmath.workdps(80):
        loss = mpmath.log(mpmath.mpf(ratio.numerator) / ratio.denominator)
        assert loss <= mpmath.mpf(epsilon)
        assert loss > mpmath.mpf(epsilon) * (1 - mpmath.mpf("1e-7"))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(epsilon=st.decimals("0.000001", "20", places=6), bound=st.floats(1e-50, 2e50))
def test_whatever_a_draft_may_say_its_law_can_be_made(epsilon, bound):
    """What fails here would fail after the charge."""
    for make, paper in ((one_bit, duchi), (piecewise, wang)):
        law = make(bound, epsilon)
        size, variance = paper(float(epsilon))
        assert math.isclose(law.size, size * bound, rel_tol=1e-6)
        assert math.isclose(law.variance, variance * bound**2, rel_tol=1e-6)
        assert np.isfinite(law.draw(np.array([-1.7e308, 0.0, bound, 5e-324]))).all()


@pytest.mark.parametrize("epsilon", ["0.1", "1", "5"])
def test_a_point_is_as_likely_as_the_law_says_and_no_point_is_left_out(epsilon, monkeypatch):
    """On a grid of 41 points every probability can be counted: all draws of the uniform integers are enumerated."""
    law = piecewise(C, Decimal(epsilon), 20)
    m, p, laws = 2 * law.half + 1, Fraction(law.prob), []
    for w in range(-20 + law.half, 21 - law.half):
        weights = dict.fromkeys(range(-20, 21), Fraction(0))
        for is_inside, count, share in ((True, m, p), (False, 41 - m, 1 - p)):
            for index in range(count):
                drawn = {count: index}  # the number that is not taken is drawn too
                replace_secrets(monkeypatch, randbelow=lambda below, drawn=drawn: drawn.get(below, 0))
                weights[law._point_of(w, is_inside)] += share / count
        assert sum(weights.values()) == 1
        assert min(weights.values()) > 0
        # Without bias: the mean is bound * w / W.
        mean = sum(point * weight for point, weight in weights.items())
        assert math.isclose(float(mean) * law.point, C * w / (20 - law.half), rel_tol=1e-12, abs_tol=1e-12)
        variance = sum(point**2 * weight for point, weight in weights.items()) - mean**2
        assert float(variance) * law.point**2 <= law.variance * (1 + 1e-12)
        stated = law.variance_at(np.array([C * w / (20 - law.half)]))
        np.testing.assert_allclose(stated, [float(variance) * law.point**2], rtol=1e-12)
        laws.append(weights)
    assert math.isclose(float(variance) * law.point**2, law.variance, rel_tol=1e-9)  # w = W is the worst
    worst = max(first[x] / other[x] for first in laws for other in laws for x in first)
    assert worst == law.loss <= Fraction(Decimal(epsilon).exp())


# --- the laws, from draws --------------------------------------------------------------------------------------


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("share", [-1.0, 0.0, 0.8])
def test_a_one_bit_answer_is_one_of_two_values_and_as_often_as_the_paper_says(share):
    n, epsilon = scaled(4_000), 0.7
    drawn = one_bit(C, Decimal("0.7")).draw(np.full(n, share * C))
    size, _ = duchi(epsilon)
    np.testing.assert_allclose(np.unique(np.abs(drawn)), size * C, rtol=1e-12)
    up = int((drawn > 0).sum())
    chance = 1 / (math.exp(epsilon) + 1) + (share + 1) / 2 * (math.exp(epsilon) - 1) / (math.exp(epsilon) + 1)
    assert stats.binomtest(up, n, chance).pvalue > MISTAKEN
    assert stats.binomtest(up, n, min(1.0, chance + 0.12)).pvalue < MISTAKEN  # the control


def chi_square(drawn, cdf, size):
    edges = np.linspace(-size, size, 41)
    seen, _ = np.histogram(drawn, edges)
    return stats.chisquare(seen, len(drawn) * np.diff(cdf(edges)), sum_check=False).pvalue


@pytest.mark.slow(every=3)
@pytest.mark.parametrize(("epsilon", "share"), [("1", -1.0), ("1", 0.31), ("3", 0.0)])
def test_piecewise_answers_follow_algorithm_2(epsilon, share):
    """40 bins of equal width; the law of an epsilon a tenth off, or of another y, fails."""
    n, eps = scaled(8_000), float(epsilon)
    drawn = piecewise(C, Decimal(epsilon)).draw(np.full(n, share * C)) / C
    size, _ = wang(eps)
    assert np.abs(drawn).max() <= size * (1 + 1e-9)
    assert chi_square(drawn, wang_cdf(eps, share), size) > MISTAKEN
    shifted = wang_cdf(eps, share - math.copysign(0.15, share))
    assert chi_square(drawn, shifted, size) < MISTAKEN
    assert stats.kstest(drawn, wang_cdf(1.5 * eps, share)).pvalue < MISTAKEN


WITHOUT_BIAS = [*itertools.product(MAKERS, [-1.0, 0.4], ["0.5", "2"])]


@pytest.mark.slow(every=2)
@pytest.mark.parametrize(
    ("kind", "share", "epsilon"),
    # Any two of the three together; with BLINDOPT_AUDIT_SCALE all.
    WITHOUT_BIAS if scaled(1) > 1 else [WITHOUT_BIAS[n] for n in (0, 3, 5, 6)],
)
def test_answers_have_no_bias_and_the_papers_variance_however_many_are_averaged(kind, share, epsilon):
    n, centre = scaled(4_000), 40.0
    drawn = ask(centre + share * C, n, study(kind, epsilon, centre=centre)) - centre
    size, worst = (duchi if kind == "one_bit" else wang)(float(epsilon))
    variance = (size**2 - share**2 if kind == "one_bit" else wang(float(epsilon), share)[1]) * C**2
    assert abs(drawn.mean() - share * C) < 6 * math.sqrt(variance / n)
    fourth = (size * C + C) ** 2 * variance  # E (y - m)^4 <= max (y - m)^2 E (y - m)^2
    assert abs(drawn.var() - variance) < 6 * math.sqrt(fourth / n)
    assert drawn.var() < worst * C**2 * (1 + 12 / math.sqrt(n))  # of kurtosis 3.8 at most: 7 standard errors
    means = drawn.reshape(-1, 400).mean(axis=1)
    assert stats.chi2(len(means) - 1).sf(len(means) * means.var() / (variance / 400)) > MISTAKEN
    assert stats.pearsonr(drawn[:-1], drawn[1:]).pvalue > MISTAKEN


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("y", [10 * C, 1.7e308])
def test_an_outcome_beyond_the_bound_answers_like_the_bound(kind, y):
    drawn = ask(-y, scaled(3_000), study(kind, "2")) / C
    size, _ = (duchi if kind == "one_bit" else wang)(2.0)
    assert np.abs(drawn).max() <= size * (1 + 1e-9)
    if kind == "one_bit":
        assert stats.binomtest(int((drawn < 0).sum()), len(drawn), 1 / (1 + math.exp(-2))).pvalue > MISTAKEN
    else:
        assert chi_square(drawn, wang_cdf(2.0, -1.0), size) > MISTAKEN


# --- an audit of epsilon ---------------------------------------------------------------------------------------


LEAST = 0.55
"""From 4,000 draws a side an audit finds 0.79 of 1 (piecewise; standard deviation 0.03), from 10,000 0.86.

Of 4,000 it finds more than 1 where epsilon is 2, but for once in 10^12 times, and where it is 1 once in 10^9 (by two
binomial laws)."""


def audited(spec, draws, far=1.0):
    bound = spec.answers.bound
    return lower_bound(ask(far * bound, draws, spec), ask(-far * bound, draws, spec))


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("far", [1.0, 10.0], ids=["at the bound", "ten times beyond"])
@pytest.mark.parametrize("kind", MAKERS)
def test_an_audit_does_not_find_more_than_epsilon(kind, far):
    lower_bound = audited(study(kind), scaled(4_000), far)
    assert LEAST < lower_bound <= 1.0


def replace_coin(monkeypatch, coin):
    """``coin`` in place of OpenDP's randomized response of a probability."""
    monkeypatch.setattr(bounded, "coin", coin)


def replace_rounding(monkeypatch, below):
    """``below`` in place of the rounding down of a law's probability."""
    monkeypatch.setattr(bounded, "below", below)


def numpy_coin(rng):
    """The coin by a fast generator: for controls alone."""
    return lambda prob: lambda bit: bit if rng.random() < prob else not bit


@pytest.fixture
def fast(monkeypatch):
    """Controls need many draws and no security."""
    for make in MAKERS.values():
        make(C, Decimal(1))  # with OpenDP's coin
    rng = np.random.default_rng(11)
    replace_coin(monkeypatch, numpy_coin(rng))
    replace_secrets(monkeypatch, randbelow=lambda n: int(rng.integers(n)), randbits=lambda k: int(rng.integers(1 << k)))
    return monkeypatch


def audited_law(law, draws, far=1.0):
    """The same for a law by itself."""
    return lower_bound(law.draw(np.full(draws, far * C)), law.draw(np.full(draws, -far * C)))


@pytest.mark.parametrize("factor", [1.3, 2.0], ids=["e^(1.3 epsilon)", "B + R where 2 (B + R) should be"])
@pytest.mark.parametrize("kind", MAKERS)
def test_a_coin_that_tells_too_much_is_found_by_the_audit(kind, factor, fast):
    right = MAKERS[kind](C, Decimal(1))
    wrong = math.exp(factor) / (1 + math.exp(factor))
    if kind == "piecewise":
        odds = math.exp(factor) * (2 * right.half + 1) / (2**46 - 2 * right.half)
        wrong = odds / (1 + odds)
    broken = replace(right, prob=wrong)
    assert audited_law(broken, 40_000 if factor < 2 else 10_000) > 1.0 + 0.5 * (factor - 1)


@pytest.mark.parametrize("kind", MAKERS)
def test_the_controls_themselves_pass_where_nothing_is_broken(kind, fast):
    assert 0.8 < audited_law(MAKERS[kind](C, Decimal(1)), 30_000) <= 1.0


class Unbounded(Piecewise):
    """Its window may lie anywhere."""

    __slots__ = ()

    def _centre(self, share):
        return round(share * (self.grid_half - self.half))


class Leaving(Piecewise):
    """The centre rounded to all points instead of those whose window fits: a mean without bias, and no privacy."""

    __slots__ = ()
    _furthest = property(lambda self: self.grid_half)


def broken_piecewise(kind):
    right = piecewise(C, Decimal(1))
    return kind(right.bound, right.half, right.prob)


def test_a_clip_that_is_missing_is_found_by_the_audit(fast):
    """Both guards of piecewise answers have to go; one-bit answers cannot tell more than a bit."""
    forget_the_clip(fast)
    assert 0.7 < audited(study("piecewise"), 10_000, far=10.0) <= 1.0
    assert audited_law(broken_piecewise(Unbounded), 10_000, far=10.0) > 1.5
    assert 0.7 < audited(study("one_bit"), 10_000, far=10.0) <= 1.0


def test_a_window_that_leaves_the_grid_is_found_by_the_audit(fast):
    assert audited_law(broken_piecewise(Leaving), 10_000) > 1.5


# --- guards ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_bounds_and_epsilons_that_would_not_protect_are_refused(make):
    for bound in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="positive, finite"):
            make(bound, Decimal(1))
    for epsilon in ("0", "-1", "Infinity"):
        with pytest.raises(ValueError, match="positive, finite"):
            make(1.0, Decimal(epsilon))
    with pytest.raises(ValueError, match="at most 20"):
        make(1.0, Decimal("20.000001"))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_an_outcome_that_is_no_number_is_refused_before_anything_is_drawn(kind, bad, monkeypatch):
    spec = study(kind)
    law = mechanism_of(spec.answers)
    replace_coin(monkeypatch, lambda prob: pytest.fail("a coin was thrown"))
    with pytest.raises(NumericalFailure, match="not finite"):
        measure(np.array([0.0, bad]), [wire.RowPlays(row=0), wire.RowPlays(row=1)], spec)
    with pytest.raises(NumericalFailure, match="not finite"):
        law.draw(np.array([bad]))


@pytest.mark.parametrize("wrong", [0.5, lambda p: p * (1 + 1e-9), lambda p: p * (1 - 0.2), 1 - 1e-12, 1.0])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_law_that_does_not_cost_epsilon_is_not_made(make, wrong, monkeypatch):
    """A probability that tells nothing, too much by one in 10^9, too little, nearly all, all."""
    right = bounded.below
    replace_rounding(monkeypatch, lambda exact: wrong(right(exact)) if callable(wrong) else wrong)
    with pytest.raises(NumericalFailure, match="nothing was drawn"):
        make.__wrapped__(C, Decimal("1.5"))


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_bound_on_e_to_epsilon_is_below_it_and_a_rounded_probability_below_its_fraction(epsilon):
    below = bounded.exp_below(Decimal(epsilon))
    with mpmath.workdps(90):
        exact = mpmath.exp(mpmath.mpf(epsilon))
        computed = mpmath.mpf(below.numerator) / below.denominator
        assert exact * (1 - mpmath.mpf("1e-57")) < computed < exact
    share = below / (1 + below)
    assert Fraction(bounded.below(share)) <= share < Fraction(math.nextafter(bounded.below(share), 2))


def test_a_library_that_accounts_for_another_epsilon_is_not_trusted(monkeypatch):
    lying = type("Lying", (), {"map": lambda self, distance: 1.1})
    replace_coin(monkeypatch, lambda prob: lying())
    with pytest.raises(NumericalFailure, match="nothing was drawn"):
        one_bit.__wrapped__(C, Decimal(1))


def test_trap_randomized_response_of_probability_one_tells_all_and_is_never_built():
    dp.enable_features("contrib")
    exact = dp.m.make_randomized_response_bool(1.0)
    assert all(exact(True) for _ in range(200))
    assert exact.map(1) == math.inf
    assert all(MAKERS[kind](C, Decimal(20)).prob < 1 for kind in MAKERS)


def test_the_coin_is_as_likely_as_it_says():
    """6,000 throws: the control passes for 0.625 once in 10^9 times, as the coin itself fails."""
    n = scaled(6_000)
    coin = bounded.coin(0.625)
    heads = sum(coin(True) for _ in range(n))
    assert stats.binomtest(heads, n, 0.625).pvalue > MISTAKEN
    assert stats.binomtest(heads, n, 0.7).pvalue < MISTAKEN
    assert coin.map(1) >= math.log(0.625 / 0.375)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("kind", MAKERS)
def test_forked_processes_draw_different_answers(kind):
    """400 draws in each of four forks after the parent drew: a copied state would repeat all."""
    law = MAKERS[kind](C, Decimal(1))
    law.draw(np.zeros(10))
    outcomes = []
    for _ in range(4):
        reader, writer = os.pipe()
        if (child := os.fork()) == 0:
            os.close(reader)
            with os.fdopen(writer, "wb") as file:
                file.write(law.draw(np.zeros(400)).tobytes())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as file:
            outcomes.append(file.read())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len({*outcomes, law.draw(np.zeros(400)).tobytes()}) == 5


# --- what is taken, and what is said ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epsilon", "taken"),
    [("0.000001", "one_bit"), ("0.5", "one_bit"), ("1.289", "one_bit"), ("1.291", "piecewise"), ("5", "piecewise"),
     ("20", "piecewise"), ("20.000001", "laplace"), ("1000", "laplace")],
)  # fmt: skip
def test_auto_takes_the_smallest_worst_variance(epsilon, taken):
    auto = wire.AutoAnswers(
        mechanism="auto", epsilon=epsilon, value_bound=3.0, noise_bound=1.0, centre=-7.0, plays="mean"
    )
    chosen = wire.concrete_answers(auto)
    assert chosen == KINDS[taken](**auto.model_dump(exclude={"mechanism"}), mechanism=taken)
    assert faults(auto) == []
    mechanism = mechanism_of(auto)
    assert mechanism.noise.family == taken
    if Decimal(epsilon) <= 20:
        rest = [mechanism_of(kind(**auto.model_dump(exclude={"mechanism"}), mechanism=k)) for k, kind in KINDS.items()]
        assert mechanism.noise.variance == min(other.noise.variance for other in rest)


def test_the_worst_variances_are_those_of_the_papers():
    """In units of C^2: one_bit 16.7, 4.7; piecewise 1.23; laplace 32, 8, 2."""
    statements = {
        (kind, epsilon): mechanism_of(study(kind, epsilon).answers).noise.variance / C**2
        for kind in KINDS
        for epsilon in ("0.5", "1", "2")
    }
    for epsilon in ("0.5", "1", "2"):
        eps = float(epsilon)
        assert statements["laplace", epsilon] == pytest.approx(8 / eps**2, rel=1e-9)
        assert statements["one_bit", epsilon] == pytest.approx(duchi(eps)[1], rel=1e-9)
        assert statements["piecewise", epsilon] == pytest.approx(wang(eps)[1], rel=1e-9)
    assert round(statements["one_bit", "0.5"], 1) == 16.7
    assert round(statements["one_bit", "1"], 1) == 4.7


@pytest.mark.parametrize("epsilon", ["0.5", "2"])
def test_the_variance_about_each_value_is_that_of_the_papers(epsilon):
    """Also that of Laplace noise, which is the same about all of them, and for means of four persons smaller."""
    shares, eps = np.array([-1.0, -0.3, 0.0, 0.6]), float(epsilon)
    expected = {
        "laplace": np.full(4, 8 / eps**2),
        "one_bit": duchi(eps)[1] - shares**2,
        "piecewise": [wang(eps, t)[1] for t in shares],
    }
    for kind, variances in expected.items():
        np.testing.assert_allclose(
            mechanism_of(study(kind, epsilon).answers).variance_at(C * shares) / C**2, variances, rtol=1e-9
        )
    of_four = mechanism_of(study("laplace", epsilon).answers, 4)
    np.testing.assert_allclose(of_four.variance_at(C * shares) / C**2, np.full(4, 0.5 / eps**2), rtol=1e-9)


@pytest.mark.parametrize("kind", MAKERS)
def test_the_passport_says_what_was_done(kind):
    spec = study(kind, "2", variance=0.5, value_bound=3.0, noise_bound=1.0, centre=10.0)
    size, worst = (duchi if kind == "one_bit" else wang)(2.0)
    passport = passport_of(spec)
    assert (passport.privacy.family, passport.privacy.bound, passport.clip) == (kind, 4.0, (6.0, 14.0))
    assert passport.privacy.scale == pytest.approx(4 * size, rel=1e-9)
    assert passport.privacy.variance == pytest.approx(16 * worst, rel=1e-9)
    assert (passport.measurement_variance, passport_of(spec, 4).measurement_variance) == (0.5, 0.125)
    assert passport_of(spec, 4).privacy == passport.privacy
    drawn = ask(10.0, 2_000, spec)
    assert np.abs(drawn - 10.0).max() <= passport.privacy.scale * (1 + 1e-9)


def test_only_bounded_answers_have_a_largest_epsilon():
    for kind, fields in (("one_bit", ["answers.epsilon"]), ("piecewise", ["answers.epsilon"]), ("laplace", [])):
        assert [fault["field"] for fault in faults(study(kind, "20.1").answers)] == fields
        assert faults(study(kind, "20").answers) == []
    assert faults(wire.NoAnswerNoise(mechanism="none")) == []


def test_a_one_bit_law_is_the_same_for_every_bound():
    assert one_bit(1.0, Decimal(2)) == OneBit(1.0, one_bit(7.0, Decimal(2)).prob)


# --- edges of a draw, and the coin as it is built --------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.25, 0.75, 1.0])
def test_the_first_stage_of_one_bit_rounds_up_exactly_as_often_as_its_share(monkeypatch, share):
    """Of 2^53 equally likely integers those below the share go up: at -bound none does, at the bound all do."""
    law, edge = OneBit(C, 0.7), int(share * 2**53)
    replace_coin(monkeypatch, lambda prob: lambda bit: bit)
    for drawn, up in ((edge - 1, True), (edge, False)):
        if 0 <= drawn < 2**53:
            replace_secrets(monkeypatch, randbits={53: drawn}.get)
            assert law.draw(np.array([C * (2 * share - 1)])).tolist() == [law.size if up else -law.size]


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("y", [1.7e308, -1.7e308])
def test_the_largest_doubles_are_clipped_at_either_end(kind, y):
    law = MAKERS[kind](0.5, Decimal(2))
    assert np.abs(law.draw(np.full(5, y))).max() <= law.size


def test_the_coin_takes_as_long_whatever_it_shows(monkeypatch):
    options = {}
    replace_opendp_maker(monkeypatch, "make_randomized_response_bool", lambda prob, **more: options.update(more))
    bounded.coin.__wrapped__(0.75)
    assert options == {"constant_time": True}


@pytest.mark.parametrize("excess", [1e-9, 0.1, 0.25])
def test_a_probability_above_e_to_epsilon_is_refused_though_the_library_would_take_it(monkeypatch, excess):
    """The account in fractions stands by itself."""
    right = bounded.below
    coin = type("Coin", (), {"map": lambda self, distance: Decimal(1)})
    replace_coin(monkeypatch, lambda prob: coin())
    assert one_bit.__wrapped__(C, Decimal(1)).prob == right(
        bounded.exp_below(Decimal(1)) / (1 + bounded.exp_below(Decimal(1)))
    )
    replace_rounding(monkeypatch, lambda exact: right(exact) * (1 + excess))
    with pytest.raises(NumericalFailure, match="nothing was drawn"):
        one_bit.__wrapped__(C, Decimal(1))


def test_a_fraction_that_is_a_double_stays_what_it_is():
    assert bounded.below(Fraction(3, 4)) == 0.75


# --- means of k values -----------------------------------------------------------------------------------------


def replace_account(monkeypatch, epsilon, k, factor=1.0):
    """A coin whose account is ``factor`` times that of the coin for a mean: ln(1 + k (e^epsilon - 1))."""
    spent = factor * math.log1p(k * math.expm1(epsilon))
    coin = type("Coin", (), {"map": lambda self, distance: spent})
    replace_coin(monkeypatch, lambda prob: coin())


@pytest.mark.parametrize("k", [2, 9])
@pytest.mark.parametrize("wrong", [lambda p: p * (1 + 1e-9), lambda p: (1 + 3 * p) / 4, lambda p: 1 - 1e-12])
def test_a_probability_too_large_for_a_mean_is_refused_though_the_library_would_take_it(monkeypatch, wrong, k):
    right = bounded.below
    replace_account(monkeypatch, 1.0, k)
    assert 0.5 < one_bit.__wrapped__(C, Decimal(1), k).prob < 1
    replace_rounding(monkeypatch, lambda exact: wrong(right(exact)))
    with pytest.raises(NumericalFailure, match="nothing was drawn"):
        one_bit.__wrapped__(C, Decimal(1), k)


@pytest.mark.parametrize("factor", [0.49, 1 + 1.2e-9, 1.005, 1.5, 100.0])
@pytest.mark.parametrize("k", [2, 9])
def test_a_library_that_accounts_for_another_coin_of_a_mean_is_not_trusted(monkeypatch, k, factor):
    replace_account(monkeypatch, 1.0, k, factor)
    with pytest.raises(NumericalFailure, match="nothing was drawn"):
        one_bit.__wrapped__(C, Decimal(1), k)
    replace_account(monkeypatch, 1.0, k, 1 + 8e-10)  # of its own rounding
    one_bit.__wrapped__(C, Decimal(1), k)


@pytest.mark.parametrize("k", [2, 3, 7, 100])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_one_bit_about_a_mean_pays_for_the_rounding_of_means(k, epsilon):
    """Two shares of the range move by 1 / k and what each errs: 2^-53 by its mean, 2^-53 by 53 bits and by roundings.

    That is less than 2^-50. A bit that is as likely as 1 - prob gains the move times 2 prob - 1.
    """
    prob, move = Fraction(one_bit(C, Decimal(epsilon), k).prob), Fraction(1, k) + Fraction(1, 2**50)
    gain = move * (2 * prob - 1) / (1 - prob)
    with mpmath.workdps(80):
        assert mpmath.mpf(gain.numerator) / gain.denominator <= mpmath.expm1(mpmath.mpf(epsilon))
