"""The Merkle log against RFC 6962 written out, what verification finds, and what reconciliation tells."""

import dataclasses
import hashlib
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared import audit
from shared.audit import Difference, Entry, Exchange, LogBroken, reconcile


def tree_head(leaves: list[bytes]) -> bytes:
    """MTH of RFC 6962, section 2.1, by its recursion over the bodies of the leaves."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return hashlib.sha256(b"\x00" + leaves[0]).digest()
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    return hashlib.sha256(b"\x01" + tree_head(leaves[:k]) + tree_head(leaves[k:])).digest()


def grown(bodies: list[bytes]) -> list[bytes]:
    peaks: list[bytes] = []
    for size, body in enumerate(bodies):
        peaks = audit.grow(peaks, size, audit.leaf_hash(body))
    return peaks


def test_the_root_is_rfc_6962s_for_every_size_to_300():
    bodies, peaks = [], []
    for size in range(301):
        assert audit.root(peaks) == tree_head(bodies)
        assert len(peaks) == size.bit_count()
        bodies.append(f"record {size}".encode())
        peaks = audit.grow(peaks, size, audit.leaf_hash(bodies[-1]))


# The eight leaves and the roots of their prefixes in the tests of Certificate Transparency.
LEAVES = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


@pytest.mark.parametrize("size", range(9))
def test_the_roots_are_those_of_certificate_transparency(size):
    bodies = [bytes.fromhex(leaf) for leaf in LEAVES[:size]]
    assert audit.root(grown(bodies)).hex() == ROOTS[size]


def test_growing_leaves_the_frontier_it_was_given():
    peaks = grown([b"a", b"b", b"c"])
    before = list(peaks)
    audit.grow(peaks, 3, audit.leaf_hash(b"d"))
    assert peaks == before


@pytest.mark.parametrize(
    "bad", [math.nan, math.inf, -math.inf, 2**53, -(2**53), b"bytes", {1: "a key that is no text"}]
)
def test_a_record_without_one_canonical_form_is_refused(bad):
    with pytest.raises(Exception, match=r".") as refusal:
        audit.canonical({"value": bad})
    assert isinstance(refusal.value, ValueError | TypeError)


@pytest.mark.parametrize(
    ("record", "form"),
    [
        ({"b": 1, "a": [True, None, "x"]}, b'{"a":[true,null,"x"],"b":1}'),
        ({"y": 1e30, "x": 0.1, "w": -0.0, "v": 2.0}, b'{"v":2,"w":0,"x":0.1,"y":1e+30}'),
        ({"\u20ac": "\u00f6\n"}, '{"\u20ac":"\u00f6\\n"}'.encode()),
    ],
)
def test_the_canonical_form_is_rfc_8785s(record, form):
    assert audit.canonical(record) == form


SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(st.characters(exclude_categories=["Cs"]))
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), SCALARS | st.lists(SCALARS), max_size=6))
def test_the_canonical_form_reads_back_and_knows_no_order(record):
    form = audit.canonical(record)
    assert json.loads(form) == record
    assert audit.canonical(dict(reversed(record.items()))) == form


# --- verify --------------------------------------------------------------------------------------


def entries_of(bodies: list[bytes]) -> list[Entry]:
    entries, peaks = [], []
    for seq, body in enumerate(bodies):
        peaks = audit.grow(peaks, seq, audit.leaf_hash(body))
        entries.append(Entry(seq=seq, body=body, leaf=audit.leaf_hash(body), peaks=b"".join(peaks)))
    return entries


def bodies_of(size: int) -> list[bytes]:
    return [audit.canonical({"seq": seq, "event": "told", "value": seq * seq}) for seq in range(size)]


LOG = entries_of(bodies_of(13))


def first_wrong(entries: list[Entry]) -> str:
    with pytest.raises(LogBroken) as broken:
        audit.verify(entries)
    return str(broken.value)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 8, 13])
def test_a_whole_log_verifies_to_its_size_and_root(size):
    head = audit.verify(iter(LOG[:size]))
    assert (head.size, head.root) == (size, tree_head(bodies_of(size)).hex())


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=st.data())
def test_one_flipped_bit_anywhere_names_its_record(data):
    place = data.draw(st.integers(0, len(LOG) - 1))
    part = data.draw(st.sampled_from(["body", "leaf", "peaks"]))
    content = bytearray(getattr(LOG[place], part))
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    content[bit // 8] ^= 1 << bit % 8
    told = first_wrong([*LOG[:place], dataclasses.replace(LOG[place], **{part: bytes(content)}), *LOG[place + 1 :]])
    assert told.startswith(f"record {place} was ")


@pytest.mark.parametrize("place", [0, 5, 11])
def test_a_gap_names_the_missing_record(place):
    assert first_wrong(LOG[:place] + LOG[place + 1 :]).startswith(f"record {place} is missing")


@pytest.mark.parametrize(("a", "b"), [(0, 1), (4, 9), (11, 12)])
def test_swapped_records_name_the_first(a, b):
    swapped = list(LOG)
    swapped[a], swapped[b] = swapped[b], swapped[a]
    assert first_wrong(swapped).startswith(f"record {a} ")


@pytest.mark.parametrize(("a", "b"), [(0, 1), (4, 9), (11, 12)])
def test_swapped_bodies_that_keep_their_places_name_the_first(a, b):
    swapped = list(LOG)
    swapped[a] = dataclasses.replace(LOG[a], body=LOG[b].body, leaf=LOG[b].leaf)
    swapped[b] = dataclasses.replace(LOG[b], body=LOG[a].body, leaf=LOG[a].leaf)
    assert first_wrong(swapped) == f"record {a} was moved: it says it is {b}"


@pytest.mark.parametrize("place", [0, 6, 12])
def test_an_insertion_names_its_place(place):
    body = audit.canonical({"seq": place, "event": "never happened"})
    inserted = [*LOG[:place], Entry(place, body, audit.leaf_hash(body), LOG[place].peaks)]
    later = [dataclasses.replace(e, seq=e.seq + 1) for e in LOG[place:]]
    assert first_wrong(inserted + later).startswith(f"record {place} was replaced")
    repeated = [*LOG[: place + 1], *LOG[place:]]
    assert first_wrong(repeated).startswith(f"record {place + 1} ")


@pytest.mark.parametrize("place", [0, 6, 12])
def test_a_record_replaced_with_its_hash_is_found_by_the_tree(place):
    body = audit.canonical({"seq": place, "event": "told", "value": "another"})
    forged = dataclasses.replace(LOG[place], body=body, leaf=audit.leaf_hash(body))
    assert first_wrong([*LOG[:place], forged, *LOG[place + 1 :]]).startswith(f"record {place} was replaced")


@pytest.mark.parametrize("place", [0, 6, 11])
def test_a_record_replaced_with_its_tree_is_found_at_the_next(place):
    """The frontier stored after the forged record fits it; the one after that does not."""
    body = audit.canonical({"seq": place, "event": "told", "value": "another"})
    forged = entries_of([*bodies_of(place), body])[place]
    assert first_wrong([*LOG[:place], forged, *LOG[place + 1 :]]).startswith(f"record {place + 1} was replaced")


@pytest.mark.parametrize("place", [0, 6, 12])
def test_a_log_written_anew_has_another_root(place):
    bodies = bodies_of(13)
    bodies[place] = audit.canonical({"seq": place, "event": "told", "value": "another"})
    assert audit.verify(entries_of(bodies)).root != audit.verify(LOG).root


def test_a_cut_tail_shows_in_the_size():
    assert audit.verify(LOG[:-1]).size == 12


@pytest.mark.parametrize(
    "body", [b"not json", b"[1,2]", b'"text"', b"7", b"", b"\xff\xfe", b'{"no":"seq"}', b'{"seq":"2"}']
)
def test_a_record_that_is_none_is_named_too(body):
    """A log comes from the other party: whatever its bytes are, the answer is which record is wrong."""
    forged = dataclasses.replace(LOG[2], body=body, leaf=audit.leaf_hash(body))
    assert first_wrong([*LOG[:2], forged, *LOG[3:]]).startswith("record 2 ")


# --- reconcile -----------------------------------------------------------------------------------


def exchange(number: int, **changes: object) -> Exchange:
    told = Exchange(
        study_id="std_1",
        request_id=f"req_{number}",
        method="POST",
        path="/v1/studies/std_1/queries",
        idempotency_key=f"run_a:{number}",
        request_sha256=audit.sha256(b"request %d" % number),
        status=201,
        reply_sha256=audit.sha256(b"reply %d" % number),
    )
    return dataclasses.replace(told, **changes)


TOLD = [exchange(number) for number in range(6)]


def test_two_logs_that_tell_the_same_have_no_difference():
    assert reconcile(TOLD, list(TOLD)) == []
    assert reconcile([], []) == []


@pytest.mark.parametrize("place", [0, 3, 5])
def test_an_exchange_told_by_one_party_alone_is_found(place):
    shorter = TOLD[:place] + TOLD[place + 1 :]
    assert reconcile(TOLD, shorter) == [Difference(f"req_{place}", "only the curator has it")]
    assert reconcile(shorter, TOLD) == [Difference(f"req_{place}", "only the modeler has it")]


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("method", "GET"),
        ("path", "/v1/studies/std_1"),
        ("idempotency_key", "run_b:2"),
        ("request_sha256", "0" * 64),
        ("status", 403),
        ("reply_sha256", "f" * 64),
        ("replayed", True),
        ("study_id", "std_2"),
    ],
)
def test_the_field_that_differs_is_named(field, other):
    changed = [*TOLD[:2], dataclasses.replace(TOLD[2], **{field: other}), *TOLD[3:]]
    assert reconcile(TOLD, changed) == [Difference("req_2", f"differs in {field}")]
    assert reconcile(changed, TOLD) == [Difference("req_2", f"differs in {field}")]


def test_every_field_that_differs_is_named():
    changed = [dataclasses.replace(TOLD[0], status=403, reply_sha256="0" * 64)]
    assert reconcile(TOLD[:1], changed) == [Difference("req_0", "differs in status, reply_sha256")]


def test_queries_of_one_run_told_in_another_order_are_found():
    swapped = [TOLD[0], TOLD[2], TOLD[1], *TOLD[3:]]
    differences = reconcile(TOLD, swapped)
    assert {d.what for d in differences} == {"the logs disagree on its order"}
    assert {d.request_id for d in differences} <= {"req_1", "req_2"}


def test_the_order_of_two_runs_against_each_other_is_free():
    """Two runs at once: each log has its own interleaving."""
    a = [exchange(number, idempotency_key=f"run_a:{number}") for number in range(3)]
    b = [exchange(10 + number, idempotency_key=f"run_b:{number}") for number in range(3)]
    assert reconcile([*a, *b], [b[0], a[0], b[1], a[1], a[2], b[2]]) == []


def test_a_lost_reply_is_told_by_the_curator_alone_whatever_was_repeated():
    """One request sent twice under one id; only the reply to the second arrived."""
    first, second = TOLD[0], dataclasses.replace(TOLD[0], replayed=True)
    assert reconcile([first, second], [second]) == [Difference("req_0", "only the curator has it")]


REPEATED = st.lists(
    st.builds(exchange, st.integers(0, 3), replayed=st.booleans(), status=st.sampled_from([201, 409])), max_size=8
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(REPEATED)
def test_a_log_never_differs_from_itself(told):
    """Repeats under one request id, equal or not, in any place."""
    assert reconcile(told, list(told)) == []


@settings(max_examples=300, deadline=None, derandomize=True)
@given(REPEATED.filter(bool), st.data())
def test_what_one_party_left_out_is_the_only_difference(told, data):
    """Where an exchange was repeated exactly, which of the two was left out cannot be told, nor then their order."""
    place = data.draw(st.integers(0, len(told) - 1))
    shorter = told[:place] + told[place + 1 :]
    for curator, modeler, party in [(told, shorter, "curator"), (shorter, told, "modeler")]:
        found = reconcile(curator, modeler)
        if len(set(told)) < len(told):
            found = [d for d in found if d.what != "the logs disagree on its order"]
        assert found == [Difference(told[place].request_id, f"only the {party} has it")]


def test_only_the_exchanges_of_the_study_are_read_from_a_log():
    other = exchange(9, study_id="std_2")
    records = [
        {"event": "service.started"},
        {"event": "query", "exchange": TOLD[0].as_json()},
        {"event": "query", "exchange": other.as_json()},
        {"event": "query", "exchange": None},
        {"event": "query", "exchange": TOLD[1].as_json()},
    ]
    assert audit.exchanges(records, "std_1") == TOLD[:2]
    assert audit.exchanges(records, "std_2") == [other]


def test_an_exchange_survives_the_log():
    record = json.loads(audit.canonical({"exchange": TOLD[3].as_json()}))
    assert audit.exchanges([record], "std_1") == [TOLD[3]]
