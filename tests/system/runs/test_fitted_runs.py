"""Runs that fit hyper-parameters, over both services: what is told of the fits, and that they survive a kill."""

import numpy as np
import pytest

from blindopt import wire
from blindopt.client import StudyClient
from blindopt.optimizer.algorithms.gp.rules import GpUcb
from blindopt.optimizer.algorithms.settings import AlgorithmSettings
from blindopt.optimizer.defaults import exact_answers
from tests.conftest import GAUSSIAN

FIT = wire.Fit(every=4, starts=3)


def again(z, study, run, trials):
    """Every choice and every fit, derived from the answers and the settings that the run tells."""
    sign = 1 if study.direction == "maximize" else -1
    capacity = run.iterations + run.initial_rows
    kernel, exact = run.kernel or study.kernel, exact_answers(study)
    settings = AlgorithmSettings(
        kernel, sign, run.seed, capacity, run.initial_rows, noise=study.noise, fit=run.fit, exact=exact
    )
    algorithm = GpUcb(z, settings, run.algorithm.delta_ucb)
    made, last = [], None
    for trial in trials:
        if trial.phase == "algorithm":
            choice = algorithm.choose(trial.number - run.initial_rows)
            fitted, last = (algorithm.fitted if algorithm.fitted != last else None), algorithm.fitted
            made.append((choice.row, choice.acquisition, fitted))
        algorithm.observe(trial.row, sign * trial.y, trial.passport)
    return made


@pytest.fixture
def candidates(curator, tmp_path):
    def fetch(opened):
        with StudyClient(curator.url, opened.token, opened.id) as client:
            study = client.study()
            client.download(tmp_path / "z.npy", study.release_sha256, max_bytes=10**8)
        return study, np.load(tmp_path / "z.npy")

    return fetch


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_a_run_without_a_kernel_fits_one_and_tells_each_fit(
    direction, curator, owner, dataset, open_study, vendor, run_of, candidates
):
    opened = open_study(owner, dataset, GAUSSIAN, kernel=None, direction=direction, noise_variance=1e-3)
    spec = run_of(curator.url, opened, iterations=13, initial_rows=5, fit=FIT)
    run = vendor.wait(vendor.start(spec).id, timeout_s=240)
    assert (run.state, run.trials, run.fit) == ("completed", 18, FIT)
    export = vendor.export(run.id)
    assert run.best.y == {"maximize": max, "minimize": min}[direction](trial.y for trial in export.trials)
    fits = {trial.number: trial.fitted for trial in export.trials if trial.fitted}
    assert [(number, fit.answers) for number, fit in fits.items()] == [(n + 1, n) for n in (5, 6, 7, 8, 10, 12, 15)]
    assert run.fitted == export.run.fitted == fits[16]
    assert run.fitted.problem is None
    assert run.warnings == []
    study, z = candidates(opened)
    made = [(trial.row, trial.acquisition, trial.fitted) for trial in export.trials[5:]]
    assert again(z, study, run, export.trials) == made
    other = run.model_copy(update={"fit": FIT.model_copy(update={"every": 1})})
    assert again(z, study, other, export.trials) != made


def test_a_fit_that_fails_is_reported_by_the_run(curator, owner, small, open_study, vendor, run_of):
    """All answers are equal: nothing can be fitted, and the kernel's values stay."""
    lines = small.csv.decode().splitlines()
    flat = "\n".join([lines[0], *(line.rsplit(",", 1)[0] + ",1.5" for line in lines[1:])]) + "\n"
    opened = open_study(owner, owner.register("flat", flat.encode(), public=True))
    run = vendor.wait(
        vendor.start(run_of(curator.url, opened, iterations=6, initial_rows=3, fit=FIT)).id, timeout_s=240
    )
    assert run.state == "completed"
    assert run.fitted.problem is not None
    assert "all equal" in run.fitted.problem
    assert run.fitted.lengthscale == small.kernel.lengthscale
    assert run.warnings == [run.fitted.problem]
