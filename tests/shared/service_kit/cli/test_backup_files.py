"""Backups: nothing that was there is removed, and all that was made is on the disk before it has its name."""

import os
import resource
from datetime import UTC, datetime
from pathlib import Path

import pytest

from blindopt.errors import StateConflict, StorageUnavailable
from modeler_service.context import open_context
from modeler_service.settings import Settings
from service_kit.cli import backup
from tests.interventions import act_before


@pytest.fixture
def context(tmp_path):
    with open_context(Settings(data_dir=tmp_path / "data"), lambda: datetime.now(UTC)) as opened:
        yield opened


def named(db):
    return []


def test_a_folder_that_happens_to_have_the_name_of_the_copy_in_the_making_is_not_removed(context, tmp_path):
    kept = tmp_path / "copy.part" / "letters"
    kept.parent.mkdir()
    kept.write_text("dear")
    with pytest.raises(StateConflict, match=r"copy\.part exists"):
        backup.backup(context, tmp_path / "data", tmp_path / "copy", named)
    assert kept.read_text() == "dear"


def test_a_backup_that_fails_leaves_nothing_in_the_way_of_the_next(context, tmp_path):
    with pytest.raises(FileNotFoundError):
        backup.backup(context, tmp_path / "data", tmp_path / "copy", lambda db: ["files/missing.npy"])
    assert backup.backup(context, tmp_path / "data", tmp_path / "copy", named) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "data"]


def test_every_file_is_written_to_the_disk_before_the_backup_has_its_name(context, tmp_path, monkeypatch):
    synced = []

    def record(descriptor):
        synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), (tmp_path / "copy").exists()))  # noqa: PTH115

    act_before(monkeypatch, os, "fsync", record)
    (tmp_path / "data" / "files").mkdir()
    (tmp_path / "data" / "files" / "a").write_text("a")
    backup.backup(context, tmp_path / "data", tmp_path / "copy", lambda db: ["files/a"])
    made = {str(path.relative_to(tmp_path / "copy")) for path in (tmp_path / "copy").rglob("*")}
    before = {str(Path(path).relative_to(tmp_path / "copy.part")) for path, named in synced if not named}
    assert before >= made >= {"modeler.sqlite", "manifest.json", "files", "files/a"}
    assert (str(tmp_path), True) in synced  # the name itself


def test_a_full_disk_ends_a_backup_in_words_and_leaves_nothing(context, tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))  # to SQLite it is as a disk without room
    try:
        with pytest.raises(StorageUnavailable, match="the copy of the database cannot be written: "):
            backup.backup(context, tmp_path / "data", tmp_path / "copy", named)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize("target", [".", "", "/", ".."])
def test_a_folder_without_a_name_of_its_own_is_refused_as_any_that_exists(context, tmp_path, monkeypatch, target):
    monkeypatch.chdir(tmp_path / "data")
    with pytest.raises(StateConflict, match="exists: a backup goes to a new folder"):
        backup.backup(context, tmp_path / "data", Path(target), named)
