"""Every method from its plan to its outcome: what it costs, says, asks for, draws and refuses."""

import math
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from scipy import stats

from blindopt.errors import TuningFailed, TuningImpossible
from blindopt.wire import TUNING_METHODS, TuningBudget, TuningSpec
from blindopt.wire.tuning import TuningPrior, TuningSearch
from curator_service.privacy.noise import ignore_progress
from curator_service.tuning.methods import Facts, Plan, Problem, plan_of
from curator_service.tuning.methods.draws import split_events
from curator_service.tuning.methods.grid_exponential import worst_gap
from curator_service.tuning.methods.information import Arms, greedy_design
from curator_service.tuning.methods.prior import Scaled
from curator_service.tuning.methods.problem import Evaluate, Objective
from tests.scale import scaled

MISTAKEN = 1e-9  # a correct mechanism fails a decision less often: there are hundreds in a run of all tests
GRID = np.linspace(0, 1, 24)[:, None]
SCORES = 0.5 + 0.3 * np.sin(5 * GRID[:, 0])
PRIOR = {"lengthscale": 0.2, "one_minus_k1": 1e-4, "evaluations": 30}
FACTS = Facts(0.8, 0.3, 0.5, 1.0, 10.0, "hinge")
METHODS: dict[str, dict[str, Any]] = {
    "grid": {"name": "grid_exponential"},
    "grid, exponential": {"name": "grid_exponential", "selection": "exponential"},
    "grid, weights": {"name": "grid_exponential", "use_weights": True},
    "design": {"name": "gp_design", "prior": PRIOR},
    "design, worst case": {"name": "gp_design", "prior": PRIOR, "charge": "worst_case"},
    "design, maximum": {"name": "gp_design", "prior": PRIOR, "value_at": "maximum"},
    "simulated": {"name": "gp_ucb_simulated", "prior": PRIOR, "pairs": 200},
    "algorithm 1": {"name": "kusner_1", "prior": PRIOR},
    "algorithm 1, literal": {"name": "kusner_1", "prior": PRIOR, "q": "paper", "delta_split": "paper"},
    "algorithm 1, tight": {"name": "kusner_1", "prior": PRIOR, "index_bound": "tight"},
    "algorithm 1, clip": {"name": "kusner_1", "prior": PRIOR, "index_bound": "clip"},
    "algorithm 2": {"name": "kusner_2", "prior": PRIOR, "a": 1.0, "tau": 0.5, "last": 7},
    "algorithm 2, grid": {"name": "kusner_2", "prior": PRIOR, "whole_grid": True},
    "algorithm 3": {"name": "kusner_3", "search": {"lengthscale": 0.2, "evaluations": 30}},
    "algorithm 3, literal": {"name": "kusner_3", "search": {"lengthscale": 0.2, "evaluations": 30}, "form": "paper"},
    "weights": {"name": "public_weights", "search": {"lengthscale": 0.2, "evaluations": 30}},
}
PURE = ("grid", "algorithm 3", "weights", "design, worst case")
VALUE_ALONE = ("algorithm 2", "algorithm 3", "weights")


def problem(m: int = 40, **more: Any) -> Problem:
    return Problem(**({"grid": GRID, "m": m, "lower": 0.0, "upper": 1.0, "facts": FACTS} | more))


def plan(
    name: str | dict[str, Any], epsilon: str = "1", delta: float = 0.05, share: str | None = None, **more: Any
) -> Plan:
    method = METHODS[name] if isinstance(name, str) else name
    spec = {"method": method, "budget": {"epsilon": epsilon, "delta": delta, "index_share": share}}
    return plan_of(TuningSpec.model_validate(spec), problem(**more))


def arms_of(prior: dict[str, Any], problem: Problem) -> Arms:
    """The hyper-parameters of a fixed design: they depend on the kernel and on sigma alone."""
    scaling = Scaled.of(TuningPrior.model_validate(prior), problem)
    return greedy_design(scaling.covariance, scaling.sigma, scaling.search.evaluations)[0]


def score(index: int) -> float:
    return float(SCORES[index])


def unclipped(tuning: Plan, evaluate: Evaluate) -> float:
    """v~ before it is clipped to the range of the score."""
    objective = Objective(tuning.problem, evaluate, ignore_progress, tuning.search.evaluations, tuning.repeated)
    value = tuning.search.release(objective, tuning.draws)[1]
    assert value is not None
    return value


# --- all of them ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_a_plan_says_what_it_costs_and_promises_and_runs(name):
    tuning = plan(name)
    pure, alone = name.startswith(PURE), name.startswith(VALUE_ALONE)
    assert tuning.guarantee.startswith("Worst case" if pure else "On average over the Gaussian-process prior only")
    assert ("Private only on average" in warnings_of(tuning)) is not pure
    assert tuning.kind == ("worst_case" if pure else "prior_average")
    parts = [cost for cost in (tuning.draws.shares.index, tuning.draws.shares.value) if cost]
    assert sum(cost.epsilon for cost in parts) == tuning.draws.shares.total.epsilon
    assert isinstance(tuning.draws.shares.total.delta, Decimal)
    assert (tuning.draws.shares.total.delta == 0) is pure
    assert tuning.draws.shares.total.delta <= sum(cost.delta for cost in parts)
    assert (tuning.draws.shares.index is None) is (tuning.draws.noise.index_scale is None) is alone
    assert TUNING_METHODS[METHODS[name]["name"]].releases_choice is not alone
    is_charged_more = name in ("algorithm 3, literal", "design, worst case")
    if not is_charged_more:
        assert tuning.draws.noise.value_scale == pytest.approx(
            tuning.draws.noise.value_sensitivity / float(tuning.draws.shares.value.epsilon)
        )
    assert math.isfinite(tuning.expected_error.value)
    assert (tuning.expected_error.index_gap is None) is alone
    assert tuning.expected_error.how
    shares: list[float] = []
    outcome = tuning.run(score, shares.append)
    assert (outcome.index is None) is alone
    assert outcome.index is None or 0 <= outcome.index < len(GRID)
    assert isinstance(outcome.value, float)
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert len(shares) == outcome.evaluations
    assert outcome.clipped == 0


def test_the_page_on_tuning_has_the_table_of_methods():
    lines = [
        f"| `{name}` | {'lambda~, v~' if method.releases_choice else 'v~'} | {method.summary()} |"
        for name, method in TUNING_METHODS.items()
    ]
    page = Path(__file__).parents[4] / "docs" / "tuning.md"
    assert "\n".join(lines) in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", METHODS)
def test_with_an_epsilon_of_a_thousand_the_result_is_nearly_exact(name):
    tuning = plan(name, epsilon="1000", delta=0.1)
    outcome = tuning.run(score)
    if name.startswith("algorithm 1"):  # whose noise is thirty times as large
        assert outcome.value == pytest.approx(SCORES.max(), abs=0.3)
    elif name == "algorithm 2":
        assert outcome.value == pytest.approx(SCORES[7], abs=0.05)
    else:
        assert outcome.value == pytest.approx(SCORES.max(), abs=0.1)
        assert outcome.index is None or SCORES[outcome.index] > SCORES.max() - 0.05


@pytest.mark.parametrize("name", METHODS)
def test_nothing_private_is_in_what_a_run_leaves(name):
    tuning = plan(name)
    outcome = tuning.run(lambda index: 0.123456789 + index / 1e12)
    assert "0.12345" not in repr(tuning)
    assert "clipped" not in repr(outcome)
    assert set(outcome.__slots__) == {"index", "value", "clipped", "evaluations"}


@pytest.mark.slow(every=5)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", METHODS)
def test_a_score_that_is_not_finite_fails_the_tuning_and_is_not_released(name, bad):
    with pytest.raises(TuningFailed, match="not a finite number") as failed:
        plan(name).run(lambda index: bad)
    assert str(bad) not in str(failed.value)


@pytest.mark.parametrize("reply", ["0.75 of patient 12", None, {"score": 0.5}])
def test_what_is_no_number_is_not_quoted(reply):
    with pytest.raises(TuningFailed) as failed:
        plan("grid").run(lambda index: reply)
    assert "patient" not in str(failed.value)
    assert failed.value.__suppress_context__ or failed.value.__context__ is None


@pytest.mark.parametrize("name", METHODS)
def test_scores_out_of_range_are_clipped_and_counted(name):
    far, near = plan(name, epsilon="1000").run(lambda index: 1e9), plan(name, epsilon="1000").run(lambda index: 1.0)
    assert 1 <= far.clipped <= far.evaluations
    assert near.clipped == 0
    assert 0 <= far.value <= 1
    assert abs(unclipped(plan(name, epsilon="1000"), lambda index: 1e9)) < 10  # no trace of how far it was


@pytest.mark.parametrize(("lower", "upper"), [(0.0, 1.0), (-3.0, -2.5)])
def test_v_lies_in_the_range_of_the_score_although_its_noise_does_not(lower, upper):
    tuning = plan("grid", epsilon="0.02", share="0", lower=lower, upper=upper)
    middle = (lower + upper) / 2
    values = [tuning.run(lambda index: middle).value for _ in range(40)]  # all on one side: once in 1e11
    assert (min(values), max(values)) == (lower, upper)
    assert max(abs(unclipped(tuning, lambda index: middle) - middle) for _ in range(40)) > upper - lower


def test_what_the_scorer_raises_goes_through():
    class Unreachable(Exception):
        pass

    def ask(index: int) -> float:
        raise Unreachable

    with pytest.raises(Unreachable):
        plan("grid").run(ask)


# --- the score ------------------------------------------------------------------------------------


def test_records_are_clipped_one_by_one_so_that_no_scorer_breaks_the_sensitivity():
    """One record told 1e9: the mean moves by g* / m and no further; a scorer that averages by itself moves it by g*."""
    calm = np.full(40, 0.5)
    wild = calm.copy()
    wild[3] = 1e9
    tuning = plan("grid", epsilon="1000", share="0", records="computed")
    values = [tuning.run(lambda index, scores=scores: scores) for scores in (calm, wild)]
    assert tuning.draws.noise.value_sensitivity == pytest.approx(1 / 40)
    assert values[1].value - values[0].value == pytest.approx(0.5 / 40, abs=0.002)
    assert [outcome.clipped for outcome in values] == [0, len(GRID)]
    assert "so this holds whatever the records are" in tuning.guarantee
    assert "not protected" not in tuning.guarantee


@pytest.mark.parametrize("records", ["scored", "averaged"])
def test_the_promise_of_scores_over_http_names_its_condition_and_that_a_failure_is_seen(records):
    """Scores that all depend on one record move by the whole range: only the scorer can keep them from it."""
    tuning = plan("grid", epsilon="1000", share="0", records=records)
    first, other = (
        tuning.run(lambda index, mean=mean: np.full(40, mean) if records == "scored" else mean) for mean in (0.0, 1.0)
    )
    assert other.value - first.value > 30 * tuning.draws.noise.value_sensitivity
    assert "depends on its own record" in tuning.guarantee
    assert "that is the scorer's word" in tuning.guarantee
    for name in ("grid", "design", "simulated", "algorithm 1", "algorithm 2, grid", "weights"):
        assert "A failure is not protected" in plan(name, records=records).guarantee
        assert "A failure is not protected" not in plan(name, records="computed").guarantee


@pytest.mark.parametrize("end", [1e12, 2.0**40])
def test_a_replied_mean_far_from_zero_is_rounded_and_its_sensitivity_covers_that(end):
    """Two neighbouring doubles are further apart than the range over m; of scores one by one nothing is lost."""
    moved = [
        plan("grid", m=10**6, lower=end, upper=end + 1, records=records).draws.noise.value_sensitivity
        for records in ("averaged", "scored")
    ]
    assert moved[0] >= 1e-6 + np.spacing(end)
    assert moved[1] == pytest.approx(1e-6, rel=1e-6)


@pytest.mark.parametrize("name", ["algorithm 3", "weights"])
def test_a_centre_far_from_the_range_is_refused_and_one_in_it_moves_no_score_beyond_its_sensitivity(name):
    search = {"lengthscale": 0.2, "evaluations": 1}
    for centre in (1e12, 1.0000001, -0.1):
        with pytest.raises(TuningImpossible, match="centre must lie in the range"):
            plan({"name": METHODS[name]["name"], "search": search | {"centre": centre}})
    facts = Facts(0.25, 0.0, 0.5, 2.0, 2.0, "hinge")
    for centre in (0.0, 0.3, 1.0):
        spec = {"name": METHODS[name]["name"], "search": search | {"centre": centre}}
        tuning = plan(spec, m=10_000, grid=GRID[:1], facts=facts, records="computed")
        scaling = Scaled.of(TuningSearch.model_validate(spec["search"]), tuning.problem)
        exact = np.array([exact_of(scaling, k) for k in range(0, 10_000, 97)])
        steps = np.array([exact_of(scaling, k + 1) for k in range(0, 10_000, 97)]) - exact
        assert np.abs(steps).max() <= tuning.draws.noise.value_sensitivity


def exact_of(scaling: Scaled, k: int) -> float:
    """The score of which k records tell 0.75 and the others 0.5, as it is before the noise."""
    scores = np.full(scaling.problem.m, 0.5)
    scores[:k] = 0.75
    objective = Objective(scaling.problem, lambda index: scores, lambda share: None, 1)
    return scaling.exact(objective, 0) * scaling.unit


def test_training_that_is_not_exact_adds_to_the_sensitivity_of_algorithm_3():
    """At both penalties, and in the norm of one model: 2 L error (1 + 1 / m)."""
    facts = [Facts(0.8, 0.3, 0.5, 1.0, 10.0, "hinge", error) for error in (0.0, 1e-3)]
    moved = [plan("algorithm 3", facts=public_facts).draws.noise.value_sensitivity for public_facts in facts]
    assert moved[1] - moved[0] == pytest.approx(2 * 0.5 * 1e-3 * (1 + 1 / 40), rel=1e-6)


@pytest.mark.parametrize("reply", [0.5, np.zeros(39), np.zeros((40, 1)), np.zeros(41)])
def test_a_scorer_that_returns_something_else_fails_the_tuning(reply):
    with pytest.raises(TuningFailed, match="one for each record"):
        plan("grid", records="scored").run(lambda index: reply)


def test_a_score_of_the_whole_dataset_moves_by_its_range():
    assert plan("grid", records="whole").draws.noise.index_sensitivity == pytest.approx(1)
    assert plan("grid", m=500).draws.noise.index_sensitivity == pytest.approx(1 / 500)
    assert plan("grid, weights", m=500).draws.noise.index_sensitivity == pytest.approx(0.8 / 500)
    for name in ("grid, weights", "algorithm 3", "weights"):
        with pytest.raises(TuningImpossible, match="mean over the records"):
            plan(name, records="whole")


@pytest.mark.parametrize("noise", ["added", "own"])
def test_a_score_is_asked_for_again_only_where_its_noise_is_its_own(noise):
    prior = PRIOR | {"noise": noise, "evaluations": 80}
    tuning = plan({"name": "gp_design", "prior": prior})
    arms = arms_of(prior, tuning.problem)
    calls: list[int] = []
    tuning.run(lambda index: calls.append(index) or score(index))
    assert len(calls) == (80 if noise == "own" else len(set(arms.tolist())))
    assert set(calls) == set(arms.tolist())


def test_added_noise_is_fresh_and_of_the_stated_sd():
    """Of one hyper-parameter scored once the posterior mean is v / (1 + sigma^2); Laplace noise is 1 in 1,000 of it."""
    tuning = plan(
        {"name": "gp_design", "prior": PRIOR | {"noise_sd": 0.5, "evaluations": 1}},
        epsilon="1000",
        share="0",
        grid=GRID[:1],
    )
    noise = [unclipped(tuning, lambda index: 0.5) - 0.5 for _ in range(scaled(2_000))]
    sd = 0.25 * 0.5 / 1.25  # unit, sigma, 1 + sigma^2
    assert stats.kstest(noise, stats.norm(scale=sd).cdf).pvalue > MISTAKEN
    for wrong in (0.55, 1.8):
        assert stats.kstest(noise, stats.norm(scale=wrong * sd).cdf).pvalue < MISTAKEN


# --- what is drawn --------------------------------------------------------------------------------


def frequencies(values: list[float], runs: int) -> np.ndarray:
    tuning = plan("grid, exponential", epsilon="2", m=5, grid=GRID[:3])
    return np.bincount([tuning.run(lambda index: values[index]).index for _ in range(runs)], minlength=3)


def test_lambda_is_drawn_as_often_as_the_exponential_mechanism_says():
    """Sensitivity 1/5, half of epsilon 2: weights exp(score / 0.4). Controls: the whole of epsilon, and a third."""
    values = [0.2, 0.6, 0.5]
    counts = frequencies(values, scaled(4_000))
    for factor, good in ((1.0, True), (2.0, False), (1 / 3, False)):
        weights = np.exp(factor * np.array(values) / 0.4)
        fit = stats.chisquare(counts, weights / weights.sum() * counts.sum()).pvalue
        assert bool(fit > MISTAKEN) is good


def test_v_has_laplace_noise_of_the_stated_scale():
    tuning = plan("grid", epsilon="2", m=5, grid=GRID[:1])
    noise = [unclipped(tuning, lambda index: 0.25) - 0.25 for _ in range(scaled(4_000))]
    assert tuning.draws.noise.value_scale == pytest.approx(0.2, rel=1e-6)
    assert stats.kstest(noise, stats.laplace(scale=0.2).cdf).pvalue > MISTAKEN
    assert stats.kstest(noise, stats.laplace(scale=0.35).cdf).pvalue < MISTAKEN  # at 0.25 it missed one run in ten


@pytest.mark.parametrize(("n", "scale"), [(2, 0.1), (24, 0.05), (100, 0.01), (100, 3.0)])
def test_the_worst_gap_is_the_worst_of_many_scores(n, scale):
    rng, bound, most = np.random.default_rng(2), worst_gap(n, scale, 1.0), 0.0
    shapes = [np.concatenate([[0.0], np.full(n - 1, gap)]) for gap in np.linspace(0, 1, 2_001)]
    shapes += [rng.uniform(0, rng.uniform(0, 1), size=n) for _ in range(300)]
    for gaps in shapes:
        gaps = gaps - gaps.min()
        weights = np.exp(-gaps / scale)
        mean = float(gaps @ weights / weights.sum())
        assert mean <= bound * (1 + 1e-9)
        most = max(most, mean)
    assert most == pytest.approx(bound, rel=1e-4)


@dataclass
class RecordedDraw:
    """In place of the draw of lambda~: remembers the scores that it is given."""

    scores: list[np.ndarray] = field(default_factory=list)

    def draw(self, scores: np.ndarray) -> int:
        self.scores.append(scores)
        return 0


@pytest.mark.parametrize(("index_bound", "is_clipped"), [("clip", True), ("paper", False)])
def test_algorithm_1_draws_lambda_from_means_within_the_bound_that_its_noise_is_for(index_bound, is_clipped):
    """Scores 500 prior deviations away. The noise of ``clip`` is for means within +-sqrt(2 ln(2 n / delta))."""
    method = {"name": "kusner_1", "prior": PRIOR | {"scale": 0.001}, "index_bound": index_bound}
    tuning, recorded = plan(method, delta=0.05, share="0.5"), RecordedDraw()
    replace(tuning, draws=replace(tuning.draws, index=recorded)).run(lambda index: 1.0 if GRID[index, 0] > 0.5 else 0.0)
    bound = math.sqrt(2 * math.log(2 * len(GRID) / 0.025))
    (means,) = recorded.scores
    if is_clipped:
        assert tuning.draws.noise.index_sensitivity == pytest.approx(2 * bound * 0.001)
        assert (means.min(), means.max()) == pytest.approx((-bound, bound))
    else:
        assert np.abs(means).max() > 100 * bound


# --- budgets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["grid", "design", "algorithm 1", "simulated"])
@pytest.mark.parametrize("share", ["0", "1"])
def test_one_release_alone_gets_everything(name, share):
    tuning = plan(name, share=share)
    shares = tuning.draws.shares
    kept, other = (shares.index, shares.value) if share == "1" else (shares.value, shares.index)
    assert other is None
    assert kept == tuning.draws.shares.total
    outcome = tuning.run(score)
    assert (outcome.index is None) is (share == "0")
    assert (outcome.value is None) is (share == "1")
    assert "add up" not in warnings_of(tuning)


def test_thirds_add_up_exactly():
    tuning = plan("grid", epsilon="1", share="0.333333333333")
    assert tuning.draws.shares.index.epsilon == Decimal("0.333333333333")
    assert tuning.draws.shares.index.epsilon + tuning.draws.shares.value.epsilon == 1
    shares = split_events(TuningBudget(epsilon="0.7", delta=0.1, index_share="0.333333333333"))
    assert shares.index.epsilon + shares.value.epsilon == Decimal("0.7")
    assert shares.index.delta + shares.value.delta == shares.total.delta == Decimal("0.1")


def test_releases_from_one_posterior_mean_share_one_delta_and_those_of_algorithm_1_split_it():
    both, split = plan("design").draws.shares, plan("algorithm 1").draws.shares
    assert both.index.delta == both.value.delta == both.total.delta == Decimal("0.05")
    assert split.index.delta + split.value.delta == split.total.delta == Decimal("0.05")
    literal = plan("algorithm 1, literal")
    assert literal.draws.shares.value.delta == pytest.approx(Decimal("0.025") * 5 / 3)
    assert literal.draws.shares.value.delta >= Decimal("0.025") * 5 / 3
    assert "As published" in literal.guarantee


@pytest.mark.parametrize("name", [name for name in METHODS if not name.startswith(PURE)])
def test_a_method_that_needs_a_delta_is_refused_without(name):
    with pytest.raises(TuningImpossible, match="delta"):
        plan(name, delta=0.0)


@pytest.mark.parametrize("name", [name for name in METHODS if not name.startswith(PURE)])
def test_a_delta_beyond_doubles_is_refused(name):
    with pytest.raises(TuningImpossible, match="1e-30"):
        plan(name, delta=5e-324)


@pytest.mark.parametrize("name", ["grid", "algorithm 2, grid", "weights"])
@pytest.mark.parametrize("upper", [5e-324, 1e-320, 1e-260])
def test_a_range_that_no_lattice_of_doubles_is_fine_enough_for_is_refused(name, upper):
    """The control: one that is a little wider is not."""
    with pytest.raises(TuningImpossible, match="other units"):
        plan(name, upper=upper)
    assert plan("grid", upper=1e-240).run(lambda index: 5e-241).value != 0


@pytest.mark.parametrize("name", [name for name in METHODS if name.startswith(VALUE_ALONE)])
def test_a_method_without_lambda_gives_it_no_share(name):
    with pytest.raises(TuningImpossible, match="releases v~ alone"):
        plan(name, share="0.5")
    assert plan(name, share="0").draws.shares.total.epsilon >= 1


# --- warnings -------------------------------------------------------------------------------------


def warnings_of(tuning) -> str:
    return "\n".join(caution.message for caution in tuning.cautions)


def test_noise_that_drowns_the_score_is_reported_beforehand():
    assert "close to random" in warnings_of(plan("algorithm 1"))
    assert "next to nothing" in warnings_of(plan("algorithm 3", epsilon="0.1"))
    assert "Noise larger" not in warnings_of(plan("grid", m=2_000))
    assert "Noise larger" in warnings_of(plan("grid", m=2))


def test_a_prior_from_private_data_promises_nothing():
    tuning = plan({"name": "gp_design", "prior": PRIOR | {"estimated": ["lengthscale", "scaling"]}})
    assert tuning.guarantee.startswith("None: the prior was estimated from private data (lengthscale, scaling)")
    assert "Estimated from private data: lengthscale, scaling" in warnings_of(tuning)
    assert tuning.kind == "none"


def test_a_prior_that_says_less_than_one_record_can_move_a_score_is_reported():
    """By hand: g*/m against 4 scale sqrt(2 (1 - k1)), with scale = g*/4: m is below 1 / sqrt(2 (1 - k1))."""
    for m, reported in ((70, True), (71, False)):  # 1 / sqrt(2 * 1e-4) is 70.7
        tuning = plan({"name": "gp_design", "prior": PRIOR | {"one_minus_k1": 1e-4}}, m=m)
        assert ("prior_too_close" in [caution.code for caution in tuning.cautions]) is reported
    whole = plan({"name": "gp_design", "prior": PRIOR | {"one_minus_k1": 1e-4}}, m=1_000, records="whole")
    assert "prior_too_close" in [caution.code for caution in whole.cautions]


# --- what a fixed design keeps in the worst case ----------------------------------------------------


def loss_in_the_worst_case(tuning: Plan, moved: float) -> float:
    """Of v~ between two datasets whose scores differ by ``moved``, each way that moves a posterior mean the most."""
    arms = arms_of(PRIOR, tuning.problem)
    kernel = np.exp(-((GRID - GRID.T) ** 2) / (2 * 0.2**2))
    among = kernel[np.ix_(arms, arms)] + 0.01 * np.eye(len(arms))
    weights = np.linalg.solve(among, kernel[arms]).T
    means = [row @ (moved * np.sign(row)) for row in weights]
    return max(means) / tuning.draws.noise.value_scale


@pytest.mark.parametrize(("records", "m"), [("computed", 300), ("averaged", 40), ("whole", 40)])
def test_a_fixed_design_can_be_charged_what_its_noise_keeps_in_the_worst_case(records, m):
    """The example of a review: at 1 - k1 of 1e-8, epsilon 1 and 300 records, one label moved v~ by 28 noise scales."""
    method = {"name": "gp_design", "prior": PRIOR | {"one_minus_k1": 1e-8}}
    average, proved = (
        plan(method | {"charge": charge}, delta=0.01, m=m, records=records)
        for charge in ("prior_average", "worst_case")
    )
    assert average.draws.noise.value_scale == proved.draws.noise.value_scale
    total, value = proved.draws.shares.total, proved.draws.shares.value
    loss = loss_in_the_worst_case(proved, 1.0 if records == "whole" else 1 / m)
    assert 0.999 * float(value.epsilon) < loss <= float(value.epsilon)
    assert float(total.epsilon) == pytest.approx(average.draws.noise.constants["worst_case_epsilon"], rel=1e-9)
    assert (records != "computed") or 20 < total.epsilon < 40
    assert (proved.kind, total.delta) == ("worst_case", 0)
    assert f"{total.epsilon.normalize()}-differential privacy of each validation record" in proved.guarantee
    assert "The noise is that of (1, 0.01) on average over the prior" in proved.guarantee
    assert average.draws.shares.total.epsilon == 1  # the control: what is charged without it, for the same noise
    assert loss > 5


def test_the_worst_case_is_offered_where_its_epsilon_is_of_use():
    offered = ["worst_case_offered" in [c.code for c in plan("design", m=m).cautions] for m in (5, 400)]
    assert offered == [False, True]
    with pytest.raises(TuningImpossible, match="estimated from private data"):
        plan({"name": "gp_design", "charge": "worst_case", "prior": PRIOR | {"estimated": ["scaling"]}})


def test_noise_that_is_enough_for_any_two_datasets_is_charged_no_less_than_was_asked_for():
    far = {"name": "gp_design", "charge": "worst_case", "prior": PRIOR | {"one_minus_k1": 0.5}}
    tuning = plan(far, m=1_000)
    assert tuning.draws.shares.total.epsilon == 1
    assert loss_in_the_worst_case(tuning, 1e-3) < 1


@pytest.mark.parametrize("name", ["gp_ucb_simulated", "kusner_1"])
def test_noise_that_the_built_in_score_does_not_have_is_reported(name):
    own = {"name": name, "prior": PRIOR | {"noise": "own"}}
    assert "rests on noise that is not there" in warnings_of(plan(own, records="computed"))
    assert "not there" not in warnings_of(plan(own, records="scored"))
    assert "not there" not in warnings_of(plan({"name": name, "prior": PRIOR}, records="computed"))
    assert plan(own, records="computed").guarantee.startswith("None: noise: own says")
    assert (plan(own, records="computed").kind, plan(own, records="scored").kind) == ("none", "prior_average")
    assert plan(own, records="scored").guarantee.startswith("On average")


@pytest.mark.parametrize("noise", ["added", "own"])
def test_a_fixed_design_does_not_rest_on_noise_and_delta_is_over_functions_alone(noise):
    method = {"name": "gp_design", "prior": PRIOR | {"noise": noise}}
    for records in ("computed", "scored"):
        tuning = plan(method, records=records)
        assert "rests on noise" not in warnings_of(tuning)
        assert tuning.guarantee.startswith("On average")
        assert "draws functions that are not with probability 0.05" in tuning.guarantee
        assert ("whose law does not depend on the records" in tuning.guarantee) is (
            noise == "own" and records == "scored"
        )
        adaptive = plan(method | {"name": "kusner_1"}, records="scored").guarantee
        assert "and the noise of evaluations, it is 0.05 at most on average" in adaptive
        assert ("is Gaussian, of the declared size" in adaptive) is (noise == "own")


def test_adaptive_searches_say_that_their_order_is_private():
    for name in METHODS:
        adaptive = name.startswith(("simulated", "algorithm 1", "algorithm 3", "weights"))
        assert ("outside of this process" in warnings_of(plan(name))) is adaptive


def test_both_releases_add_up_in_words():
    assert "epsilon 0.5 and 0.5) to epsilon 1." in warnings_of(plan("grid"))
    assert "to epsilon 1 and delta 0.05." in warnings_of(plan("design"))


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"grid": np.empty((0, 1))}, "grid"),
        ({"grid": np.empty((3, 0))}, "grid"),
        ({"grid": np.zeros(3)}, "grid"),
        ({"grid": np.zeros((2_001, 1))}, "grid"),
        ({"grid": np.array([[math.nan]])}, "not finite"),
        ({"m": 0}, "no records"),
        ({"lower": 1.0}, "range"),
        ({"upper": math.inf}, "range"),
        ({"lower": math.nan}, "range"),
    ],
)
def test_a_problem_that_is_none_is_refused(more, why):
    with pytest.raises(TuningImpossible, match=why):
        problem(**more)


@pytest.mark.parametrize(
    "method",
    [
        {"name": "kusner_2", "prior": PRIOR},
        {"name": "kusner_2", "prior": PRIOR, "a": 1.0, "last": 3},
        {"name": "kusner_2", "prior": PRIOR, "a": 1.0, "tau": 1.0, "last": 3, "whole_grid": True},
    ],
    ids=str,
)
def test_algorithm_2_needs_all_its_constants_or_none(method):
    with pytest.raises(ValidationError):
        TuningSpec.model_validate({"method": method, "budget": {"epsilon": "1"}})


def test_facts_that_a_method_needs_are_asked_for():
    for name in ("grid, weights", "weights", "algorithm 3"):
        with pytest.raises(TuningImpossible, match="public"):
            plan(name, facts=Facts())


def test_an_index_outside_of_the_grid_is_refused():
    with pytest.raises(TuningImpossible, match="from 0 to 4"):
        plan("algorithm 2", grid=GRID[:5])


def test_a_simulation_that_would_take_hours_is_refused():
    with pytest.raises(TuningImpossible, match="takes too long"):
        plan({"name": "gp_ucb_simulated", "prior": PRIOR | {"evaluations": 2_000}, "pairs": 100_000})
