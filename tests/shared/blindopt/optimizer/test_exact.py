"""Exact values of records: when answers are, and that the model then takes a record's own part for a nugget."""

import numpy as np
import pytest

from blindopt import wire
from blindopt.optimizer.algorithms.gp.rules import GpUcb
from blindopt.optimizer.algorithms.settings import AlgorithmSettings
from blindopt.optimizer.chooser import RowChooser, recommendation_of
from blindopt.optimizer.defaults import PublicCandidates, exact_answers, own_residual
from tests.shared.blindopt.optimizer.small_runs import candidates, outcome_of, played, spec, study

LAPLACE = wire.LaplaceAnswers(mechanism="laplace", epsilon="1", value_bound=9.0)
KERNEL = wire.Kernel(lengthscale=0.8, signal_variance=2.0, noise_variance=0.3, mean=0.5)
WITHOUT_A_STUDY = PublicCandidates(n=8, r=1, direction="maximize", kernel=None, noise=wire.NoiseLaw(family="none"))
GROUPS = study(
    mechanism="groups",
    status="sound",
    epsilon="0.5",
    answers=LAPLACE.model_copy(update={"epsilon": "0.5", "value_bound": 10.0}),
    budget=wire.Budget(epsilon_per_row="1"),
    kernel=KERNEL,
)
"""A study whose candidates are groups of records, one answer each."""


def test_answers_are_exact_where_a_column_is_released_as_it_is():
    assert exact_answers(study())
    assert not exact_answers(study(answers=LAPLACE))
    assert not exact_answers(study(measurement_noise_variance=0.1))
    assert not exact_answers(study(measurement_source="inbox"))
    assert not exact_answers(WITHOUT_A_STUDY)
    assert own_residual(study())
    assert own_residual(GROUPS)
    assert not exact_answers(GROUPS)
    assert not own_residual(study(answers=LAPLACE))


def test_a_record_has_no_variance_once_it_was_asked_and_others_keep_the_nugget():
    """Against the formulas of the posterior, with the residual on the diagonal of both covariances."""
    z, y = candidates(), outcome_of(candidates())
    algorithm = GpUcb(z, AlgorithmSettings(KERNEL, 1, seed=0, capacity=9, exact=True), 0.05)
    rows = [3, 8, 20, 41]
    for row in rows:
        algorithm.observe(row, float(y[row]), wire.NoisePassport(measurement_variance=0.0))
    squared = ((z[:, None] - z) ** 2).sum(axis=2)
    prior = 2.0 * np.exp(-squared / (2 * 0.8**2)) + 0.3 * np.eye(len(z))
    weights = np.linalg.solve(prior[np.ix_(rows, rows)] + 2.3e-8 * np.eye(4), prior[rows])
    mean, sd = algorithm.moments(np.arange(len(z)))
    variance = sd**2
    np.testing.assert_allclose(mean, 0.5 + weights.T @ (y[rows] - 0.5), atol=1e-6)
    np.testing.assert_allclose(variance, np.diag(prior - prior[:, rows] @ weights), atol=1e-6)
    assert variance[rows].max() < 1e-6
    assert np.delete(variance, rows).min() > 0.3


@pytest.mark.parametrize("n", [3, 5])
def test_no_record_comes_twice_in_a_query_even_when_all_were_asked(n):
    chooser = RowChooser(
        spec("gp_bucb", iterations=24, batch_size=4, repeats="after_all", initial_rows=1), study(n), candidates(n)
    )
    queries = played(chooser, outcome_of(candidates(n)))
    assert sum(map(len, queries)) == 25
    assert all(len(set(rows)) == len(rows) for rows in queries)


def test_only_a_run_that_asks_for_it_gets_a_record_twice_in_a_query():
    """Answers are draws, so a repeat teaches something: in another query, unless repeats is algorithm by request."""
    draws = study(5, answers=LAPLACE, privacy_unit="answer", measurement_source="inbox")
    twice = {}
    for repeats in ("auto", "algorithm"):
        chooser = RowChooser(
            spec("gp_bucb", iterations=40, batch_size=4, repeats=repeats, fit=None), draws, candidates(5)
        )
        assert chooser.plan.repeats == "algorithm"
        queries = played(chooser, 10 * outcome_of(candidates(5)))
        twice[repeats] = any(len(set(rows)) < len(rows) for rows in queries)
        assert len({row for rows in queries for row in rows}) < sum(map(len, queries))
    assert twice == {"auto": False, "algorithm": True}


def test_a_run_over_groups_asks_each_once_and_weighs_each_answer_by_its_own_noise():
    """Against the formulas of the posterior: the residual is the group's own, and the noise is the passports'."""
    z, y = candidates(), outcome_of(candidates())
    chooser = RowChooser(spec("auto", iterations=20, initial_rows=None, fit=None, repeats="auto"), GROUPS, z)
    assert (chooser.plan.algorithm.name, chooser.plan.repeats, chooser.plan.answers_per_row) == ("ei", "never", 1)
    rng, rows, noise = np.random.default_rng(1), [], []
    while proposals := chooser.next():
        row, scale = proposals[0].row, float(rng.uniform(0.05, 1.0))
        privacy = wire.PrivacyNoise(family="laplace", scale=scale, bound=1.0, variance=2 * scale**2)
        passport = wire.NoisePassport(privacy=privacy, clip=(-1.0, 1.0), measurement_variance=0.01)
        chooser.observe(row, float(y[row]), passport)
        rows.append(row)
        noise.append(2 * scale**2 + 0.01)
    assert len(rows) == len(set(rows)) == 25
    squared = ((z[:, None] - z) ** 2).sum(axis=2)
    prior = 2.0 * np.exp(-squared / (2 * 0.8**2)) + 0.3 * np.eye(len(z))
    weights = np.linalg.solve(prior[np.ix_(rows, rows)] + np.diag(noise), prior[rows])
    mean, variance = 0.5 + weights.T @ (y[rows] - 0.5), np.diag(prior - prior[:, rows] @ weights)
    best = max(sorted(rows), key=lambda row: mean[row])
    recommended = recommendation_of(chooser, "asked")
    assert recommended.row == best
    np.testing.assert_allclose([recommended.mean, recommended.sd], [mean[best], variance[best] ** 0.5], rtol=1e-5)
    assert recommended.interval is not None
    np.testing.assert_allclose(np.ptp(recommended.interval), 2 * 1.959964 * variance[best] ** 0.5, rtol=1e-4)
