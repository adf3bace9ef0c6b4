"""A part of a draw: written once, begun once, and nothing but the kind of an error in what its worker replies."""

from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest

from blindopt.errors import NumericalFailure
from blindopt.wire import Feature
from curator_service.release import draw_parts
from curator_service.release.draw_engine import ClusterDraws, ProcessDraws, RowByRow, draw_engine
from curator_service.release.draw_parts import DrawPart, draw_part, drawn_file, take_part
from curator_service.release.gaussian import GaussianMechanism
from curator_service.release.planar_laplace import PlanarLaplaceMechanism
from curator_service.release.po_gp_ucb import PoGpUcb
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
    with pytest.raises(NumericalFailure):
        take_part(task, out)


def test_what_a_crash_left_is_deleted_and_nothing_else(tmp_path):
    (tmp_path / "draw-1").mkdir()
    (tmp_path / "draw-1" / "order.npy").write_text("secret")
    (tmp_path / "other").write_text("stays")
    ClusterDraws("tls://127.0.0.1:1", None, tmp_path, 1.0).clean()
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


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
    assert isinstance(draw_engine("process", None, None, 1.0), ProcessDraws)
