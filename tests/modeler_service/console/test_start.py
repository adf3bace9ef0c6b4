"""Which algorithm the console takes for a study: those that ask rows again only where answers do not add up."""

import pytest

from blindopt import wire
from modeler_service.console.start import recommended_algorithm
from tests.modeler_service.choosing.small_runs import study

KERNEL = wire.Kernel(lengthscale=1.0, signal_variance=1.0, noise_variance=0.1)
ANSWERS = {
    "none": wire.NoAnswerNoise(mechanism="none"),
    "laplace": wire.LaplaceAnswers(mechanism="laplace", epsilon="1", value_bound=1.0),
    "one_bit": wire.OneBitAnswers(mechanism="one_bit", epsilon="1", value_bound=1.0),
    "piecewise": wire.PiecewiseAnswers(mechanism="piecewise", epsilon="1", value_bound=1.0),
}


@pytest.mark.parametrize(
    ("answers", "unit", "n", "kernel", "batch", "name"),
    [
        ("none", "row", 100, KERNEL, 1, "gp_ucb"),
        ("none", "row", 100, KERNEL, 4, "gp_bucb"),
        ("laplace", "answer", 100, KERNEL, 1, "laplace_adf"),
        ("one_bit", "answer", 100, KERNEL, 1, "bounded_igp"),
        ("piecewise", "answer", 100, KERNEL, 1, "bounded_igp"),
        ("laplace", "row", 100, KERNEL, 1, "gp_ucb"),
        ("one_bit", "row", 100, KERNEL, 1, "gp_ucb"),
        ("laplace", "answer", 5_000, KERNEL, 1, "gp_ucb"),
        ("laplace", "answer", 100, None, 1, "gp_ucb"),
    ],
)
def test_what_is_recommended_follows_from_the_study(answers, unit, n, kernel, batch, name):
    view = study(answers=ANSWERS[answers], privacy_unit=unit, n=n, kernel=kernel)
    assert recommended_algorithm(view, batch) == name
