"""kill -9 at each point of an erasure: all of a dataset is there or nothing of it answers, and no log is lost.

BLINDOPT_CRASHES=20 kills so often at each point.
"""

import contextlib
import secrets
import signal
import struct

import pytest

from blindopt import wire
from blindopt.client import Owner, StudyClient
from blindopt.errors import Remote, Unreachable
from tests.builders import a_study
from tests.conftest import Service
from tests.system.crashes import crash_checks as checks
from tests.system.crashes.crashing_service import Shot, arm, shots
from tests.system.crashes.test_crash_matrix import KILLS

# Where it kills, and whether the dataset is erased then.
POINTS = {
    "erased.before-commit": False,
    "erased.after-commit": True,
    "erased.file.after": True,
    "erased.wal.before": True,
}
QUERY = wire.QueryRequest(rows=[wire.RowPlays(row=0, plays=1)])


@pytest.fixture(scope="module")
def curator(make_service, tmp_path_factory):
    """A curator that dies at chosen points."""
    made = make_service("curator", tmp_path_factory.mktemp("erasing"))
    arm(made, made.folder / "control")
    yield made.start()
    made.process.kill()


class Erasure:
    """A dataset whose outcomes are one value, in an archived study that has answered."""

    def __init__(self, curator):
        self.curator, self.key = curator, secrets.token_hex(8)
        self.value = 1 + secrets.randbelow(10**9) / 10**9 + 1e-12
        rows = "\n".join(f"{i},{i % 3},{self.value!r}" for i in range(8))
        with Owner(curator.url, curator.token) as owner:
            self.dataset = owner.register(self.key, f"a,b,y\n{rows}\n".encode(), public=True).id
            feature = [wire.Feature(column=name, lower=0.0, upper=8.0) for name in ("a", "b")]
            draft = a_study(name=self.key, dataset_id=self.dataset, features=feature)
            self.study = owner.create_study(draft).id
            owner.release(self.study)
            self.token = owner.grant(self.study, wire.GrantCreate(name="modeler")).token
            assert self.answer() == self.value
            owner.close_study(self.study)
            owner.archive_dataset(self.dataset)

    def answer(self):
        """The first query, sent again under its key; None once it is erased."""
        with StudyClient(self.curator.url, self.token, self.study) as modeler:
            try:
                return modeler.ask(QUERY, key=self.key)[0].answers[0].y
            except Remote as error:
                return None if (error.code, error.remote_status) == ("erased", 410) else str(error)

    def erase(self):
        """The reply to the erasure, under one key."""
        with Owner(self.curator.url, self.curator.token, timeout_s=240) as owner:
            return owner.erase_dataset(self.dataset, key=self.key)

    def files(self, folder):
        """Names of files that hold the value, as a double in either order or as text."""
        marks = (repr(self.value).encode(), struct.pack("<d", self.value), struct.pack(">d", self.value))
        held = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        return {path.name for path, content in held.items() if any(mark in content for mark in marks)}


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_leaves_all_of_it_or_nothing_that_answers(curator, point):
    for _ in range(KILLS):
        erasure = Erasure(curator)
        assert erasure.files(curator.data)  # the search finds what is there
        records = len(curator.records())
        Shot(point).aim(curator.folder / "control")
        with contextlib.suppress(Unreachable):
            erasure.erase()
        assert curator.process.wait(timeout=240) == -signal.SIGKILL, f"{point} was not passed"
        assert shots(curator.folder / "control")[-1]["point"] == point
        curator.start()
        assert len(curator.records()) == records + POINTS[point]
        assert erasure.answer() == (None if POINTS[point] else erasure.value)
        assert bool(erasure.files(curator.data)) == (not POINTS[point])
        done = erasure.erase()
        assert erasure.erase() == done
        assert (done.studies, done.replies) == ([erasure.study], 1)
        assert erasure.answer() is None
        assert erasure.files(curator.data) == set()
    checks.check_service(curator)


def test_what_was_erased_is_erased_again_where_an_older_backup_is_restored(curator, tmp_path):
    erasure = Erasure(curator)
    backup, listed = tmp_path / "backup", curator.data / "erased"
    assert checks.command(curator, "backup", str(backup))[0] == 0
    assert erasure.files(backup)  # backups hold it until they are deleted
    erased_before = listed.exists()  # by the kills above
    erasure.erase()
    mistyped = Service("curator", tmp_path / "mistyped")
    secrets = str(curator.data / "secrets")
    status, output = checks.command(
        mistyped, "restore", str(backup), "--secrets", secrets, "--erased", str(tmp_path / "no")
    )
    assert status != 0
    assert "--erased: there is no file" in output
    assert not erasure.files(tmp_path / "mistyped")
    for name, options in (("without", ()), ("with", ("--erased", str(listed)))):
        restored = Service("curator", tmp_path / name)
        arguments = ("restore", str(backup), "--secrets", secrets, *options)
        status, output = checks.command(restored, *arguments)
        assert status == 0, output
        assert bool(erasure.files(restored.data)) == (name == "without")  # the control
        status, output = checks.command(restored, "audit", "verify")
        assert (status, "erased: " in output) == (0, name == "with" or erased_before), output
