"""Warnings of a run under way: each where it is due, none where a run is as it should be, the same in a replay."""

import numpy as np
import pytest

from blindopt import wire
from blindopt.optimizer.chooser import RowChooser
from tests.shared.blindopt.optimizer.small_runs import candidates, outcome_of, played, spec, study

GOOD = wire.Kernel(lengthscale=0.8, signal_variance=1.0, noise_variance=1e-3, mean=0.0)
FIT = {"every": 10, "starts": 2}


def codes(chooser):
    return [warning.code for warning in chooser.run_warnings]


def after(y, queries=30, over=None, **chosen):
    """A chooser after so many queries, and what it warns of."""
    settings = {"initial_rows": 8, "iterations": 60, "repeats": "never"} | chosen
    chooser = RowChooser(spec(**settings), over or study(kernel=None), candidates())
    played(chooser, y, queries)
    chooser.next()
    return chooser


def test_a_run_whose_model_fits_has_no_warning():
    for chosen in ({"fit": FIT}, {"kernel": GOOD}, {"algorithm": "random"}):
        chooser = after(outcome_of(candidates()), **chosen)
        assert chooser.warnings == []
        assert codes(chooser) == []


def test_answers_that_are_impossible_under_the_given_kernel():
    chooser = after(outcome_of(candidates()) + 100.0, kernel=GOOD)
    assert codes(chooser) == ["answers_impossible"]
    assert "Set fit to auto" in chooser.warnings[0]
    assert codes(after(outcome_of(candidates()) + 100.0, kernel=GOOD, fit=FIT)) == []
    assert codes(after(outcome_of(candidates()) + 100.0, queries=4, kernel=GOOD)) == []  # too few answers


def test_one_answer_that_all_others_contradict():
    y = outcome_of(candidates())
    first = RowChooser(spec(initial_rows=8, fit=FIT), study(kernel=None), candidates()).next()[0].row
    y[first] += 40.0
    narrow = {"lengthscale": {"lower": 0.5, "upper": 2.0}, "signal_variance": {"lower": 0.5, "upper": 2.0}}
    chooser = after(y, fit=FIT | {"bounds": narrow | {"noise_variance": {"lower": 1e-3, "upper": 1e-2}}})
    assert "answer_far_off" in codes(chooser)
    assert f"candidate {first} " in chooser.warnings[0]


@pytest.mark.parametrize("kernel", [None, wire.Kernel(lengthscale=5.0, signal_variance=1.0, noise_variance=1.0)])
def test_a_model_that_explains_nothing(kernel):
    """Outcomes that have nothing to do with the candidates; from 30 answers on."""
    y = np.random.default_rng(0).normal(size=60)
    chosen = {"kernel": kernel} if kernel else {"fit": FIT}
    chooser = after(y, 50, **chosen)
    assert codes(chooser) == ["model_explains_nothing"]
    assert ("set fit to auto" if kernel else "ask the owner") in chooser.warnings[0]
    assert codes(after(y, 29, **chosen)) == []


def test_answers_that_hide_every_candidate_are_blamed_and_not_the_release():
    """The same answers: of a study whose answers are private, 50 are worth 2 exact ones; control: at epsilon 8, 49."""
    y, said = np.random.default_rng(0).normal(size=60), []
    for epsilon in ("1", "8"):
        private = wire.concrete_answers(wire.AutoAnswers(epsilon=epsilon, value_bound=5.0))
        chosen = {"fit": FIT, "algorithm": "ei"}
        said += after(y, 50, over=study(kernel=None, answers=private), **chosen).warnings[:1]
    assert "the reason is the noise of the answers: ask the owner for answers with a larger epsilon" in said[0]
    assert "ask the owner for a release with less noise" in said[1]


def test_half_of_the_last_trials_repeat():
    """A mean far below all answers: gp_ucb stays with candidates that it knows."""
    y = outcome_of(candidates()) + 100.0
    chooser = after(y, 30, kernel=GOOD, repeats="algorithm")
    assert codes(chooser) == ["answers_impossible", "queries_repeat"]
    assert "Set repeats to never" in chooser.warnings[1]
    noisy = after(y, 30, over=study(kernel=None, measurement_source="inbox"), kernel=GOOD, repeats="algorithm")
    assert "set repeats to after_all" in noisy.warnings[1]
    assert codes(after(y, 12, kernel=GOOD, repeats="algorithm")) == ["answers_impossible"]
    everything = after(y, 67, kernel=GOOD, repeats="after_all")  # no other candidate remains
    assert "queries_repeat" not in codes(everything)


def test_the_same_answers_bring_the_same_warnings_however_often_they_are_read():
    y = outcome_of(candidates()) + 100.0
    chooser = after(y, 30, kernel=GOOD, repeats="algorithm")
    repeating = spec(initial_rows=8, iterations=60, kernel=GOOD, repeats="algorithm")
    again, other = (RowChooser(repeating, study(kernel=None), candidates()) for _ in range(2))
    for row in [row for rows in played(other, y, 30) for row in rows]:
        again.observe(row, float(y[row]), wire.NoisePassport(measurement_variance=0.0))
    assert again.warnings == chooser.warnings == chooser.warnings
    assert len(again.warnings) == 2
