"""The account of a file: what every use costs its records, its caps, and who sees what."""

import math
import threading
from decimal import Decimal

import pytest

from blindopt import wire
from blindopt.errors import BudgetExhausted, StateConflict
from curator_service.budget.ledger import Cost
from curator_service.privacy.prices import ONE_FEATURE
from tests.curator_service.budget.file_of_records import FileOfRecords, N, spec_of

GAUSSIAN = wire.GaussianRelease(mechanism="gaussian", epsilon="0.7", delta=1e-5)
INBOX = wire.InboxMeasurement(question="How much?", direction="maximize", shown=["a"])
REFUTED = wire.PoGpUcbRelease(mechanism="po_gp_ucb", epsilon="1", delta=1e-5, r=1, acknowledge_refuted=True)
EXACT = wire.NoAnswerNoise(mechanism="none")
IDENTITY = wire.IdentityRelease(mechanism="identity")


@pytest.fixture
def file(tmp_path):
    made = FileOfRecords(tmp_path)
    yield made
    made.close()


def _refused(reply, cap="dataset.epsilon"):
    assert (reply.status_code, reply.json()["code"]) == (403, "privacy_budget_exhausted"), reply.text
    assert reply.json()["budget"].get("cap") == cap
    return reply.json()["budget"]


# --- figures ------------------------------------------------------------------------------------------


def test_studies_of_one_file_add_up_for_each_record_through_their_secret_orders(file):
    """Record 2 is asked in both studies, record 3 in one: by rows of Z that have nothing in common."""
    first, second = file.study(), file.study(release=GAUSSIAN)
    assert file.account().epsilon == "1.7"
    for study, records in ((first, (2, 3)), (second, (2, 2))):
        assert file.ask(study, *(file.row_of(study, record) for record in records)).status_code == 201
    account = file.account()
    assert (account.epsilon, account.delta, account.everyone_epsilon, account.worst_record) == (
        "3.2", "0.00001", "1.7", 3,
    )  # fmt: skip
    shares = [(share.epsilon, share.units) for share in account.losses]
    assert shares == [("3.2", 1), ("2.2", 1), ("1.7", N - 2)]
    uses = [(use.kind, use.study_id, use.epsilon, use.release_epsilon, use.answers_epsilon) for use in account.uses]
    assert uses == [("study", first, "1.5", "1", "0.5"), ("study", second, "1.7", "0.7", "1")]
    assert "If another file has the same records, add its account" in account.sentence


def test_the_account_says_that_releases_of_records_count_for_small_changes_alone(file):
    """By hand: planar Laplace noise for a change of 0.5 at epsilon 1 has density exp(-2 |u|) in these features' unit.

    At the record itself the ratio for a move by (4, 4) is exp(2 sqrt(32)), far above the epsilon that is counted.
    """
    small = "The epsilon of a release of records is for changes of features up to the hidden change of its study"
    groups = wire.GroupsRelease(
        mechanism="groups", epsilon="0.5", cells=wire.GridCells(kind="grid", parts=[2, 1]), min_count=1
    )
    file.study(release=groups)
    assert (file.account().epsilon, small in file.account().sentence) == ("0.5", False)
    features = [wire.Feature(column=column, lower=0.0, upper=4.0, hidden_change=0.5) for column in ("a", "b")]
    file.study(features=features)
    assert Decimal(file.account().epsilon) < 2 * math.hypot(4, 4)
    assert small in file.account().sentence
    assert "one feature at a time" not in file.account().sentence
    single = wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1", promise="one_feature")
    file.study(features=features, release=single)
    assert f"one feature at a time: here 1. {ONE_FEATURE}" in file.account().sentence


def test_a_file_that_is_registered_again_is_the_same_account(file):
    again = file.register()
    file.study()
    file.study(again)
    for dataset in (file.dataset, again):
        account = file.account(dataset)
        assert (account.account, account.epsilon, account.studies) == (file.dataset, "2", 2)
        assert [registration.dataset_id for registration in account.registrations] == [file.dataset, again]


def test_where_each_answer_is_another_persons_the_larger_of_release_and_answer_counts_once(file):
    """Anybody may be behind the answer that was released most: the release, or it with its corrections."""
    study = file.study(measurement=INBOX, privacy_unit="answer", answers=_laplace("0.8"))
    assert file.account().epsilon == "1"
    query = file.ask(study, 0, 1, 1).json()["id"]
    assert file.account().epsilon == "1"  # no single answer costs more than the release
    items = file.in_process.items(query)
    file.in_process.enter("answer", query, items, 1.0, 2.0, 3.0)
    file.in_process.enter("correct", query, items[:1], 1.5)
    account = file.account()
    assert (account.epsilon, account.everyone_epsilon, account.worst_record) == ("1.6", "1.6", None)


def _laplace(epsilon):
    return wire.LaplaceAnswers(mechanism="laplace", epsilon=epsilon, value_bound=4.0)


@pytest.mark.parametrize(
    ("more", "why"),
    [({"release": REFUTED}, "po_gp_ucb is refuted"), ({"answers": EXACT}, "no noise")],
    ids=["refuted", "exact"],
)
def test_a_use_without_a_finite_bound_is_named_and_no_cap_can_be_declared(file, more, why):
    study = file.study(**more)
    file.ask(study, 0)
    account = file.account()
    assert (account.epsilon, account.losses[0].epsilon) == (None, None)
    (use,) = account.unbounded
    assert (use.study_id, use.epsilon) == (study, None)
    assert why in use.unbounded
    refused = file.caps("100")
    assert (refused.status_code, refused.json()["code"]) == (409, "state_conflict")
    assert study in refused.json()["detail"]


def test_public_records_cost_nothing(tmp_path):
    file = FileOfRecords(tmp_path, public=True)
    study = file.study(release=IDENTITY, answers=EXACT)
    assert file.ask(study, 0).status_code == 201
    assert (file.account().epsilon, file.account().unbounded) == ("0", [])
    file.register(public=False)  # then it is somebody's private file after all
    assert file.account().epsilon is None
    file.close()


# --- caps ---------------------------------------------------------------------------------------------


def test_a_cap_refuses_releases_and_leaves_a_line_and_a_record(file):
    assert file.caps("1.5").status_code == 200
    file.study()
    second = file.draft()
    budget = _refused(file.release(second))
    assert (budget["requested"], budget["spent"], budget["limit"]) == ("1", "1", "1.5")
    (line,) = file.in_process.call("owner", "GET", f"/v1/studies/{second}/ledger")["entries"]
    assert (line["kind"], line["cap"], line["epsilon"], line["total_epsilon"]) == (
        "refused",
        "dataset.epsilon",
        "1",
        "0",
    )
    assert [details["study_id"] for details in file.records("charge.refused")] == [second]
    assert file.account().epsilon == "1"
    assert file.in_process.call("owner", "GET", f"/v1/studies/{second}")["state"] == "draft"


def test_a_cap_on_delta_refuses_releases(file):
    assert file.caps(None, 1.5e-5).status_code == 200
    file.study(release=GAUSSIAN)
    budget = _refused(file.release(file.draft(release=GAUSSIAN)), "dataset.delta")
    assert (budget["requested"], budget["spent"], budget["limit"]) == ("0.00001", "0.00001", "0.000015")
    file.study()  # pure epsilon
    assert (file.account().epsilon, file.account().delta) == ("1.7", "0.00001")


def test_a_cap_refuses_answers_about_the_record_that_other_studies_asked_and_about_no_other(file):
    first, second = file.study(), file.study()
    assert file.caps("2.5").status_code == 200
    assert file.ask(first, file.row_of(first, 4)).status_code == 201
    row = file.row_of(second, 4)
    # A modeler must not learn what other studies and grants have spent: "1" is the release of its own study.
    assert _refused(file.ask(second, row), None) == {"requested": "0.5", "spent": "1", "remaining": "none"}
    (details,) = file.records("charge.refused")
    assert (details["spent"], details["limit"]) == ("2.5", "2.5")
    assert file.ask(second, file.row_of(second, 1)).status_code == 201
    assert file.account().epsilon == "2.5"
    line = file.in_process.call("owner", "GET", f"/v1/studies/{second}/ledger")["entries"][1]
    assert (line["kind"], line["row"], line["cap"]) == ("refused", row, "dataset.epsilon")


def test_a_cap_refuses_corrections(file):
    study = file.study(measurement=INBOX)
    query = file.ask(study, 0).json()["id"]
    items = file.in_process.items(query)
    assert file.in_process.enter("answer", query, items, 1.0).status_code == 200
    assert file.caps("1.9").status_code == 200
    _refused(file.in_process.enter("correct", query, items, 2.0))
    assert file.caps("2", raise_caps=True, reason="one more").status_code == 200
    assert file.in_process.enter("correct", query, items, 2.0).status_code == 200
    assert file.account().epsilon == "2"


def test_a_cap_refuses_answers_that_are_anybodys(file):
    study = file.study(measurement=INBOX, privacy_unit="answer", answers=_laplace("1.2"))
    assert file.caps("1.1").status_code == 200
    _refused(file.ask(study, 0), None)
    assert file.account().epsilon == "1"


def test_with_a_cap_what_has_no_finite_bound_is_refused(file):
    exact = file.study(answers=EXACT)
    assert file.caps("5").status_code == 200
    assert file.ask(exact, 0).status_code == 403
    for more in ({"release": REFUTED}, {"answers": EXACT}):
        refused = file.release(file.draft(**more))
        assert (refused.status_code, refused.json()["code"]) == (409, "state_conflict")
        assert "cap" in refused.json()["detail"]
    assert file.account().epsilon == "1"


def test_a_cap_is_lowered_freely_and_raised_only_with_a_reason_that_everybody_sees(file):
    assert file.caps("3").status_code == 200
    assert file.caps("2").status_code == 200
    assert file.caps("2").status_code == 200  # again: no further line
    refused = file.caps("4")
    assert (refused.status_code, refused.json()["code"]) == (409, "state_conflict")
    assert file.caps("4", raise_caps=True).status_code == 422
    assert file.caps(None).status_code == 409  # no cap is more than any
    raised = file.caps("4", raise_caps=True, reason="the board agreed on 3 May")
    assert raised.status_code == 200, raised.text
    auditor = file.in_process.context.authentication.issue("auditor", "auditor", days=1)[0].text
    file.in_process.tokens["auditor"] = auditor
    uses = file.in_process.call("auditor", "GET", f"/v1/datasets/{file.dataset}/account")["uses"]
    assert [(use["act"], use["old_cap_epsilon"], use["cap_epsilon"], use["reason"]) for use in uses] == [
        ("declared", None, "3", None), ("lowered", "3", "2", None), ("raised", "2", "4", "the board agreed on 3 May"),
    ]  # fmt: skip
    acts = [(details["act"], details["reason_sha256"] is not None) for details in file.records("dataset.caps")]
    assert acts == [("declared", False), ("lowered", False), ("unchanged", False), ("raised", True)]


def test_a_cap_below_what_is_spent_is_refused(file):
    file.study()
    refused = file.caps("0.9")
    assert (refused.status_code, refused.json()["detail"]) == (
        409, "epsilon 1 is used already: the cap cannot be 0.9",
    )  # fmt: skip
    assert file.caps("1").status_code == 200


def test_two_requests_at_once_never_pass_a_cap(file):
    """Eight threads, each about the same record by another study: one charge fits."""
    studies = [file.study() for _ in range(4)]
    assert file.caps("4.5").status_code == 200
    rows = [file.row_of(study, 5) for study in studies]
    replies = []
    threads = [
        threading.Thread(target=lambda s=study, r=row: replies.append(file.ask(s, r).status_code))
        for study, row in zip(studies * 2, rows * 2, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(replies) == [201] + [403] * 7
    assert file.account().epsilon == "4.5"


def test_two_releases_at_once_never_pass_a_cap(file):
    assert file.caps("1").status_code == 200
    studies, replies = [file.draft() for _ in range(4)], []
    threads = [threading.Thread(target=lambda s=s: replies.append(file.release(s).status_code)) for s in studies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(replies) == [200, 403, 403, 403]
    assert file.account().epsilon == "1"


# --- what the owner is shown --------------------------------------------------------------------------


def test_check_preview_and_release_say_what_the_dataset_has_spent_and_will_have(file):
    file.study()
    file.study(release=GAUSSIAN)
    draft = file.draft()
    body = file.in_process.call("owner", "GET", f"/v1/studies/{draft}")["spec"]
    checked = file.in_process.call("owner", "POST", "/v1/studies:check", json=body)["account"]
    said = (
        "A record of this dataset has used epsilon 1.7 (delta 0.00001) over 2 studies; with this one "
        "epsilon 2.7 (delta 0.00001), and more with its answers."
    )
    assert (checked["spent_epsilon"], checked["with_epsilon"], checked["studies"]) == ("1.7", "2.7", 2)
    assert checked["sentence"] == said
    assert file.in_process.call("owner", "POST", f"/v1/studies/{draft}:preview")["account"]["sentence"] == said
    released = file.release(draft).json()["account"]
    assert (released["spent_epsilon"], released["with_epsilon"], released["sentence"]) == ("1.7", "2.7", said)
    assert file.caps("3").status_code == 200
    refused = file.in_process.call("owner", "POST", "/v1/studies:check", json=body)["account"]
    assert refused["problem"] == "dataset.epsilon: 1 requested with 2.7 of 3 spent"
    assert refused["sentence"].endswith("It would be refused: dataset.epsilon: 1 requested with 2.7 of 3 spent.")


def test_the_replies_to_a_new_and_a_changed_draft_say_what_the_dataset_has_spent(file):
    file.study()
    send, body = file.in_process.send, spec_of(file.dataset)
    made = send("owner", "POST", "/v1/studies", json=body, key="made")
    said = (
        "A record of this dataset has used epsilon 1 over 1 study; with this one epsilon 2, and more with its answers."
    )
    assert made.json()["account"]["sentence"] == said
    draft = f"/v1/studies/{made.json()['id']}"
    body["release"]["epsilon"] = "3"
    changed = send("owner", "PUT", draft, json=body | {"replaces": made.json()["spec_sha256"]}).json()
    assert (changed["account"]["spent_epsilon"], changed["account"]["with_epsilon"]) == ("1", "4")
    file.study()  # what the dataset has spent afterwards changes no stored reply
    assert send("owner", "POST", "/v1/studies", json=spec_of(file.dataset), key="made").content == made.content
    assert file.in_process.call("owner", "GET", draft)["account"] is None


def test_uses_come_in_pages(file):
    for _ in range(3):
        file.study()
    file.caps("9")
    seen, token = [], None
    for _ in range(4):
        account = file.account(page_size=1, **({} if token is None else {"page_token": token}))
        seen += [use.seq for use in account.uses]
        token = account.next_page_token
    assert (seen, token) == ([1, 2, 3, 4], None)


# --- charges to every record --------------------------------------------------------------------------


def _charged(file, epsilon, caps=None):
    budgets, cost = file.in_process.curator.budgets, Cost.of(epsilon, "0")
    return file.in_process.context.database.write(
        lambda db: budgets.charge_file(db, "curator", file.dataset, "tuning", "tun_1", cost, "worst_case", caps)
    )


def test_a_charge_to_every_record_counts_what_studies_used(file):
    file.study()
    file.caps("1.2")
    refusal = _charged(file, "0.25")
    assert isinstance(refusal, BudgetExhausted)
    assert (refusal.budget["cap"], refusal.budget["spent"]) == ("dataset.epsilon", "1")


def test_a_tuning_with_a_cap_that_cannot_hold_is_not_charged(file):
    file.study(release=REFUTED)
    with pytest.raises(StateConflict, match="no cap on this dataset can hold"):
        _charged(file, "0.25", wire.TuningCaps(epsilon="5"))
    assert [use.kind for use in file.account().uses] == ["study"]
