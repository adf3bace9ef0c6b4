"""Runs that wait for people: without a worker, for days; declines; corrections; and what a replay says of them."""

import time

import numpy as np
import pytest

from modeler_service.choosing import Choosing
from shared import matrix, wire
from shared.client import StudyClient, VendorClient
from tests.modeler_service.people import Patient
from tests.system.crash_checks import command

QUICK = {
    "retry_attempts": "2",
    "retry_seconds_max": "0.1",
    "people_hold_seconds": "0.1",
    "people_seconds": "0.2",
    "people_seconds_max": "0.4",
    "wait_seconds_first": "0.2",
    "wait_seconds_max": "0.4",
}


@pytest.fixture(scope="module")
def own(make_service, tmp_path_factory):
    return make_service("modeler", tmp_path_factory.mktemp("people"), concurrent_runs="2", **QUICK).start()


@pytest.fixture(scope="module")
def vendor(own):
    with VendorClient(own.url, own.token) as client:
        yield client


@pytest.fixture(scope="module")
def study(curator, opened):
    with StudyClient(curator.url, opened.token, opened.id) as client:
        return client.study().model_dump(mode="json")


@pytest.fixture
def patient(study):
    with Patient(study) as curator:
        yield curator


def spec_of(patient, algorithm="gp_ucb", **chosen):
    settings = {"iterations": 4, "initial_rows": 2, "seed": 5} | chosen
    told = {"curator_url": patient.url, "study_id": patient.study_id, "token": "t", "algorithm": {"name": algorithm}}
    return wire.RunCreate.model_validate(told | settings)


def smooth(row):
    return float(np.sin(row / 5))


def replays(own, run):
    code, told = command(own, "replay", run)
    assert code == 0, told
    code, told = command(own, "audit", "verify")
    assert code == 0, told


# --- waiting ----------------------------------------------------------------------------------------


def test_a_run_waits_for_people_without_a_worker_and_goes_on_by_itself(patient, vendor, own, until):
    run = vendor.start(spec_of(patient)).id
    told = until(lambda: (view := vendor.run(run)).state == "waiting" and view)
    assert (told.waiting_for, told.open_measurements, told.problem) == ("people", 1, None)
    assert told.created_at < told.waiting_since == vendor.export(run).trials[0].asked_at
    until(lambda: patient.looks > 6)
    studies, size = patient.studies, len(patient.bodies)
    until(lambda: patient.looks > 9)
    assert (patient.studies, len(patient.bodies)) == (studies, size)  # it looks, and that is all it does
    patient.answer(patient.open[0], 0.5)
    patient.measure = smooth
    ended = vendor.wait(run, timeout_s=30)
    assert (ended.state, ended.ended_because, ended.trials) == ("completed", "budget", 6)
    assert (ended.waiting_for, ended.waiting_since, ended.open_measurements) == (None, None, 0)
    assert [trial.y for trial in vendor.export(run).trials] == [
        0.5,
        *(smooth(r[0]) for r in list(patient.rows.values())[1:]),
    ]
    replays(own, run)
