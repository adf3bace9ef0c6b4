"""Earlier databases: one that was put back serves nothing until it is accepted; a stored withdrawal still counts."""

import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from blindopt import wire
from blindopt.audit.merkle_log import sha256
from blindopt.client import Owner, StudyClient
from blindopt.errors import BlindoptError, LogBroken, Remote
from curator_service import store
from curator_service.releases.mechanisms.row_noise import GaussianMechanism
from service_kit.store import audit_log
from service_kit.store.base import stamp
from tests import beside
from tests.builders import a_study_of
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator
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
    with Owner(curator.url, curator.token) as owner:
        first = owner.register("small", small.csv, public=True).id
        study = owner.release(owner.create_study(checks.draft(small, first, epsilon="0.5")).id)
        token = owner.grant(study.id, wire.GrantCreate(name="modeler")).token
    assert curator.stop() == 0
    beside.copytree(curator.data, folder / "copy")
    made = History(folder / "copy", curator.data, curator.folder / "first-token", study.id, token, [first], 0)
    curator.start()
    with Owner(curator.url, curator.token) as owner:
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
    assert (code, "nothing was put back" in again) == (4, True)
    service.start()
    with Owner(service.url, service.token) as owner:
        assert [dataset.id for dataset in owner.datasets()] == history.datasets[:1]
        assert owner.study(history.study).view.state == "closed"
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
    assert (code, "nothing was put back" in output) == (4, True), output


@pytest.mark.parametrize(
    ("change", "why"), [("UPDATE studies SET state = 'closed'", "study"), ("DELETE FROM log WHERE seq = 2", "log")]
)
def test_an_earlier_state_that_does_not_verify_is_not_accepted(history, put_back, change, why):
    party = Party("curator", put_back(history.earlier).data)
    with party.open() as db:
        db.execute(change)
    records = party.rows("SELECT count(*) FROM log")
    code, output = party.command(*ACCEPT)
    assert (code, why in output) == (3, True), output
    assert party.rows("SELECT count(*) FROM log") == records


def test_an_earlier_state_without_a_file_that_it_names_is_left_as_it_is(history, put_back):
    party = Party("curator", put_back(history.earlier).data)
    gone = party.data / "files" / f"{history.datasets[0]}.npy"
    gone.unlink()
    records = party.rows("SELECT count(*) FROM log")
    code, output = party.command(*ACCEPT)
    assert (code, f"{gone.name} is missing" in output) == (4, True), output
    assert party.rows("SELECT count(*) FROM log") == records


def test_a_database_that_is_served_is_not_accepted(history, put_back, until):
    service = put_back(history.earlier)
    service.process = service.spawn()
    until(lambda: service.listens() and _readiness(service)[1] == "audit_unavailable")
    code, output = Party("curator", service.data).command(*ACCEPT)
    assert (code, "another process" in output) == (4, True), output
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
    assert earlier.command("audit", "verify")[0] == 3
    code, output = earlier.command(*ACCEPT)
    assert (code, "1 are lost" in output) == (0, True), output
    assert earlier.command("audit", "verify")[0] == 0
    with closing(beside.connect(earlier.database)) as db:
        assert db.execute("SELECT count(*) FROM log").fetchall()[0][0] == len(earlier.records())


# --- a withdrawal of a mechanism, as versions up to 0.3.0 stored it ---------------------------------

WHY = "its proof has a hole"
GAUSSIAN = wire.GaussianRelease(mechanism="gaussian", epsilon="1", delta=0.1)
AUTO = wire.AutoRelease(mechanism="auto", epsilon="1", delta=0.1)  # takes the Gaussian for two features
IDENTITY = wire.IdentityRelease(mechanism="identity")
LAPLACE = wire.LaplaceAnswers(mechanism="laplace", epsilon="0.5", value_bound=1.0)


def _withdraw(curator: InProcessCurator) -> None:
    def work(db: Any) -> None:
        row, now = {"mechanism": "gaussian", "version": GaussianMechanism.version}, curator.context.clock()
        store.insert(db, store.advisories, id="adv_1", **row, reason=WHY, created_at=stamp(now))
        details = {"advisory_id": "adv_1", **row, "reason_sha256": sha256(WHY.encode())}
        audit_log.append(db, "mechanism.withdrawn", actor="owner", now=now, details=details)

    curator.context.database.write(work)


class Withdrawn:
    """A curator with studies that released before the Gaussian was withdrawn, and one that did not."""

    def __init__(self, folder: Path, small: Any) -> None:
        self.curator, self._small = InProcessCurator(folder), small
        self.studies = [self._open(GAUSSIAN, LAPLACE), self._open(AUTO, LAPLACE), self._open(IDENTITY, wire.NONE)]
        self.before = self.view(0)
        _withdraw(self.curator)

    def spec(self, dataset: str, release: Any = GAUSSIAN, answers: Any = wire.NONE) -> wire.StudyCreate:
        cap = None if answers is wire.NONE else "3"
        return a_study_of(self._small, dataset, release, answers=answers, epsilon_per_row=cap)

    def _open(self, release: Any, answers: Any) -> tuple[str, str]:
        csv = self._small.csv + b"\n" * (release is IDENTITY)  # an account of its own
        study = self.curator.open(csv, lambda dataset: self.spec(dataset, release, answers))
        return study, self.curator.tokens["modeler"]

    def view(self, index: int) -> Any:
        study, self.curator.tokens["modeler"] = self.studies[index]
        return self.curator.call("modeler", "GET", f"/v1/studies/{study}")

    def of_owner(self, index: int, about: str = "") -> Any:
        return self.curator.call("owner", "GET", f"/v1/studies/{self.studies[index][0]}{about}")

    def draft(self) -> str:
        spec = self.spec(self.of_owner(0)["spec"]["dataset_id"]).model_dump(mode="json")
        return str(self.curator.call("owner", "POST", "/v1/studies", json=spec)["id"])


@pytest.fixture
def withdrawn(tmp_path, small):
    curator_and_studies = Withdrawn(tmp_path, small)
    yield curator_and_studies
    curator_and_studies.curator.close()


def test_studies_of_a_withdrawn_mechanism_say_so_and_go_on_without_a_bound(withdrawn):
    """Candidates were published, so to refuse queries would protect no record. Private answers keep their promise."""
    assert (withdrawn.before["status"], withdrawn.before["epsilon"]) == ("sound", "1")
    for index in (0, 1):
        view, owned = withdrawn.view(index), withdrawn.of_owner(index)
        assert (view["state"], view["status"], view["mechanism"]) == ("open", "withdrawn", "gaussian")
        assert [view[name] for name in ("epsilon", "delta", "sensitivity")] == [None] * 3
        assert view["guarantee"].startswith(f"Withdrawn: {WHY}.")
        assert view["guarantee"].endswith("Answers about one record add up to 3 at most.")
        assert any(gap.startswith("Features:") for gap in view["not_protected"])
        report = owned["report"]
        assert (report["status"], report["version"], report["belief"]) == ("withdrawn", GaussianMechanism.version, None)
        assert owned["guarantee"] == report["guarantee"] == view["guarantee"]
        assert owned["not_protected"] == report["not_protected"] == view["not_protected"]
        assert {(meaning["sensitivity"], meaning["confused"]) for meaning in report["features"]} == {(None, None)}
        assert (report["price"]["release_epsilon"], report["price"]["row_epsilon"]) == (None, None)
        withdrawn.curator.ask(withdrawn.studies[index][0], [1], plays=4)
        body = {"rows": [{"row": 1, "plays": 1}]}
        over = withdrawn.curator.send("modeler", "POST", f"/v1/studies/{view['id']}/queries", json=body)
        assert "3 of 3 spent" in over.text  # the caps go on counting the charge of the release
    assert withdrawn.before["answers"] == withdrawn.view(0)["answers"]
    assert (withdrawn.view(2)["status"], "Withdrawn" in withdrawn.view(2)["guarantee"]) == ("unprotected", False)


@pytest.mark.parametrize(("index", "epsilon"), [(0, None), (1, None), (2, "0")])
def test_no_figure_counts_a_withdrawn_release(withdrawn, index, epsilon):
    dataset = withdrawn.of_owner(index)["spec"]["dataset_id"]
    accounting, balance = withdrawn.of_owner(index, "/accounting"), withdrawn.of_owner(index, "/account")
    assert accounting["rows"][0]["epsilon"] == balance["release_epsilon"] == epsilon
    assert ("without a bound" in accounting["sentence"]) == (epsilon is None)
    lines = withdrawn.of_owner(index, "/ledger")["entries"]
    assert [line["epsilon"] for line in lines if line["kind"] == "release"] == [epsilon]
    account = withdrawn.curator.call("owner", "GET", f"/v1/datasets/{dataset}/account")
    assert account["epsilon"] == epsilon
    assert all("its mechanism gaussian is withdrawn" in use["unbounded"] for use in account["unbounded"])
    report = withdrawn.curator.call("owner", "POST", f"/v1/studies/{withdrawn.studies[index][0]}:report")["report"]
    assert report["studies"][0]["status"] == ("unprotected" if epsilon else "withdrawn")
    assert report["studies"][0]["price"]["release_epsilon"] == epsilon
    listed = withdrawn.curator.call("owner", "GET", "/v1/accounts")["accounts"]
    assert [each["release_epsilon"] for each in listed] == [None, None, "0"]


def test_a_withdrawn_mechanism_makes_no_new_release(withdrawn):
    draft = withdrawn.draft()
    preview = withdrawn.curator.call("owner", "POST", f"/v1/studies/{draft}:preview")
    assert (preview["status"], preview["price"]["release_epsilon"]) == ("withdrawn", None)
    refused = withdrawn.curator.send("owner", "POST", f"/v1/studies/{draft}:release")
    assert (refused.status_code, refused.json()["code"]) == (409, "state_conflict")
    assert withdrawn.curator.call("owner", "GET", f"/v1/studies/{draft}/ledger")["entries"] == []


def test_a_corrected_mechanism_releases_again_and_its_earlier_version_stays_withdrawn(withdrawn, monkeypatch):
    monkeypatch.setattr(GaussianMechanism, "version", GaussianMechanism.version + 1)
    released = withdrawn.curator.call("owner", "POST", f"/v1/studies/{withdrawn.draft()}:release")
    assert (released["report"]["status"], released["report"]["price"]["release_epsilon"]) == ("sound", "1")
    assert (withdrawn.view(0)["status"], withdrawn.of_owner(0)["report"]["status"]) == ("withdrawn", "withdrawn")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (None, None),
        ("UPDATE advisories SET reason = 'never mind'", "is not what the log says"),
        ("UPDATE advisories SET version = 9", "is not what the log says"),
        ("DELETE FROM advisories", "is missing"),
        (
            "INSERT INTO advisories SELECT 9, 'adv_x', 'identity', 1, reason, created_at FROM advisories",
            "is not what the log says",
        ),
    ],
)
def test_a_stored_withdrawal_is_what_the_log_says(withdrawn, change, says):
    if change is None:
        withdrawn.curator.check()
        return
    with closing(beside.connect(withdrawn.curator.context.database.path)) as db:
        with pytest.raises(Exception, match="append-only"):
            db.execute("DELETE FROM advisories")
        db.rollback()
        beside.drop_triggers(db)
        db.execute(change)
        db.commit()
    with pytest.raises(LogBroken, match=says):
        withdrawn.curator.check()
