"""A privacy report says what was promised, accepted and spent, and whoever has the key can check it offline."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from blindopt import wire
from blindopt.audit import signed_documents
from blindopt.audit.checkpoints import Signer, Verifier
from blindopt.errors import LogBroken
from curator_service.cli import app
from curator_service.privacy.guarantees import not_protected
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator

CSV = ("x,w,y\n" + "".join(f"{i / 40},{(i * 7 % 40) / 40},{i / 40}\n" for i in range(40))).encode()
STUDY = {
    "name": "dose",
    "features": [{"column": "x", "lower": 0, "upper": 1}, {"column": "w", "lower": 0, "upper": 1}],
    "measurement": {"source": "column", "column": "y", "direction": "maximize"},
    "release": {"mechanism": "planar_laplace", "epsilon": "12", "sensitivity": 0.1},
    "answers": {"mechanism": "laplace", "epsilon": "0.5", "value_bound": 2},
    "budget": {"epsilon_per_row": "14"},
}


@pytest.fixture(scope="module")
def curator(tmp_path_factory):
    """A curator with an open study, two of whose rows were asked."""
    served = InProcessCurator(tmp_path_factory.mktemp("reports"))
    served.study = served.open(CSV, lambda dataset: wire.StudyCreate(**STUDY, dataset_id=dataset), public=False)
    for row in (0, 0, 1):
        served.ask(served.study, [row])
    served.dataset = served.call("owner", "GET", f"/v1/studies/{served.study}")["spec"]["dataset_id"]
    yield served
    served.close()


@pytest.fixture(scope="module")
def signed(curator):
    """The report of that study, as it is sent."""
    return curator.call("owner", "POST", f"/v1/studies/{curator.study}:report")


def verified(signed, tmp_path: Path, *options):
    file = tmp_path / "report.json"
    file.write_text(json.dumps(signed, indent=3))
    return CliRunner().invoke(app, ["report", "verify", str(file), *options])


def test_it_says_what_was_promised_accepted_and_spent(signed, curator):
    (study,) = signed["report"]["studies"]
    view = curator.call("owner", "GET", f"/v1/studies/{curator.study}")
    assert (study["guarantee"], study["not_protected"]) == (view["guarantee"], view["not_protected"])
    assert (study["mechanism"], study["mechanism_version"]) == ("planar_laplace", view["report"]["version"])
    assert study["worst_epsilon"] == "13"  # 12 by the release, and twice 0.5
    assert {(row["answers"], row["rows"], row["epsilon"]) for row in study["spent"]["rows"]} == {
        (0, 38, "12"),
        (1, 1, "12.5"),
        (2, 1, "13"),
    }
    assert study["budget"]["epsilon_per_row"] == "14"
    assert signed["report"]["account"]["epsilon"] == "13"
    assert signed["report"]["account"]["worst_record"] is None  # which record it is stays with the owner
    assert "epsilon_large" in {caution["code"] for caution in study["cautions"]}
    assert {"known_rows_noisy", "linkage"} <= {finding["attack"] for finding in study["attacks"]}
    assert "moves" in study["relation"] or "move" in study["relation"]


def test_its_summary_counts_what_was_asked_about_and_bounds_what_one_record_reveals(signed):
    """The record that was asked about twice has used epsilon 13; 1 / (1 + e^-13) is above 99.9 %, so it rounds up."""
    (study,) = signed["report"]["studies"]
    attacked, *counted = study["summary"]
    assert " risk: " in attacked
    assert counted == [
        "2 of 40 records were asked about, one of them 2 times.",
        "One record has used epsilon 13 at most.",
        (
            "Someone undecided (50/50) about a record becomes at most 100 % sure, for changes that are hidden; larger "
            "changes are protected less."
        ),
    ]


def test_no_value_of_a_record_is_in_it_but_what_attacks_found(curator):
    whole = curator.call("owner", "POST", f"/v1/datasets/{curator.dataset}:report")
    assert [study["attacks"] for study in whole["report"]["studies"]] == [[]]
    assert "minimum" not in json.dumps(whole)
    assert whole["report"]["dataset"]["rows"] == 40


def test_a_report_of_a_dataset_lists_the_studies_of_every_registration_of_its_file(curator):
    again = curator.register(CSV)
    whole = curator.call("owner", "POST", f"/v1/datasets/{again}:report")
    assert [study["id"] for study in whole["report"]["studies"]] == [curator.study]


def test_it_verifies_offline_with_the_key_of_the_log(signed, curator, tmp_path):
    key = curator.context.signer.verifier.vkey
    result = verified(signed, tmp_path, "--key", key)
    assert result.exit_code == 0, result.output
    assert "valid" in result.output
    assert curator.study in result.output
    assert "compare it" in verified(signed, tmp_path).output  # the key in the file proves nothing by itself


@pytest.mark.parametrize("change", ["spent", "promise", "key", "signature", "checkpoint"])
def test_whatever_is_changed_is_seen(change, signed, curator, tmp_path):
    changed = json.loads(json.dumps(signed))
    report = changed["report"]
    study = report["studies"][0]
    key = curator.context.signer.verifier.vkey
    match change:
        case "spent":
            study["worst_epsilon"] = "1"
        case "promise":
            study["guarantee"] = study["guarantee"].replace("12", "1")
        case "key":
            key = Signer.of("curator", bytes(31) + b"1").verifier.vkey
        case "signature":
            changed["signature"] = report["checkpoint"]  # by the same key, on something else
        case "checkpoint":
            report["checkpoint"] = report["checkpoint"].replace("curator", "other", 1)
    result = verified(changed, tmp_path, "--key", key)
    assert result.exit_code == 3
    assert "valid: report" not in result.output


def test_a_file_that_is_no_report_is_refused_in_words(tmp_path):
    result = verified({"report": 1}, tmp_path)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_a_signed_document_is_no_checkpoint_and_a_checkpoint_no_document():
    signer = Signer.of("curator", bytes(range(32)))
    verifier = Verifier.parse(signer.verifier.vkey)
    document = {"a": 0.1, "b": ["\u00e9", None]}
    note = signed_documents.sign(signer, "title", document)
    signed_documents.verify(verifier, "title", dict(reversed(document.items())), note)
    with pytest.raises(LogBroken):
        verifier.verify(note)
    for title, other in (("title", {"a": 0.2}), ("another", document)):
        with pytest.raises(LogBroken, match="changed"):
            signed_documents.verify(verifier, title, other, note)


def test_a_draft_has_a_report_without_attacks(curator):
    body = {**STUDY, "dataset_id": curator.dataset}
    draft = curator.call("owner", "POST", "/v1/studies", json=body)["id"]
    (study,) = curator.call("owner", "POST", f"/v1/studies/{draft}:report")["report"]["studies"]
    assert (study["attacks"], study["not_tried"]) == ([], "Not tried: nothing was released yet.")


@pytest.mark.slow(sibling="test_it_says_what_was_promised_accepted_and_spent")
def test_a_raise_of_caps_brings_price_and_cautions_of_the_raised_caps(curator):
    spec = {**STUDY, "release": STUDY["release"] | {"epsilon": "1"}, "budget": {"epsilon_per_row": "2"}}
    study = curator.open(CSV, lambda dataset: wire.StudyCreate(**spec, dataset_id=dataset), public=False)

    def seen():
        view = curator.call("owner", "GET", f"/v1/studies/{study}")
        (listed,) = [each for each in curator.call("owner", "GET", "/v1/studies")["studies"] if each["id"] == study]
        (reported,) = curator.call("owner", "POST", f"/v1/studies/{study}:report")["report"]["studies"]
        checked = curator.call("owner", "POST", "/v1/studies:check", json=view["spec"])
        return checked, [view["report"], listed["report"], reported]

    accepted = {caution["code"] for caution in seen()[0]["cautions"]}
    assert "row_epsilon_large" not in accepted
    for cap, code in (("500", "row_epsilon_large"), (None, "no_cap")):
        body = {"budget": {"epsilon_per_row": cap}, "reason": "agreed"}
        curator.call("owner", "PUT", f"/v1/studies/{study}/budget", json=body)
        checked, views = seen()
        for view in views:
            assert view["price"] == checked["price"]
            assert {caution["code"] for caution in view["cautions"]} == accepted | {code}
            assert [c for c in view["cautions"] if c["code"] == code] == [
                c for c in checked["cautions"] if c["code"] == code
            ]


NO_CAP = {key: value for key, value in STUDY.items() if key != "budget"}
EXACT_ANSWERS = STUDY | {"answers": {"mechanism": "none"}, "budget": {}}


@pytest.mark.parametrize(
    ("study", "begins"),
    [
        (STUDY, "Protected: the record that has used most has used epsilon 12, and may use at most 14."),
        (NO_CAP, "Protected: the record that has used most has used epsilon 12, without a cap."),
        (EXACT_ANSWERS, "Partly protected: the features have a guarantee, and the vendor receives exact outcomes."),
    ],
    ids=["capped", "no cap", "exact"],
)
def test_a_report_begins_with_its_verdict_and_what_its_owner_states(curator, study, begins):
    stated = {"purpose": "find", "recipient": "Ltd", "period": "March", "responsible": "Ada"}
    body = study | {"dataset_id": curator.register(CSV), "processing": stated}
    made = curator.call("owner", "POST", "/v1/studies", json=body)
    drafted = curator.call("owner", "POST", f"/v1/studies/{made['id']}:report")["report"]
    assert drafted["verdict"] == "Not released: no vendor has received anything."
    curator.call("owner", "POST", f"/v1/studies/{made['id']}:release", json={"spec_sha256": made["spec_sha256"]})
    report = curator.call("owner", "POST", f"/v1/studies/{made['id']}:report")["report"]
    assert report["verdict"].startswith(begins)
    assert re.search(r" Attacks on the release find a (low|notable|high) risk\.$", report["verdict"])
    assert report["studies"][0]["processing"] == stated
    whole = curator.call("owner", "POST", f"/v1/datasets/{body['dataset_id']}:report")["report"]
    assert whole["verdict"].startswith(("Bounded: each record", "Not bounded: epsilon does not bound"))


def test_records_that_the_owner_declared_public_are_not_called_unprotected(curator):
    bare = STUDY | {"release": {"mechanism": "identity"}, "answers": {"mechanism": "none"}, "budget": {}}
    study = curator.open(CSV, lambda dataset: wire.StudyCreate(**bare, dataset_id=dataset), public=True)
    verdict = curator.call("owner", "POST", f"/v1/studies/{study}:report")["report"]["verdict"]
    assert verdict.startswith("Public: the owner declared these records public")


def test_a_study_of_before_states_nothing(curator):
    (study,) = curator.call("owner", "POST", f"/v1/studies/{curator.study}:report")["report"]["studies"]
    assert set(study["processing"].values()) == {""}


WORDS_OF = {
    "groups": r"\bgroups?\b|\bcentres\b",
    "delta": r"\bdelta of such",
    "published": r"PO-GP-UCB|published mechanism|linearly dependent",
}
"""Words of gaps that only studies with this mechanism have."""


def test_a_gap_names_no_mechanism_that_the_study_lacks():
    records = wire.StudyCreate(**STUDY, dataset_id="ds")
    groups = {"mechanism": "groups", "epsilon": "1", "cells": {"kind": "grid", "parts": [2, 2]}, "min_count": 5}
    spread = STUDY["release"] | {"delta": 1e-6}
    published = {"mechanism": "po_gp_ucb", "epsilon": "1", "delta": 1e-6, "r": 1, "acknowledge_refuted": True}
    for name, release in (("groups", groups), ("delta", spread), ("published", published)):
        has = wire.StudyCreate(**STUDY | {"release": release}, dataset_id="ds")
        assert re.search(WORDS_OF[name], " ".join(not_protected(has))), name
        assert not re.search(WORDS_OF[name], " ".join(not_protected(records))), name
