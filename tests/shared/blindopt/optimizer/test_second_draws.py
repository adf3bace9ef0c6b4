"""Runs whose queried candidates come again, less blurred: the same choices after a restart, and what is refused."""

import numpy as np
import pytest

from blindopt import Optimizer, wire
from blindopt.errors import ProtocolViolated
from blindopt.optimizer.chooser import RowChooser
from tests.shared.blindopt.optimizer.small_runs import KERNEL, N, candidates, outcome_of, spec, study

NOISE = wire.NoiseLaw(family="planar_laplace", sd=0.6)
REFINE = wire.RefineView(epsilon="3", sd=0.2)
PAST = [wire.Observation(row=7, y=0.3), wire.Observation(row=40, y=-0.2)]


def a_study(**chosen):
    settings = {"noise": NOISE, "mechanism": "planar_laplace", "measurement_source": "column", "refine": REFINE}
    return study(**settings | chosen)


def records():
    """The true places of the candidates, of which the release has less."""
    z, rng = candidates(), np.random.default_rng(5)
    return z + rng.normal(scale=0.4, size=z.shape)


def answer(row, y=None, **changes):
    z = records()[row] + np.random.default_rng(row).normal(scale=0.2, size=2)
    passport = wire.NoisePassport(measurement_variance=0.0, z=z.tolist()).model_copy(update=changes)
    value = outcome_of(records())[row] if y is None else y
    return wire.Answer(row=row, play=1, y=float(value), passport=passport)


def a_chooser(algorithm="ei", past=(), **chosen):
    settings = {"iterations": 12, "initial_rows": 4, "seed": 3, "fit": {"starts": 1}, "kernel": None}
    run_study = chosen.pop("study", None) or a_study()
    return RowChooser(spec(algorithm, **settings | chosen), run_study, candidates(), past)


def play(chooser, trials, changed=lambda answer: answer):
    """Show trials, then go on to the end; return all trials. Every third candidate is declined."""
    for row, shown in trials:
        chooser.show(row, shown)
    trials = list(trials)
    while proposals := chooser.next():
        for proposal in proposals:
            shown = None if proposal.row % 3 == 0 else changed(answer(proposal.row))
            chooser.show(proposal.row, shown)
            trials.append((proposal.row, shown))
    return trials


@pytest.mark.parametrize("algorithm", ["ei", "gp_ucb", {"name": "ei_deblurred", "explored": 0.3}])
@pytest.mark.parametrize("kernel", [None, {"lengthscale": 0.8, "signal_variance": 2.0, "noise_variance": 0.01}])
def test_a_run_goes_on_after_any_trial_as_if_it_had_not_stopped(algorithm, kernel):
    """Two candidates have outcomes from before the run; their second draws come when they are queried again."""
    settings = {"kernel": kernel, "fit": None if kernel else {"starts": 1}, "repeats": "algorithm"}
    whole = play(a_chooser(algorithm, PAST, **settings), [])
    assert len(whole) == 16
    late = [(7, answer(7, 0.3)), *whole[:3]]
    for shown in (late, whole[:9]):
        began = a_chooser(algorithm, PAST, **settings)
        for row, of_row in shown:
            began.show(row, of_row)
            began.next()
        after = a_chooser(algorithm, PAST, **settings)
        for row, of_row in shown:
            after.show(row, of_row)
        assert began.next() == after.next()
        assert began.best("asked") == after.best("asked")
    blurred = play(a_chooser(algorithm, PAST, study=a_study(refine=None), **settings), [])
    assert [row for row, _ in blurred] != [row for row, _ in whole], "second draws change no choice: a test of nothing"


def test_a_study_without_second_draws_chooses_the_same_to_the_last_bit_whatever_comes():
    plain, sent = (a_chooser("ei", study=a_study(refine=None)) for _ in range(2))
    without = play(plain, [], lambda answer: answer.refined(None))
    with_draws = play(sent, [])
    assert [row for row, _ in without] == [row for row, _ in with_draws]
    assert plain.best("asked") == sent.best("asked")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"z": None}, "no second draw of candidate 5"),
        ({"z": [0.1, 0.2, 0.3]}, "of candidate 5 that is none of it"),
        ({"z": [0.1, 9_000.0]}, "of candidate 5 that is none of it"),
        ({"z": [0.1, float("nan")]}, "of candidate 5 that is none of it"),
    ],
)
def test_a_second_draw_that_is_none_is_refused_by_the_number_of_its_candidate(changes, words):
    with pytest.raises(ProtocolViolated, match=words):
        a_chooser().show(5, answer(5, **changes))


def test_a_second_draw_that_differs_from_the_one_before_is_refused_and_the_same_again_is_not():
    chooser, other = a_chooser(repeats="algorithm"), answer(5)
    for _ in range(2):
        chooser.show(5, answer(5))
    with pytest.raises(ProtocolViolated, match="two different second draws of candidate 5"):
        chooser.show(5, other.refined([*other.passport.z[:1], other.passport.z[1] + 1e-12]))
    past = [wire.Observation(row=5, y=0.1, passport=answer(5).passport)]
    with pytest.raises(ProtocolViolated, match="two different second draws of candidate 5"):
        a_chooser(past=past).show(5, other.refined(candidates()[5].tolist()))


def test_a_loop_of_ones_own_tells_the_noise_description_with_the_second_draw():
    optimizer = Optimizer(candidates(), study=a_study(kernel=None), seed=3, iterations=8, algorithm="ei")
    again = Optimizer(candidates(), study=a_study(kernel=None), seed=3, iterations=8, algorithm="ei")
    for _ in range(10):
        for loop in (optimizer, again):
            shown = answer(loop.ask())
            loop.tell(shown.row, shown.y, passport=shown.passport)
    assert optimizer.history == again.history
    first = Optimizer(candidates(), study=a_study(kernel=None), seed=3, observations=optimizer.history)
    assert np.isfinite(first.posterior(range(N)).sd).all()


def test_private_answers_with_second_draws_are_for_expected_improvement():
    answers = wire.LaplaceAnswers(mechanism="laplace", epsilon="1", value_bound=3.0)
    assert a_chooser({"name": "auto"}, study=a_study(answers=answers)).plan.algorithm.name == "ei"
    few = a_chooser({"name": "auto"}, study=a_study(answers=answers, refine=None), fit=None).plan
    assert few.algorithm.name == "laplace_adf"


@pytest.mark.parametrize(
    ("changes", "of_study", "name"),
    [
        ({}, {}, "ei_deblurred"),
        ({}, {"refine": None}, "ei"),
        ({"batch_size": 2}, {}, "ei"),
    ],
)
def test_with_a_kernel_too_both_draws_are_averaged_over(changes, of_study, name):
    plan = a_chooser({"name": "auto"}, study=a_study(**of_study), kernel=KERNEL, fit=None, **changes).plan
    assert plan.algorithm.name == name
    assert ("come again, less blurred" in plan.reasons[0]) == (name == "ei_deblurred")
