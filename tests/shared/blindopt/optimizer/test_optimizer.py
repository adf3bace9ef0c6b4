"""The optimizer without a server: its posterior, its directions, its ends, its refusals."""

import numpy as np
import pytest

import blindopt as bo
from blindopt import wire
from blindopt.errors import Invalid, LoopEnded, NumericalFailure
from blindopt.optimizer.chooser import RowChooser
from blindopt.optimizer.defaults import PublicCandidates
from tests.shared.blindopt.optimizer.small_runs import KERNEL, candidates, outcome_of, played, spec, study

Z = candidates()
Y = outcome_of(Z)


def looped(optimizer, y=Y):
    """The rows of the whole loop."""
    while (proposal := optimizer.propose()) is not None:
        optimizer.tell(proposal.row, y[proposal.row])
    return [outcome.row for outcome in optimizer.history]


@pytest.mark.parametrize("algorithm", ["auto", "ei", "gp_ucb", "random"])
def test_with_a_study_its_choices_are_those_of_a_run(algorithm):
    chosen = {"fit": "auto", "repeats": "auto", "initial_rows": None, "initial_design": None}
    run = RowChooser(spec(algorithm, seed=3, iterations=12, **chosen), study(), Z)
    expected = []
    while proposals := run.next():
        expected.append(proposals[0])
        run.observe(proposals[0].row, Y[proposals[0].row])
    optimizer = bo.Optimizer(Z, study=study(), algorithm=algorithm, seed=3, iterations=12)
    got = []
    while (proposal := optimizer.propose()) is not None:
        got.append(proposal)
        assert optimizer.ask() == proposal.row
        optimizer.tell(proposal.row, Y[proposal.row])
    assert got == expected
    assert len(got) > 12


@pytest.mark.parametrize("algorithm", ["auto", "gp_bucb", "random"])
def test_its_batches_are_those_of_a_run(algorithm):
    chosen = {"fit": "auto", "repeats": "auto", "initial_rows": None, "initial_design": None, "batch_size": 4}
    run = RowChooser(spec(algorithm, seed=3, iterations=14, **chosen), study(), Z)
    optimizer = bo.Optimizer(Z, study=study(), algorithm=algorithm, seed=3, iterations=14, batch_size=4)
    sizes = []
    while proposals := run.next():
        rows = [proposal.row for proposal in proposals]
        sizes.append(len(rows))
        for position, row in enumerate(rows):
            assert optimizer.ask_batch() == rows[position:]
            assert optimizer.ask() == row
            if position == 2:
                run.decline(row)
                optimizer.decline(row)
            else:
                run.observe(row, Y[row])
                optimizer.tell(row, Y[row])
    with pytest.raises(LoopEnded, match="budget"):
        optimizer.ask_batch()
    assert set(sizes) > {4}
    assert sum(sizes) == len(optimizer.history)


def test_an_outcome_of_the_callers_own_ends_a_batch():
    optimizer = bo.Optimizer(Z, kernel=KERNEL, algorithm="gp_bucb", seed=1, batch_size=3, initial_rows=0)
    first = optimizer.ask_batch()
    own = next(i for i in range(len(Z)) if i not in first)
    optimizer.tell(own, Y[own])
    again = optimizer.ask_batch()
    assert (len(again), own in again) == (3, False)
    fresh = bo.Optimizer(Z, kernel=KERNEL, algorithm="gp_bucb", seed=1, batch_size=3, initial_rows=0)
    fresh.tell(own, Y[own])
    assert fresh.ask_batch() == again


def test_minimizing_y_is_maximizing_its_negative():
    minimized = looped(bo.Optimizer(Z, kernel=KERNEL, seed=1, iterations=8, maximize=False))
    maximized = looped(
        bo.Optimizer(Z, kernel=KERNEL.model_copy(update={"mean": -KERNEL.mean}), seed=1, iterations=8), -Y
    )
    assert minimized == maximized


def test_the_posterior_is_that_of_the_dense_formula():
    """Rasmussen & Williams (2006), eqs. 2.25 and 2.26, solved without any of the product's code."""
    optimizer = bo.Optimizer(Z, kernel=KERNEL.model_dump(), algorithm="gp_ucb", fit=None, seed=0)
    rows, variances = [3, 17, 40], [0.5, 0.0, 2.0]
    for i, variance in zip(rows, variances, strict=True):
        optimizer.tell(i, Y[i], variance=variance)
    squared = ((Z[:, None, :] - Z[None, :, :]) ** 2).sum(axis=2)
    k = KERNEL.signal_variance * np.exp(-squared / (2 * KERNEL.lengthscale**2))
    noise = np.diag(np.maximum(variances, KERNEL.noise_variance))
    weights = np.linalg.solve(k[np.ix_(rows, rows)] + noise, np.eye(3))
    mean = KERNEL.mean + k[:, rows] @ weights @ (Y[rows] - KERNEL.mean)
    variance = np.diag(k) - np.einsum("ij,jk,ik->i", k[:, rows], weights, k[:, rows])
    got = optimizer.posterior()
    np.testing.assert_allclose(got.mean, mean, atol=1e-9)
    np.testing.assert_allclose(got.sd, np.sqrt(variance), atol=1e-7)
    np.testing.assert_array_equal(optimizer.posterior([5, 2]).mean, got.mean[[5, 2]])
    best = optimizer.recommendation("all")
    assert best.row == int(mean.argmax())


def test_a_loop_ends_and_says_why():
    optimizer = bo.Optimizer(Z[:4], algorithm="random", repeats="never", iterations=10, seed=0)
    assert sorted(looped(optimizer)) == [0, 1, 2, 3]
    with pytest.raises(LoopEnded, match="exhausted"):
        optimizer.ask()
    assert all(Y[outcome.row] == outcome.y for outcome in optimizer.history)


def test_a_declined_candidate_is_not_chosen_again():
    optimizer = bo.Optimizer(Z[:3], algorithm="random", seed=0, iterations=6, initial_rows=0)
    optimizer.decline(first := optimizer.ask())
    optimizer.tell(optimizer.ask(), 1.0)
    optimizer.tell(optimizer.ask(), 2.0)
    assert first not in [outcome.row for outcome in optimizer.history if outcome.y is not None]
    assert optimizer.recommendation().mean == 2.0


def test_a_drawn_seed_makes_the_same_choices_again():
    first = bo.Optimizer(Z, kernel=KERNEL, iterations=3)
    assert looped(first) == looped(bo.Optimizer(Z, kernel=KERNEL, iterations=3, seed=first.seed))


# --- past outcomes ----------------------------------------------------------------------------------


def history(length):
    """Reports of a search, some of them declined, some with a variance."""
    optimizer = bo.Optimizer(Z, seed=5, iterations=9)
    for _ in range(length):
        i = optimizer.ask()
        if i % 5:
            optimizer.tell(i, Y[i], variance=0.01 if i % 2 else None)
        else:
            optimizer.decline(i)
    return optimizer.history


def asked_rows(optimizer):
    rows = []
    while (proposal := optimizer.propose()) is not None:
        rows.append(proposal.row)
        optimizer.tell(proposal.row, Y[proposal.row])
    return rows


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("cut", [0, 2, 5, 11])
@pytest.mark.parametrize("algorithm", ["auto", "gp_ucb", "random"])
def test_past_outcomes_are_the_same_in_each_form_and_use_up_no_queries(algorithm, cut):
    """The last oracle is the chooser of a run that begins with them, as after an import over REST."""
    settings = {"algorithm": algorithm, "seed": 7, "iterations": 6}
    past = history(11)[:cut]
    measured = [outcome for outcome in past if outcome.y is not None]
    by_tell = bo.Optimizer(Z, **settings)
    for row, y, variance, _ in past:
        if y is None:
            by_tell.decline(row)
        else:
            by_tell.tell(row, y, variance=variance)
        by_tell.recommendation()  # a look on the way changes nothing
    fields = [{name: value for name, value in outcome._asdict().items() if value is not None} for outcome in past]
    forms = [past, [outcome[:3] for outcome in past], fields]
    if past:
        frame = pytest.importorskip("pandas").DataFrame([outcome[:3] for outcome in past])
        forms.append(frame.set_axis(["row", "y", "variance"], axis=1))
    chosen = [asked_rows(bo.Optimizer(Z, observations=form, **settings)) for form in forms]
    assert chosen == len(forms) * [asked_rows(by_tell)]
    assert len(chosen[0]) == max(0, 5 - len(measured)) + 6
    assert not {row for row, y, *_ in past if y is None} & set(chosen[0])
    if len(measured) == len(past):
        observations = [wire.Observation(row=row, y=y, noise_variance=variance) for row, y, variance, _ in past]
        chosen_by_run = {"fit": "auto", "repeats": "auto", "initial_rows": None, "initial_design": None}
        view = PublicCandidates(n=len(Z), r=2, direction="maximize", kernel=None, noise=wire.NoiseLaw(family="none"))
        run = RowChooser(spec(**settings, **chosen_by_run), view, Z, observations)
        assert [row for rows in played(run, Y) for row in rows] == chosen[0]


@pytest.mark.parametrize("algorithm", ["random", "ei"])
def test_outcomes_of_the_callers_own_use_up_no_queries_at_any_time(algorithm):
    optimizer = bo.Optimizer(Z, algorithm=algorithm, seed=1, iterations=4, initial_rows=5, kernel=KERNEL)
    rng = np.random.default_rng(0)
    queried = set()
    for _ in range(9):
        queried.add(i := optimizer.ask())
        own = [j for j in rng.permutation(len(Z)).tolist() if j not in {row for row, *_ in optimizer.history}]
        optimizer.tell(next(j for j in own if j != i), 0.1)
        optimizer.decline(next(j for j in reversed(own) if j != i))
        optimizer.tell(i, Y[i])  # another one was told in between: it was asked for all the same
    with pytest.raises(LoopEnded, match=r"after 9 queries \(budget\)") as ended:
        optimizer.ask()
    assert "the same with `observations=optimizer.history`" in ended.value.what_to_do
    assert (len(queried), len(optimizer.history)) == (9, 27)
    again = bo.Optimizer(Z, algorithm=algorithm, seed=1, iterations=4, kernel=KERNEL, observations=optimizer.history)
    assert len(asked_rows(again)) == 4


def test_more_outcomes_than_there_was_room_for_are_taken_also_in_a_batch():
    settings = {"kernel": KERNEL, "algorithm": "gp_bucb", "fit": None, "seed": 1}
    optimizer = bo.Optimizer(Z, **settings, iterations=6, batch_size=3, initial_rows=0)
    optimizer.ask()
    for i in range(40):
        optimizer.tell(i, Y[i], variance=0.1)
    assert len(optimizer.ask_batch()) == 3
    roomy = bo.Optimizer(Z, **settings, iterations=60)
    for i in range(40):
        roomy.tell(i, Y[i], variance=0.1)
    np.testing.assert_allclose(optimizer.posterior().mean, roomy.posterior().mean, rtol=1e-9)


def test_ten_thousand_outcomes_may_come_first():
    z = np.random.default_rng(2).uniform(size=(12_000, 3))
    optimizer = bo.Optimizer(z, algorithm="random", seed=1, iterations=3, initial_rows=0)
    for i in range(10_000):
        optimizer.tell(i, float(z[i, 0]))
    chosen = [optimizer.ask()]
    while (proposal := optimizer.propose()) is not None:
        chosen.append(proposal.row)
        optimizer.tell(proposal.row, 0.0)
    assert len(set(chosen)) == 3
    assert min(chosen) >= 10_000


@pytest.mark.parametrize(
    ("outcome", "what"),
    [
        ((60, 1.0), "observation 2: a candidate is a whole number from 0 to 59"),
        ((1, np.nan), "observation 2: y must be a finite number"),
        ((1, 1.0, -1.0), "observation 2: variance must be "),
        ({"row": 1, "y": 1.0, "varianse": 1.0}, 'observation 2: it has no field varianse: did you mean "variance"?'),
        ({"y": 1.0}, "observation 2: it has no row"),
        ((1,), r"observation 2 must be \(row, y\), \(row, y, variance\) or a dict"),
        (3.0, r"observation 2 must be \(row, y\)"),
    ],
)
def test_a_past_outcome_that_cannot_be_is_refused_in_words(outcome, what):
    with pytest.raises(Invalid, match=what):
        bo.Optimizer(Z, observations=[(0, 1.0), outcome])


@pytest.mark.parametrize("arguments", [{"bounds": [(0, 1)]}, {"candidates": Z, "bounds": [(0, 1)]}, {}])
def test_ranges_are_no_candidates_and_the_error_says_how_to_get_near(arguments):
    with pytest.raises(Invalid, match=r"grid or a Sobol sequence .*What it does not search"):
        bo.Optimizer(**arguments)


def test_an_experiment_without_an_outcome_is_declined():
    with pytest.raises(Invalid, match=r"decline\(i\)"):
        bo.Optimizer(Z).tell(1, None)


@pytest.mark.parametrize(
    ("settings", "error", "what"),
    [
        ({"algorithm": "gp_bogus"}, Invalid, "algorithm"),
        ({"iterations": 0}, Invalid, "iterations"),
        ({"batch_size": 3, "algorithm": "gp_ucb"}, Invalid, "batch_size"),
        ({"bogus": 3}, Invalid, "bogus"),
        ({"algorithm": "thompson", "fit": None}, Invalid, "kernel"),
        ({"candidates": [1.0, 2.0]}, Invalid, "matrix"),
        ({"candidates": [["a", 1.0], ["b"]]}, Invalid, "matrix"),
        ({"candidates": [[np.nan]]}, NumericalFailure, "finite"),
        ({"study": study(7)}, Invalid, "60 x 2"),
    ],
)
def test_what_no_algorithm_has_is_refused_in_words(settings, error, what):
    with pytest.raises(error, match=what):
        bo.Optimizer(settings.pop("candidates", Z), **settings)


def test_what_cannot_be_an_outcome_is_refused():
    optimizer = bo.Optimizer(Z, noise=wire.NoiseLaw(family="gaussian", sd=0.1))
    for candidate in (60, -1, 3.5, "3"):
        for act in (lambda i: optimizer.tell(i, 1.0), optimizer.decline, lambda i: optimizer.posterior([0, i])):
            with pytest.raises(Invalid, match="a whole number from 0 to 59"):
                act(candidate)
    for y in (np.nan, np.inf, "2.5", None, 10**400, np.zeros(2), 1j):
        with pytest.raises(Invalid, match="y must be a finite number"):
            optimizer.tell(1, y)
    for variance in (-1.0, np.nan):
        with pytest.raises(Invalid, match=r"^variance must be "):
            optimizer.tell(1, 1.0, variance=variance)
    assert optimizer.history == []
    with pytest.raises(Invalid, match="not both"):
        optimizer.tell(1, 1.0, variance=1.0, passport=wire.NoisePassport(measurement_variance=1.0))
    assert "60 x 2" in repr(optimizer)
    assert "Outcomes" in optimizer._repr_html_()


@pytest.mark.parametrize("count", [2, 5, 9, 19, 27])
def test_a_search_that_goes_on_from_its_history_asks_what_it_would_have_asked(count, monkeypatch):
    """Between two fits, too. The control: fits that are counted from all past outcomes make other choices."""
    rng = np.random.default_rng(7)
    z = rng.uniform(size=(150, 3))
    y = -((z - 0.4) ** 2).sum(axis=1) + 0.05 * rng.normal(size=150)

    def search(observations=()):
        optimizer, rows = bo.Optimizer(z, seed=2, iterations=30, observations=observations), []
        while len(rows) < 32 - len(observations):
            rows.append(optimizer.ask())
            optimizer.tell(rows[-1], y[rows[-1]])
        return rows, optimizer.history

    rows, history = search()
    assert search(history[:count])[0] == rows[count:]
    monkeypatch.setattr(RowChooser, "_first_outcomes", lambda chooser, past: past + len(chooser._initial))
    assert (search(history[:count])[0] == rows[count:]) == (count in (2, 5, 27))
