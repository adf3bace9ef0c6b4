"""What a run asks: repeats, designs, batches, ends, past observations; in both directions, and again after a crash."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from pydantic import ValidationError
from scipy.stats import norm

from blindopt import wire
from blindopt.errors import Invalid
from blindopt.gp.acquisition import beta
from blindopt.gp.candidates import column_scales
from blindopt.optimizer.algorithms.factory import NAMES, build_algorithm
from blindopt.optimizer.algorithms.settings import NO_NOISE, AlgorithmSettings
from blindopt.optimizer.chooser import RowChooser, maximin, memory_problem, random_rows, recommendation_of
from tests.shared.blindopt.gp import slow_posterior
from tests.shared.blindopt.optimizer.small_runs import KERNEL, N, candidates, outcome_of, played, spec, study

HEAVY = {"value_bound": 3.0, "noise_moment": 1.0}
FREE = ("gp_ucb", "gp_bucb", "random", "igp_ucb", "thompson")
"""Algorithms for answers without noise that need no settings."""


def make(algorithm="gp_ucb", observations=(), direction="maximize", n=N, **chosen):
    settings = spec(algorithm, **chosen)
    noise = wire.NoiseLaw(family="planar_laplace", sd=0.3) if settings.algorithm.name == "ei_deblurred" else NO_NOISE
    return RowChooser(settings, study(n, direction=direction, noise=noise), candidates(n), observations)


def flat(queries):
    return [row for query in queries for row in query]


def dense(rows, y, z, sign=1):
    prior = slow_posterior.squared_exponential(0.8, 2.0)(slow_posterior.squares(z, z))
    outcomes = sign * np.asarray(y)[rows]
    mean, variance = slow_posterior.dense(prior, rows, outcomes, KERNEL.noise_variance, sign * KERNEL.mean)
    return mean, np.sqrt(np.maximum(variance, 0.0))


# --- repeats ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", FREE)
@pytest.mark.parametrize("initial_rows", [0, 5])
def test_a_run_that_never_repeats_asks_every_row_once_and_is_exhausted(algorithm, initial_rows):
    run = make(algorithm, repeats="never", iterations=10 * N, initial_rows=initial_rows)
    rows = flat(played(run, outcome_of(candidates())))
    assert sorted(rows) == list(range(N))
    assert run.ended_because == "exhausted"


@pytest.mark.parametrize("initial_design", ["random", "maximin"])
@pytest.mark.parametrize("algorithm", [*FREE, "ei"])
def test_candidates_that_a_grant_does_not_get_are_neither_chosen_nor_recommended(algorithm, initial_design):
    left_out, z = [3, 17, N - 1], candidates()
    y = outcome_of(z)
    z[left_out] = 0.0
    settings = spec(algorithm, repeats="never", iterations=10 * N, initial_rows=5, initial_design=initial_design)
    run = RowChooser(settings, study(left_out=left_out), z)
    rows = flat(played(run, y - 100.0))  # all others are worse than the prior mean
    assert sorted(rows) == sorted(set(range(N)) - set(left_out))
    assert run.ended_because == "exhausted"
    assert run.learner is None or run.best("all").row not in left_out


@pytest.mark.parametrize("algorithm", FREE)
def test_after_all_rows_were_chosen_they_may_be_chosen_again(algorithm):
    run = make(algorithm, repeats="after_all", iterations=N + 15, initial_rows=4)
    rows = flat(played(run, outcome_of(candidates())))
    assert sorted(rows[:N]) == list(range(N))
    assert (len(rows), run.ended_because) == (N + 19, "budget")


def test_gp_ucb_by_itself_comes_back_to_good_rows():
    """Why the tests above have teeth."""
    rows = flat(played(make(iterations=N), outcome_of(candidates())))
    assert len(set(rows)) < len(rows)


def test_random_goes_through_the_rows_in_another_order_each_round():
    rows = flat(played(make("random", repeats="after_all", iterations=3 * N, initial_rows=0), np.zeros(N)))
    rounds = [rows[i * N : (i + 1) * N] for i in range(3)]
    assert [sorted(order) for order in rounds] == [list(range(N))] * 3
    assert len({tuple(order) for order in rounds}) == 3


@pytest.mark.parametrize("batch_size", [1, 4])
def test_the_row_of_a_run_that_never_repeats_has_the_largest_bound_of_the_rest(batch_size):
    """The slow form: a dense posterior of all that is answered or pending, and rows struck off by hand."""
    z = candidates()
    y, run, rows = outcome_of(z), make("gp_bucb", repeats="never", iterations=40, batch_size=batch_size), []
    while proposals := run.next():
        if proposals[0].phase == "algorithm":
            mean, _ = dense(rows, y, z)
            for index, proposal in enumerate(proposals):
                chosen = rows + [p.row for p in proposals[:index]]
                _, sd = dense(chosen, y, z)
                bound = mean + math.sqrt(beta(N, len(rows) + index, 0.025)) * sd
                bound[chosen] = -np.inf
                assert bound[proposal.row] == pytest.approx(bound.max(), rel=1e-8)
        for proposal in proposals:
            rows.append(proposal.row)
            run.observe(proposal.row, float(y[proposal.row]))
    assert len(set(rows)) == len(rows) == 41


@pytest.mark.parametrize("repeats", ["never", "after_all"])
def test_an_algorithm_that_plays_arms_in_epochs_repeats_as_it_will(repeats):
    for algorithm in ({"name": "ldp_moma"}, {"name": "moma", **HEAVY}):
        with pytest.raises(ValidationError, match="repeats must be auto or algorithm"):
            spec(repeats=repeats, algorithm=algorithm)


# --- batches ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["gp_bucb", "random"])
def test_a_run_asks_in_batches_to_the_last_row_of_its_budget(algorithm):
    run = make(algorithm, batch_size=8, iterations=20, initial_rows=10)
    queries = played(run, outcome_of(candidates()))
    assert [len(query) for query in queries] == [8, 2, 8, 8, 4]
    assert run.ended_because == "budget"


def test_a_batch_at_the_end_of_the_rows_has_those_that_remain():
    for algorithm in ("gp_bucb", "random"):
        run = make(algorithm, batch_size=8, iterations=1000, initial_rows=0, repeats="never")
        queries = played(run, outcome_of(candidates()))
        assert [len(query) for query in queries] == [8] * 7 + [4]
        assert sorted(flat(queries)) == list(range(N))
        assert run.ended_because == "exhausted"


def test_only_algorithms_that_can_ask_several_rows_at_once():
    for name in NAMES:
        algorithm = {"name": name} | (HEAVY if name in ("ata", "tgp", "moma") else {})
        if name not in ("gp_ucb", "ei_deblurred", "ldp_ata", "ldp_tgp", "tgp_tight", "ata", "tgp"):
            assert spec(algorithm=algorithm, batch_size=100).batch_size == 100
            continue
        with pytest.raises(ValidationError, match="choose gp_bucb"):
            spec(algorithm=algorithm, batch_size=2)
    for size in (0, 101):
        with pytest.raises(ValidationError):
            spec("gp_bucb", batch_size=size)


# --- the same again ---------------------------------------------------------------------------------

OPTIONS = [
    {},
    {"repeats": "never"},
    {"repeats": "after_all", "iterations": 80},
    {"batch_size": 5, "algorithm": {"name": "gp_bucb"}},
    {"batch_size": 5, "algorithm": {"name": "random"}, "repeats": "after_all", "iterations": 80},
    {"algorithm": {"name": "ei"}, "repeats": "never"},
    {"batch_size": 5, "algorithm": {"name": "ei", "optimism": 0.5}},
    {"algorithm": {"name": "ei_deblurred"}, "repeats": "never"},
    {"algorithm": {"name": "gp_ucb", "nugget": "out", "scale": 0.2}},
    {"initial_design": "maximin", "initial_rows": 9},
    {"stop": {"improvement": 0.05}},
    {"algorithm": {"name": "ei"}, "stop": {"expected_improvement": 0.02}},
    {"stop": {"target": 2.2, "target_by": "mean"}},
]


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_a_run_that_is_taken_up_again_after_any_query_goes_on_as_it_would_have(options, direction):
    """A chooser that is called twice each time, against choosers that are shown the first answers and then called."""
    y = outcome_of(candidates())
    y = y if direction == "maximize" else -y
    past = [wire.Observation(row=2, y=float(y[2])), wire.Observation(row=2, y=float(y[2]) + 0.1, noise_variance=0.5)]
    chosen = {"algorithm": {"name": "gp_ucb"}, "iterations": 30, "initial_rows": 6, "seed": 4} | options
    if direction == "minimize" and "target" in chosen.get("stop", {}):
        chosen["stop"] = chosen["stop"] | {"target": -2.2}

    def fresh():
        return make(observations=past, direction=direction, **chosen)

    whole, proposals = fresh(), []
    while query := whole.next():
        assert whole.next() == query
        proposals.append(query)
        for proposal in query:
            whole.observe(proposal.row, float(y[proposal.row]))
    for cut in range(0, len(proposals) + 1, 3):
        again = fresh()
        for proposal in [p for query in proposals[:cut] for p in query]:
            again.observe(proposal.row, float(y[proposal.row]))
        assert again.next() == (proposals[cut] if cut < len(proposals) else [])
    assert len(proposals) > 3


# --- the initial design -----------------------------------------------------------------------------


def test_the_initial_rows_are_those_of_the_design():
    z, none = candidates(), np.empty(0, dtype=np.intp)
    spread = maximin(z, 13, 5, none, scales=column_scales(z))
    mixed = np.concatenate([spread[:7], random_rows(N, 6, 5, spread[:7])])
    for kind, wanted in (("random", random_rows(N, 13, 5, none)), ("maximin", spread), ("mixed", mixed)):
        run = make(initial_design=kind, initial_rows=13, seed=5, iterations=1)
        assert flat(played(run, outcome_of(z)))[:13] == wanted.tolist()


def test_past_observations_are_in_no_initial_design_of_a_run_that_does_not_repeat():
    past = [wire.Observation(row=row, y=0.0) for row in range(0, N, 2)]
    for kind in ("random", "maximin", "mixed"):
        run = make(observations=past, initial_design=kind, initial_rows=N, repeats="never", iterations=5)
        assert sorted(flat(played(run, outcome_of(candidates())))) == list(range(1, N, 2))
        assert run.ended_because == "exhausted"


@pytest.mark.parametrize("algorithm", ["random", "thompson"])
def test_the_seed_decides_the_rows_that_an_algorithm_draws(algorithm):
    runs = [make(algorithm, seed=seed, initial_rows=0, iterations=15) for seed in (7, 7, 8)]
    first, again, other = (flat(played(run, outcome_of(candidates()))) for run in runs)
    assert first == again != other


# --- ends -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
@pytest.mark.parametrize("algorithm", ["gp_ucb", "random"])
def test_a_run_ends_when_a_y_has_reached_the_target(direction, algorithm):
    sign = 1 if direction == "maximize" else -1
    y = sign * outcome_of(candidates())
    target = float(sign * np.sort(sign * y)[-4])  # four rows are as good
    run = make(algorithm, direction=direction, iterations=N, stop={"target": target})
    rows = flat(played(run, y))
    assert run.ended_because == "target"
    assert sign * y[rows[-1]] >= sign * target
    assert all(sign * y[row] < sign * target for row in rows[:-1])
    beyond = make(algorithm, direction=direction, iterations=N, stop={"target": float(sign * (sign * y).max() + sign)})
    played(beyond, y)
    assert beyond.ended_because in ("budget", "exhausted")


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
@pytest.mark.parametrize("algorithm", ["gp_ucb", "gp_bucb"])
def test_a_target_by_mean_looks_at_the_posterior_and_not_at_a_lucky_y(direction, algorithm):
    """Noise of 3 on the answers: the first y beyond the target is luck, the first mean beyond it is not."""
    sign, rng = 1 if direction == "maximize" else -1, np.random.default_rng(5)
    truth, z = sign * outcome_of(candidates()), candidates()
    noisy = wire.NoisePassport(measurement_variance=9.0)
    run = make(algorithm, direction=direction, iterations=3000, stop={"target": sign * 2.0, "target_by": "mean"})
    rows, seen = [], []
    kernel = KERNEL.model_copy(update={"noise_variance": 9.0})
    while proposals := run.next():
        assert not seen or (_mean(z, rows, seen, kernel, sign)[rows] < 2.0).all()
        for proposal in proposals:
            rows.append(proposal.row)
            seen.append(float(truth[proposal.row] + 3 * rng.normal()))
            run.observe(rows[-1], seen[-1], noisy)
    assert run.ended_because == "target"
    assert max(sign * y for y in seen[: len(seen) // 2]) > 2.0  # observed would have ended it long before
    assert _mean(z, rows, seen, kernel, sign)[rows].max() >= 2.0


def _mean(z, rows, y, kernel, sign):
    squared = ((z[:, None, :] - z[None, :, :]) ** 2).sum(axis=2)
    k = kernel.signal_variance * np.exp(-squared / (2 * kernel.lengthscale**2))
    gram = k[np.ix_(rows, rows)] + kernel.noise_variance * np.eye(len(rows))
    return sign * kernel.mean + k[:, rows] @ np.linalg.solve(gram, sign * np.asarray(y) - sign * kernel.mean)


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_a_run_ends_when_no_row_can_be_better_by_much(direction):
    """The gap of the dense posterior's bounds at each step; and the best row asked is as good as the rule says."""
    sign, z, enough = 1 if direction == "maximize" else -1, candidates(), 0.6
    y = sign * outcome_of(z)
    run = make(direction=direction, iterations=3000, initial_rows=3, stop={"improvement": enough})
    rows, gaps = [], []
    while proposals := run.next():
        if proposals[0].phase == "algorithm":
            gaps.append(_gap(rows, y, z, len(rows) - 2, sign))
        rows.append(proposals[0].row)
        run.observe(rows[-1], float(y[rows[-1]]))
    assert run.ended_because == "improvement"
    assert min(gaps) > enough >= _gap(rows, y, z, len(rows) - 2, sign)
    assert (sign * y).max() - (sign * y[rows]).max() <= enough
    plain = make(direction=direction, iterations=len(rows) + 20, initial_rows=3)
    assert flat(played(plain, y))[: len(rows)] == rows  # the rule changes no choice


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_a_rule_of_thumb_ends_a_run_when_little_improvement_is_expected(direction):
    """Expected improvement with the dense posterior's moments, against a share of the spread of the outcomes."""
    sign, z, share = 1 if direction == "maximize" else -1, candidates(), 0.1
    y = sign * outcome_of(z)

    def chooser(**stop):
        return RowChooser(
            spec("ei", iterations=60, initial_rows=3, stop=stop),
            study(direction=direction, measurement_source="inbox"),
            z,
        )

    run, rows, ratios = chooser(expected_improvement=share), [], []
    while proposals := run.next():
        if proposals[0].phase == "algorithm":
            ratios.append(_improvement(rows, y, z, sign))
        rows.append(proposals[0].row)
        run.observe(rows[-1], float(y[rows[-1]]))
    assert run.ended_because == "improvement"
    assert 5 < len(rows) < 60
    assert min(ratios) >= share > _improvement(rows, y, z, sign)
    assert flat(played(chooser(), y))[: len(rows)] == rows  # the rule changes no choice


def _improvement(rows, y, z, sign):
    mean, sd = dense(rows, y, z, sign)
    t = (mean + 2 * sd - mean[rows].max()) / sd
    return (sd * (norm.pdf(t) + t * norm.cdf(t))).max() / np.std(y[rows])


def _gap(rows, y, z, step, sign):
    mean, sd = dense(rows, y, z, sign)
    width = math.sqrt(beta(N, step, 0.025))
    return (mean + width * sd).max() - (mean - width * sd)[rows].max()


def test_the_gap_holds_in_repeated_draws_as_often_as_it_says():
    """f from the process itself: when the rule ends a run, the best row left is better by more than it says at most
    5 % of the time. With bounds a fifth as wide it is wrong often: the test would notice."""
    z, rng = candidates(), np.random.default_rng(8)
    squared = ((z[:, None, :] - z[None, :, :]) ** 2).sum(axis=2)
    root = np.linalg.cholesky(KERNEL.signal_variance * np.exp(-squared / (2 * 0.8**2)) + 1e-10 * np.eye(N))
    wrong, narrow, ended = 0, 0, 0
    for seed in range(25):
        f = KERNEL.mean + root @ rng.normal(size=N)
        run = make(iterations=400, initial_rows=1, seed=seed, stop={"improvement": 0.5})
        rows, early = [], None
        while proposals := run.next():
            rows.append(proposals[0].row)
            run.observe(rows[-1], float(f[rows[-1]] + 0.1 * rng.normal()))
            mean, sd = _moments(rows, run, z)
            if early is None and (mean + sd / 2).max() - (mean - sd / 2)[rows].max() <= 0.5:
                early = f.max() - f[rows].max()
        ended += run.ended_because == "improvement"
        wrong += f.max() - f[rows].max() > 0.5
        narrow += early is not None and early > 0.5
    assert ended == 25
    assert wrong <= 2
    assert narrow > 2


def _moments(rows, run, z):
    return run.learner.moments(np.arange(N))


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"algorithm": {"name": "random"}, "stop": {"improvement": 0.1}}, "for gp_ucb and gp_bucb"),
        ({"algorithm": {"name": "thompson"}, "stop": {"improvement": 0.1}}, "for gp_ucb and gp_bucb"),
        (
            {"algorithm": {"name": "gp_ucb"}, "stop": {"expected_improvement": 0.1}},
            "for ei and ei_deblurred, not for gp_ucb",
        ),
        ({"algorithm": {"name": "random"}, "stop": {"target": 1.0, "target_by": "mean"}}, "estimates nothing"),
    ],
    ids=str,
)
def test_rules_that_an_algorithm_cannot_judge_are_refused(chosen, message):
    with pytest.raises(ValidationError, match=message):
        spec(**chosen)


def test_a_target_that_past_observations_reach_ends_a_run_before_it_asks():
    run = make(observations=[wire.Observation(row=1, y=5.0)], stop={"target": 4.0})
    assert (run.next(), run.ended_because) == ([], "target")


# --- past observations ------------------------------------------------------------------------------


def test_past_observations_are_in_the_posterior_before_the_first_choice():
    """The first choice is that of a posterior that was shown them as answers."""
    y = outcome_of(candidates())
    past = [wire.Observation(row=row, y=float(y[row])) for row in (3, 14, 15, 9, 26, 53)]
    (proposal,) = make(observations=past, initial_rows=0).next()
    assert make(initial_rows=0).next() != [proposal]
    shown = build_algorithm(
        spec().algorithm, candidates(), AlgorithmSettings(KERNEL, sign=1, seed=spec().seed, capacity=60)
    )
    for measured in past:
        shown.observe(measured.row, measured.y)
    choice = shown.choose(1)
    assert (choice.row, choice.mean, choice.sd) == (proposal.row, proposal.mean, proposal.sd)
    assert proposal.mean == pytest.approx(dense([o.row for o in past], y, candidates())[0][proposal.row])


def test_the_noise_of_a_past_observation_counts():
    trusted, noisy = (
        make(observations=[wire.Observation(row=3, y=9.0, noise_variance=v)], initial_rows=0).best("asked")
        for v in (None, 18.0)
    )
    assert trusted.mean == pytest.approx(0.5 + 8.5 * 2 / (2 + 0.01))
    assert noisy.mean == pytest.approx(0.5 + 8.5 * 2 / (2 + 18))


def test_a_row_outside_the_release_is_refused_by_its_number():
    with pytest.raises(Invalid, match="past observation 2"):
        make(observations=[wire.Observation(row=0, y=0.0), wire.Observation(row=N, y=0.0)])


# --- recommendations --------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
@pytest.mark.parametrize("over", ["asked", "all"])
def test_the_recommended_row_has_the_best_posterior_mean(direction, over):
    sign, z = 1 if direction == "maximize" else -1, candidates()
    y, run = sign * outcome_of(z), make(direction=direction, iterations=12, initial_rows=3)
    rows = flat(played(run, y))
    mean, sd = dense(rows, y, z, sign)
    wanted = max(set(rows) if over == "asked" else range(N), key=lambda row: mean[row])
    recommendation = recommendation_of(run, over)
    assert (recommendation.row, recommendation.over, recommendation.by, recommendation.outcomes) == (
        wanted,
        over,
        "posterior",
        15,
    )
    assert recommendation.mean == pytest.approx(sign * mean[wanted])
    assert recommendation.sd == pytest.approx(sd[wanted], rel=1e-6)
    low, high = recommendation.interval
    assert (high + low) / 2 == pytest.approx(recommendation.mean)
    assert (high - low) / 2 == pytest.approx(1.959964 * recommendation.sd)
    assert (recommendation.next_interval, recommendation.interval_kind) == (None, "model")


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_an_exact_value_that_was_queried_is_known(direction):
    sign, y = 1 if direction == "maximize" else -1, outcome_of(candidates())
    run = make("ei", direction=direction, kernel=None, iterations=12, initial_rows=5)
    rows = flat(played(run, sign * y))
    recommendation, value = recommendation_of(run, "asked"), sign * y[rows].max()
    assert (recommendation.row, recommendation.mean, recommendation.sd) == (rows[int(y[rows].argmax())], value, 0.0)
    assert recommendation.interval == recommendation.next_interval == [value, value]
    assert recommendation.interval_kind == "known"
    noisy = wire.Observation(row=rows[0], y=sign * 9.0, noise_variance=1.0)  # a past measurement is no exact value
    assert recommendation_of(make("ei", [noisy], direction), "asked").interval_kind == "model"


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
@pytest.mark.parametrize("algorithm", ["gp_ucb", "laplace_adf", "random"])
def test_a_recommendation_lies_in_the_public_range_of_private_answers(algorithm, direction):
    """Answers with noise of scale 20 about numbers within 1 of 40. Control: as exact answers they lead beyond."""
    private = wire.LaplaceAnswers(mechanism="laplace", epsilon="0.1", value_bound=1.0, noise_bound=0.5, centre=40.0)
    y = 40 + np.random.default_rng(3).laplace(scale=20, size=N)

    def recommended(answers):
        run = RowChooser(spec(algorithm, iterations=16), study(N, direction=direction, answers=answers), candidates(N))
        for row in [*range(8), *range(8)]:  # a recommendation by private answers alone needs two of a candidate
            run.observe(row, y[row])
        return recommendation_of(run, "asked")

    clipped = recommended(private)
    assert 39 <= clipped.mean <= 41
    assert clipped.interval is None or 39 <= clipped.interval[0] <= clipped.mean <= clipped.interval[1] <= 41
    if algorithm != "laplace_adf":  # which needs a known law of noise
        free = recommended(wire.NoAnswerNoise(mechanism="none"))
        assert free.row == clipped.row
        assert not all(39 <= end <= 41 for end in [free.mean, *(free.interval or [])])


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_the_next_measurement_lies_in_its_public_range_without_the_noise_of_an_answer(direction):
    """Measurements of sd 1 about 40. Control: without a range they lead beyond it, less far than answers would."""
    rng, z, answer_sd = np.random.default_rng(3), candidates(N), 5.0
    answered = 40 + outcome_of(z) + rng.normal(size=N) + rng.normal(scale=answer_sd, size=N)
    passport = wire.NoisePassport(privacy=wire.PrivacyNoise(variance=answer_sd**2), measurement_variance=0.0)

    def interval(value_bound, noise_bound):
        wide = {"value_bound": value_bound, "noise_bound": noise_bound, "centre": 40.0}
        private = wire.LaplaceAnswers(mechanism="laplace", epsilon="0.1", **wide)
        settings = spec("ei", kernel=None, fit={}, iterations=16, initial_rows=5)
        run = RowChooser(settings, study(N, direction=direction, answers=private), z)
        for row in range(40):
            run.observe(row, answered[row], passport)
        return recommendation_of(run, "asked").next_interval

    clipped, free = interval(0.6, 0.5), interval(1e3, 1e3)
    assert 38.9 <= clipped[0] <= clipped[1] <= 41.1
    assert free[0] < 38.9 or free[1] > 41.1
    assert free[1] - free[0] < 2 * 1.96 * answer_sd


def test_an_algorithm_over_few_arms_recommends_by_its_own_estimate():
    y = outcome_of(candidates())
    run = make("igp_ucb", iterations=30)
    rows = flat(played(run, y))
    recommendation = recommendation_of(run, "asked")
    assert recommendation.by == "estimate"
    mean, _ = run.learner.moments(np.arange(N))
    assert (recommendation.row, recommendation.mean) == (
        max(set(rows), key=lambda row: mean[row]),
        pytest.approx(mean[recommendation.row]),
    )
    assert recommendation_of(run, "all").row == int(mean.argmax())


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_random_recommends_the_best_mean_of_what_was_observed(direction):
    sign = 1 if direction == "maximize" else -1
    past = [wire.Observation(row=7, y=9.0 * sign), wire.Observation(row=7, y=1.0 * sign)]
    run = make("random", observations=[*past, wire.Observation(row=8, y=6.0 * sign)], direction=direction)
    recommendation = recommendation_of(run, "asked")
    assert (recommendation.row, recommendation.mean, recommendation.sd, recommendation.interval, recommendation.by) == (
        8,
        6.0 * sign,
        None,
        None,
        "observed",
    )
    assert recommendation_of(run, "all") is None
    assert recommendation_of(make("random"), "asked") is None


@pytest.mark.parametrize("options", [{"fit": {}, "initial_rows": 0}, {"initial_design": "maximin", "initial_rows": 10}])
def test_a_long_computation_can_be_ended_between_its_parts(options):
    """A run's worker reports progress and can be stopped, also before the first choice."""
    ticks = 0

    def tick():
        nonlocal ticks
        ticks += 1

    past = [wire.Observation(row=row, y=float(row % 7)) for row in range(8)]
    settings = spec("gp_ucb", **options)
    chooser = RowChooser(settings, study(), candidates(), past, tick=tick)
    begun = ticks
    assert begun >= len(past)
    chooser.next()
    assert ticks > begun or "fit" not in options

    def stop():
        if ticks > begun // 2:
            raise KeyboardInterrupt
        tick()

    ticks = 0
    with pytest.raises(KeyboardInterrupt):
        RowChooser(settings, study(), candidates(), past, tick=stop).next()


# --- declines ---------------------------------------------------------------------------------------

MOMA = {"name": "moma", "plays": 4, **HEAVY}
ALL = [*FREE, {"name": "ata", **HEAVY}, {"name": "tgp", **HEAVY}, MOMA]


def _name(algorithm):
    return algorithm if isinstance(algorithm, str) else algorithm["name"]


@pytest.mark.parametrize("algorithm", ALL, ids=_name)
def test_a_declined_row_is_a_trial_that_teaches_nothing_and_is_not_chosen_again(algorithm):
    """Every third trial is declined, also in the initial design."""
    y, run = outcome_of(candidates()), make(algorithm, iterations=30, initial_rows=5)
    declined, answered, count = set(), set(), 0
    while proposals := run.next():
        (proposal,) = proposals
        assert proposal.row not in declined
        count += 1
        if count % 3 == 0:
            before = None if run.learner is None else run.learner.moments(np.arange(N))
            run.decline(proposal.row)
            declined.add(proposal.row)
            if before is not None and not run.few_arms:  # few arms: weights count rewards alone, checked below
                assert np.array_equal(run.learner.moments(np.arange(N)), before)
        else:
            run.observe(proposal.row, float(y[proposal.row]))
            answered.add(proposal.row)
    assert (count, run.ended_because, run.outcomes) == (35, "budget", 35 - 11)
    assert recommendation_of(run, "asked").row in answered


@pytest.mark.parametrize("algorithm", [a for a in ALL if a not in ("random", MOMA)], ids=_name)
def test_estimates_after_declines_are_those_of_the_answers_alone(algorithm):
    y, rows = outcome_of(candidates()), [3, 9, 3, 17, 40, 9]
    with_declines, without = make(algorithm, initial_rows=0), make(algorithm, initial_rows=0)
    for index, row in enumerate(rows):
        with_declines.decline(50 + index)
        for run in (with_declines, without):
            run.observe(row, float(y[row]))
    every = np.arange(N)
    assert np.array_equal(with_declines.learner.moments(every), without.learner.moments(every))
    assert (with_declines.seen, without.seen) == (12, 6)


@pytest.mark.parametrize("repeats", ["never", "after_all", "algorithm"])
@pytest.mark.parametrize("algorithm", ["gp_bucb", "random"])
def test_a_run_whose_rows_are_all_declined_is_exhausted(algorithm, repeats):
    run = make(algorithm, repeats=repeats, iterations=10 * N, initial_rows=4, batch_size=4 if repeats == "never" else 1)
    queried = []
    while proposals := run.next():
        for proposal in proposals:
            queried.append(proposal.row)
            run.decline(proposal.row)
    assert sorted(queried) == list(range(N))
    assert (run.ended_because, recommendation_of(run, "asked")) == ("exhausted", None)


@pytest.mark.parametrize("algorithm", ["gp_ucb", "random"])
def test_rows_that_come_again_after_all_leave_out_the_declined(algorithm):
    run, queried = make(algorithm, repeats="after_all", iterations=3 * N, initial_rows=0), []
    while proposals := run.next():
        row = proposals[0].row
        queried.append(row)
        run.decline(row) if row % 4 == 0 else run.observe(row, 1.0)
    assert sorted(queried[:N]) == list(range(N))
    assert not [row for row in queried[N:] if row % 4 == 0]
    assert len(queried) == 3 * N


def test_a_decline_leaves_the_rest_of_an_epoch_and_what_was_rewarded_in_it():
    """Against the same run without that epoch: equal estimates, and the arm is played no more."""
    y = outcome_of(candidates())
    cut, whole = (make(MOMA, initial_rows=2, iterations=40) for _ in range(2))
    for run in (cut, whole):
        for proposal in [run.next()[0], run.next()[0]]:
            run.observe(proposal.row, float(y[proposal.row]))
        for _ in range(4):
            (proposal,) = run.next()
            run.observe(proposal.row, float(y[proposal.row]))
    (begun,) = cut.next()
    cut.observe(begun.row, 100.0)
    assert cut.next()[0].row == begun.row  # an epoch goes on with its arm
    cut.decline(begun.row)
    every = np.arange(N)
    assert np.array_equal(cut.learner.moments(every), whole.learner.moments(every))
    rows = []
    while proposals := cut.next():
        rows.append(proposals[0].row)
        cut.observe(rows[-1], float(y[rows[-1]]))
    assert begun.row not in rows
    assert [len(set(rows[k : k + 4])) for k in range(0, len(rows) - 4, 4)] == [1] * (len(rows) // 4)
    assert len(rows) == 42 - 2 - 4 - 2


def test_an_epoch_of_which_the_declined_play_is_answered_late_goes_on_or_stays_ended():
    arm, other = 7, 8
    goes_on, ended, fresh = (make(MOMA, initial_rows=0, iterations=40) for _ in range(3))
    for run in (goes_on, ended):
        run.observe(arm, 1.0)
        run.observe(arm, 2.0)  # declined at first
    assert goes_on.next()[0].row == arm
    for run in (ended, fresh):  # another epoch had begun before the answer came
        for _ in range(4):
            run.observe(other, 0.5)
    every = np.arange(N)
    assert np.array_equal(ended.learner.moments(every), fresh.learner.moments(every))


def test_a_fit_counts_answers_and_not_declines():
    y, rows = outcome_of(candidates()), list(range(0, 40, 2))
    fits = []
    for declines in (0, 7):
        run = make(initial_rows=0, fit={"every": 5})
        for row in rows[:declines]:
            run.decline(row + 1)
        for row in rows:
            run.observe(row, float(y[row]))
        run.next()
        fits.append(run.fitted.model_dump(exclude={"log_likelihood"}))
    assert fits[0] == fits[1]
    assert fits[0]["answers"] == 18


def test_a_run_that_is_too_large_says_how_many_queries_fit_and_random_rows_need_no_model():
    diamonds = SimpleNamespace(n=53_940, r=6)
    plan = SimpleNamespace(algorithm=wire.GpUcb(name="gp_ucb"), initial_rows=12)
    problem = memory_problem(plan, 53_000, diamonds, 0, 8 << 30)
    most = int(problem.partition("ask for ")[2].partition(" at most")[0].replace(",", ""))
    assert problem.startswith("53,940 candidates and 53,000 queries need 23 GB; the limit is 8.6 GB")
    assert memory_problem(plan, most, diamonds, 0, 8 << 30) is None
    assert memory_problem(plan, most + 1, diamonds, 0, 8 << 30) is not None
    plan.algorithm = wire.RandomRows(name="random")
    assert memory_problem(plan, 53_000, diamonds, 0, 8 << 30) is None
