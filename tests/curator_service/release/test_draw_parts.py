"""A part of a draw: written once, begun once, and nothing but the kind of an error in what its worker replies."""

import os
import pickle
import shutil
import tempfile
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from blindopt.errors import NumericalFailure
from blindopt.wire import Feature
from curator_service.privacy.noise import parallel
from curator_service.release import draw_parts
from curator_service.release.draw_engine import ClusterDraws, ProcessDraws, RowByRow, draw_engine
from curator_service.release.draw_parts import DrawPart, draw_part, drawn_file, take_part
from curator_service.release.gaussian import GaussianMechanism
from curator_service.release.mechanism import Assessment
from curator_service.release.planar_laplace import PlanarLaplaceMechanism
from curator_service.release.po_gp_ucb import PoGpUcb
from curator_service.scaling import ScaledRows
from curator_service.settings import Settings

FEATURES = tuple(Feature(column=name, lower=-0.5, upper=0.5, scale=1.0) for name in ("a", "b"))
NOISE = GaussianMechanism(Decimal(1), 1e-5, 1e-6, rotate=True).row_noise(2)


@pytest.fixture
def part(tmp_path):
    """The second of two parts of ten rows: noise that is small, so that the rows can be told."""
    values = np.random.default_rng(1).uniform(-0.5, 0.5, size=(10, 3))
    np.save(tmp_path / draw_parts.VALUES, values)
    np.save(tmp_path / draw_parts.ORDER, np.arange(10)[::-1])
    np.save(tmp_path / draw_parts.ROTATION, np.array([[0.0, 1.0], [1.0, 0.0]]))
    return DrawPart(str(tmp_path), 1, 6, 10, (0, 2), FEATURES, NOISE), values


def test_a_part_is_its_rows_in_the_secret_order_with_noise_and_the_rotation(part, tmp_path):
    task, values = part
    assert draw_part(task) == ""
    out = np.zeros((10, 2))
    take_part(task, out)
    assert (out[:6] == 0).all()
    expected = values[[3, 2, 1, 0]][:, [2, 0]]  # in falling order, and turned: the columns change places
    assert 0 < np.abs(out[6:] - expected).max() < 1e-4
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "begun-1", "drawn-1.npy", "order.npy", "rotation.npy", "values.npy",
    ]  # fmt: skip
    assert {path.stat().st_mode & 0o77 for path in (drawn_file(tmp_path, 1), tmp_path / "begun-1")} == {0}


def test_a_part_that_was_begun_is_not_drawn_again(part, tmp_path):
    task, _ = part
    assert draw_part(task) == ""
    first = drawn_file(tmp_path, 1).read_bytes()
    assert draw_part(task) == "FileExistsError"
    assert drawn_file(tmp_path, 1).read_bytes() == first
    drawn_file(tmp_path, 1).unlink()  # nor where its worker died before it wrote
    assert draw_part(task) == "FileExistsError"
    assert not drawn_file(tmp_path, 1).exists()


def test_a_file_that_exists_is_not_written_over(part, tmp_path):
    task, _ = part
    drawn_file(tmp_path, 1).write_bytes(b"other")
    assert draw_part(task) == "FileExistsError"
    assert drawn_file(tmp_path, 1).read_bytes() == b"other"


def test_a_part_whose_worker_died_at_its_beginning_or_while_it_wrote_is_refused(part, tmp_path):
    task, _ = part
    (tmp_path / "begun-1").touch()
    assert draw_part(task) == "FileExistsError"
    (tmp_path / "begun-1").unlink()
    (tmp_path / "partial-1").write_bytes(b"half")
    assert draw_part(task) == "FileExistsError"
    assert (tmp_path / "partial-1").read_bytes() == b"half"
    assert not drawn_file(tmp_path, 1).exists()


def test_a_part_without_a_rotation_reads_none(part, tmp_path):
    task, values = part
    (tmp_path / draw_parts.ROTATION).unlink()
    assert draw_part(replace(task, noise=replace(NOISE, rotate=False))) == ""
    out = np.zeros((10, 2))
    take_part(task, out)
    assert np.abs(out[6:] - values[[3, 2, 1, 0]][:, [0, 2]]).max() < 1e-4


def test_a_worker_draws_a_large_part_in_its_own_process(part, tmp_path):
    """A draw at the curator starts a process for each processor, and each takes time of its own."""
    rows = int(parallel.PARALLEL_DRAWS / NOISE.law.draws_per_row) + 1
    np.save(tmp_path / draw_parts.ORDER, np.arange(rows) % 10)
    before = os.times()
    assert draw_part(replace(part[0], first=0, last=rows)) == ""
    assert os.times().children_user == before.children_user


class Planted:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_nothing_in_the_shared_folder_is_unpickled(part, tmp_path):
    task, planted = part[0], tmp_path / "planted"
    pickled = pickle.dumps(Planted(planted))
    for number, name in enumerate((draw_parts.VALUES, draw_parts.ORDER, draw_parts.ROTATION)):
        kept = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(pickled)
        assert draw_part(replace(task, number=number)) in {"NumericalFailure", "ValueError"}
        (tmp_path / name).write_bytes(kept)
    drawn_file(tmp_path, 1).write_bytes(pickled)
    with pytest.raises(NumericalFailure, match="nothing of this draw may be used"):
        take_part(task, np.zeros((10, 2)))
    assert not planted.exists()
    pickle.loads(pickled)  # the control
    assert planted.exists()


def test_the_order_of_records_is_mapped_and_not_read(part, tmp_path):
    assert isinstance(draw_parts.mapped(tmp_path / draw_parts.ORDER), np.memmap)


def test_the_reply_of_a_part_that_fails_has_no_number_and_no_path(part, tmp_path):
    task, values = part
    values[0, 0] = np.nan
    np.save(tmp_path / draw_parts.VALUES, values)
    assert draw_part(task) == "NumericalFailure"
    (tmp_path / draw_parts.ORDER).unlink()
    assert draw_part(replace(task, number=2)) == "FileNotFoundError"


def test_a_file_that_is_none_of_a_part_is_refused(part, tmp_path):
    task, _ = part
    out = np.zeros((10, 2))
    for wrong in (np.zeros((3, 2)), np.zeros((4, 2), dtype=np.float32), np.full((4, 2), np.inf)):
        np.save(drawn_file(tmp_path, 1), wrong)
        with pytest.raises(NumericalFailure, match="nothing of this draw may be used"):
            take_part(task, out)
    np.save(drawn_file(tmp_path, 1), np.array([[{}]], dtype=object), allow_pickle=True)
    with pytest.raises(NumericalFailure):
        take_part(task, out)
    drawn_file(tmp_path, 1).unlink()
    with pytest.raises(NumericalFailure, match="nothing of this draw may be used"):
        take_part(task, out)


def test_what_a_crash_left_is_deleted_and_nothing_else(tmp_path):
    (tmp_path / "draw-1").mkdir()
    (tmp_path / "draw-1" / "order.npy").write_text("secret")
    (tmp_path / "other").write_text("stays")
    ClusterDraws("tls://127.0.0.1:1", None, tmp_path, 1.0).clean()
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_the_folder_of_draws_is_made_for_its_owner_alone(tmp_path):
    folder = tmp_path / "mounted" / "draws"
    ClusterDraws("tls://127.0.0.1:1", None, folder, 1.0).clean()
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_file_that_a_worker_adds_meanwhile_is_deleted_with_its_folder(tmp_path, monkeypatch):
    """Then the folder is not empty when it is to be deleted, which is an error: the next attempt deletes it."""
    (tmp_path / "draw-1").mkdir()
    attempts, delete = [], shutil.rmtree

    def interrupted(folder, ignore_errors=False):
        attempts.append(folder)
        if len(attempts) > 1:
            delete(folder)
        elif not ignore_errors:
            raise OSError("not empty")

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    engine = ClusterDraws("tls://127.0.0.1:1", None, tmp_path, 1.0)
    engine.clean()
    assert attempts == [tmp_path / "draw-1"] * 2
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(shutil, "rmtree", lambda folder, ignore_errors: None)
    (tmp_path / "draw-2").mkdir()
    with pytest.raises(OSError, match="cannot be deleted"):
        engine.clean()


# --- a whole draw, with workers in this process ---------------------------------------------------------


class Workers:
    """A cluster whose workers are this process, and end their parts in reverse."""

    def __init__(self, made, address, certificates):
        self.given, self.calls, self.parts = (address, certificates), [], []
        self.modes = set()
        made.append(self)

    def check(self):
        self.calls.append("check")

    def close(self):
        self.calls.append("close")

    def each(self, function, tasks, step_seconds, tick):
        self.calls.append(step_seconds)
        self.parts = tasks
        try:
            for number in reversed(range(len(tasks))):
                folder = Path(tasks[number].folder)
                self.modes |= {folder.stat().st_mode & 0o777}
                tick()
                yield number, function(tasks[number])
            tick()
        finally:
            self.calls.append("cancelled")


@pytest.fixture
def workers():
    """Connections that were made."""
    return []


@pytest.fixture
def records(tmp_path):
    """23 rows in falling order, their file, and the folder that workers share."""
    values = np.random.default_rng(2).uniform(-0.5, 0.5, size=(23, 3))
    np.save(tmp_path / "records.npy", values)
    (tmp_path / "shared").mkdir()
    return ScaledRows(values, [0, 2], list(FEATURES), np.arange(23)[::-1])


def engine_of(tmp_path, workers, **more):
    files, connect = tmp_path / "shared", partial(Workers, workers)
    return ClusterDraws("tls://127.0.0.1:1", ("ca", "cert", "key"), files, 7.0, connect=connect, **more)


@pytest.fixture
def elsewhere(tmp_path):
    """A folder in another file system, so that no link leads from it to the folder that workers share."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        if Path(folder).stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("all folders are in one file system")
        yield Path(folder)


def turned(z, exact):
    """Whether rows of Z are exact ones turned by a rotation or reflection that is no identity: within 1e-4."""
    rotation = np.linalg.lstsq(exact, z, rcond=None)[0]
    assert np.abs(rotation @ rotation.T - np.eye(2)).max() < 1e-4
    assert np.abs(z - exact @ rotation).max() < 1e-4
    return np.abs(rotation - np.eye(2)).max() > 1e-3


@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize("rotate", [True, False])
def test_a_draw_at_workers_is_all_rows_in_their_order_turned_alike(
    rotate, linked, workers, records, tmp_path, elsewhere
):
    file = tmp_path / "records.npy"
    if not linked:
        file = shutil.copy(file, elsewhere)
    mechanism, out, shares = GaussianMechanism(Decimal(1), 1e-5, 1e-6, rotate=rotate), np.full((23, 2), np.nan), []
    per_row = mechanism.row_noise(2).law.draws_per_row
    engine = engine_of(tmp_path, workers, part_draws=5.5 * per_row)
    assert engine.draw(mechanism, records, file, out, shares.append) == Assessment()
    assert turned(out, records.values[::-1][:, [0, 2]]) == rotate
    (cluster,) = workers
    assert cluster.given == ("tls://127.0.0.1:1", ("ca", "cert", "key"))
    assert cluster.calls == ["check", 7.0, "cancelled", "close"]
    assert [(part.number, part.first, part.last) for part in cluster.parts] == [
        (0, 0, 5), (1, 5, 10), (2, 10, 15), (3, 15, 20), (4, 20, 23),
    ]  # fmt: skip
    assert shares == pytest.approx([0, 3 / 23, 8 / 23, 13 / 23, 18 / 23, 1])
    assert cluster.modes == {0o700}
    assert list((tmp_path / "shared").iterdir()) == []


def test_a_part_that_costs_more_than_allowed_is_one_row(workers, records, tmp_path):
    mechanism, out = GaussianMechanism(Decimal(1), 1e-5, 1e-6), np.zeros((23, 2))
    engine_of(tmp_path, workers, part_draws=0.0).draw(
        mechanism, records, tmp_path / "records.npy", out, lambda share: None
    )
    assert [part.last - part.first for part in workers[0].parts] == [1] * 23


def test_a_part_that_fails_voids_the_draw_and_says_the_kind_of_the_error_alone(workers, records, tmp_path, caplog):
    records.values[22, 0] = np.nan
    np.save(tmp_path / "records.npy", records.values)
    mechanism, out = GaussianMechanism(Decimal(1), 1e-5, 1e-6), np.zeros((23, 2))
    per_row = mechanism.row_noise(2).law.draws_per_row
    with pytest.raises(NumericalFailure, match="nothing of this draw may be used"):
        engine_of(tmp_path, workers, part_draws=5 * per_row).draw(
            mechanism, records, tmp_path / "records.npy", out, lambda share: None
        )
    assert workers[0].calls == ["check", 7.0, "cancelled", "close"]
    assert [record.getMessage() for record in caplog.records] == [
        "a worker gave up a part of a release: NumericalFailure"
    ]
    assert list((tmp_path / "shared").iterdir()) == []


def test_a_mechanism_that_needs_all_rows_is_drawn_by_itself_with_what_was_given(workers, records, tmp_path, caplog):
    class Whole:
        name = "whole"

        def draw(self, *given):
            return given

    caplog.set_level("INFO", "curator_service.release.draw_engine")
    out, report = np.zeros((23, 2)), [].append
    for engine in (engine_of(tmp_path, workers), ProcessDraws()):
        assert engine.draw(Whole(), records, tmp_path / "records.npy", out, report) == (records, out, report)
    assert workers == []
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith("a release of whole needs all rows")


def test_a_mechanism_that_needs_all_rows_is_not_drawn_row_by_row():
    assert not isinstance(PoGpUcb(Decimal(1), 1e-5, 1.0, 2), RowByRow)
    assert isinstance(PlanarLaplaceMechanism(Decimal(1), 1.0), RowByRow)
    assert isinstance(GaussianMechanism(Decimal(1), 1e-5, 1.0), RowByRow)


def test_a_cluster_without_certificates_or_without_a_shared_folder_is_refused(tmp_path):
    for engine in ("tcp://10.0.0.1:8786", "dask://127.0.0.1:8786", "threads"):
        with pytest.raises(ValueError, match="draw_engine"):
            Settings(data_dir=tmp_path, draw_engine=engine, draw_files=tmp_path)
    with pytest.raises(ValueError, match="DRAW_FILES"):
        Settings(data_dir=tmp_path, draw_engine="tls://127.0.0.1:8786", draw_files=tmp_path)


def test_the_engine_is_this_process_or_the_cluster_of_the_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    certificates = ("ca", "cert", "key")
    for files in (None, Path("draws")):
        assert isinstance(draw_engine("process", None, files, 1.0), ProcessDraws)
    engine = draw_engine("tls://10.0.0.1:8786", certificates, Path("draws"), 9.0)
    assert engine == ClusterDraws("tls://10.0.0.1:8786", certificates, tmp_path / "draws", 9.0)
