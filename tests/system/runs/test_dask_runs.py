"""Runs through both services at a cluster, whose scheduler, workers and modeler die; and what crosses its network."""

import os
from contextlib import contextmanager

import numpy as np
import pytest

pytest.importorskip("distributed", reason="the extra dask is not installed")

from blindopt import wire
from blindopt.client import Vendor
from blindopt.gp.acquisition import UpperConfidenceBound, beta
from blindopt.gp.kernels import SquaredExponential
from blindopt.gp.posterior import Posterior
from modeler_service.engines.remote import Workers
from tests.modeler_service.engines.fake_cluster import sections
from tests.system.runs.dask_cluster import ALWAYS, TIMES, DaskProcesses, until
from tests.system.runs.test_engines import ALGORITHMS, choices, start

pytestmark = pytest.mark.skipif(ALWAYS not in os.environ, reason="make test-engine runs it")
ITERATIONS = 40


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    made = DaskProcesses(tmp_path_factory.mktemp("dask"), workers=0)
    yield made
    made.close()


@pytest.fixture(scope="module")
def open_grant(owner, dataset, open_study):
    study = open_study(owner, dataset).id
    return lambda name: owner.grant(study, wire.GrantCreate(name=name))


@pytest.fixture(scope="module")
def whole(open_grant, vendor, curator):
    """What one process chooses."""
    run = start(vendor, curator, open_grant("whole"), ALGORITHMS[0], iterations=ITERATIONS)
    assert vendor.wait(run, timeout_s=600).state == "completed"
    return choices(vendor, run)


@pytest.fixture(scope="module")
def clustered(processes, make_service, tmp_path_factory):
    """A modeler whose engine is the cluster."""
    settings = {"CANDIDATES_ENGINE": processes.address, "WAIT_SECONDS_FIRST": "0.5", "WAIT_SECONDS_MAX": "1"}
    files = dict(zip(("ENGINE_TLS_CA", "ENGINE_TLS_CERT", "ENGINE_TLS_KEY"), processes.certificates, strict=True))
    folder = tmp_path_factory.mktemp("clustered")
    return make_service("modeler", folder, fresh=True, ENGINE_STEP_SECONDS="5", **settings, **files).start()


@contextmanager
def begun(processes, clustered, curator, grant, trials):
    """A run of the modeler that has made so many queries."""
    while len(processes.workers) < 2:
        processes.add_worker()
    processes.connected(2).close()
    with Vendor(clustered.url, clustered.token, timeout_s=240) as client:
        run = start(client, curator, grant, ALGORITHMS[0], iterations=ITERATIONS)
        until(lambda: client.run(run).view.trials >= trials)
        yield client, run


def held(processes):
    """How many parts the workers hold."""
    with processes.client() as client:
        return sum(client.run(actors_of).values())


def actors_of(dask_worker):
    return len(dask_worker.state.actors)


def everything_is_killed(processes):
    processes.kill(processes.scheduler)
    processes.kill_all()


def scheduler_is_killed(processes):
    """Its workers end without it, which they may take a while for."""
    processes.kill(processes.scheduler)


@pytest.mark.parametrize("time", range(TIMES))
@pytest.mark.parametrize("kill", [everything_is_killed, scheduler_is_killed])
def test_a_run_without_its_scheduler_waits_and_goes_on_by_itself(
    processes, clustered, curator, open_grant, whole, kill, time
):
    grant = open_grant(f"{kill.__name__} {time}")
    with begun(processes, clustered, curator, grant, 1 + 3 * time % (ITERATIONS - 10)) as (client, run):
        kill(processes)
        until(lambda: client.run(run).view.waiting_for == "engine" or client.run(run).state == "completed")
        if client.run(run).state == "waiting":
            assert client.run(run).view.problem.code == "engine_unavailable"
        processes.kill_all()
        processes.start_scheduler()
        for _ in range(2):
            processes.add_worker()
        assert client.wait(run, timeout_s=600).state == "completed", clustered.log[-3000:]
        assert choices(client, run) == whole
        assert client.run(run).view.engine.name == "dask"
    until(lambda: held(processes) == 0)  # a run that has ended leaves nothing


@pytest.mark.parametrize("time", range(TIMES))
def test_a_modeler_that_is_killed_leaves_no_part_and_chooses_the_same_rows_again(
    processes, clustered, curator, open_grant, whole, time
):
    grant = open_grant(f"modeler {time}")
    with begun(processes, clustered, curator, grant, 1 + 3 * time % (ITERATIONS - 10)) as (_, run):
        clustered.kill()
    until(lambda: held(processes) == 0)
    clustered.start()
    with Vendor(clustered.url, clustered.token, timeout_s=240) as client:
        assert client.wait(run, timeout_s=600).state == "completed", clustered.log[-3000:]
        assert choices(client, run) == whole


def test_a_run_that_is_deleted_or_whose_workers_lack_memory_leaves_nothing(processes, clustered, curator, open_grant):
    with begun(processes, clustered, curator, open_grant("cancelled"), 2) as (client, run):
        client.stop(run)
        until(lambda: client.run(run).state == "stopped")
        until(lambda: held(processes) == 0)
    processes.kill_all()
    processes.add_worker(memory="257MiB")
    processes.connected(1).close()
    with Vendor(clustered.url, clustered.token, timeout_s=240) as client:
        run = start(client, curator, open_grant("poor"), ALGORITHMS[0], iterations=4_000)
        ended = client.wait(run, timeout_s=600)
        assert (ended.state, ended.problem.code) == ("failed", "out_of_memory")
        assert "workers would do" in ended.problem.detail
        until(lambda: held(processes) == 0)
    processes.kill_all()


# --- what crosses the network -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def in_the_clear(tmp_path_factory):
    """Without certificates, so that the wires carry what can be read."""
    made = DaskProcesses(tmp_path_factory.mktemp("clear"), tls=False)
    made.connected(2).close()
    yield made
    made.close()


def carried(processes):
    wires = [processes.to_scheduler, *processes.wires.values()]
    return b"\n".join(bytes(part) for each in wires for part in each.carried)


def numbers_in(data, values):
    """Which of ``values`` are in the bytes, as a double, a float or digits."""
    return [
        float(value) for value in values if np.float64(value).tobytes() in data or repr(float(value)).encode() in data
    ]


def test_no_candidate_token_address_or_name_crosses_the_network_of_a_cluster(
    in_the_clear, make_service, tmp_path_factory, curator, open_grant
):
    grant = open_grant("a grant whose name is secret")
    settings = {"CANDIDATES_ENGINE": in_the_clear.address.replace("tcp", "dask")}
    overheard = make_service("modeler", tmp_path_factory.mktemp("overheard"), fresh=True, **settings).start()
    with Vendor(overheard.url, overheard.token, timeout_s=240) as client:
        run = start(client, curator, grant, ALGORITHMS[0], iterations=ITERATIONS)
        assert client.wait(run, timeout_s=600).state == "completed", overheard.log[-3000:]
        assert client.run(run).view.engine.workers == 2
    overheard.stop()
    (release,) = (overheard.data / "candidates").glob("*.npy")
    candidates, data = np.load(release), carried(in_the_clear)
    secrets = [grant.token, curator.url, curator.url.rpartition(":")[2], grant.study_id, grant.name, run]
    assert release.name.encode() in data  # a control: this is where it can be read
    assert [text for text in secrets if text.encode() in data] == []
    values = np.unique(candidates)
    assert len(values) > 100
    assert numbers_in(data, values) == []
    assert numbers_in(data + candidates[:1].tobytes(), values) == sorted(candidates[0].tolist())  # and another


def test_a_choice_takes_two_messages_a_part_and_few_bytes(in_the_clear, tmp_path):
    """Bytes of both messages: 8 (t + r + 8), 16 for each leader's number and bounds, and Dask's own envelope."""
    envelope, n, r, steps = 4_000, 20_000, 6, 30
    z = np.random.default_rng(4).normal(size=(n, r))
    from blindopt.formats import npy_files

    path = tmp_path / "z.npy"
    with path.open("wb") as written:
        npy_files.write(written, [z])
    engine = Workers(in_the_clear.connected(2), str(path), sections(path), 60.0, lambda: None)
    posterior = Posterior(z, SquaredExponential(2.0), noise_variance=1e-3, capacity=steps, executor=engine)
    wires, seen = [in_the_clear.to_scheduler, *in_the_clear.wires.values()], []
    for step in range(1, steps + 1):
        row = posterior.argmax(UpperConfidenceBound(beta(n, step, 0.025)), lambda: np.random.default_rng(1)).row
        posterior.observe(row, float(np.sin(z[row]).sum()))
        seen.append([(each.bytes, each.messages) for each in wires])
    engine.drop()
    numbers = np.diff(np.array(seen)[5:], axis=0)  # the first ones connect
    workers = numbers[:, 1:]
    assert workers[..., 1].sum() <= 2 * 2 * len(workers)
    assert (workers[..., 0] <= envelope + 8 * (steps + r + 8) + 16 * (r + 1) * 64).all()
