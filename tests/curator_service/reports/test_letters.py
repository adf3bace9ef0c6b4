"""A letter to a person has what left of her record, and nothing of anybody else; every changed bit of it is found."""

import copy
import json
import math
from contextlib import closing
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from blindopt import wire
from blindopt.audit import letters, signed_documents
from blindopt.audit.merkle_log import canonical, sha256
from blindopt.errors import LogBroken
from curator_service.cli import app
from tests.builders import BY_HAND, laplace
from tests.curator_service.queries.test_refinements import ONE_FEATURE, ROWS, Refining, csv_of, query, study


@pytest.fixture(scope="module")
def queried(tmp_path_factory):
    """A study with second draws, of which the candidates of records 1 and 2 were queried: both, then the first."""
    curator = Refining(tmp_path_factory.mktemp("letters"))
    dataset = curator.register(csv_of(ROWS))
    study_id = curator.release(study(dataset, answers=laplace("0.5")))
    with curator.context.database.read() as db:
        order = curator.curator.released.of(db, study_id).order.tolist()
    first, second = order.index(0), order.index(1)
    shared = query(curator, study_id, [first, second]).json()["id"]
    assert query(curator, study_id, [first]).is_success
    yield SimpleNamespace(curator=curator, dataset=dataset, study=study_id, row=first, shared=shared)
    curator.close()


def letter_of(curator, dataset, **whose):
    return curator.call("owner", "POST", f"/v1/datasets/{dataset}:letter", json=whose)


def checked(signed):
    """Check the proofs and the total of a letter, without its signature."""
    letter = wire.SignedLetter.model_validate_json(json.dumps(signed)).letter
    letters.check(letter, signed_documents.Verifier.parse(letter.log_key).verify(letter.checkpoint).head)


def test_a_letter_has_what_left_of_one_record_and_names_no_other(queried):
    signed = letter_of(queried.curator, queried.dataset, record=1)
    letter, path = signed["letter"], f"/v1/studies/{queried.study}/exposure"
    events = [(event["kind"], event["row"], event["epsilon"], event["to"]) for event in letter["events"]]
    assert events == [
        ("release", None, "1", ["m"]),
        ("answer", queried.row, "0.5", ["m"]),
        ("refine", queried.row, "2", ["m"]),
        ("answer", queried.row, "0.5", ["m"]),
    ]
    assert all(event["sent_at"] for event in letter["events"])
    exposed = {row["record"]: row["spent"] for row in queried.curator.call("owner", "GET", path)["rows"]}
    assert (letter["epsilon"], exposed) == ("4", {1: "4", 2: "3.5"})
    assert letter["surest"] == str(math.ceil(1000 / (1 + math.exp(-4))) / 10)
    assert letter["events"][0]["hidden"] == {"x0": 1.0, "x1": 1.0}
    bodies = [event["log"]["body"] for event in letter["events"]]
    assert [body is None for body in bodies] == [False, True, True, False]  # one query was of two persons
    assert json.loads(bodies[3])["details"]["rows"] == [[queried.row, 1]]
    assert queried.shared not in json.dumps(signed)  # with the random id of that query, its candidates could be guessed
    checked(signed)
    other = letter_of(queried.curator, queried.dataset, record=3)["letter"]
    assert [(event["kind"], event["epsilon"]) for event in other["events"]] == [("release", "1")]


def test_a_letter_says_of_a_release_and_a_second_draw_that_they_hide_one_feature_at_a_time(queried, tmp_path):
    with closing(Refining(tmp_path)) as curator:
        dataset = curator.register(csv_of(ROWS))
        study_id = curator.release(study(dataset, release=ONE_FEATURE, answers=laplace("0.5")))
        with curator.context.database.read() as db:
            order = curator.curator.released.of(db, study_id).order.tolist()
        assert query(curator, study_id, [order.index(0)]).is_success
        signed = letter_of(curator, dataset, record=1)
    promised = {event["kind"]: event.get("promise") for event in signed["letter"]["events"]}
    assert promised == {"release": "one_feature", "refine": "one_feature", "answer": None}
    checked(signed)
    old = letter_of(queried.curator, queried.dataset, record=1)["letter"]
    assert not any("promise" in event for event in old["events"])


def test_the_log_has_the_digest_of_a_letter_and_nothing_stores_it(queried):
    signed = letter_of(queried.curator, queried.dataset, record=2)
    (entry,) = queried.curator.call("owner", "GET", "/v1/audit/entries?order=newest&page_size=1")["entries"]
    record = json.loads(entry["body"])
    digest = sha256(canonical(signed["letter"]))
    assert (record["kind"], record["details"]) == (
        "letter.written",
        {"dataset_id": queried.dataset, "letter_sha256": digest},
    )
    again = letter_of(queried.curator, queried.dataset, record=2)["letter"]
    assert again["salt"] != signed["letter"]["salt"]
    files = [path for path in queried.curator.settings.data_dir.rglob("*") if path.is_file()]
    assert not any(signed["letter"]["salt"].encode() in path.read_bytes() for path in files)


def _flipped(value):
    """The same with one bit changed, and a digest in hex is one in hex again."""
    if not isinstance(value, str):
        return value ^ 1
    digit = value[-1] in "0123456789abcdef"
    return value[:-1] + (f"{int(value[-1], 16) ^ 1:x}" if digit else chr(ord(value[-1]) ^ 1))


def test_one_changed_bit_and_an_event_that_was_left_out_are_found(queried, tmp_path):
    signed, file = letter_of(queried.curator, queried.dataset, record=1), tmp_path / "letter.json"

    def verify(changed):
        file.write_text(json.dumps(changed, indent=1), encoding="utf-8")
        done = CliRunner().invoke(app, ["letter", "verify", str(file)])
        return done.exit_code, done.output

    status, words = verify(signed)
    assert (status, "valid: letter of epsilon 4," in words) == (0, True)
    for path in (("salt",), ("events", 0, "study"), ("epsilon",), ("events", 2, "epsilon"), ("events", 1, "row")):
        changed = copy.deepcopy(signed)
        holder = changed["letter"]
        for name in path[:-1]:
            holder = holder[name]
        holder[path[-1]] = _flipped(holder[path[-1]])
        assert verify(changed)[0] == 3, path
    # A curator that signs what is wrong: the log and the total give it away.
    for name in ("number", "leaf", "peaks", "body"):
        changed = copy.deepcopy(signed)
        log = changed["letter"]["events"][3]["log"]
        log[name] = _flipped(log[name])
        with pytest.raises(LogBroken, match="is not in the log"):
            checked(changed)
    for index in range(len(signed["letter"]["events"][0]["log"]["proof"])):
        changed = copy.deepcopy(signed)
        proof = changed["letter"]["events"][0]["log"]["proof"]
        proof[index] = _flipped(proof[index])
        with pytest.raises(LogBroken, match="is not in the log"):
            checked(changed)
    for index, total in ((1, "3.5"), (2, "2"), (3, "3.5")):
        changed = copy.deepcopy(signed)
        del changed["letter"]["events"][index]
        with pytest.raises(LogBroken, match=f"add up to {total}, not to 4"):
            checked(changed)


def test_what_is_charged_and_not_sent_is_told_apart_and_so_is_what_is_withheld(tmp_path):
    curator = Refining(tmp_path)
    dataset = curator.register(csv_of(ROWS))
    study_id = curator.release(study(dataset, answers=laplace("0.5"), measurement=BY_HAND))
    with curator.context.database.read() as db:
        row = curator.curator.released.of(db, study_id).order.tolist().index(4)
    query_id = curator.ask(study_id, [row])
    waiting = letter_of(curator, dataset, record=5)["letter"]
    assert [event["sent_at"] is None for event in waiting["events"]] == [False, True, True]
    curator.enter("answer", query_id, curator.items(query_id), 0.5)
    sent = letter_of(curator, dataset, record=5)["letter"]
    assert all(event["sent_at"] for event in sent["events"])
    assert (sent["epsilon"], sent["withheld"]) == (waiting["epsilon"], False)
    curator.call("owner", "POST", f"/v1/datasets/{dataset}:withhold", json={"record": 5})
    withheld = letter_of(curator, dataset, record=5)["letter"]
    assert withheld["withheld"]
    curator.close()


def test_exact_results_have_no_epsilon_and_an_erased_study_counts_as_its_costliest_record(tmp_path):
    curator = Refining(tmp_path)
    dataset, again = (curator.register(csv_of(ROWS)) for _ in range(2))
    study_id = curator.release(study(dataset))
    with curator.context.database.read() as db:
        row = curator.curator.released.of(db, study_id).order.tolist().index(0)
    assert query(curator, study_id, [row]).is_success
    letter = letter_of(curator, again, record=1)["letter"]
    assert [event["epsilon"] for event in letter["events"]] == ["1", None, "2"]
    assert letter["epsilon"] == "3"
    curator.call("owner", "POST", f"/v1/studies/{study_id}:close")
    curator.call("owner", "POST", f"/v1/datasets/{dataset}:archive")
    curator.call("owner", "POST", f"/v1/datasets/{dataset}:erase")
    for record in (1, 2):  # nobody knows any more whose answer it was
        signed = letter_of(curator, again, record=record)
        assert [(event["kind"], event["epsilon"]) for event in signed["letter"]["events"]] == [
            ("release", "1"),
            ("erased", "2"),
        ]
        assert signed["letter"]["epsilon"] == "3"
        checked(signed)
    assert curator.send("owner", "POST", f"/v1/datasets/{dataset}:letter", json={"record": 1}).status_code == 410
    curator.close()
