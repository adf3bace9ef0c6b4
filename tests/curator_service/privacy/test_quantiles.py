"""Private quantiles: exact probabilities over all neighbours of tiny data, frequencies of draws, accuracy, refusals."""

import itertools
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import opendp.prelude as dp
import pytest
from scipy import stats

from blindopt.errors import NumericalFailure
from curator_service.privacy import quantiles
from curator_service.privacy.quantiles import FAILURE, STEPS, Outer, outermost, private_quantiles, rank_error, share
from tests.curator_service.replaced_noise import replace_opendp_account
from tests.scale import scaled

OUTER = Outer(0.0, 1.0)
VALUES = (-3.0, 0.0, 0.25, 0.7, 1.0)
"""Outside of the range, at its ends, on a candidate, and between two."""
NODES, MASSES = np.polynomial.legendre.leggauss(80)  # exact for polynomials of a degree up to 159
NODES, MASSES = (NODES + 1) / 2, MASSES / 2
MISTAKEN = 1e-9


def scores(values, alpha, outer=OUTER):
    """By definition, with clamping, exactly."""
    clamped, exact = np.clip(values, outer.lower, outer.upper), Fraction(repr(alpha))
    return np.array(
        [
            -abs(float((1 - exact) * int((clamped < c).sum()) - exact * int((clamped > c).sum())))
            for c in outer.candidates
        ]
    )


def law(scores, scale):
    """Permute-and-flip: candidate i with probability p_i times the integral over u of prod_(j != i) (1 - u p_j)."""
    heads = np.exp((scores - scores.max()) / scale)
    factors = 1 - np.outer(NODES, heads)
    logs = np.log(np.maximum(factors, 1e-300))
    return heads * (MASSES @ np.exp(logs.sum(axis=1, keepdims=True) - logs))


def law_of(values, alpha, epsilon, records=1, outer=OUTER):
    return law(scores(values, alpha, outer), 2 * records / float(epsilon))


def largest_loss(laws, neighbours):
    return max(np.abs(np.log(laws[a] / laws[b])).max() for a, b in neighbours)


def replaced(n, records):
    """Pairs of datasets of ``n`` values that differ in ``records`` of them, as sorted tuples."""
    datasets = list(itertools.combinations_with_replacement(VALUES, n))
    pairs = []
    for a, b in itertools.combinations(datasets, 2):
        common = sum(min(a.count(value), b.count(value)) for value in set(a))
        if n - common <= records:
            pairs.append((a, b))
    return datasets, pairs


# --- the law ----------------------------------------------------------------------------------------


def test_the_formula_of_the_law_is_that_of_random_orders():
    few = np.array([0.0, -1.0, -0.3, -2.5])
    heads, expected = np.exp(few / 0.8), np.zeros(4)
    for order in itertools.permutations(range(4)):
        remaining = 1 / 24
        for index in order:
            expected[index] += remaining * heads[index]
            remaining *= 1 - heads[index]
    np.testing.assert_allclose(law(few, 0.8), expected, rtol=1e-9)
    assert law(scores(VALUES, 0.3), 2.0).sum() == pytest.approx(1)


@pytest.mark.parametrize("alpha", [0.01, 0.1, 0.5, 0.99])
def test_the_library_scores_by_rank_with_the_sensitivity_of_a_replacement(alpha):
    domain = dp.vector_domain(dp.atom_domain(T=float, nan=False), size=len(VALUES))
    dp.enable_features("contrib")
    transformation = dp.t.make_quantile_score_candidates(
        domain, dp.symmetric_distance(), OUTER.candidates.tolist(), alpha
    )
    unit = transformation.map(2)  # a record replaced: one out, one in
    library = np.array(transformation(np.clip(VALUES, 0, 1).tolist())) / unit
    np.testing.assert_allclose(-library, scores(VALUES, alpha), atol=1e-9)
    assert transformation.map(6) == 3 * unit


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("alpha", [0.1, 0.5])
def test_draws_follow_the_law(alpha):
    """Controls: the law at a third of epsilon, and at twice of it. They miss less often than once in 10^8."""
    epsilon, values = Decimal("1.2"), np.array([0.2, 0.21, 0.5, 0.9, 0.97])
    runs = scaled(4_000)
    drawn = private_quantiles(np.tile(values[:, None], runs), [OUTER] * runs, [alpha], epsilon * runs)
    counts = np.bincount(np.rint(drawn[:, 0] * STEPS).astype(int), minlength=STEPS + 1)
    groups = np.add.reduceat(counts, np.arange(0, STEPS + 1, 8))

    def fit(factor):
        expected = np.add.reduceat(law_of(values, alpha, factor * float(epsilon)), np.arange(0, STEPS + 1, 8))
        return stats.chisquare(groups, expected / expected.sum() * groups.sum()).pvalue

    assert fit(1.0) > MISTAKEN
    assert fit(1 / 3) < MISTAKEN  # at a half, one run in 2,000 missed it
    assert fit(2.0) < MISTAKEN


# --- privacy ----------------------------------------------------------------------------------------


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("alpha", [0.01, 0.25, 0.5])
@pytest.mark.parametrize("epsilon", [0.1, 2.0])
def test_no_replaced_record_makes_a_quantile_more_than_e_to_the_epsilon_times_likelier(alpha, epsilon):
    datasets, pairs = replaced(4, 1)
    loss = largest_loss({values: law_of(values, alpha, epsilon) for values in datasets}, pairs)
    assert loss <= epsilon * (1 + 1e-9)
    # The control: at the scale of three times the epsilon it does not hold.
    assert largest_loss({values: law_of(values, alpha, 3 * epsilon) for values in datasets}, pairs) > epsilon


def test_two_quantiles_together_cost_what_both_were_given():
    """Ascending order is made of both draws, so their pair is what is looked at."""
    total, alphas = Decimal("1"), (0.1, 0.9)
    each = float(share(total, 2))
    datasets, pairs = replaced(3, 1)
    joint = {values: np.outer(*(law_of(values, alpha, each) for alpha in alphas)).ravel() for values in datasets}
    loss = largest_loss(joint, pairs)
    assert loss <= float(total) * (1 + 1e-9)
    more = {values: np.outer(*(law_of(values, alpha, 3 * each) for alpha in alphas)).ravel() for values in datasets}
    assert largest_loss(more, pairs) > float(total)  # the control: the scale of three times each share


@pytest.mark.parametrize("records", [2, 3])
def test_a_person_with_several_records_is_protected_as_a_whole(records):
    epsilon = 0.8
    datasets, pairs = replaced(4, records)
    kept = {values: law_of(values, 0.25, epsilon, records) for values in datasets}
    assert largest_loss(kept, pairs) <= epsilon * (1 + 1e-9)
    for_one = {values: law_of(values, 0.25, epsilon) for values in datasets}
    assert largest_loss(for_one, pairs) > epsilon  # the control: noise for one record


@pytest.mark.parametrize("records", [1, 3])
@pytest.mark.parametrize("epsilon", ["0.000001", "0.1", "0.333333333333", "7", "1000"])
def test_the_library_charges_a_replacement_as_two_and_no_more_than_was_granted(epsilon, records):
    measurement = quantiles.quantile(5, OUTER, 0.1, Decimal(epsilon), records)
    assert Decimal("0.999999") * Decimal(epsilon) < Decimal(measurement.map(2 * records)) <= Decimal(epsilon)
    assert Decimal(measurement.map(2 * records + 2)) > Decimal(epsilon)


def test_a_library_that_accounts_for_less_is_not_trusted(monkeypatch):
    """The tripwire: a privacy map that took a replacement for one change would say half."""
    replace_opendp_account(monkeypatch, "make_private_quantile", lambda distance: 0.05)
    with pytest.raises(NumericalFailure):
        quantiles.quantile(6, OUTER, 0.1, Decimal("0.1"), 1)


def test_a_library_whose_cost_is_far_from_epsilon_is_not_trusted(monkeypatch):
    """More than epsilon, or a millionth of it less: both are exact here."""

    class Charges:
        def __init__(self, cost):
            self.cost = cost

        def map(self, distance):
            return self.cost

    def charge(cost):
        quantiles.quantile.cache_clear()
        monkeypatch.setattr("opendp.measurements.make_private_quantile", lambda *args, **kwargs: Charges(cost))
        return quantiles.quantile(6, OUTER, 0.1, Decimal(10**6), 1)

    for cost in (999_999.0, 1_000_000.5):
        with pytest.raises(NumericalFailure):
            charge(cost)
    assert charge(999_999.5).cost == 999_999.5
    quantiles.quantile.cache_clear()


def test_where_the_library_can_charge_all_of_epsilon_it_does():
    assert quantiles.quantile(5, OUTER, 0.1, Decimal(1), 1).map(2) == 1.0


@pytest.mark.parametrize(("epsilon", "draws"), [("1", 3), ("0.1", 14), ("0.000001", 7)])
def test_shares_add_up_to_no_more_than_the_whole(epsilon, draws):
    assert 0 < share(Decimal(epsilon), draws) * draws <= Decimal(epsilon)


# --- accuracy ---------------------------------------------------------------------------------------

N = 1_000
_RNG = np.random.default_rng(7)
COLUMNS = {
    "lognormal": (_RNG.lognormal(size=N), Outer(0.0, 30.0)),
    "bimodal": (np.concatenate([_RNG.normal(-5, 0.5, N // 2), _RNG.normal(5, 0.5, N // 2)]), Outer(-20.0, 20.0)),
    "constant": (np.full(N, 3.3), Outer(0.0, 10.0)),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_at_epsilon_a_tenth_and_a_thousand_records_ranks_are_as_near_as_is_said(name):
    """By exact probabilities, for the two quantiles of one column: epsilon 0.05 each, 315 records of 1,000."""
    values, outer = COLUMNS[name]
    each = share(Decimal("0.1"), 2)
    alpha, furthest = outermost(N, each), rank_error(each)
    assert (alpha, round(furthest)) == (0.25, 314)
    for wanted in (alpha, 1 - alpha):
        reached = scores(values, wanted, outer)
        probabilities = law_of(values, wanted, each, outer=outer)
        assert probabilities[reached < reached.max() - furthest].sum() <= FAILURE
        typical = np.average(reached.max() - reached, weights=probabilities)
        assert typical < 60  # records: the bound is a worst case over all columns
    # The control: at a hundredth of epsilon ranks are further off.
    blurred = law_of(values, alpha, each / 100, outer=outer)
    assert blurred[scores(values, alpha, outer) < scores(values, alpha, outer).max() - furthest].sum() > FAILURE


def test_the_rank_error_and_the_outermost_quantile_are_those_of_the_formula_for_several_records_too():
    """129 candidates: 2 records / epsilon * log(129 / 0.05)."""
    for records in (1, 3):
        assert rank_error(Decimal("0.5"), records) == pytest.approx(4 * records * math.log(129 / 0.05), rel=1e-12)
    assert outermost(1_000, Decimal("0.5"), 3) == round(12 * math.log(2_580) / 1_000, 3) == 0.094


@pytest.mark.parametrize("name", COLUMNS)
def test_bounds_at_epsilon_a_tenth_hold_the_middle_of_the_column(name):
    values, outer = COLUMNS[name]
    (drawn,) = private_quantiles(values[:, None], [outer], [0.25, 0.75], Decimal("0.1"))
    lower, upper = drawn
    assert outer.lower <= lower <= np.quantile(values, 0.6)
    assert np.quantile(values, 0.4) <= upper <= outer.upper


def test_the_outermost_quantile_is_rarely_beyond_all_values():
    values, outer = COLUMNS["bimodal"]
    epsilon = Decimal("1")
    alpha = outermost(N, epsilon)
    assert alpha == 0.016
    lower = law_of(values, alpha, epsilon, outer=outer)[outer.candidates < values.min()].sum()
    upper = law_of(values, 1 - alpha, epsilon, outer=outer)[outer.candidates > values.max()].sum()
    assert max(lower, upper) < FAILURE
    # The control: a quantile further out often is.
    assert law_of(values, alpha / 16, epsilon, outer=outer)[outer.candidates < values.min()].sum() > FAILURE
    assert outermost(10**6, epsilon) == 0.01
    assert outermost(10, epsilon) == 0.25


# --- data that are difficult ---------------------------------------------------------------------------


def test_quantiles_ascend_and_are_candidates_whatever_the_values_are():
    columns = np.array([[1e300, 0.5, -7.0], [-1e300, 0.5, 7.0], [0.0, 0.5, 7.0]])
    drawn = private_quantiles(columns, [OUTER, OUTER, Outer(-1e9, 1e9)], [0.1, 0.5, 0.9], Decimal("0.1"))
    assert drawn.shape == (3, 3)
    assert (np.diff(drawn, axis=1) >= 0).all()
    for row, outer in zip(drawn, [OUTER, OUTER, Outer(-1e9, 1e9)], strict=True):
        assert np.isin(row, outer.candidates).all()


def test_values_beyond_a_range_count_as_its_end():
    """A hundred records beyond: every other candidate is 50 ranks away."""
    drawn = private_quantiles(np.tile([-5.0, 8.0], (100, 1)), [OUTER, OUTER], [0.5] * 4, Decimal(8_000))
    assert drawn.tolist() == [[0.0] * 4, [1.0] * 4]


@pytest.mark.parametrize(
    ("columns", "ranges", "alphas"),
    [(np.ones(2), 2, [0.5]), (np.ones((3, 2)), 1, [0.5]), (np.ones((0, 2)), 2, [0.5]), (np.ones((3, 2)), 2, [])],
    ids=["no columns", "a column without a range", "no values", "no quantiles"],
)
def test_quantiles_of_nothing_are_refused(columns, ranges, alphas):
    with pytest.raises(ValueError, match="quantiles need values"):
        private_quantiles(columns, [OUTER] * ranges, alphas, Decimal(1))


@pytest.mark.parametrize(
    ("alpha", "epsilon", "records"),
    [(0.0, 1, 1), (1.0, 1, 1), (1.5, 1, 1), (-0.5, 1, 1), (0.5, 0, 1), (0.5, -1, 1), (0.5, 1, 0)],
)
def test_a_quantile_out_of_range_is_refused(alpha, epsilon, records):
    with pytest.raises(ValueError, match="inside of 0 to 1, a positive epsilon and a record"):
        quantiles.quantile(5, OUTER, alpha, Decimal(epsilon), records)


def test_one_record_and_equal_records_are_fine():
    assert private_quantiles(np.array([[0.5]]), [OUTER], [0.5], Decimal("1")).shape == (1, 1)
    drawn = private_quantiles(np.full((500, 1), 0.25), [OUTER], [0.25, 0.75], Decimal("10"))
    assert drawn.tolist() == [[0.25, 0.25]]  # a candidate, with 125 records between it and any other


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_refused(bad):
    with pytest.raises(NumericalFailure):
        private_quantiles(np.array([[bad], [0.0]]), [OUTER], [0.5], Decimal("1"))


@pytest.mark.parametrize("ends", [(1.0, 1.0), (2.0, 1.0), (0.0, math.inf), (math.nan, 1.0), (1.0, 1.0 + 1e-15)])
def test_an_outer_range_without_room_is_refused(ends):
    with pytest.raises(ValueError, match="outer range"):
        Outer(*ends)


@pytest.mark.parametrize("ends", [(-1e308, 1e308), (1e15, 1e15 + 1e3), (-1e-300, 1e-300)])
def test_wide_and_narrow_outer_ranges_have_their_ends(ends):
    outer = Outer(*ends)
    assert ends == (outer.candidates[0], outer.candidates[-1])
    assert len(outer.candidates) == STEPS + 1
