"""Runs whose candidates are computed with in parts: the record of a run does not tell which engine chose."""

from dataclasses import replace

import pytest

from blindopt import wire
from blindopt.client import Owner, Vendor
from tests.builders import a_run
from tests.system.crashes.crash_checks import command

THREADS = {"CANDIDATES_ENGINE": "threads", "ENGINE_PARTITION_ROWS": "100"}
ALGORITHMS = [wire.GpUcb(name="gp_ucb", precision="single"), wire.GpBucb(name="gp_bucb"), wire.Ei(name="ei")]


@pytest.fixture(scope="module")
def curator(make_service, tmp_path_factory):
    """Publishes the 400 x 2 numbers in three parts."""
    return make_service("curator", tmp_path_factory.mktemp("parts"), PART_BYTES="2400").start()


@pytest.fixture(scope="module")
def grants(curator, small, open_study):
    """Of one study, for a modeler each: it would dispute a query that it did not make."""
    with Owner(curator.url, curator.token) as owner:
        study = open_study(owner, owner.register("small", small.csv, public=True))
        assert [part.rows for part in study.view.report.parts] == [150, 150, 100]
        return [owner.grant(study.id, wire.GrantCreate(name=name)) for name in ("whole", "divided")]


@pytest.fixture(scope="module")
def on_threads(make_service, tmp_path_factory):
    return make_service("modeler", tmp_path_factory.mktemp("threads"), **THREADS).start()


def start(vendor, curator, grant, algorithm, **chosen):
    batch = 3 if algorithm.name != "gp_ucb" else 1
    settings = {"algorithm": algorithm, "iterations": 12, "initial_rows": 2, "batch_size": batch, "seed": 5} | chosen
    return vendor.start(a_run(curator.url, grant.study_id, grant.token, **settings)).id


def choices(vendor, run):
    return [(t.row, t.mean, t.sd, t.acquisition, t.ties) for t in vendor.export(run).trials]


@pytest.mark.slow(sibling="test_gp_parts.py::test_the_number_of_parts_changes_no_bit_of_a_choice")
def test_runs_in_parts_choose_the_same_and_are_replayed_by_the_process(on_threads, curator, grants, vendor):
    """400 candidates in four parts; replayed in one part; and continued in one part after a kill."""
    with Vendor(on_threads.url, on_threads.token) as divided:
        both = (vendor, grants[0]), (divided, grants[1])
        for algorithm in ALGORITHMS:
            whole, parts = (start(v, curator, grant, algorithm) for v, grant in both)
            for v, run in ((vendor, whole), (divided, parts)):
                assert v.wait(run, timeout_s=240).state == "completed"
            assert choices(divided, parts) == choices(vendor, whole)
            engine = divided.run(parts).view.engine
            assert (engine.name, engine.parts) == ("threads", 4)
            assert vendor.run(whole).view.engine == wire.RunEngine(
                name="process", parts=1, workers=1, memory_bytes=engine.memory_bytes
            )
            code, output = command(on_threads, "replay", parts)
            assert code == 0, output
        whole, run = (start(v, curator, grant, ALGORITHMS[0], iterations=60, seed=6) for v, grant in both)
        on_threads.kill()
    restarted = replace(on_threads, settings={"CANDIDATES_ENGINE": "process"}).start()
    with Vendor(restarted.url, restarted.token) as divided:
        assert divided.wait(run, timeout_s=240).state == vendor.wait(whole, timeout_s=240).state == "completed"
        assert choices(divided, run) == choices(vendor, whole)
        assert divided.run(run).view.engine.name == "process"
    restarted.stop()
    for service in (curator, restarted):
        code, output = command(service, "audit", "verify")
        assert code == 0, output
