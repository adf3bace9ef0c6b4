"""The account of a file, changed by hand: nothing of the file spends by it, and a verification names it.

Two studies and private bounds are on one file, whose account has a cap that is used up; a third study is on another.
"""

import re

import pytest

from blindopt import wire
from tests.curator_service.budget.file_of_records import FileOfRecords, spec_of
from tests.curator_service.integrity.changed_copy import Copy

BOUNDS = {"columns": [{"column": "y", "outer": [0.0, 4.0]}], "epsilon": "0.25"}
INBOX = wire.InboxMeasurement(question="How much?", direction="maximize", shown=["a"])


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """1 + 1 by releases, 0.25 by bounds, 0.5 by an answer of each study about the same record; the cap is 3.25."""
    folder = tmp_path_factory.mktemp("prepared")
    file = FileOfRecords(folder)
    names = {"dataset": file.dataset, "again": file.register(), "draft": file.draft(), "one": file.study()}
    names["two"] = file.study(names["again"])
    names["bounds"] = file.in_process.call("owner", "POST", f"/v1/datasets/{file.dataset}:bounds", json=BOUNDS)["id"]
    rows = [file.row_of(names[name], 0) for name in ("one", "two")]
    file.csv = b"a,b,y\n0.5,1,1\n1.5,0,2\n"  # nobody in it is in the first file
    names["free"] = file.study(file.register())
    for name, row in zip(("one", "two"), rows, strict=True):
        assert file.ask(names[name], row).status_code == 201
    assert file.caps("3.25").status_code == 200
    tokens = {name: file.tokens[names[name]] for name in ("one", "two", "free")}
    file.in_process.curator.close()
    file.in_process.close()
    return folder, names | {f"row_{name}": row for name, row in zip(("one", "two"), rows, strict=True)}, tokens


@pytest.fixture
def copy(prepared, tmp_path):
    copy = Copy(prepared, tmp_path)
    yield copy
    copy.close()


def acts(copy):
    """Each way to spend on the file, by name: the kind of its record, and what requests it."""
    owner, names = copy.curator.send, copy.names
    return {
        "query": ("charge", lambda: copy.ask("one", row=names["row_one"])),
        "release": ("charge", lambda: owner("owner", "POST", f"/v1/studies/{names['draft']}:release")),
        "bounds": (
            "bounds.started",
            lambda: owner("owner", "POST", f"/v1/datasets/{names['dataset']}:bounds", json=BOUNDS),
        ),
        "caps": (
            "dataset.caps",
            lambda: owner(
                "owner",
                "PUT",
                f"/v1/datasets/{names['dataset']}/account/caps",
                json={"epsilon": "9", "delta": None, "raise_caps": True, "reason": "more"},
            ),
        ),
    }


REFUSED = {
    "query": (403, "privacy_budget_exhausted"),
    "release": (403, "privacy_budget_exhausted"),
    "bounds": (403, "privacy_budget_exhausted"),
    "caps": (200, None),
}
OF_TWO = "WHERE study_id = '{two}' AND kind = 'answers'"
EDITS = {
    "a cap is raised": ("UPDATE tuning_ledger SET cap_epsilon = '99'", "line . of the accounts", "dataset"),
    "a cap is gone": (
        "UPDATE tuning_ledger SET cap_epsilon = NULL WHERE kind = 'cap'",
        "line . of the accounts",
        "dataset",
    ),
    "the cap's line is gone": ("DELETE FROM tuning_ledger WHERE kind = 'cap'", "accounts of datasets lack", "dataset"),
    "all lines are gone": ("DELETE FROM tuning_ledger", "accounts of datasets lack", "dataset"),
    "less was charged to everyone": (
        "UPDATE tuning_ledger SET epsilon = '0', total_epsilon = '0'",
        "line . of the accounts",
        "dataset",
    ),
    "a promise is another": (
        "UPDATE tuning_ledger SET guarantee_kind = 'prior_average' WHERE kind = 'bounds'",
        "line . of the accounts",
        "dataset",
    ),
    "a line is another file's": (
        "UPDATE tuning_ledger SET account = 'ds_0' WHERE kind = 'cap'",
        "accounts of datasets lack",
        "dataset",
    ),
    "another file": ("UPDATE datasets SET sha256 = '0' WHERE id = '{again}'", "dataset .* was changed", "again"),
    "a public file": ("UPDATE datasets SET public = 1 WHERE id = '{again}'", "dataset .* was changed", "again"),
    "another account": ("UPDATE datasets SET account = id WHERE id = '{again}'", "dataset .* was changed", "again"),
    "no comparison": (
        """UPDATE datasets SET "overlaps" = NULL WHERE id = '{again}'""",
        "dataset .* was changed",
        "again",
    ),
    "a decision": (
        """UPDATE datasets SET overlap_decisions = '[{{"apart": []}}]' WHERE id = '{again}'""",
        "dataset .* was changed",
        "again",
    ),
    "what bounds were charged": (
        """UPDATE bounds SET spec = replace(spec, '"epsilon": "0.25"', '"epsilon": "9"')""",
        "bounds .* is not what the log says",
        "bounds",
    ),
    "how many records of a person bounds hide": (
        """UPDATE bounds SET spec = replace(spec, '"records": 1', '"records": 0')""",
        "bounds .* is not what the log says",
        "bounds",
    ),
    "another study's total": (f"UPDATE ledger SET total = release {OF_TWO}", "ledger line", "two"),
    "another study's row": (f"UPDATE ledger SET row_total = 0 {OF_TWO}", "ledger line", "two"),
    "another study's line": (f"DELETE FROM ledger {OF_TWO}", "the ledger of .* lacks the last", "two"),
}


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("when", ["while it is stopped", "while it runs"])
@pytest.mark.parametrize("edit", EDITS)
def test_a_changed_account_spends_nothing_and_is_named_and_other_files_go_on(edit, when, copy):
    statement, named, about = EDITS[edit]
    if when == "while it runs":
        copy.open()
        assert copy.ask("one", row=copy.names["row_one"]).json()["code"] == REFUSED["query"][1]
    copy.edit(statement)
    if when == "while it is stopped":
        copy.open()
    for act, (kind, request) in acts(copy).items():
        before, reply = copy.count(kind), request()
        assert (reply.status_code, reply.json()["code"]) == (503, "record_changed"), (act, reply.text)
        assert copy.count(kind) == before, act
    assert copy.ask("free").status_code == 201
    faults = copy.findings()
    assert [of for finding, of in faults.items() if re.search(named, finding)] == [copy.names[about]], faults


def test_without_an_edit_each_act_is_what_it_was(copy):
    """The control: the cap refuses what would pass it, and a raise of it is logged."""
    copy.open()
    for act, (_, request) in acts(copy).items():
        reply = request()
        assert (reply.status_code, reply.json().get("code")) == REFUSED[act], reply.text
    assert copy.ask("one", row=copy.names["row_one"]).status_code == 201
    assert copy.findings() == {}


@pytest.mark.slow(
    sibling="test_changed_records.py::test_a_study_with_a_changed_record_is_refused_until_a_verification_finds_nothing"
)
def test_after_the_edit_is_taken_back_a_verification_lets_the_file_spend_again(copy):
    copy.edit("UPDATE tuning_ledger SET cap_epsilon = '99'")
    copy.open()
    verification = copy.verification
    assert not verification.verify().sound
    assert copy.ask("one", row=copy.names["row_one"]).json()["code"] == "record_changed"
    copy.edit("UPDATE tuning_ledger SET cap_epsilon = CASE kind WHEN 'cap' THEN '3.25' END")
    assert verification.verify().sound
    assert copy.ask("one", row=copy.names["row_one"]).json()["code"] == "privacy_budget_exhausted"
    assert copy.ask("free").status_code == 201


@pytest.fixture(scope="module")
def declined(tmp_path_factory):
    """A study that people measure: one measurement answered, one declined, one open."""
    folder = tmp_path_factory.mktemp("declined")
    file = FileOfRecords(folder, public=True)
    inbox = file.in_process
    body = spec_of(file.dataset, measurement=INBOX, answers=wire.NoAnswerNoise(mechanism="none"))
    study = inbox.call("owner", "POST", "/v1/studies", json=body)["id"]
    assert file.release(study).status_code == 200
    query = file.ask(file.grant(study), 0, 1, 2).json()["id"]
    items = inbox.items(query)
    assert inbox.enter("answer", query, items[:1], 2.0).status_code == 200
    reply = inbox.send(
        "measurer",
        "POST",
        f"/v1/queries/{query}:decline",
        json={"measurement_ids": [items[1]["id"]], "reason": "impossible"},
    )
    assert reply.status_code == 200, reply.text
    inbox.curator.close()
    inbox.close()
    return folder, {"answered": items[0]["id"], "declined": items[1]["id"], "open": items[2]["id"]}, {}


ENTRY = "WHERE measurement_id = '{declined}'"
MEASUREMENT = "WHERE id = '{answered}'"
FORGED = {
    "an answer is a decline": ("UPDATE entries SET kind = 'declined' WHERE measurement_id = '{answered}'", "entry 1 "),
    "a decline is an answer": (f"UPDATE entries SET kind = 'answered', value = 4.0 {ENTRY}", "entry 2 "),
    "another reason": (f"UPDATE entries SET reason = 'other' {ENTRY}", "entry 2 "),
    "no entry": (f"DELETE FROM entries {ENTRY}", "lacks entry 2,"),
    "an answered measurement is declined": (
        f"UPDATE measurements SET state = 'declined' {MEASUREMENT}",
        "mst_|measurement",
    ),
    "an open measurement is declined": (
        "UPDATE measurements SET state = 'declined' WHERE id = '{open}'",
        "measurement .* is not what its last entry says",
    ),
}


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("forgery", FORGED)
def test_a_forged_decline_is_named(forgery, declined, tmp_path):
    statement, named = FORGED[forgery]
    copy = Copy(declined, tmp_path)
    assert copy.findings() == {}
    copy.edit(statement)
    faults = copy.findings()
    assert any(re.search(named, finding) for finding in faults), faults
