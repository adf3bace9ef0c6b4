"""The length of a reply depends on the request and on public values alone: a network sees it through TLS."""

import json
import random
import struct

import pytest

from blindopt import wire
from curator_service.privacy import answers as answer_mechanisms
from curator_service.queries import answer_versions, queries
from tests.builders import BY_HAND, EXACT, IDENTITY, a_study, group_release, laplace

OUTCOMES = 0.0, -0.0, 2.0, -1.5, 1 / 3, -1 / 3, 1e-7, -2.2250738585072014e-308, 1e50, -123456789.125
CSV = "x,y\n" + "".join(f"{i / 10},{y!r}\n" for i, y in enumerate(OUTCOMES))
LAWS = {
    "none": EXACT,
    "laplace": laplace("1"),
    "laplace of means": laplace("1", plays="mean"),
    "one_bit": wire.OneBitAnswers(mechanism="one_bit", epsilon="1", value_bound=1.0),
    "piecewise": wire.PiecewiseAnswers(mechanism="piecewise", epsilon="3", value_bound=1.0),
    "groups": laplace("1"),
}


@pytest.fixture(scope="module")
def table(owner):
    return owner.register("lengths", CSV.encode(), public=True)


def replies(curator, owner, table, law, plays=2):
    """Replies to queries that differ in a digit of the candidate at most, over a socket."""
    release, count = (group_release("1", parts=(2,)), 1) if law == "groups" else (IDENTITY, len(OUTCOMES))
    spec = a_study(release, LAWS[law], columns=("x",), dataset_id=table.id, queries=200)
    study = owner.release(owner.create_study(spec).id)
    grant = owner.grant(study.id, wire.GrantCreate(name="m"))
    with curator.http(grant.token) as modeler:
        for number in range(20):
            body = {"rows": [{"row": number % count, "plays": plays}]}
            yield modeler.post(f"/v1/studies/{study.id}/queries", json=body, headers={"Idempotency-Key": f"{number}"})


def lengths(sent):
    """Lengths of replies, and those of their numbers."""
    whole, of_numbers = set(), set()
    for reply in sent:
        assert int(reply.headers["content-length"]) == len(reply.content)
        whole.add(len(reply.content))
        of_numbers |= {len(json.dumps(answer["y"])) for answer in reply.json()["answers"]}
    return whole, of_numbers


@pytest.mark.parametrize("law", LAWS)
def test_replies_to_one_request_have_one_length(law, curator, owner, table):
    whole, of_numbers = lengths(replies(curator, owner, table, law))
    assert len(of_numbers) > 1
    assert len(whole) == 1


@pytest.mark.parametrize("answers", [EXACT, laplace("1")], ids=["none", "laplace"])
@pytest.mark.parametrize("salt", ["grows", "fixed"])
def test_versions_of_measured_answers_have_one_length(answers, salt, in_process, monkeypatch):
    """The control: a salt of one length shows the sign."""
    if salt == "fixed":
        for module in (queries, answer_versions):
            monkeypatch.setattr(module, "reply_salt", lambda numbers: "0" * 32)
    spec = a_study(IDENTITY, answers, columns=("x",), measurement=BY_HAND)
    study = in_process.open(CSV.encode(), lambda dataset: spec.model_copy(update={"dataset_id": dataset}))
    whole = set()
    for row, y in enumerate(y for y in OUTCOMES if y < 1e50):  # as far as people may enter
        query = in_process.ask(study, [row])
        assert in_process.enter("answer", query, in_process.items(query), y).is_success
        whole.add(len(in_process.send("modeler", "GET", f"/v1/studies/{study}/queries/{query}").content))
    assert (len(whole) == 1) == (salt == "grows")


def test_no_number_is_longer_than_the_longest_form():
    rng = random.Random(5)
    drawn = [struct.unpack("d", struct.pack("Q", rng.getrandbits(64)))[0] for _ in range(20_000)]
    drawn += [-rng.random() * 10 ** rng.uniform(-8, 18) for _ in range(20_000)]
    numbers = [y for y in drawn if abs(y) < float("inf")]
    passport = wire.NoisePassport(measurement_variance=0.0)
    empty = len(wire.Answer(row=0, play=1, y=0.0, passport=passport).model_dump_json()) - len("0.0")
    longest = max(len(wire.Answer(row=0, play=1, y=y, passport=passport).model_dump_json()) for y in numbers) - empty
    assert longest == wire.NUMBER_MAX
    assert {len(wire.Answer(row=0, play=1, y=y, passport=passport).model_dump_json()) - empty
            + len(answer_mechanisms.reply_salt([y])) for y in numbers} == {32 + longest}  # fmt: skip
