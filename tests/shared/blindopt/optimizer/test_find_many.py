"""As many good candidates as possible: the threshold, choices, what was found, and what ends such a search."""

import numpy as np
import pytest
from scipy import optimize, stats

import blindopt as bo
from blindopt import wire
from blindopt.errors import Invalid, LoopEnded
from blindopt.optimizer.algorithms.gp.rules import sample_of, threshold_of
from blindopt.optimizer.chooser import RowChooser, good_candidates_of
from tests.shared.blindopt.optimizer.small_runs import candidates, outcome_of, spec, study

Z = candidates(400)
Y = outcome_of(Z)
LEVEL = float(np.quantile(Y, 0.95))
STATED = {"kind": "many", "threshold": LEVEL}
SHARE = {"kind": "many", "share": 0.05}


def searched(queries=30, y=Y, **settings):
    optimizer = bo.Optimizer(Z, seed=3, iterations=queries - 5, **settings)
    for _ in range(queries):
        row = optimizer.ask()
        optimizer.tell(row, y[row])
    return optimizer


def rows_of(optimizer):
    return [outcome.row for outcome in optimizer.history]


def test_the_threshold_is_the_quantile_of_the_mixture():
    """Against a root of the distribution function of the mixture, as scipy finds it; without spread, a quantile."""
    rng = np.random.default_rng(0)
    mean, sd = rng.normal(size=500), rng.uniform(0.1, 2.0, size=500)
    for share in (0.5, 0.1, 0.01, 0.001):
        root = optimize.brentq(
            lambda tau, share=share: stats.norm.sf(tau, mean, sd).mean() - share, -20, 20, xtol=1e-14
        )
        assert threshold_of(mean, sd, share) == pytest.approx(root, abs=1e-9)
    exact = threshold_of(mean, np.zeros(500), 0.1)
    assert (mean >= exact).sum() == 50
    assert (mean > exact + 1e-9).sum() == 49 or (mean >= exact + 1e-9).sum() == 50


def test_the_sample_is_all_of_few_candidates_and_seeded_of_many():
    assert (sample_of(1_999, 7) == np.arange(1_999)).all()
    sample = sample_of(100_000, 7)
    assert (len(sample), len(np.unique(sample)), (np.diff(sample) > 0).all()) == (2_000, 2_000, True)
    assert (sample == sample_of(100_000, 7)).all()
    assert (sample != sample_of(100_000, 8)).any()


@pytest.mark.parametrize("goal", [STATED, SHARE], ids=["stated", "estimated"])
def test_a_search_for_many_finds_more_than_one_for_the_best(goal):
    many, best = searched(goal=goal), searched()
    good = {int(row) for row in np.flatnonzero(LEVEL <= Y)}
    assert many.plan.algorithm.name == "reach"
    assert len(set(rows_of(many))) == 30
    assert len(good & set(rows_of(many))) > len(good & set(rows_of(best))) + 1


@pytest.mark.parametrize("goal", [STATED, SHARE], ids=["stated", "estimated"])
def test_the_smallest_outcomes_are_found_as_the_largest_of_their_negatives(goal):
    mirrored = goal if "share" in goal else {"kind": "many", "threshold": -LEVEL}
    up, down = searched(goal=goal), searched(y=-Y, goal=mirrored, maximize=False)
    assert rows_of(up) == rows_of(down)
    ups, downs = up.recommendation().good, down.recommendation().good
    assert [c.row for c in ups.candidates] == [c.row for c in downs.candidates]
    assert ups.threshold == pytest.approx(-downs.threshold, rel=1e-12)


def test_a_stated_threshold_does_not_depend_on_the_unit():
    """y -> a y + b: the same choices. The control states another level."""
    a, b = 1e6, -3e6
    in_units = searched(y=a * Y + b, goal={"kind": "many", "threshold": a * LEVEL + b})
    assert rows_of(in_units) == rows_of(searched(goal=STATED))
    assert rows_of(searched(goal={"kind": "many", "threshold": LEVEL - 1.0})) != rows_of(in_units)


def of_exact_column(**chosen):
    """A chooser of a study whose answers are exact values of a column."""
    view = study(len(Z), goal=wire.FindMany(threshold=LEVEL), **chosen)
    return RowChooser(spec("auto", iterations=25, initial_rows=5, repeats="auto"), view, Z)


def test_of_exact_answers_what_was_found_is_a_count():
    chooser = of_exact_column()
    rows = []
    while proposals := chooser.next():
        rows += [proposal.row for proposal in proposals]
        for proposal in proposals:
            chooser.observe(proposal.row, float(Y[proposal.row]), wire.NoisePassport(measurement_variance=0.0))
    good = good_candidates_of(chooser)
    good_rows = sorted(row for row in rows if Y[row] >= LEVEL)
    listed = [c for c in good.candidates if c.queried]
    assert (good.found, sorted(c.row for c in listed)) == (len(good_rows), good_rows)
    assert {c.probability for c in listed} == {1.0}
    assert all(c.mean == Y[c.row] for c in listed)
    others = [c for c in good.candidates if not c.queried]
    assert all(0.5 <= c.probability <= 1 for c in others)
    assert not {c.row for c in others} & set(rows)
    probabilities = [c.probability for c in others]
    assert probabilities == sorted(probabilities, reverse=True)


def test_of_private_answers_what_was_found_is_an_expectation():
    """The sum of probabilities, recomputed from the posterior's moments; no candidate is queried twice."""
    answers = wire.LaplaceAnswers(mechanism="laplace", epsilon="1", centre=0.0, value_bound=4.0)
    view = study(len(Z), goal=wire.FindMany(threshold=LEVEL), answers=answers, measurement_source="inbox")
    chooser = RowChooser(spec("auto", iterations=15, initial_rows=5, repeats="auto"), view, Z)
    assert (chooser.plan.algorithm.name, chooser.plan.repeats) == ("reach", "never")
    rng, rows = np.random.default_rng(0), []
    passport = wire.NoisePassport(
        measurement_variance=0.0, privacy=wire.PrivacyNoise(family="laplace", scale=8.0, variance=128.0)
    )
    while proposals := chooser.next():
        for proposal in proposals:
            rows.append(proposal.row)
            chooser.observe(proposal.row, float(Y[proposal.row] + rng.laplace(0, 8.0)), passport)
    assert len(set(rows)) == len(rows) == 20
    mean, sd = chooser.learner.moments(np.array(sorted(rows)))
    expected = stats.norm.sf(LEVEL, mean, sd).sum()
    assert chooser.count_good() == pytest.approx(expected, abs=1e-5)
    assert chooser.count_good() != int(chooser.count_good())


def until_the_end(optimizer):
    """Why the loop ended, after exact outcomes."""
    while optimizer.propose() is not None:
        row = optimizer.ask()
        optimizer.tell(row, Y[row], variance=0.0)
    with pytest.raises(LoopEnded) as ended:
        optimizer.ask()
    return str(ended.value.because)


def test_a_search_ends_when_enough_are_found():
    optimizer = bo.Optimizer(Z, seed=3, iterations=200, goal=STATED, stop={"found": 8})
    assert until_the_end(optimizer) == "found"
    assert sum(Y[row] >= LEVEL for row in rows_of(optimizer)) == 8


def test_a_search_ends_when_the_next_one_is_hardly_good():
    optimizer = bo.Optimizer(Z, seed=3, iterations=390, goal=STATED, stop={"least_probability": 0.05})
    assert until_the_end(optimizer) == "least_probability"
    good = set(np.flatnonzero(LEVEL <= Y).tolist())
    assert len(good - set(rows_of(optimizer))) <= 1


@pytest.mark.parametrize(("settings", "words"), [
    ({"goal": {"kind": "many"}}, "say what is good"),
    ({"goal": {"kind": "many", "threshold": 1, "share": 0.1}}, "one of them"),
    ({"goal": STATED, "stop": {"target": 3.0}}, "stop.target is for the best candidate"),
    ({"stop": {"found": 3}}, "stop.found is for the goal many"),
    ({"algorithm": "reach"}, "say which are good by a goal"),
    ({"goal": {"kind": "many", "share": 0.9}}, "share"),
], ids=str)  # fmt: skip
def test_settings_that_contradict_the_goal_are_refused_in_words(settings, words):
    with pytest.raises(Invalid, match=words):
        bo.Optimizer(Z, seed=1, **settings)


def test_a_batch_is_chosen_as_if_its_members_were_answered():
    optimizer = bo.Optimizer(Z, seed=3, iterations=24, goal=STATED, batch_size=8)
    while len(optimizer.history) < 29:
        rows = optimizer.ask_batch()
        for row in rows:
            optimizer.tell(row, Y[row], variance=0.0)
    assert len(set(rows_of(optimizer))) == 29
    assert sum(Y[row] >= LEVEL for row in rows_of(optimizer)) >= 12


def test_failed_experiments_keep_a_search_away():
    """Half of the good candidates lie where experiments fail: most of the later queries are of the others."""
    bad = Z[:, 1] > 2.0
    is_good = LEVEL - 0.5 <= Y
    assert min((is_good & bad).sum(), (is_good & ~bad).sum()) > 12
    optimizer = bo.Optimizer(Z, seed=3, iterations=35, goal={"kind": "many", "threshold": LEVEL - 0.5})
    for _ in range(40):
        row = optimizer.ask()
        if bad[row]:
            optimizer.decline(row)
        else:
            optimizer.tell(row, Y[row])
    rows = np.array(rows_of(optimizer))
    assert bad[rows].mean() < 0.25
    assert (is_good & ~bad)[rows].sum() > 12
