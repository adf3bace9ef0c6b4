"""Rows of the modeler's tables for tests that need no run."""

from blindopt import wire
from modeler_service import store

AT = "2026-11-21T00:00:00.000000Z"
ANSWER = wire.Answer(row=7, play=1, plays=1, y=0.5, passport=wire.NoisePassport(measurement_variance=0.0))


def add_run(db, run_id, *, state="running", spec="{}", at=AT, **values):
    store.add_run(db, run_id, state=state, spec=spec, sealed_token=b"", created_at=at, **values)


def chosen_trial(run_id, number, **values):
    choice = {"query": number, "phase": "initial", "row": number, "ties": 1, "chosen_at": AT}
    empty = dict.fromkeys(("mean", "sd", "acquisition", "fitted"))
    return store.TrialRow(run_id, number, **empty | choice | values)
