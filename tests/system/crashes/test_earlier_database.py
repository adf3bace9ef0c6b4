"""A database that its server or a snapshot of its disk put back: nothing is served or deleted until it is accepted."""

import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from blindopt import wire
from blindopt.client import OwnerClient, StudyClient
from blindopt.errors import BlindoptError, Remote
from tests import beside
from tests.system.audit.tampering import Party
from tests.system.crashes import crash_checks as checks

ACCEPT = ("restore", "--from-database")


@dataclass
class History:
    """A curator's folder, a copy of it from before, and what came in between: records, a release, an answer."""

    earlier: Path
    whole: Path
    first_token: Path
    study: str
    token: str
    datasets: list[str]
    lost: int


def _query(url: str, history: History, key: str) -> Any:
    with StudyClient(url, history.token, history.study) as client:
        return client.ask(wire.QueryRequest(rows=[wire.RowPlays(row=3)]), key=key)[0]


@pytest.fixture(scope="module")
def history(make_service, small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("earlier")
    curator = make_service("curator", folder).start()
    with OwnerClient(curator.url, curator.token) as owner:
        first = owner.register("small", small.csv, public=True).id
        study = owner.release(owner.create_study(checks.draft(small, first, epsilon="0.5")).id)
        token = owner.grant(study.id, wire.GrantCreate(name="modeler")).token
    assert curator.stop() == 0
    beside.copytree(curator.data, folder / "copy")
    made = History(folder / "copy", curator.data, curator.folder / "first-token", study.id, token, [first], 0)
    curator.start()
    with OwnerClient(curator.url, curator.token) as owner:
        made.datasets.append(owner.register("later", small.csv, public=True).id)
        owner.release(owner.create_study(checks.draft(small, made.datasets[1])).id)
    _query(curator.url, made, "later")
    assert curator.stop() == 0
    earlier, whole = (Party("curator", data).records() for data in (made.earlier, made.whole))
    assert whole[: len(earlier)] == earlier
    made.lost = len(whole) - len(earlier)
    assert made.lost >= 4
    return made


@pytest.fixture
def put_back(history, tmp_path, make_service) -> Callable[[Path | None], Any]:
    """A service whose files are of now, and whose database is that of another folder; None for an empty one."""

    def make(database: Path | None) -> Any:
        service = make_service("curator", tmp_path)
        if database is None:
            service.folder.mkdir(mode=0o700, exist_ok=True)
            shutil.copytree(history.whole, service.data, ignore=shutil.ignore_patterns("*.sqlite*"))
        else:
            beside.copytree(database, service.data)
            for name in ("files", "checkpoint"):
                path = service.data / name
                shutil.rmtree(path) if path.is_dir() else path.unlink()
                now = history.whole / name
                shutil.copytree(now, path) if now.is_dir() else shutil.copy(now, path)
        shutil.copy(history.first_token, service.folder / "first-token")
        return service

    return make


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "files").glob("*.npy")}


@pytest.mark.parametrize("of", ["an earlier state", "nothing"])
def test_a_start_with_the_wrong_database_serves_nothing_and_deletes_no_file(history, put_back, until, of):
    """The address of another database, a copy of an old one: what was registered since is not to be lost for that."""
    service = put_back(history.earlier if of == "an earlier state" else None)
    before = _files(service.data)
    assert {name.partition(".")[0] for name in before} > set(history.datasets)
    service.process = service.spawn()
    until(lambda: service.listens() and _readiness(service) == (503, "audit_unavailable"))
    with pytest.raises(BlindoptError):
        _query(service.url, history, "now")
    assert service.stop() == 0
    assert _files(service.data) == before


def _readiness(service: Any) -> tuple[int, str]:
    reply = httpx.get(f"{service.url}/readyz", trust_env=False, timeout=60)
    return reply.status_code, reply.json().get("code", "")


def test_an_earlier_state_that_is_accepted_has_closed_all_that_could_be_spent_twice(history, put_back):
    service = put_back(history.earlier)
    party = Party("curator", service.data)
    code, output = party.command(*ACCEPT)
    assert code == 0, output
    assert f"{history.lost} are lost" in output
    records = party.records()
    assert records[-1]["kind"] == "log.restored"
    assert records[-1]["details"] == {"closed_studies": [history.study], "closed_accounts": history.datasets[:1]}
    assert party.command("audit", "verify")[0] == 0
    code, again = party.command(*ACCEPT)
    assert (code, "nothing was put back" in again) == (1, True)
    service.start()
    with OwnerClient(service.url, service.token) as owner:
        assert [dataset.id for dataset in owner.datasets()] == history.datasets[:1]
        assert owner.study(history.study).state == "closed"
    for key in ("now", "later"):  # nothing more is charged; the reply to what was charged is lost
        with pytest.raises(Remote) as error:
            _query(service.url, history, key)
        assert error.value.remote_code == "study_not_open", error.value
    assert service.stop() == 0
    kept = {name.partition(".")[0] for name in _files(service.data)}
    assert (history.datasets[0] in kept, history.datasets[1] in kept) == (True, False)


def test_a_database_that_is_up_to_date_or_changed_is_not_accepted(history, put_back):
    whole = Party("curator", put_back(history.whole).data)
    code, output = whole.command(*ACCEPT)
    assert (code, "nothing was put back" in output) == (1, True), output


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("UPDATE studies SET state = 'closed'", "study"),
        ("DELETE FROM log WHERE seq = 2", "log"),
    ],
)
def test_an_earlier_state_that_does_not_verify_is_not_accepted(history, put_back, change, why):
    party = Party("curator", put_back(history.earlier).data)
    with party.open() as db:
        db.execute(change)
    records = party.rows("SELECT count(*) FROM log")
    code, output = party.command(*ACCEPT)
    assert (code, why in output) == (1, True), output
    assert party.rows("SELECT count(*) FROM log") == records


def test_an_earlier_state_without_a_file_that_it_names_is_left_as_it_is(history, put_back):
    party = Party("curator", put_back(history.earlier).data)
    gone = party.data / "files" / f"{history.datasets[0]}.npy"
    gone.unlink()
    records = party.rows("SELECT count(*) FROM log")
    code, output = party.command(*ACCEPT)
    assert (code, f"{gone.name} is missing" in output) == (1, True), output
    assert party.rows("SELECT count(*) FROM log") == records


def test_a_database_that_is_served_is_not_accepted(history, put_back, until):
    service = put_back(history.earlier)
    service.process = service.spawn()
    until(lambda: service.listens() and _readiness(service)[1] == "audit_unavailable")
    code, output = Party("curator", service.data).command(*ACCEPT)
    assert (code, "another process" in output) == (1, True), output
    assert service.stop() == 0


@pytest.mark.parametrize("arguments", [(), ("x",), ("x", "--from-database"), ("--secrets", "y")])
def test_a_restore_says_what_it_needs(history, put_back, arguments):
    code, output = Party("curator", put_back(history.earlier).data).command("restore", *arguments)
    assert (code, "--secrets, or --from-database" in output) == (2, True), output


def test_a_modeler_goes_on_with_an_earlier_state(make_service, tmp_path):
    modeler = make_service("modeler", tmp_path).start()
    assert modeler.stop() == 0
    beside.copytree(modeler.data, tmp_path / "copy")
    modeler.start()
    assert modeler.run("token", "create", "--name", "more").returncode == 0
    assert modeler.stop() == 0
    earlier = Party("modeler", tmp_path / "copy")
    shutil.copy(modeler.data / "checkpoint", earlier.data / "checkpoint")
    assert earlier.command("audit", "verify")[0] == 1
    code, output = earlier.command(*ACCEPT)
    assert (code, "1 are lost" in output) == (0, True), output
    assert earlier.command("audit", "verify")[0] == 0
    with closing(beside.connect(earlier.database)) as db:
        assert db.execute("SELECT count(*) FROM log").fetchall()[0][0] == len(earlier.records())
