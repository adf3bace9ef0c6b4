"""Rows that were changed by hand, while the service runs or is stopped: none is acted on, each is named.

One data folder is prepared, and copied for each edit.
"""

import re
from contextlib import closing

import numpy as np
import pytest

from blindopt import wire
from blindopt.errors import RecordChanged
from curator_service import store
from curator_service.integrity import log_checks
from curator_service.releases.releases import Releases
from service_kit.cli import users
from service_kit.store import tokens
from service_kit.store import users as stored_users
from service_kit.store.database import Database
from service_kit.verification import LogVerification
from tests import beside
from tests.builders import group_release
from tests.curator_service.budget.file_of_records import FileOfRecords, spec_of
from tests.curator_service.integrity.changed_copy import Copy
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator
from tests.curator_service.replaced_steps import replace_measuring

KEY = 'repeated "often"'


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A study whose cap is used up, an open one, and a closed one, each with a grant; the tokens of the grants."""
    folder = tmp_path_factory.mktemp("prepared")
    file = FileOfRecords(folder, public=True)
    studies = {"used": file.study(budget=wire.Budget(queries=3)), "open": file.study(), "closed": file.study()}
    for row in (0, 1, 0):
        assert file.ask(studies["used"], row).status_code == 201
    assert file.ask(studies["closed"], 0).status_code == 201
    assert file.ask(studies["open"], 0, key=KEY).status_code == 201
    file.in_process.call("owner", "POST", f"/v1/studies/{studies['closed']}:close")
    file.in_process.curator.close()
    file.in_process.close()
    return folder, studies, {name: file.tokens[study] for name, study in studies.items()}


@pytest.fixture
def copy(prepared, tmp_path):
    copy = Copy(prepared, tmp_path)
    yield copy
    copy.close()


OF_USED = "study_id = '{used}'"
LAST = "seq = (SELECT max(seq) FROM ledger WHERE study_id = '{used}')"
EDITS = {
    "a closed study is open": ("UPDATE studies SET state = 'open' WHERE id = '{closed}'", "closed", "is open, and"),
    "a cap is raised": (
        """UPDATE studies SET spec = replace(spec, '"queries":3', '"queries":9')""",
        "used",
        "its spec",
    ),
    "a total is lowered": (f"UPDATE ledger SET total = 0, total_plays = 0 WHERE {LAST}", "used", "ledger line"),
    "the last line is gone": (f"DELETE FROM ledger WHERE {LAST}", "used", "the ledger of .* lacks the last"),
    "all lines are gone": (f"DELETE FROM ledger WHERE {OF_USED}", "used", "the ledger of .* lacks the last"),
    "a line is another study's": (f"UPDATE ledger SET study_id = '{{open}}' WHERE {LAST}", "used", "ledger line"),
    "another Z": ("UPDATE releases SET sha256 = '0' WHERE study_id = '{used}'", "used", "the release of study"),
    "fewer candidates": ("UPDATE releases SET n = n - 1 WHERE study_id = '{used}'", "used", "not as many as"),
    "more features": ("UPDATE releases SET r = r + 1 WHERE study_id = '{used}'", "used", "not as many as"),
}


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("when", ["while it is stopped", "while it runs"])
@pytest.mark.parametrize("edit", EDITS)
def test_a_changed_row_spends_nothing_and_is_named_and_other_studies_go_on(edit, when, copy):
    statement, name, named = EDITS[edit]
    if when == "while it runs":
        copy.open()
        assert copy.ask(name).status_code == 403  # closed, or used up
    copy.edit(statement)
    if when == "while it is stopped":
        copy.open()
    charged = copy.count("charge")
    reply = copy.ask(name)
    assert (reply.status_code, reply.json()["code"]) == (503, "record_changed"), reply.text
    assert copy.count("charge") == charged
    if "another study's" not in edit:
        assert copy.ask("open").status_code == 201
    assert any(re.search(named, finding) for finding in copy.findings()), copy.findings()


def test_without_an_edit_nothing_is_found_and_caps_and_states_are_what_they_were(copy):
    """The control."""
    copy.open()
    assert [copy.ask(name).json().get("code") for name in ("used", "open", "closed")] == [
        "privacy_budget_exhausted",
        None,
        "study_not_open",
    ]
    assert copy.findings() == {}


DATASET_EDITS = {
    "rows": "rows = rows - 1",
    "columns": """columns = replace(replace(replace(columns, '"a"', '"c"'), '"b"', '"a"'), '"c"', '"b"')""",
    "no columns": "columns = '[]'",
    "an extreme": "columns = replace(columns, '\"maximum\": 1.0', '\"maximum\": 9.0')",
    "persons": "persons = 2",
    "person column": "person_column = NULL",
    "records left out": "rows_left_out = 5, person_column = NULL",
}


_UNKNOWN = "an extreme", "earlier"
"""Nothing but a new reading of all values would find that."""


@pytest.fixture(scope="module")
def prepared_persons(tmp_path_factory):
    """Folders, with the names and tokens of one study on a file of persons: of this version, and of an earlier one."""
    prepared = {}
    for version in ("now", "earlier"):
        folder = tmp_path_factory.mktemp(version)
        with pytest.MonkeyPatch().context() as patch:
            if version == "earlier":
                patch.setattr(store, "digests_of", lambda dataset: {})
            fields = {"person": "p", "rows_per_person": "2"}
            csv = b"p,a,b,y\n" + b"".join(b"%d,%d,%d,%d\n" % (i // 2, i % 3, i % 2, i) for i in range(6))
            file = FileOfRecords(folder, public=True, csv=csv, fields=fields)
            study = file.study(rows_per_person=2, person_column=True)
        file.in_process.curator.close()
        file.in_process.close()
        prepared[version] = folder, {"open": study}, {"open": file.tokens[study]}
    return prepared


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("when", ["while it is stopped", "while it runs"])
@pytest.mark.parametrize(
    ("edit", "version"),
    [(edit, version) for edit in DATASET_EDITS for version in ("now", "earlier") if (edit, version) != _UNKNOWN],
)
def test_what_decides_in_the_row_of_a_dataset_is_compared_with_the_log_or_with_its_files(
    edit, version, when, prepared_persons, tmp_path
):
    copy = Copy(prepared_persons[version], tmp_path)
    if when == "while it runs":
        copy.open()
        assert copy.ask("open").status_code == 201
        assert copy.findings() == {}  # the control
    copy.edit(f"UPDATE datasets SET {DATASET_EDITS[edit]}")
    if when == "while it is stopped":
        copy.open()
    charged = copy.count("charge")
    reply = copy.ask("open", row=1)
    assert (reply.status_code, reply.json()["code"]) == (503, "record_changed"), reply.text
    assert copy.count("charge") == charged
    assert any("its columns, rows or persons" in finding for finding in copy.findings()), copy.findings()
    copy.close()


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("when", ["while it is stopped", "while it runs"])
@pytest.mark.parametrize(
    ("statement", "act"),
    [
        ("UPDATE tokens SET role = 'owner' WHERE study_id = '{used}'", ("GET", "/v1/datasets")),
        ("UPDATE tokens SET study_id = '{open}' WHERE study_id = '{used}'", ("GET", "/v1/studies/{open}")),
        ("UPDATE tokens SET expires_at = '3' WHERE study_id = '{used}'", ("GET", "/v1/studies/{used}")),
        ("UPDATE tokens SET role = 'owner', mac = NULL WHERE study_id = '{used}'", ("GET", "/v1/datasets")),
    ],
    ids=["role", "study", "expiry", "role without a MAC"],
)
def test_a_changed_token_opens_nothing(statement, act, when, copy):
    method, path = act[0], act[1].format(**copy.names)
    if when == "while it runs":
        copy.open()
        copy.curator.send("used", method, path)
    copy.edit(statement)
    if when == "while it is stopped":
        copy.open()
    reply = copy.curator.send("used", method, path)
    assert (reply.status_code, reply.json()["code"]) == (503, "record_changed")
    assert copy.ask("open").status_code == 201
    assert any("token" in finding for finding in copy.findings())


def test_a_changed_token_opens_nothing_with_triggers_and_signal_off(copy, monkeypatch):
    """The MAC of a row needs no verification."""
    monkeypatch.setattr(Database, "_notice_foreign", lambda self, version: self._memory.clear())
    copy.open()
    assert copy.ask("open").status_code == 201
    copy.edit("UPDATE tokens SET study_id = '{used}' WHERE study_id = '{open}'")
    assert copy.ask("used", token="open").json()["code"] == "record_changed"
    copy.edit("UPDATE tokens SET mac = (SELECT mac FROM tokens ORDER BY mac DESC LIMIT 1) WHERE study_id = '{used}'")
    assert copy.ask("used", token="open").json()["code"] == "record_changed"


@pytest.mark.parametrize("change", ["role = 'owner'", "password_hash = 'other'", "id = 'usr_other'"])
def test_a_changed_user_is_not_let_in(change, tmp_path):
    curator = InProcessCurator(tmp_path)
    context = curator.context
    context.database.write(lambda db: users.add_user(db, context, "ann", "auditor", "hash"))
    with context.database.read() as db:
        (user,) = stored_users.list_all(db)
    context.authentication.check_user(user)
    with closing(beside.connect(tmp_path / "data" / "curator.sqlite")) as db:
        db.execute(f"UPDATE users SET {change}")
        db.commit()
    with context.database.read() as db:
        (user,) = stored_users.list_all(db)
    with pytest.raises(RecordChanged):
        context.authentication.check_user(user)
    with pytest.raises(RecordChanged):
        context.database.write(lambda db: stored_users.set_hash(db, user.id, "new", context.seal.mac))
    curator.close()


def test_a_revoked_token_that_lives_again_is_named(copy):
    """The row is one that the service wrote once, so its MAC is right."""
    copy.open()
    with copy.curator.context.database.read() as db:
        (row,) = tokens.of_study(db, copy.names["used"])
    revoke = f"/v1/studies/{copy.names['used']}/grants/{row.principal}:revoke"
    assert copy.curator.send("owner", "POST", revoke).is_success
    assert copy.ask("used").status_code == 401
    with closing(beside.connect(copy.folder / "data" / "curator.sqlite")) as db:
        db.execute("UPDATE tokens SET revoked_at = NULL, mac = ? WHERE kid = ?", (row.mac, row.kid))
        db.commit()
    assert copy.ask("used").json()["code"] == "record_changed"
    assert any("revocation" in finding for finding in copy.findings())


def test_a_changed_row_order_is_not_used_and_is_named(copy):
    for path in (copy.folder / "data" / "files").glob("*.order.npy"):
        order = np.load(path)
        np.save(path, order[::-1].copy())
    copy.open()
    reply = copy.ask("open")
    assert (reply.status_code, reply.json()["code"]) == (503, "record_changed")
    result = copy.verification.verify()
    assert not result.sound
    assert sum("the row order of the release" in finding for finding in copy.verification.state().findings) == 3


def test_what_a_file_has_used_is_not_read_through_a_changed_row_order(copy):
    """The order of another study on the file, whose answers count for a cap of the file's account."""
    for path in (copy.folder / "data" / "files").glob("*.order.npy"):
        order = np.load(path)
        np.save(path, order[::-1].copy())
    copy.open()
    dataset = copy.curator.call("owner", "GET", f"/v1/studies/{copy.names['open']}")["spec"]["dataset_id"]
    reply = copy.curator.send("owner", "GET", f"/v1/datasets/{dataset}/account")
    assert (reply.status_code, reply.json()["code"]) == (503, "record_changed")


def test_what_an_edit_made_look_interrupted_is_not_ended_at_the_start(copy):
    copy.edit("UPDATE studies SET state = 'releasing', releasing_key = 'x' WHERE id = '{open}'")
    copy.open()
    assert copy.count("release.abandoned") == 0
    assert any("is releasing, and the log does not say so" in finding for finding in copy.findings())
    with copy.curator.context.database.read() as db:
        assert store.find(db, store.studies, copy.names["open"]).state == "releasing"


def test_a_release_that_a_crash_interrupted_is_ended_once_an_edit_of_its_study_is_taken_back(copy, monkeypatch, until):
    """And a draft that an edit made look interrupted may be deleted: its study is ended by nothing."""

    def killed(*_):
        raise OSError

    def state(name):
        return copy.curator.call("owner", "GET", f"/v1/studies/{copy.names[name]}")["state"]

    copy.open()
    dataset = copy.curator.call("owner", "GET", "/v1/datasets")["datasets"][0]["id"]
    for name in ("draft", "other"):
        copy.names[name] = copy.curator.call("owner", "POST", "/v1/studies", json=spec_of(dataset))["id"]
    with monkeypatch.context() as patch:
        patch.setattr(Releases, "_in_secret_order", killed)
        patch.setattr(Releases, "_abandon", lambda *_, **more: None)
        assert copy.curator.send("owner", "POST", f"/v1/studies/{copy.names['draft']}:release").status_code == 500
    copy.close()
    rename = """UPDATE studies SET spec = replace(spec, '"name":"{}"', '"name":"{}"')
        WHERE id IN ('{{draft}}', '{{other}}')"""
    copy.edit(rename.format("study", "another"))
    copy.edit("UPDATE studies SET state = 'releasing' WHERE id = '{other}'")
    copy.open()
    assert copy.curator.curator.recover() is not None
    assert (state("draft"), copy.count("release.abandoned")) == ("releasing", 0)
    copy.edit(rename.format("another", "study"))
    copy.edit("UPDATE studies SET state = 'draft' WHERE id = '{other}'")
    copy.curator.context.database.look()
    until(lambda: copy.curator.context.database.foreign_writes.are_verified)
    assert copy.curator.send("owner", "POST", f"/v1/studies/{copy.names['other']}:delete").is_success
    until(lambda: copy.curator.curator.recover() is None)
    assert (state("draft"), copy.count("release.abandoned")) == ("draft", 1)
    assert copy.findings() == {}


CHANGED = "UPDATE replies SET body = CAST(replace(body, '\"y\":', '\"y\":1') AS BLOB)"
ANSWER_EDITS = {
    "changed": (CHANGED, "was changed"),
    "changed, and as if of an earlier version": (f"{CHANGED}, log_seq = NULL", "was changed"),
    "gone": ("DELETE FROM replies", "is missing"),
    "of another record": ("UPDATE replies SET log_seq = 1", "was changed"),
    "of no record": ("UPDATE replies SET log_seq = 1000000", "was changed"),
}


@pytest.mark.parametrize("edit", ANSWER_EDITS)
def test_a_stored_answer_that_was_changed_or_deleted_is_neither_served_nor_drawn_again(edit, copy):
    copy.open()
    query = copy.ask("open", key=KEY).json()["id"]
    statement, words = ANSWER_EDITS[edit]
    copy.edit(f"{statement} WHERE idempotency_key = '{KEY}'")
    charged = copy.count("charge")
    for _ in range(2):
        reply = copy.ask("open", key=KEY)
        assert (reply.status_code, reply.json()["code"]) == (503, "record_changed")
    assert copy.count("charge") == charged
    assert copy.curator.context.audit_trail.findings == [f"the stored answer under key {KEY} {words}"]
    assert look(copy, query).status_code == 503


@pytest.fixture(scope="module")
def prepared_groups(tmp_path_factory):
    """A study of groups that were all answered at once."""
    folder = tmp_path_factory.mktemp("groups")
    file = FileOfRecords(folder)
    answers = wire.LaplaceAnswers(mechanism="laplace", epsilon="0.5", value_bound=4.0)
    study = file.study(release=group_release("100", (2, 2), 1), answers=answers)  # no group is left out by chance
    sent = file.in_process.send("owner", "POST", f"/v1/studies/{study}:answer_all").content
    file.in_process.curator.close()
    file.in_process.close()
    return sent, (folder, {"open": study}, {"open": file.tokens[study]})


OF_ALL_EDITS = {
    **{name: (f"{edit} WHERE idempotency_key = 'answers'", words) for name, (edit, words) in ANSWER_EDITS.items()},
    "nothing": ("UPDATE replies SET status = status", None),
    "a second one": (
        """INSERT INTO replies SELECT principal, 'other', request_sha256, status, body, sealed, created_at, log_seq
        FROM replies WHERE idempotency_key = 'answers'""",
        "key other is not in the log",
    ),
    "a line of the ledger": ("UPDATE ledger SET row_total = 0 WHERE row = 1", "ledger line"),
    "its query": ("UPDATE queries SET study_id = 'std_0000000000000000'", "is missing in the log"),
}


@pytest.mark.parametrize("edit", OF_ALL_EDITS)
def test_an_edit_of_the_answers_about_all_groups_is_found_and_these_are_not_served(edit, prepared_groups, tmp_path):
    """What was sent may be served where it is still stored as the log says."""
    (sent, prepared), (statement, words) = prepared_groups, OF_ALL_EDITS[edit]
    copy = Copy(prepared, tmp_path)
    copy.edit(statement)
    copy.open()
    path = f"/v1/studies/{copy.names['open']}"
    for who, act in (("owner", f"POST {path}:answer_all"), ("open", f"GET {path}/answers")):
        reply = copy.curator.send(who, *act.split())
        assert (reply.content == sent) if edit == "nothing" else (edit not in ANSWER_EDITS or reply.status_code == 503)
        assert reply.content == sent or reply.json()["code"] == "record_changed"
    assert copy.count("charge") == 2  # the release, and all groups
    findings = [*copy.findings(), *copy.curator.context.audit_trail.findings]
    assert any(words in finding for finding in findings) if words else not findings
    copy.close()


def look(copy, query):
    return copy.curator.send("open", "GET", f"/v1/studies/{copy.names['open']}/queries/{query}")


@pytest.mark.parametrize("is_old", [False, True], ids=["", "of an earlier version"])
def test_a_stored_answer_that_nobody_changed_is_served_again(is_old, copy):
    """The control."""
    if is_old:
        copy.edit("UPDATE replies SET log_seq = NULL")
    copy.open()
    first, again = (copy.ask("open", key=KEY) for _ in range(2))
    assert (first.status_code, first.content) == (201, again.content)
    assert look(copy, first.json()["id"]).content == first.content
    assert copy.findings() == {}


def test_a_query_that_a_fault_left_unanswered_is_answered_whatever_was_read_under_its_key(copy, monkeypatch):
    """A modeler may send a key with any request. Before the mend, its study was refused to everybody."""
    copy.open()
    with monkeypatch.context() as patch:
        replace_measuring(patch, lambda *given: 1 // 0)
        assert copy.ask("open", key="begun").status_code == 500
    of_study = f"/v1/studies/{copy.names['open']}"
    assert copy.curator.send("open", "GET", of_study, headers={"Idempotency-Key": "begun"}).status_code == 200
    assert copy.ask("open", key="begun").status_code == 201
    assert copy.findings() == {}


def test_a_released_study_that_is_made_a_draft_is_not_released_again(copy):
    copy.edit("UPDATE studies SET state = 'draft' WHERE id = '{open}'")
    copy.open()
    reply = copy.curator.send("owner", "POST", f"/v1/studies/{copy.names['open']}:release")
    assert (reply.status_code, reply.json()["code"]) == (503, "record_changed")
    assert any("is draft, and the log does not say so" in finding for finding in copy.findings())


def test_a_study_with_a_changed_record_is_refused_until_a_verification_finds_nothing(copy):
    """What no check before a charge sees: a stored answer."""
    answer = "principal IN (SELECT principal FROM tokens WHERE study_id = '{used}') AND status = 201"
    copy.edit(f"UPDATE replies SET body = CAST(replace(body, 'answered', 'Answered') AS BLOB) WHERE {answer}")
    copy.open()
    verification = copy.verification
    result = verification.verify()
    assert not result.sound
    assert "the stored answer under key" in result.problem
    assert result.problem in verification.state().findings
    assert verification.progress().findings == []
    assert copy.ask("used").json()["code"] == "record_changed"
    assert copy.ask("open").status_code == 201
    copy.curator.context.audit_trail.replace_findings("second", [])
    assert copy.ask("used").json()["code"] == "privacy_budget_exhausted"


def test_a_verification_whose_process_was_killed_is_tried_again_soon_and_not_tomorrow(copy, monkeypatch, until):
    copy.edit("UPDATE studies SET state = 'open' WHERE id = '{closed}'")
    copy.open()
    begun, processes = LogVerification._begun, []

    def killed_once(self, part):
        processes.append(begun(self, part))
        if len(processes) == 1:
            processes[0].kill()
        return processes[-1]

    monkeypatch.setattr(LogVerification, "_begun", killed_once)
    verification = LogVerification(copy.curator.context, log_checks.findings, hours=24, first_after_s=0.0, again_s=0.0)
    verification.start()
    until(lambda: verification.state().last)
    verification.close()
    assert len(processes) == 2
    assert "is open, and the log does not say so" in verification.state().findings[0]


def test_a_write_of_another_process_is_noticed_and_a_reading_command_makes_none(copy):
    copy.open()
    database = copy.curator.context.database
    before = database.foreign_writes.count
    copy.findings()
    database.write(lambda db: None)
    assert database.foreign_writes.count == before
    copy.edit("UPDATE studies SET note = 'x' WHERE id = '{open}'")
    database.write(lambda db: None)
    assert database.foreign_writes.count == before + 1
