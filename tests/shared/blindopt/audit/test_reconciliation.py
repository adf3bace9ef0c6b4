"""Two parties' exports as pure data: honest ones agree, whatever replies were lost; each kind of lie is reported."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindopt.audit import merkle_log, reconciliation
from blindopt.audit.checkpoints import Checkpoint, Signer
from blindopt.audit.merkle_log import Entry, Exchange, Head
from blindopt.audit.reconciliation import Difference, Export, reconcile, verify_export
from blindopt.errors import LogBroken

CURATOR, MODELER, OTHER = (Signer.of(kind, bytes([n]) * 32) for n, kind in enumerate(("curator", "modeler", "modeler")))
STUDY, GRANT, GRANT_2 = "std_0000000000000001", "grt_0000000000000001", "grt_0000000000000002"


def exchange(number: int, **changes: Any) -> Exchange:
    plain = Exchange(
        study_id=STUDY,
        grant_id=GRANT,
        position=number,
        request_id=f"{number:032x}",
        method="POST",
        path=f"/v1/studies/{STUDY}/queries",
        idempotency_key=f"run_a:{number}",
        request_sha256=merkle_log.sha256(b"request %d" % number),
        status=201,
        reply_sha256=merkle_log.sha256(b"reply %d" % number),
    )
    return dataclasses.replace(plain, **changes)


def entries_of(bodies: list[bytes]) -> list[Entry]:
    entries, peaks = [], []
    for seq, body in enumerate(bodies):
        peaks = merkle_log.grow(peaks, seq, merkle_log.leaf_hash(body))
        entries.append(Entry(seq=seq, body=body, leaf=merkle_log.leaf_hash(body), peaks=b"".join(peaks)))
    return entries


def own_log(records: list[dict[str, Any]]) -> list[Entry]:
    return entries_of([merkle_log.canonical({"kind": "exchange", **r, "seq": seq}) for seq, r in enumerate(records)])


def head_of(entries: list[Entry], size: int | None = None) -> Head:
    part = entries[:size]
    peaks = part[-1].peaks if part else b""
    return Head(len(part), merkle_log.root([peaks[i : i + 32] for i in range(0, len(peaks), 32)]).hex())


def note(signer: Signer, head: Head, log: str = "log") -> str:
    return signer.sign(Checkpoint(f"{signer.name}/{log}", head))


def countersigned(size: int, root: str, grant: str = GRANT) -> dict[str, Any]:
    """The record of a countersignature in a party's own log."""
    return {"kind": "checkpoint.countersigned", "details": {"grant_id": grant, "size": size, "root": root}}


def curators(
    exchanges: list[Exchange], signed: dict[int, str] | None = None, grant: str = GRANT, key: Signer = MODELER
) -> Export:
    """The export of the curator of these exchanges; ``signed`` are the countersignatures that it received, by size."""
    signed = signed or {}
    details = [countersigned(size, audit_root(exchanges, size)) for size in signed]
    own = own_log([{"exchange": e.as_json()} for e in exchanges] + details)
    shared = entries_of([e.body for e in exchanges])
    export = Export("blindopt-curator", CURATOR.verifier.vkey, own, {grant: shared} if exchanges else {})
    export.notes = [
        ("checkpoint", None, note(CURATOR, head_of(own))),
        ("checkpoint", grant, note(CURATOR, head_of(shared), grant)),
    ]
    export.notes += [("countersignature", GRANT, text) for text in signed.values()]
    export.keys = {GRANT: MODELER.verifier.vkey} if signed else {}
    return export


def audit_root(exchanges: list[Exchange], size: int) -> str:
    return head_of(entries_of([e.body for e in exchanges]), size).root


def modelers(
    exchanges: list[Exchange],
    signed: tuple[int, ...] = (),
    lost: frozenset[int] = frozenset(),
    fetched: int | None = None,
    signer: Signer = MODELER,
    curator: Signer = CURATOR,
    grant: str = GRANT,
) -> Export:
    """The export of a modeler that received these exchanges, except for the ``lost`` positions.

    Lost exchanges at positions below ``fetched`` were fetched later; its copy ends before the first other lost one.
    """
    whole = entries_of([e.body for e in exchanges])
    fetched = len(exchanges) if fetched is None else fetched
    gaps = [position for position in sorted(lost) if position >= fetched]
    copy = whole[: gaps[0]] if gaps else whole
    had = [e for e in exchanges if e.position not in lost]
    heads = {size: head_of(whole, size) for size in signed}
    own = own_log([*({"exchange": e.as_json()} for e in had), *(countersigned(s, h.root) for s, h in heads.items())])
    export = Export("blindopt-modeler", signer.verifier.vkey, own, {grant: copy} if copy else {})
    export.keys = {STUDY: curator.verifier.vkey} if exchanges else {}
    export.notes = [("checkpoint", None, note(signer, head_of(own)))]
    export.notes += [
        ("receipt", grant, note(curator, head_of(whole, e.position + 1), grant)) for e in had if e.position is not None
    ]
    for head in heads.values():
        export.notes.append(("countersignature", grant, signer.countersign(note(curator, head, grant), 1)))
    return export


def signatures(modeler: Export) -> dict[int, str]:
    return {
        MODELER.verifier.verify_countersignature(text)[0].head.size: text
        for text in modeler.of_kind("countersignature", GRANT)
    }


def pair(exchanges: list[Exchange], signed: tuple[int, ...] = (), **chosen: Any) -> tuple[Export, Export]:
    modeler = modelers(exchanges, signed, **chosen)
    return curators(exchanges, signatures(modeler)), modeler


def differences(curator: Export, modeler: Export) -> list[Difference]:
    """The differences of two exports, each of which verifies by itself."""
    verify_export(curator)
    verify_export(modeler)
    return reconcile(curator, modeler, STUDY)[1]


EXCHANGES = [exchange(position) for position in range(9)]


# --- honest parties -----------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(1, 24), st.data())
def test_honest_parties_agree_whatever_was_lost_on_the_way(size, data):
    """Only exchanges that were lost and not yet fetched are reported, as lost."""
    exchanges = [exchange(position) for position in range(size)]
    lost = frozenset(data.draw(st.sets(st.integers(0, size - 1), max_size=size - 1)))
    fetched = data.draw(st.integers(0, size))
    missing = {position for position in lost if position >= fetched}
    reach = min(missing, default=size)
    signed = tuple(sorted(data.draw(st.sets(st.integers(1, reach), max_size=3)))) if reach else ()
    curator, modeler = pair(exchanges, signed, lost=lost, fetched=fetched)
    reported = differences(curator, modeler)
    last = max(set(range(size)) - missing, default=-1)
    assert reported == [
        Difference(
            f"{GRANT} place {position}",
            "only the curator has it: "
            + ("its reply was lost" if position < last else "the modeler's tail is missing"),
        )
        for position in sorted(missing)
    ]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(size=st.integers(0, 12), data=st.data())
def test_an_export_reads_back_as_it_was_written(size, data, tmp_path_factory):
    exchanges = [
        exchange(position, path=data.draw(st.text(st.characters(exclude_categories=["Cs"]))))
        for position in range(size)
    ]
    for export in pair(exchanges, tuple(range(1, size + 1, 3))):
        path = tmp_path_factory.getbasetemp() / "export.jsonl"
        text = "".join(reconciliation.write(export))
        assert text.isascii()
        path.write_text(text)
        assert reconciliation.read(path) == export


def test_a_first_reply_without_a_key_of_the_curator_verifies():
    """A request to a study that is not open yet is refused, with a receipt, before the modeler has a key."""
    refused = exchange(0, status=403, method="GET", idempotency_key=None)
    modeler = modelers([refused], lost=frozenset())
    modeler.keys, modeler.shared = {}, {}
    assert differences(curators([refused]), modeler) == []


def test_other_modelers_grants_are_not_compared():
    theirs = [dataclasses.replace(e, grant_id=GRANT_2) for e in EXCHANGES]
    other = modelers(theirs, signer=OTHER, grant=GRANT_2)
    modeler = modelers(EXCHANGES, (9,))
    both = curators(EXCHANGES)
    both.own = own_log([*({"exchange": e.as_json()} for e in (*EXCHANGES, *theirs))])
    both.shared[GRANT_2] = entries_of([e.body for e in theirs])
    both.keys = {GRANT: MODELER.verifier.vkey, GRANT_2: OTHER.verifier.vkey}
    both.notes = [
        ("checkpoint", None, note(CURATOR, head_of(both.own))),
        *(("checkpoint", g, note(CURATOR, head_of(both.shared[g]), g)) for g in (GRANT, GRANT_2)),
    ]
    assert differences(both, modeler) == []
    verify_export(other)
    assert reconcile(both, other, STUDY) == (9, [])


def test_repeated_answers_keep_their_promise():
    again = exchange(3, idempotency_key="run_a:2", request_sha256=EXCHANGES[2].request_sha256, replayed=True)
    exchanges = [*EXCHANGES[:3], dataclasses.replace(again, reply_sha256=EXCHANGES[2].reply_sha256)]
    assert differences(*pair(exchanges, lost=frozenset({2}))) == []


# --- one party lies ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("method", "GET"),
        ("path", "/v1/studies/x"),
        ("idempotency_key", "run_b:2"),
        ("request_sha256", "0" * 64),
        ("status", 403),
        ("reply_sha256", "f" * 64),
        ("request_id", "f" * 32),
    ],
)
def test_the_field_that_differs_is_named(field, other):
    exchanges = [*EXCHANGES[:5], dataclasses.replace(EXCHANGES[5], **{field: other}), *EXCHANGES[6:]]
    where = Difference(f"{GRANT} place 5", f"differs in {field}")
    curator, modeler = pair(EXCHANGES)
    # Each party rewrote its history and signed it again; the modeler's receipts show the curator's forgery too.
    lying = curators(exchanges)
    assert differences(lying, modeler)[:1] == [where]
    forks = [f"{GRANT} size {size}" for size in range(6, 10)]
    assert [d.where for d in differences(lying, modeler)[1:]] == forks
    with pytest.raises(LogBroken, match="a fork"):
        verify_export(_mixed(modelers(exchanges), modeler))
    forged = modelers(exchanges, curator=OTHER)
    assert differences(curator, forged)[:2] == [
        Difference(GRANT, "the key that the modeler holds receipts of is not the curator's"),
        where,
    ]


def _mixed(export: Export, receipts: Export) -> Export:
    """An export with the receipts of another."""
    export.notes = [n for n in export.notes if n[0] != "receipt"] + [n for n in receipts.notes if n[0] == "receipt"]
    return export


def test_every_field_that_differs_is_named():
    exchanges = [dataclasses.replace(EXCHANGES[0], status=403, reply_sha256="0" * 64), *EXCHANGES[1:]]
    assert Difference(f"{GRANT} place 0", "differs in reply_sha256, status") in differences(
        curators(exchanges), pair(EXCHANGES)[1]
    )


@pytest.mark.parametrize("kept", [1, 4, 8])
def test_a_cut_tail_is_reported_with_the_signatures_on_it(kept):
    curator, modeler = pair(EXCHANGES, (3, 6, 9))
    short = curators(EXCHANGES[:kept], {s: n for s, n in signatures(modeler).items() if s <= kept})
    reported = differences(short, modeler)
    assert reported[: 9 - kept] == [
        Difference(f"{GRANT} place {position}", "only the modeler has it: the curator's tail is missing")
        for position in range(kept, 9)
    ]
    assert reported[9 - kept :] == [
        Difference(f"{GRANT} size {size}", "the curator signed it and no longer has it: its tail was cut")
        for size in range(kept + 1, 10)
    ]
    shorter = modelers(EXCHANGES[:kept], tuple(s for s in (3, 6, 9) if s <= kept))
    reported = differences(curator, shorter)
    assert reported[: 9 - kept] == [
        Difference(f"{GRANT} place {position}", "only the curator has it: the modeler's tail is missing")
        for position in range(kept, 9)
    ]
    assert reported[9 - kept :] == [
        Difference(f"{GRANT} size {size}", "the modeler signed it and no longer has it: its tail was cut")
        for size in (3, 6, 9)
        if size > kept
    ]


@pytest.mark.parametrize("position", [0, 4, 8])
def test_an_exchange_that_was_slipped_in_moves_all_that_follow(position):
    slipped = [*EXCHANGES[:position], exchange(99, position=position)] + [
        dataclasses.replace(e, position=(e.position or 0) + 1) for e in EXCHANGES[position:]
    ]
    reported = differences(curators(slipped), pair(EXCHANGES)[1])
    assert reported[0].where == f"{GRANT} place {position}"
    assert Difference(f"{GRANT} place 9", "only the curator has it: the modeler's tail is missing") in reported
    assert (
        Difference(f"{GRANT} size {position + 1}", "a fork: the curator signed another history than it exported")
        in reported
    )


def test_a_modeler_that_omits_a_grant_that_it_countersigned_is_reported():
    """Not taken for another modeler's grant."""
    curator, _ = pair(EXCHANGES, (9,))
    assert [d.what for d in differences(curator, modelers([]))] == [
        *["only the curator has it: the modeler's tail is missing"] * 9,
        "the modeler signed it and no longer has it: its tail was cut",
    ]


def test_nothing_in_common_is_no_agreement():
    """Neither an unknown study, nor one in which this modeler has no grant."""
    curator, _ = pair(EXCHANGES, (9,))
    stranger = modelers([], signer=OTHER)
    for study in (STUDY, "std_ffffffffffffffff"):
        with pytest.raises(LogBroken, match="the two exports have no exchange of"):
            reconcile(curator, stranger, study)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"reply_sha256": "0" * 64, "replayed": True}, "another answer than at place 2 under the same key"),
        ({"reply_sha256": "0" * 64}, "another answer than at place 2 under the same key"),
        ({"request_sha256": "0" * 64, "replayed": True}, "another answer than at place 2 under the same key"),
        ({}, "an answer given again as if it were new"),
    ],
)
def test_a_curator_that_answers_twice_under_the_same_key_is_reported(changes, what):
    """Both sides hold the same log: the modeler got the second answer, the first was lost on the way."""
    same = {
        "idempotency_key": "run_a:2",
        "request_sha256": EXCHANGES[2].request_sha256,
        "reply_sha256": EXCHANGES[2].reply_sha256,
    }
    exchanges = [*EXCHANGES[:3], exchange(3, **{**same, **changes})]
    assert differences(*pair(exchanges, lost=frozenset({2}))) == [Difference(f"{GRANT} place 3", what)]


def test_a_replay_of_an_answer_that_was_never_given_is_reported():
    exchanges = [*EXCHANGES[:3], exchange(3, replayed=True)]
    assert differences(*pair(exchanges)) == [Difference(f"{GRANT} place 3", "an answer repeated that never was given")]


@pytest.mark.parametrize(("status", "is_reported"), [(200, True), (403, True), (409, True), (404, False), (503, False)])
def test_an_exchange_without_a_receipt_is_reported_where_a_curator_gives_one(status, is_reported):
    curator, modeler = pair(EXCHANGES)
    bare = exchange(0, position=None, grant_id=None, status=status, request_id="a" * 32)
    modeler.own = own_log([*({"exchange": e.as_json()} for e in EXCHANGES), {"exchange": bare.as_json()}])
    modeler.notes = [n for n in modeler.notes if n[1]] + [("checkpoint", None, note(MODELER, head_of(modeler.own)))]
    what = Difference(f"request {'a' * 32}", "only the modeler has it: it came without a receipt")
    assert differences(curator, modeler) == ([what] if is_reported else [])


# --- one export by itself -----------------------------------------------------------------------------


def without(kind: str, *, grant: str | None = GRANT) -> Callable[[Export], None]:
    def change(export: Export) -> None:
        export.notes = [n for n in export.notes if (n[0], n[1]) != (kind, grant)]

    return change


def without_keys(export: Export) -> None:
    export.keys = {}


def without_shared(export: Export) -> None:
    export.shared = {}


def cut_own(export: Export) -> None:
    """Remove the last record and every checkpoint of it."""
    export.own = export.own[:-1]
    without("checkpoint", grant=None)(export)


def cut_shared(export: Export) -> None:
    export.shared[GRANT] = export.shared[GRANT][:-1]


def repeat_exchange(export: Export) -> None:
    records = [entry.record for entry in export.own]
    export.own = own_log([*records, records[4]])
    signer = CURATOR if export.is_curators else MODELER
    export.notes = [n for n in export.notes if n[1]] + [("checkpoint", None, note(signer, head_of(export.own)))]


def two_origins(export: Export) -> None:
    signer = CURATOR if export.is_curators else MODELER
    export.notes.append(("checkpoint", None, note(signer, head_of(export.own), GRANT)))


@pytest.mark.parametrize("who", [0, 1], ids=["curator", "modeler"])
@pytest.mark.parametrize(
    ("change", "what"),
    [
        (without("countersignature"), f"shared log {GRANT}: the countersignature of size 4 is missing"),
        (without_keys, f"shared log {GRANT}: the key of the "),
        (without_shared, f"shared log {GRANT}: the tail was cut: the log ends after 0 records"),
        (without("checkpoint", grant=None), "has 11 records and no signed checkpoint"),
        (cut_own, "has 10 records and no signed checkpoint"),
        (cut_shared, f"shared log {GRANT}: the tail was cut: the log ends after 8 records"),
        (repeat_exchange, "the party's own log has place 4 twice"),
        (two_origins, "is not of this log"),
    ],
)
def test_what_is_missing_in_an_export_is_named(who, change, what):
    export = pair(EXCHANGES, (4, 9))[who]
    verify_export(export)
    change(export)
    with pytest.raises(LogBroken) as broken:
        verify_export(export)
    assert what in str(broken.value)


@pytest.mark.parametrize("position", [0, 4, 8])
def test_a_receipt_that_is_missing_is_named(position):
    _, modeler = pair(EXCHANGES, (9,))
    modeler.notes.remove([n for n in modeler.notes if n[0] == "receipt"][position])
    with pytest.raises(LogBroken, match=f"shared log {GRANT}: the receipt of place {position} is missing"):
        verify_export(modeler)


def test_a_modeler_whose_copy_ends_before_a_gap_may_not_cut_it_further():
    """A pending exchange does not excuse the loss of those that its own log and receipts prove."""
    modeler = modelers(EXCHANGES, lost=frozenset({6}), fetched=0)
    verify_export(modeler)
    modeler.shared[GRANT] = modeler.shared[GRANT][:4]
    with pytest.raises(LogBroken, match="the tail was cut: the log ends after 4 records"):
        verify_export(modeler)


def test_a_receipt_without_a_valid_signature_is_refused_even_beyond_a_gap():
    modeler = modelers(EXCHANGES, lost=frozenset({2}), fetched=0)
    verify_export(modeler)
    modeler.notes = [
        (kind, grant, text.replace("\n9\n", "\n10\n")) if kind == "receipt" else (kind, grant, text)
        for kind, grant, text in modeler.notes
    ]
    with pytest.raises(LogBroken, match="no valid signature"):
        verify_export(modeler)


@pytest.mark.parametrize(("field", "other"), [("grant_id", GRANT_2), ("study_id", "std_ffffffffffffffff")])
def test_a_shared_log_is_of_one_grant_and_one_study(field, other):
    exchanges = [*EXCHANGES[:3], dataclasses.replace(EXCHANGES[3], **{field: other})]
    with pytest.raises(LogBroken, match="place 3"):
        verify_export(curators(exchanges))


def test_an_export_signed_with_another_key_than_the_given_one_is_refused():
    curator, _ = pair(EXCHANGES)
    assert verify_export(curator, key=CURATOR.verifier.vkey).size == 9
    with pytest.raises(LogBroken, match="not with the key that was given"):
        verify_export(curator, key=MODELER.verifier.vkey)


def test_an_export_is_of_the_service_whose_key_signed_it():
    curator, _ = pair(EXCHANGES)
    curator.service = "blindopt-modeler"
    with pytest.raises(LogBroken, match="the export is of blindopt-modeler and signed by curator"):
        verify_export(curator)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_change_of_any_line_is_refused_or_changes_nothing(data, tmp_path_factory):
    """Any member of any line, to anything of its kind."""
    export = pair(EXCHANGES[:4], (2, 4))[data.draw(st.integers(0, 1))]
    lines = [json.loads(line) for line in reconciliation.write(export)]
    number = data.draw(st.integers(0, len(lines) - 1))
    member = data.draw(st.sampled_from(sorted(lines[number])))
    value = lines[number][member]
    other = data.draw(st.integers(-1, 9) if isinstance(value, int) else st.text(max_size=80) | st.none())
    if other == value:
        return
    lines[number][member] = other
    path = tmp_path_factory.getbasetemp() / "changed.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    try:
        verify_export(changed := reconciliation.read(path))
    except LogBroken:
        return
    assert changed == export
