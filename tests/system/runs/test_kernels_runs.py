"""Runs with each kernel and with noise on Z and y, over both services: the choices are those of the engine."""

import numpy as np
import pytest

from blindopt import wire
from blindopt.client import StudyClient
from blindopt.optimizer.algorithms.gp.rules import GpUcb
from blindopt.optimizer.algorithms.settings import AlgorithmSettings
from tests.conftest import GAUSSIAN

KINDS = ("squared_exponential", "matern_12", "matern_32", "matern_52")
PLANAR = wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="2")


@pytest.mark.slow(every=2)
@pytest.mark.parametrize(("kind", "release"), list(zip(KINDS, (PLANAR, GAUSSIAN, PLANAR, GAUSSIAN), strict=True)))
def test_a_run_chooses_what_the_engine_chooses_with_the_noise_of_z_and_y(
    kind, release, curator, owner, dataset, open_study, small, vendor, run_of, tmp_path
):
    """The same rows and bounds again, from the answers alone; another kernel, or no noise, makes other choices."""
    kernel = small.kernel.model_copy(update={"kind": kind})
    answers = wire.LaplaceAnswers(mechanism="laplace", epsilon="5", value_bound=2.0)
    opened = open_study(owner, dataset, release, kernel=kernel, answers=answers)
    run = vendor.wait(vendor.start(run_of(curator.url, opened, iterations=15)).id, timeout_s=240)
    assert (run.state, run.trials) == ("completed", 16)
    with StudyClient(curator.url, opened.token, opened.id) as client:
        study = client.study()
        client.download(tmp_path / "z.npy", study.release_sha256, max_bytes=10**8)
    z, trials = np.load(tmp_path / "z.npy"), vendor.export(run.id).trials

    def again(noise=study.noise, kernel=study.kernel, passports=True):
        algorithm = GpUcb(z, AlgorithmSettings(kernel, 1, run.seed, capacity=16, noise=noise), 0.05)
        bounds = []
        for number, trial in enumerate(trials):
            if trial.phase == "algorithm":
                choice = algorithm.choose(number)
                bounds.append((choice.row, choice.acquisition))
            algorithm.observe(trial.row, trial.y, trial.passport if passports else None)
        return bounds

    made = [(trial.row, trial.acquisition) for trial in trials[1:]]
    assert again() == made
    assert again(noise=wire.NoiseLaw(family="none")) != made
    assert again(kernel=kernel.model_copy(update={"kind": KINDS[KINDS.index(kind) - 1]})) != made
    assert again(passports=False) != made
