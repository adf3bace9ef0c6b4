"""Releases that real workers draw, over TLS: the law, what crosses the network, and what a worker that ends leaves."""

import csv
import io
import os
import struct
import threading
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("distributed", reason="the extra dask is not installed")

from blindopt import wire
from blindopt.client import OwnerClient
from blindopt.errors import BlindoptError, EngineUnavailable, NumericalFailure
from blindopt.wire import Feature
from curator_service.release import draw_parts
from curator_service.release.draw_engine import ClusterDraws
from curator_service.release.gaussian import GaussianMechanism
from curator_service.release.planar_laplace import PlanarLaplaceMechanism
from curator_service.scaling import ScaledRows
from tests.curator_service.privacy.test_entropy import MISTAKEN
from tests.system.runs.dask_cluster import ALWAYS, TIMES, DaskProcesses, until

N = 12_000
slow = pytest.mark.skipif(ALWAYS not in os.environ, reason="make test-engine runs it")
MECHANISMS = {
    "gaussian": GaussianMechanism(Decimal(1), 1e-5, 0.5),
    "planar_laplace": PlanarLaplaceMechanism(Decimal(1), 0.5),
}


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    made = DaskProcesses(tmp_path_factory.mktemp("dask"))
    yield made
    made.close()


@pytest.fixture
def two(processes):
    """The cluster with two workers."""
    while len(processes.workers) < 2:
        processes.add_worker()
    processes.connected(2).close()
    return processes


@pytest.fixture
def records(tmp_path):
    values = np.random.default_rng(3).uniform(-0.5, 0.5, size=(N, 3))
    np.save(tmp_path / "records.npy", values)
    return values


def rows_of(values, order=None):
    features = [Feature(column=f"c{j}", lower=-0.5, upper=0.5, scale=1.0) for j in range(2)]
    return ScaledRows(values, [0, 2], features, np.arange(len(values)) if order is None else order)


def draw(processes, mechanism, values, folder, *, order=None, parts=6, on_progress=lambda share: None):
    """Z, drawn in about so many parts."""
    rows, out = rows_of(values, order), np.full((len(values), 2), np.nan)
    size = len(values) * mechanism.row_noise(2).law.draws_per_row / parts
    engine = ClusterDraws(processes.address, processes.certificates, folder / "shared", 60.0, part_draws=size)
    engine.clean()
    try:
        engine.draw(mechanism, rows, folder / "records.npy", out, on_progress)
    finally:
        assert list((folder / "shared").iterdir()) == []
    return out


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("name", ["gaussian", pytest.param("planar_laplace", marks=slow)])
def test_two_workers_draw_the_law_of_one_process_and_no_number_twice(two, records, tmp_path, name):
    mechanism, order = MECHANISMS[name], np.random.default_rng(4).permutation(N)
    shares = []
    noise = draw(two, mechanism, records, tmp_path, order=order, on_progress=shares.append) - records[order][:, [0, 2]]
    alone = np.empty((N, 2))
    mechanism.draw(rows_of(records, order), alone)
    alone -= records[order][:, [0, 2]]
    for measure in (lambda u: u[:, 0], lambda u: u[:, 1], lambda u: np.hypot(*u.T)):
        assert stats.ks_2samp(measure(noise), measure(alone)).pvalue > MISTAKEN
        assert stats.ks_2samp(1.4 * measure(noise), measure(alone)).pvalue < MISTAKEN  # the control
    parts = np.array_split(noise, 6)  # the workers of the same machine and the same program share no state
    assert len(np.unique(noise.round(9), axis=0)) == N
    for first, second in pairwise(parts):
        assert abs(stats.pearsonr(first.ravel(), second.ravel()).statistic) < 0.15
    assert shares == sorted(shares)
    assert 0 <= shares[0] <= shares[-1] < 1


@pytest.mark.slow(sibling="test_no_record_no_noise_and_no_row_order_crosses_the_network")
def test_two_workers_that_get_the_same_task_draw_other_noise(two, tmp_path):
    drawn = []
    cluster = two.connected(2)
    for number, worker in enumerate(cluster.workers()):
        (folder := tmp_path / str(number)).mkdir()
        np.save(folder / draw_parts.VALUES, np.zeros((N, 3)))
        np.save(folder / draw_parts.ORDER, np.arange(N))
        rows = rows_of(np.zeros((N, 3)))
        noise = MECHANISMS["gaussian"].row_noise(2)
        task = draw_parts.DrawPart(str(folder), 0, 0, N, tuple(rows.columns), tuple(rows.features), noise)
        assert cluster.client.submit(draw_parts.draw_part, task, workers=[worker]).result(240) == ""
        drawn.append(np.load(draw_parts.drawn_file(folder, 0)))
    cluster.close()
    first, second = drawn
    assert not (first == second).all(axis=1).any()
    assert abs(stats.pearsonr(first.ravel(), second.ravel()).statistic) < 0.05
    for each in drawn:
        assert stats.kstest(each.ravel(), stats.norm(scale=MECHANISMS["gaussian"].sd(2)).cdf).pvalue > MISTAKEN


def test_all_parts_are_turned_by_one_secret_rotation(two, records, tmp_path):
    mechanism = GaussianMechanism(Decimal(1), 1e-5, 1e-6, rotate=True)
    z, x = draw(two, mechanism, records, tmp_path), records[:, [0, 2]]
    turn = np.linalg.lstsq(x, z, rcond=None)[0]
    assert np.abs(x @ turn - z).max() < 1e-4
    assert np.abs(turn @ turn.T - np.eye(2)).max() < 1e-4
    assert np.abs(turn - np.eye(2)).max() > 1e-4


@slow
@pytest.mark.parametrize("time", range(TIMES))
def test_a_worker_that_ends_makes_the_whole_draw_void(two, records, tmp_path, time):
    seen = []

    def kill_one(share):
        if share > 0 and not seen:
            seen.append(share)
            two.kill(two.workers[time % 2])

    with pytest.raises((EngineUnavailable, NumericalFailure)):
        draw(two, MECHANISMS["planar_laplace"], records, tmp_path, parts=60, on_progress=kill_one)
    assert seen
    two.add_worker()
    two.connected(2).close()
    assert np.isfinite(draw(two, MECHANISMS["planar_laplace"], records, tmp_path)).all()


@slow
def test_without_a_scheduler_or_a_worker_nothing_is_drawn(tmp_path, records):
    processes = DaskProcesses(tmp_path, workers=0)
    try:
        with pytest.raises(EngineUnavailable, match="no worker"):
            draw(processes, MECHANISMS["gaussian"], records, tmp_path)
        processes.kill(processes.scheduler)
        with pytest.raises(EngineUnavailable, match="the scheduler does not answer"):
            draw(processes, MECHANISMS["gaussian"], records, tmp_path)
    finally:
        processes.close()


# --- what crosses the network -------------------------------------------------------------------------------


def echo(block):
    """What no task does: it is sent records, and replies with them."""
    return block


def carried(processes):
    wires = [processes.to_scheduler, *processes.wires.values()]
    return b"\0".join(bytes(kept) for wire in wires for kept in wire.carried)


def found_in(secrets, text):
    return [secret for secret in secrets if secret in text]


def test_no_record_no_noise_and_no_row_order_crosses_the_network(tmp_path, records):
    """The cluster without encryption, so that its bytes can be read: to the scheduler, and to each worker."""
    order = np.random.default_rng(4).permutation(N)
    processes = DaskProcesses(tmp_path, tls=False)
    try:
        processes.connected(2).close()
        z = draw(processes, MECHANISMS["gaussian"], records, tmp_path, order=order)
        noise = z - records[order][:, [0, 2]]
        picked = [0, 1, N // 2, N - 1]
        secrets = [struct.pack("<d", value) for row in picked for value in (*records[row], *z[row], *noise[row])]
        secrets += [repr(float(value)).encode() for row in picked for value in (*records[row], *z[row], *noise[row])]
        secrets += [order[row : row + 3].astype(kind).tobytes() for row in picked[:3] for kind in ("<i8", "<i4")]
        text = carried(processes)
        assert b"draw_part" in text
        assert found_in(secrets, text) == []
        cluster = processes.connected(2)
        list(cluster.each(echo, [records[:4].copy()], 60.0, lambda: None))  # the control
        cluster.close()
        assert len(found_in(secrets, carried(processes))) >= 6
    finally:
        processes.close()


# --- through a curator --------------------------------------------------------------------------------------


@pytest.fixture
def clustered(two, make_service, tmp_path):
    files = dict(zip(("engine_tls_ca", "engine_tls_cert", "engine_tls_key"), two.certificates, strict=True))
    shared = tmp_path / "shared"
    made = make_service("curator", tmp_path, fresh=True, draw_engine=two.address, draw_files=str(shared), **files)
    made.start()
    with OwnerClient(made.url, made.token, timeout_s=240) as owner:
        yield made, owner, shared
    made.kill()


def drafted(owner, release, rows=N):
    values = np.random.default_rng(7).uniform(size=(rows, 3))
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerows([["a", "b", "y"], *values.tolist()])
    dataset = owner.register("records", text.getvalue().encode())
    features = [Feature(column=name, lower=0.0, upper=1.0) for name in ("a", "b")]
    measurement = wire.ColumnMeasurement(column="y", direction="maximize")
    study = wire.StudyCreate(
        name="s", dataset_id=dataset.id, features=features, measurement=measurement, release=release, answers=wire.NONE
    )
    return owner.create_study(study).id


@slow
@pytest.mark.parametrize("time", range(TIMES))
def test_a_release_is_charged_once_though_its_first_draw_lost_a_worker(two, clustered, time):
    service, owner, shared = clustered
    release = wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1")
    study = drafted(owner, release, rows=200_000)
    problems = []

    def ask():
        try:
            owner.release(study)
        except BlindoptError as error:
            problems.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    until(lambda: any(shared.glob("draw-*/drawn-*.npy")))
    two.kill(two.workers[time % 2])
    asking.join(120)
    assert [error.code for error in problems] in (["engine_unavailable"], ["numerical_failure"])
    until(lambda: owner.study(study).state == "draft")
    assert list(shared.iterdir()) == []
    two.add_worker()
    two.connected(2).close()
    assert owner.release(study).state == "open"
    assert list(shared.iterdir()) == []
    charges = service.rows("SELECT count(*) FROM ledger WHERE study_id = ? AND kind = 'release'", study)
    assert charges == [(1,)]


@slow
def test_a_curator_releases_through_its_cluster_and_draws_what_needs_all_rows_by_itself(clustered):
    service, owner, shared = clustered
    for release in (
        wire.GaussianRelease(mechanism="gaussian", epsilon="1", delta=1e-5),
        wire.PoGpUcbRelease(mechanism="po_gp_ucb", epsilon="4", delta=1e-5, r=2, acknowledge_refuted=True),
    ):
        study = drafted(owner, release)
        assert owner.release(study).state == "open"
        assert list(shared.iterdir()) == []
    assert "po_gp_ucb needs all rows at once" in service.log
