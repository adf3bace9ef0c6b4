"""The Merkle log against RFC 6962 written out, its proofs, and what verification of one log finds."""

import dataclasses
import hashlib
import json
import math

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from blindopt.audit import merkle_log
from blindopt.audit.merkle_log import Entry, Head, LogBroken
from tests.shared.blindopt.audit.two_exports import entries_of


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


def grown(bodies: list[bytes]) -> bytes:
    peaks = b""
    for size, body in enumerate(bodies):
        peaks = merkle_log.grow(peaks, size, merkle_log.leaf_hash(body))
    return peaks


def test_the_root_is_rfc_6962s_for_every_size_to_300():
    bodies, peaks = [], b""
    for size in range(301):
        assert merkle_log.root(peaks) == tree_head(bodies)
        assert len(peaks) == 32 * size.bit_count()
        bodies.append(f"record {size}".encode())
        peaks = merkle_log.grow(peaks, size, merkle_log.leaf_hash(bodies[-1]))


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


def test_names_that_another_party_chose_take_little_memory():
    for i in range(1_000):
        merkle_log.canonical({f"{i:04d}": 1})
        merkle_log.canonical({f"{i}{1_000 * 'a'}": 1})
    assert len(merkle_log._IN_ORDER) <= 256
    assert max(sum(map(len, names)) for names in merkle_log._IN_ORDER) <= 500


@pytest.mark.parametrize("size", range(9))
def test_the_roots_are_those_of_certificate_transparency(size):
    bodies = [bytes.fromhex(leaf) for leaf in LEAVES[:size]]
    assert merkle_log.root(grown(bodies)).hex() == ROOTS[size]


@pytest.mark.parametrize(
    "bad", [math.nan, math.inf, -math.inf, 2**53, -(2**53), b"bytes", {1: "a key that is no text"}]
)
def test_a_record_without_one_canonical_form_is_refused(bad):
    with pytest.raises(Exception, match=r".") as refusal:
        merkle_log.canonical({"value": bad})
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
    assert merkle_log.canonical(record) == form


SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(st.characters(exclude_categories=["Cs"]))
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), SCALARS | st.lists(SCALARS), max_size=6))
def test_the_canonical_form_reads_back_and_knows_no_order(record):
    form = merkle_log.canonical(record)
    assert json.loads(form) == record
    assert merkle_log.canonical(dict(reversed(record.items()))) == form


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.builds(
        merkle_log.Exchange,
        **dict.fromkeys(("study_id", "request_id", "method", "path", "request_sha256", "reply_sha256"), TEXTS),
        grant_id=st.none() | TEXTS,
        idempotency_key=st.none() | TEXTS,
        position=st.none() | st.integers(0, 2**53 - 1) | st.booleans() | st.floats(0, 9) | TEXTS,
        status=st.integers(100, 599) | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(100, 599) | TEXTS,
        replayed=st.booleans(),
    )
)
def test_the_bytes_of_an_exchange_are_its_canonical_form(exchange):
    assert exchange.body == rfc8785.dumps(exchange.as_json())


# --- proofs that a log only grew -------------------------------------------------------------------


def node(first: bytes, second: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + first + second).digest()


def split_at(size: int) -> int:
    k = 1
    while 2 * k < size:
        k *= 2
    return k


def head_of(leaves: list[bytes]) -> bytes:
    """MTH of RFC 6962 over leaf hashes."""
    if len(leaves) < 2:
        return leaves[0] if leaves else hashlib.sha256(b"").digest()
    k = split_at(len(leaves))
    return node(head_of(leaves[:k]), head_of(leaves[k:]))


def subproof(m: int, leaves: list[bytes], whole: bool) -> list[bytes]:
    """SUBPROOF of RFC 6962, section 2.1.2, line by line."""
    if m == len(leaves):
        return [] if whole else [head_of(leaves)]
    k = split_at(len(leaves))
    if m <= k:
        return [*subproof(m, leaves[:k], whole), head_of(leaves[k:])]
    return [*subproof(m - k, leaves[k:], False), head_of(leaves[:k])]


def rebuilt(m: int, size: int, proof: list[bytes], whole: bool, first: bytes) -> tuple[bytes, bytes]:
    """Both roots from a proof, by the recursion that makes it. Consumes ``proof`` from its end."""
    if m == size:
        head = first if whole else proof.pop()
        return head, head
    k = split_at(size)
    sibling = proof.pop()
    if m <= k:
        old, new = rebuilt(m, k, proof, whole, first)
        return old, node(new, sibling)
    old, new = rebuilt(m - k, size - k, proof, False, first)
    return node(sibling, old), node(sibling, new)


def oracle(first: Head, second: Head, proof: list[bytes]) -> bool:
    """Whether a proof holds, for 0 < first.size <= second.size."""
    unread = list(proof)
    try:
        old, new = rebuilt(first.size, second.size, unread, True, bytes.fromhex(first.root))
    except IndexError:
        return False
    return not unread and all(len(n) == 32 for n in proof) and (old.hex(), new.hex()) == (first.root, second.root)


def leaves_of(size: int, seed: int = 0) -> list[bytes]:
    return [merkle_log.leaf_hash(b"%d of %d" % (index, seed)) for index in range(size)]


def head(leaves: list[bytes]) -> Head:
    return Head(len(leaves), head_of(leaves).hex())


def test_every_proof_to_size_70_is_that_of_the_rfc_and_holds():
    leaves = leaves_of(70)
    heads = [head(leaves[:size]) for size in range(71)]
    for n in range(1, 71):
        for m in range(1, n + 1):
            proof = merkle_log.consistency(leaves[:n], m)
            assert proof == subproof(m, leaves[:n], True)
            assert oracle(heads[m], heads[n], proof)
            assert merkle_log.is_consistent(heads[m], heads[n], proof)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(1, 1500), st.data())
def test_a_proof_between_any_sizes_holds_and_between_no_others(n, data):
    m = data.draw(st.integers(1, n))
    leaves = leaves_of(n, seed=n)
    proof, first, second = merkle_log.consistency(leaves, m), head(leaves[:m]), head(leaves)
    assert proof == subproof(m, leaves, True)
    assert merkle_log.is_consistent(first, second, proof)
    for size in {m - 1, m + 1, n - 1, n + 1} - {m, 0}:  # the empty log is the beginning of any other
        assert not merkle_log.is_consistent(Head(size, first.root), second, proof) or size == n == m
    if m < n:
        assert not merkle_log.is_consistent(second, first, proof)


# From the tests of Certificate Transparency, for the eight leaves above.
CT_PROOFS = {
    (1, 8): [
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ],
    (6, 8): [
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ],
    (2, 5): [
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    ],
    (1, 1): [],
}


@pytest.mark.parametrize(("m", "n"), CT_PROOFS)
def test_the_proofs_are_those_of_certificate_transparency(m, n):
    leaves = [merkle_log.leaf_hash(bytes.fromhex(leaf)) for leaf in LEAVES[:n]]
    assert [digest.hex() for digest in merkle_log.consistency(leaves, m)] == CT_PROOFS[m, n]
    assert merkle_log.is_consistent(Head(m, ROOTS[m]), Head(n, ROOTS[n]), merkle_log.consistency(leaves, m))


def test_no_altered_proof_holds():
    """A bit, a node more or less, two swapped, a border between nodes moved, another root: for every pair to 20."""
    leaves = leaves_of(20)
    heads = [head(leaves[:size]) for size in range(21)]
    stray = merkle_log.leaf_hash(b"stray")
    tried = 0
    for n in range(1, 21):
        for m in range(1, n + 1):
            proof = merkle_log.consistency(leaves[:n], m)
            altered = [[*proof, stray], [stray, *proof], [*proof, b""]]
            for index, digest in enumerate(proof):
                altered.append([*proof[:index], bytes([digest[0] ^ 1]) + digest[1:], *proof[index + 1 :]])
                altered.append(proof[:index] + proof[index + 1 :])
                altered.append([*proof[: index + 1], *proof[index:]])
            for index in range(len(proof) - 1):
                a, b = proof[index : index + 2]
                altered.append([*proof[:index], b, a, *proof[index + 2 :]])
                altered.append([*proof[:index], a + b[:1], b[1:], *proof[index + 2 :]])
                altered.append([*proof[:index], a[1:], b + a[:1], *proof[index + 2 :]])
            for bad in altered:
                assert bad != proof
                assert not merkle_log.is_consistent(heads[m], heads[n], bad), (m, n)
                tried += 1
            assert not merkle_log.is_consistent(Head(m, stray.hex()), heads[n], proof)
            assert not merkle_log.is_consistent(heads[m], Head(n, stray.hex()), proof)
    assert tried > 2_000


def test_an_empty_log_is_the_beginning_of_any_other_and_needs_no_proof():
    assert merkle_log.is_consistent(merkle_log.EMPTY, head(leaves_of(5)), [])
    assert not merkle_log.is_consistent(merkle_log.EMPTY, head(leaves_of(5)), leaves_of(1))
    assert not merkle_log.is_consistent(head(leaves_of(5)), merkle_log.EMPTY, [])


@pytest.mark.parametrize("size", [1, 2, 7, 12])
def test_no_proof_joins_two_histories(size):
    """Whatever nodes of the two trees a forger offers, in any order of up to three."""
    ours, theirs = leaves_of(size), [*leaves_of(13)]
    theirs[size - 1] = merkle_log.leaf_hash(b"another")
    nodes = [head_of(part[a : a + w]) for part in (ours, theirs) for w in (1, 2, 4, 8) for a in range(0, len(part), w)]
    first, second = head(ours), head(theirs)
    for proof in ([], *([a] for a in nodes), *([a, b] for a in nodes for b in nodes)):
        assert not merkle_log.is_consistent(first, second, proof)
    assert not merkle_log.is_consistent(first, second, merkle_log.consistency(theirs, size))


# --- verify --------------------------------------------------------------------------------------


def bodies_of(size: int) -> list[bytes]:
    return [merkle_log.canonical({"seq": seq, "event": "told", "value": seq * seq}) for seq in range(size)]


LOG = entries_of(bodies_of(13))


def first_wrong(entries: list[Entry]) -> str:
    with pytest.raises(LogBroken) as broken:
        merkle_log.verify(entries)
    return str(broken.value)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 8, 13])
def test_a_whole_log_verifies_to_its_size_and_root(size):
    head = merkle_log.verify(iter(LOG[:size]))
    assert (head.size, head.root) == (size, tree_head(bodies_of(size)).hex())


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=st.data())
def test_one_flipped_bit_anywhere_names_its_record(data):
    index = data.draw(st.integers(0, len(LOG) - 1))
    part = data.draw(st.sampled_from(["body", "leaf", "peaks"]))
    content = bytearray(getattr(LOG[index], part))
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    content[bit // 8] ^= 1 << bit % 8
    problem = first_wrong([*LOG[:index], dataclasses.replace(LOG[index], **{part: bytes(content)}), *LOG[index + 1 :]])
    assert problem.startswith(f"record {index} was ")


@pytest.mark.parametrize("index", [0, 5, 11])
def test_a_gap_names_the_missing_record(index):
    assert first_wrong(LOG[:index] + LOG[index + 1 :]).startswith(f"record {index} is missing")


@pytest.mark.parametrize(("a", "b"), [(0, 1), (4, 9), (11, 12)])
def test_swapped_records_name_the_first(a, b):
    swapped = list(LOG)
    swapped[a], swapped[b] = swapped[b], swapped[a]
    assert first_wrong(swapped).startswith(f"record {a} ")


@pytest.mark.parametrize(("a", "b"), [(0, 1), (4, 9), (11, 12)])
def test_swapped_bodies_under_unchanged_sequence_numbers_name_the_first(a, b):
    swapped = list(LOG)
    swapped[a] = dataclasses.replace(LOG[a], body=LOG[b].body, leaf=LOG[b].leaf)
    swapped[b] = dataclasses.replace(LOG[b], body=LOG[a].body, leaf=LOG[a].leaf)
    assert first_wrong(swapped) == f"record {a} was moved: it says it is {b}"


@pytest.mark.parametrize("index", [0, 6, 12])
def test_an_insertion_is_named_by_its_index(index):
    body = merkle_log.canonical({"seq": index, "event": "never happened"})
    inserted = [*LOG[:index], Entry(index, body, merkle_log.leaf_hash(body), LOG[index].peaks)]
    later = [dataclasses.replace(e, seq=e.seq + 1) for e in LOG[index:]]
    assert first_wrong(inserted + later).startswith(f"record {index} was inserted or replaced")
    repeated = [*LOG[: index + 1], *LOG[index:]]
    assert first_wrong(repeated).startswith(f"record {index + 1} ")


@pytest.mark.parametrize("index", [0, 6, 12])
def test_a_record_replaced_with_its_hash_breaks_the_tree(index):
    body = merkle_log.canonical({"seq": index, "event": "told", "value": "another"})
    forged = dataclasses.replace(LOG[index], body=body, leaf=merkle_log.leaf_hash(body))
    assert first_wrong([*LOG[:index], forged, *LOG[index + 1 :]]).startswith(f"record {index} was inserted or replaced")


@pytest.mark.parametrize("index", [0, 6, 11])
def test_a_record_replaced_with_its_tree_breaks_the_next_record(index):
    """The frontier stored after the forged record fits it; the one after that does not."""
    body = merkle_log.canonical({"seq": index, "event": "told", "value": "another"})
    forged = entries_of([*bodies_of(index), body])[index]
    assert first_wrong([*LOG[:index], forged, *LOG[index + 1 :]]).startswith(
        f"record {index + 1} was inserted or replaced"
    )


@pytest.mark.parametrize("index", [0, 6, 12])
def test_a_log_written_anew_has_another_root(index):
    bodies = bodies_of(13)
    bodies[index] = merkle_log.canonical({"seq": index, "event": "told", "value": "another"})
    assert merkle_log.verify(entries_of(bodies)).root != merkle_log.verify(LOG).root


def test_a_cut_tail_shows_in_the_size():
    assert merkle_log.verify(LOG[:-1]).size == 12


@pytest.mark.parametrize(
    "body",
    [
        b"not json",
        b"[1,2]",
        b'"text"',
        b"7",
        b"",
        b"\xff\xfe",
        b'{"no":"seq"}',
        b'{"seq":"2"}',
        b'{"seq":2,"x":NaN}',
        b'{"seq":2,"x":9007199254740993}',
        b'{"seq":2,"x":"\\ud800"}',
        b'{"seq":2,"x":' + b"[" * 100_000,
        b'{"seq":2,"x":' + b"1" * 5_000 + b"}",
    ],
)
def test_a_malformed_record_is_named_too(body):
    """A log comes from the other party: whatever its bytes are, the answer is which record is wrong."""
    forged = dataclasses.replace(LOG[2], body=body, leaf=merkle_log.leaf_hash(body))
    assert first_wrong([*LOG[:2], forged, *LOG[3:]]).startswith("record 2 ")


# --- verify, held against signatures ---------------------------------------------------------------


def signed(*sizes: int) -> dict[int, str]:
    return {size: merkle_log.verify(LOG[:size]).root for size in sizes}


def test_a_log_that_fits_what_was_signed_verifies():
    assert merkle_log.verify(LOG, signed=signed(1, 7, 13)).size == 13


def test_a_tail_that_was_cut_below_a_signature_is_named():
    with pytest.raises(LogBroken, match=r"^the tail was cut: the log ends after 9 records, .* has 12\n"):
        merkle_log.verify(LOG[:9], signed=signed(3, 12))


def test_a_history_written_anew_is_a_fork_at_the_first_signature_that_it_breaks():
    bodies = bodies_of(13)
    bodies[5] = merkle_log.canonical({"seq": 5, "event": "told", "value": "another"})
    with pytest.raises(LogBroken, match=r"^a fork at or before record 7: .* size 8 "):
        merkle_log.verify(entries_of(bodies), signed=signed(2, 5, 8, 13))


ODD = [
    *("1.0", "1e3", "1E3", "1.5", "0.1", "-0", "-0.0", "01", "+1", "1e400", "NaN", "Infinity", "-Infinity", "5e-324"),
    *("9007199254740991", "9007199254740992", "-9007199254740992", "123456789012345678901234567890", "1e21", "1e+21"),
    *(
        '"\u00e9"',
        '"\\u00e9"',
        '"\\u00E9"',
        '"\\/"',
        '"/"',
        '"\\n"',
        '"\\u000a"',
        '"\n"',
        '"\\u001f"',
        '"\\u001F"',
        '"\x7f"',
    ),
    *(
        '"\\u007f"',
        '"\u2028"',
        '"\\ud83d\\ude00"',
        '"\U0001f600"',
        '"\\ud800"',
        '"\\udc00\\ud800"',
        "'a'",
        '"\\x41"',
        '"<&>"',
    ),
    *("[]", "[ ]", "[1,2]", "[1, 2]", "[1,]", "{}", '{"b":1,"c":2}', '{"c":2,"b":1}', '[[{"b":{"d":1,"c":2}}]]'),
    *(
        '{"b":1,"b":1}',
        '{"b":1,"b":2}',
        '{"\u20ac":1,"\ufb33":2,"\U0001f600":3}',
        '{"\u20ac":1,"\U0001f600":2,"\ufb33":3}',
    ),
    *(
        '{"\\u0062":1}',
        '{"":1}',
        '{"B":1,"a":2}',
        '{"a":1,"B":2}',
        "true",
        "True",
        "null",
        "1 ",
        " 1",
        "1/**/",
        "[" * 300,
    ),
    *(
        '"a\ufeff"',
        '"\\b\\f\\t\\r"',
        '"\\u0008"',
        '[1.5,{"b":1,"a":2}]',
        "0.30000000000000004",
        "[0.1,1]",
        "333333333.3333332",
    ),
]


def is_canonical(body: bytes) -> bool:
    """RFC 8785 by the libraries alone: what is parsed is written the same."""
    try:
        return bool(rfc8785.dumps(json.loads(body)) == body)
    except (ValueError, RecursionError):
        return False


@pytest.mark.parametrize("value", ODD)
def test_a_record_is_taken_if_its_body_is_the_canonical_form_and_only_then(value):
    body = b'{"a":' + value.encode() + b',"seq":0}'
    (entry,) = entries_of([body])
    if is_canonical(body):
        assert merkle_log.verify([entry]).size == 1
        assert entry.record == json.loads(body)
    else:
        with pytest.raises(LogBroken, match=r"^record 0 (is none|is not in its canonical form)"):
            merkle_log.verify([entry])


@pytest.mark.parametrize(
    "body",
    [
        b'{"seq":0,"a":1}',
        b'\xef\xbb\xbf{"seq":0}',
        b'{"a":"\xff","seq":0}',
        '{"seq":0}'.encode("utf-16"),
        b'{"seq":0}\n',
    ],
)
def test_members_out_of_order_and_other_encodings_are_not_canonical(body):
    with pytest.raises(LogBroken, match=r"^record 0 (is none|is not in its canonical form)"):
        merkle_log.verify(entries_of([body]))


@pytest.mark.parametrize("member", ["seq", "position"])
def test_the_position_of_a_record_is_read_from_the_named_member(member):
    entries = entries_of([merkle_log.canonical({member: index}) for index in range(3)])
    assert merkle_log.verify(entries, index=member).size == 3
    with pytest.raises(LogBroken, match="record 0 was moved"):
        merkle_log.verify(entries, index="other")


@pytest.mark.parametrize("position", [True, 1.0, "1", None, [1]])
def test_a_position_is_a_whole_number(position):
    """True equals 1 in Python: a record with the position True must not pass for record 1."""
    entries = entries_of([b'{"seq":0}', json.dumps({"seq": position}).encode()])
    with pytest.raises(LogBroken, match="record 1 "):
        merkle_log.verify(entries)


@pytest.mark.parametrize("body", [b'{"seq": 2}', b'{"seq":2,"seq":2}', b'{"seq":2,"a":1}', b'{"seq":2,"x":1.50}'])
def test_a_record_has_one_spelling(body):
    """Other spaces, orders or repeated members would let two readers parse one hash differently."""
    with pytest.raises(LogBroken, match="record 2 "):
        merkle_log.verify(entries_of([*bodies_of(2), body]))


@pytest.mark.parametrize("bad", [2**53, -(2**53)])
@pytest.mark.parametrize("member", ["position", "status"])
def test_an_exchange_with_a_number_that_has_no_canonical_form_has_no_bytes(member, bad):
    texts = dict.fromkeys(("study_id", "request_id", "method", "path", "request_sha256", "reply_sha256"), "x")
    numbers = {"position": 0, "status": 200, member: bad}
    exchange = merkle_log.Exchange(grant_id=None, idempotency_key=None, **texts, **numbers)
    with pytest.raises(ValueError, match="exceeds"):
        assert exchange.body


def test_names_outside_ascii_are_sorted_as_rfc_8785_sorts_them_by_utf_16():
    record = {"\ufffd": 1, "\U0001f600": 2}  # by code points the other way round
    assert merkle_log.canonical(record) == '{"\U0001f600":2,"\ufffd":1}'.encode()
    assert merkle_log.canonical({"of": record}) == '{"of":{"\U0001f600":2,"\ufffd":1}}'.encode()


# --- a walk that is given the leaf that belongs there --------------------------------------------


def walked(size: int) -> merkle_log.LogWalk:
    walk = merkle_log.LogWalk(index="seq")
    for entry in LOG[:size]:
        walk.take(entry, entry.leaf)
    return walk


def wrong(walk: merkle_log.LogWalk, entry: Entry, expected: bytes) -> str:
    with pytest.raises(LogBroken) as broken:
        walk.take(entry, expected)
    return str(broken.value)


def test_a_walk_over_expected_leaves_ends_at_the_head_of_the_log():
    assert walked(0).end() == merkle_log.EMPTY
    assert walked(13).end() == merkle_log.verify(LOG)
    with pytest.raises(LogBroken, match="the tail was cut"):
        walked(12).end(13)


@pytest.mark.parametrize("at", [0, 5, 12])
def test_an_expected_leaf_does_not_hide_a_changed_body(at):
    entry = dataclasses.replace(LOG[at], body=LOG[at].body.replace(b"told", b"said"))
    assert wrong(walked(at), entry, entry.leaf).startswith(f"record {at} was changed")


@pytest.mark.parametrize("at", [0, 5, 12])
def test_an_expected_leaf_does_not_hide_another_leaf_under_the_same_body(at):
    other = merkle_log.leaf_hash(b"{}")
    peaks = merkle_log.grow(LOG[at - 1].peaks if at else b"", at, other)
    entry = dataclasses.replace(LOG[at], leaf=other, peaks=peaks)
    assert wrong(walked(at), entry, LOG[at].leaf).startswith(f"record {at} was changed")


def test_an_expected_leaf_does_not_hide_a_gap_or_a_repetition():
    assert wrong(walked(5), LOG[6], LOG[6].leaf) == "record 5 is missing: the log continues at 6"
    assert wrong(walked(5), LOG[4], LOG[4].leaf) == "record 5 was repeated: it is record 4 again"


def test_a_right_record_is_taken_whatever_leaf_was_expected():
    walk = walked(5)
    walk.take(LOG[5], b"another")
    assert walk.size == 6


def test_a_record_that_is_stored_twice_is_said_to_be_repeated():
    bodies = bodies_of(5)
    assert first_wrong(entries_of([*bodies, bodies[2]])) == "record 5 was repeated: it is record 2 again"


def test_the_leaf_of_an_exchange_is_read_where_the_details_have_its_names_too():
    exchange = {"a": 1, "path": "/v1"}
    details = {"exchange": {"a": 2, "path": ""}, "kind": "x", "last": {"exchange": {}, "kind": 3}}
    record = {"actor": "usr", "details": details, "exchange": exchange, "kind": "query", "seq": 3}
    leaf = merkle_log.exchange_leaf(merkle_log.canonical(record))
    assert leaf == hashlib.sha256(b"\x00" + rfc8785.dumps(exchange)).digest()
