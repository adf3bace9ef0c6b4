"""Processes of our own: each kind of work stays on one core, and not all on the same."""

import os
from pathlib import Path

import pytest

import curator_service
from curator_service import child
from curator_service.child import Child

KINDS = ("scoring", "forecasts", "attacks")


@pytest.mark.parametrize(("allowed", "taken"), [({0, 1, 5}, [5, 1, 0]), ({2, 3}, [3, 2, 3]), ({7}, [7, 7, 7])])
def test_turns_go_from_the_last_of_the_allowed_cores_round_and_round(allowed, taken, monkeypatch):
    found = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: allowed)
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: found.extend(cores))
    for turn in range(3):
        child.take_core(turn)
    assert found == taken


def test_kinds_of_work_share_no_core_while_there_is_another(until):
    programs = [Path(curator_service.__file__).parent / kind / "__main__.py" for kind in KINDS]
    children = [Child(program) for program in programs]
    try:
        pids = [one._process.pid for one in children]
        until(lambda: all(len(os.sched_getaffinity(pid)) == 1 for pid in pids), within=60)
        taken = {core for pid in pids for core in os.sched_getaffinity(pid)}
    finally:
        for one in children:
            one.end()
    assert len(taken) == min(len(os.sched_getaffinity(0)), 3)
