"""One party's export by itself: what is changed, cut, forked, forged or missing in it is named."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindopt.audit import merkle_log, reconciliation
from blindopt.audit.checkpoints import Checkpoint, Signer
from blindopt.audit.merkle_log import Entry, Head
from blindopt.audit.reconciliation import Export, verify_export
from blindopt.audit.verification import Verification, leads
from blindopt.errors import LogBroken
from tests.shared.blindopt.audit.two_exports import (
    CURATOR,
    EXCHANGES,
    GRANT,
    GRANT_2,
    MODELER,
    OTHER,
    STUDY,
    audit_root,
    countersigned,
    curators,
    entries_of,
    exchange,
    head_of,
    modelers,
    note,
    own_log,
    pair,
)

OTHER_STUDY = "std_ffffffffffffffff"


def signer_of(export: Export) -> Signer:
    return CURATOR if export.is_curators else MODELER


def sign_own(export: Export) -> None:
    """Put a checkpoint over the whole own log in the place of those that it had."""
    export.notes = [n for n in export.notes if n[:2] != ("checkpoint", None)]
    export.notes.append(("checkpoint", None, note(signer_of(export), head_of(export.own))))


def sign_shared(export: Export) -> None:
    """Put the curator's checkpoint over its whole shared log in the place of those that it had."""
    export.notes = [n for n in export.notes if n[:2] != ("checkpoint", GRANT)]
    export.notes.append(("checkpoint", GRANT, note(CURATOR, head_of(export.shared[GRANT]), GRANT)))


def rewrite_own(export: Export, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    """Write a whole own log anew and sign it."""
    export.own = own_log(change([entry.record for entry in export.own]))
    sign_own(export)


def broken(export: Export, **chosen: Any) -> LogBroken:
    """The fault that a verification names."""
    with pytest.raises(LogBroken) as raised:
        verified(export, **chosen)
    return raised.value


def verified(export: Export, **chosen: Any) -> Verification:
    verification = Verification(export, **chosen)
    for _ in verification.records():
        pass
    return verification


def test_a_verification_counts_what_it_has_verified_so_far():
    for export in pair(EXCHANGES, (4, 9)):
        verification = Verification(export)
        assert (verification.since, verification.head) == (0, merkle_log.EMPTY)
        heads = [verification.head for _ in verification.records()]
        assert heads == [Head(size, "") for size in range(1, 12)]
        assert verification.head == head_of(export.own)


# --- what is missing ----------------------------------------------------------------------------------


def without(kind: str, *, grant: str | None = GRANT) -> Callable[[Export], None]:
    def change(export: Export) -> None:
        export.notes = [n for n in export.notes if (n[0], n[1]) != (kind, grant)]

    return change


def without_keys(export: Export) -> None:
    export.keys = {}


def without_shared(export: Export) -> None:
    export.shared = {}


def without_grant(export: Export) -> None:
    """Remove all that names the grant, but for the own log."""
    export.shared = {}
    export.notes = [n for n in export.notes if n[1] is None]


def cut_own(export: Export) -> None:
    """Remove the last record and every checkpoint of it."""
    export.own = export.own[:-1]
    without("checkpoint", grant=None)(export)


def cut_shared(export: Export) -> None:
    export.shared[GRANT] = export.shared[GRANT][:-1]


def repeat_exchange(export: Export) -> None:
    rewrite_own(export, lambda records: [*records, records[4]])


def two_origins(export: Export) -> None:
    export.notes.append(("checkpoint", None, note(signer_of(export), head_of(export.own), GRANT)))


@pytest.mark.parametrize("who", [0, 1], ids=["curator", "modeler"])
@pytest.mark.parametrize(
    ("change", "what"),
    [
        (without("countersignature"), f"shared log {GRANT}: the countersignature of size 4 is missing"),
        (without_keys, f"shared log {GRANT}: the key of the "),
        (without_shared, f"shared log {GRANT}: the tail was cut: the log ends after 0 records"),
        (without("checkpoint", grant=None), "has 11 records and no signed checkpoint"),
        (
            without_grant,
            f"shared log {GRANT}: the tail was cut: the log ends after 0 records, the party's own log has 9",
        ),
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
    assert what in str(broken(export))


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


# --- what an own log has and the shared one has not -----------------------------------------------------


def answer_changed(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    changed = {**records[4], "exchange": {**records[4]["exchange"], "reply_sha256": "0" * 64}}
    return [*records[:4], changed, *records[5:]]


def exchange_left_out(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [*records[:4], {"kind": "nothing"}, *records[5:]]


@pytest.mark.parametrize(("who", "change"), [(0, answer_changed), (1, answer_changed), (0, exchange_left_out)])
def test_an_own_log_that_was_written_anew_does_not_fit_the_shared_one(who, change):
    export = pair(EXCHANGES, (4, 9))[who]
    rewrite_own(export, change)
    assert str(broken(export)) == f"shared log {GRANT}: place 4 is not what the party's own log has"


@pytest.mark.parametrize("cut", [1, 2, 9])
def test_a_curator_that_cuts_a_shared_log_and_signs_it_again_still_has_the_exchanges_in_its_own(cut):
    curator = curators(EXCHANGES)
    curator.shared[GRANT] = curator.shared[GRANT][:-cut]
    sign_shared(curator)
    assert str(broken(curator)) == (
        f"shared log {GRANT}: the tail was cut: the log ends after {9 - cut} records, the party's own log has 9"
    )


def test_a_shared_log_without_an_exchange_in_the_own_log_is_verified():
    """Of the curator, who wrote each exchange to both; a modeler may have lost every reply and fetched them."""
    curator = curators(EXCHANGES)
    rewrite_own(curator, lambda records: [{"kind": "nothing"}])
    fault = broken(curator)
    assert (str(fault), fault.about) == (f"shared log {GRANT}: place 0 is not what the party's own log has", GRANT)
    modeler = modelers(EXCHANGES, lost=frozenset(range(9)), fetched=9)
    assert verified(modeler).head.size == 0
    modeler.shared[GRANT][3] = dataclasses.replace(modeler.shared[GRANT][3], body=b"{}")
    assert "record 3 was changed" in str(broken(modeler))


def test_a_grant_without_an_exchange_verifies():
    assert verified(curators([])).head.size == 0


def test_what_was_lost_and_fetched_is_verified_like_the_rest():
    """Also before the first exchange that the own log has."""
    modeler = modelers(EXCHANGES, lost=frozenset({0, 1}), fetched=2)
    verify_export(modeler)
    for position in (0, 1):
        entries = list(modeler.shared[GRANT])
        entries[position] = dataclasses.replace(entries[position], body=entries[position].body + b" ")
        changed = dataclasses.replace(modeler, shared={GRANT: entries})
        assert f"record {position} was changed" in str(broken(changed))


def test_a_receipt_beyond_a_copy_whose_end_both_logs_lack_shows_the_cut():
    whole, cut = modelers(EXCHANGES), modelers(EXCHANGES[:6])
    cut.notes = [*cut.notes, *whole.notes[7:]]
    assert str(broken(cut)) == (
        f"shared log {GRANT}: the tail was cut: the log ends after 6 records, a signed checkpoint has 9"
    )


def test_a_record_of_a_negative_place_is_refused():
    for export, seq in zip(pair(EXCHANGES), (9, 9), strict=True):
        rewrite_own(export, lambda records: [*records, {"exchange": exchange(-1).as_json()}])
        assert str(broken(export)) == f"record {seq} names place -1 of a shared log: places begin at 0"


# --- which grant and which study ------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [frozenset({3}), frozenset(range(9))], ids=["one", "all"])
@pytest.mark.parametrize(
    ("changes", "passes"),
    [
        ({"grant_id": GRANT_2}, False),
        ({"grant_id": GRANT_2, "status": 403}, False),
        ({"study_id": OTHER_STUDY}, False),
        ({"study_id": OTHER_STUDY, "status": 399}, False),
        ({"study_id": OTHER_STUDY, "status": 400}, True),
    ],
    ids=str,
)
def test_an_exchange_that_was_fetched_is_of_the_grant_and_its_study(lost, changes, passes):
    """A refused request alone may name another study."""
    modeler = modelers([*EXCHANGES[:3], exchange(3, **changes), *EXCHANGES[4:]], lost=lost, fetched=9)
    if passes:
        verify_export(modeler)
    else:
        assert str(broken(modeler)) == f"shared log {GRANT}: place 3 is of another grant or study"


def test_the_key_of_a_shared_log_is_that_of_its_study():
    """Not of a study that a refused request named; and also where the copy is empty, so that receipts are verified."""
    verify_export(modelers([exchange(0, status=404, study_id=OTHER_STUDY), *EXCHANGES[1:]]))
    modeler = modelers(EXCHANGES, lost=frozenset({0}), fetched=0)
    verify_export(modeler)
    modeler.keys = {STUDY: OTHER.verifier.vkey}
    assert f"the note has no valid signature of {OTHER.name}" in str(broken(modeler))


# --- signatures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", [0, 1], ids=["curator", "modeler"])
@pytest.mark.parametrize("log", ["log", GRANT_2])
@pytest.mark.parametrize("kind", ["checkpoint", "receipt", "countersignature"])
def test_a_checkpointon_another_log_is_none_on_this_one(kind, log, who):
    export = pair(EXCHANGES, (4, 9))[who]
    text = note(CURATOR, head_of(export.shared[GRANT]), log)
    export.notes.append((kind, GRANT, MODELER.countersign(text, 1) if kind == "countersignature" else text))
    what = f"the checkpoint is of another log: {CURATOR.name}/{log} is not of this log"
    assert str(broken(export)) == f"shared log {GRANT}: {what}"


@pytest.mark.parametrize("who", [0, 1], ids=["curator", "modeler"])
def test_a_countersignature_needs_both_parties(who):
    export = pair(EXCHANGES, (4, 9))[who]
    head, notes = head_of(export.shared[GRANT]), export.notes
    alone = note(CURATOR, head, GRANT)
    export.notes = [*notes, ("countersignature", GRANT, alone)]
    assert f"the note has no valid countersignature of {MODELER.name}" in str(broken(export))
    invented = OTHER.sign(Checkpoint(f"{CURATOR.name}/{GRANT}", head))
    export.notes = [*notes, ("countersignature", GRANT, MODELER.countersign(invented, 1))]
    assert f"the note has no valid signature of {CURATOR.name}" in str(broken(export))


@pytest.mark.parametrize("who", [0, 1], ids=["curator", "modeler"])
@pytest.mark.parametrize(
    ("kind", "grant", "where"), [("checkpoint", None, ""), ("receipt", GRANT, f"shared log {GRANT}: ")]
)
def test_two_roots_of_one_size_are_a_fork(kind, grant, where, who):
    """Whichever comes first: only the last is compared with the log."""
    export = pair(EXCHANGES, (4, 9))[who]
    signer, log = (signer_of(export), "log") if grant is None else (CURATOR, grant)
    forged = (kind, grant, note(signer, Head(6, "0" * 64), log))
    true = (kind, grant, note(signer, head_of(list(export.log(grant)), 6), log))
    for more in ([forged, true], [true, forged]):
        changed = dataclasses.replace(export, notes=[*more, *export.notes])
        assert str(broken(changed)) == f"{where}a fork: two signed checkpoints of size 6 are of two histories"


@pytest.mark.parametrize("kind", ["checkpoint", "countersignature"])
def test_receipts_and_checkpoints_of_two_histories_are_a_fork(kind):
    _, modeler = pair(EXCHANGES)
    other = note(CURATOR, Head(6, "0" * 64), GRANT)
    modeler.notes.append((kind, GRANT, MODELER.countersign(other, 1)))
    what = "a fork: two signed checkpoints of size 6 are of two histories"
    assert str(broken(modeler)) == f"shared log {GRANT}: {what}"


# --- changes of a key -----------------------------------------------------------------------------------


def with_a_later_key(export: Export) -> Signer:
    """Sign the own log with a key that followed the party's; return the later one."""
    old, private = signer_of(export), bytes([9]) * 32
    kind = old.name.partition(".")[0]
    later = Signer.of(kind, private, (old.change_to(Signer.of(kind, private).verifier),))
    export.notes = [n for n in export.notes if n[:2] != ("checkpoint", None)]
    export.notes.append(("checkpoint", None, note(later, head_of(export.own))))
    export.key = later.verifier.vkey
    return later


@pytest.mark.parametrize("who", [0, 1], ids=["curator", "modeler"])
def test_a_later_key_verifies_what_the_first_one_signed(who):
    export = pair(EXCHANGES, (4, 9))[who]
    first, later = signer_of(export), with_a_later_key(export)
    assert verify_export(export, key=first.verifier.vkey) == verify_export(export, key=later.verifier.vkey)
    for stranger in (OTHER, CURATOR if first is MODELER else MODELER):
        assert str(broken(export, key=stranger.verifier.vkey)) == (
            f"the export is signed with {later.verifier.vkey}, not with the key that was given"
        )


def test_a_key_leads_to_the_one_that_signed_and_to_no_other():
    """Nor without a checkpoint that shows the change."""
    export = curators(EXCHANGES)
    later = with_a_later_key(export)
    assert leads(export, CURATOR.verifier.vkey)
    assert leads(dataclasses.replace(export, notes=[]), later.verifier.vkey)
    assert not leads(dataclasses.replace(export, notes=[]), CURATOR.verifier.vkey)
    assert not leads(dataclasses.replace(export, key=OTHER.verifier.vkey), CURATOR.verifier.vkey)


# --- from an earlier checkpoint -------------------------------------------------------------------------


def since(export: Export, size: int = 5, log: str = "log") -> str:
    """The party's own checkpoint of its first records; its exchanges up to there are at the same places."""
    return note(signer_of(export), head_of(export.own, size), log)


def spoil(entries: list[Entry], position: int) -> None:
    """Change the bytes of a record, and nothing else."""
    entries[position] = dataclasses.replace(entries[position], body=entries[position].body + b" ")


def spoil_note(export: Export, kind: str, size: int) -> None:
    """Take the signatures from a note on a size of the shared log."""
    for index, (each, grant, text) in enumerate(export.notes):
        if (each, grant, text.split("\n")[1]) == (kind, GRANT, str(size)):
            export.notes[index] = (each, grant, OTHER.sign_text(text.split("\n\n")[0] + "\n"))


@pytest.mark.parametrize("who", [0, 1], ids=["curator", "modeler"])
@pytest.mark.parametrize("size", [1, 4, 5, 8])
def test_since_a_checkpoint_all_after_it_is_verified_and_nothing_before(size, who):
    export = pair(EXCHANGES, (9,))[who]
    verification = Verification(export, since=since(export, size))
    assert verification.since == size
    assert verification.head == head_of(export.own, size)
    for before in range(size):
        spoil(export.own, before)
        spoil(export.shared[GRANT], before)
        spoil_note(export, "receipt", before + 1)
    checkpoint = since(export, size)
    assert [record["seq"] for record in Verification(export, since=checkpoint).records()] == list(range(size, 10))
    assert verified(export, since=checkpoint).head == head_of(export.own)
    for after in range(size, 9):
        changed = dataclasses.replace(export, own=list(export.own))
        spoil(changed.own, after)
        assert str(broken(changed, since=checkpoint)).startswith(f"record {after} was changed")
        changed = dataclasses.replace(export, shared={GRANT: list(export.shared[GRANT])})
        spoil(changed.shared[GRANT], after)
        assert str(broken(changed, since=checkpoint)).startswith(f"shared log {GRANT}: record {after} was changed")


def remove(entries: list[Entry], position: int) -> None:
    del entries[position]


def cut(entries: list[Entry], position: int) -> None:
    del entries[position:]


def change_peaks(entries: list[Entry], position: int) -> None:
    entries[position] = dataclasses.replace(entries[position], peaks=bytes(64 * 3))


@pytest.mark.parametrize("who", [0, 1], ids=["curator", "modeler"])
@pytest.mark.parametrize("log", [None, GRANT], ids=["own", "shared"])
@pytest.mark.parametrize(("change", "position"), [(remove, 2), (cut, 4), (change_peaks, 4)])
def test_since_a_checkpoint_the_record_before_it_must_be_there(change, position, log, who):
    """Of the five records before it the last holds the frontier from which the walk goes on."""
    export = pair(EXCHANGES, (9,))[who]
    checkpoint = since(export)
    change(export.own if log is None else export.shared[log], position)
    where = "" if log is None else f"shared log {GRANT}: "
    assert str(broken(export, since=checkpoint)) == f"{where}record 4 is missing or was changed"


def test_since_takes_a_checkpoint_of_the_own_log_and_its_history_alone():
    for export in pair(EXCHANGES, (9,)):
        signer = signer_of(export)
        other = note(signer, Head(5, "0" * 64))
        what = "the first 5 records are not those of the checkpoint that you named"
        assert str(broken(export, since=other)) == what
        what = f"the checkpoint is of another log: {signer.name}/{GRANT} is not of this log"
        assert str(broken(export, since=since(export, log=GRANT))) == what
        foreign = OTHER.sign(Checkpoint(f"{signer.name}/log", head_of(export.own, 5)))
        assert str(broken(export, since=foreign)) == f"the note has no valid signature of {signer.name}"


def test_since_a_checkpoint_the_grants_after_it_are_verified():
    """A grant whose exchanges all are before it is not, and does not keep the next from being verified."""
    theirs = [dataclasses.replace(e, grant_id=GRANT_2) for e in EXCHANGES]
    export = curators(EXCHANGES)
    export.shared[GRANT_2] = entries_of([e.body for e in theirs])
    export.notes.append(("checkpoint", GRANT_2, note(CURATOR, head_of(export.shared[GRANT_2]), GRANT_2)))
    more = [{"exchange": e.as_json()} for e in theirs] + [countersigned(9, audit_root(EXCHANGES, 9))]
    rewrite_own(export, lambda records: [*records, *more])
    checkpoint = since(export, 9)
    spoil(export.shared[GRANT], 3)
    assert verified(export, since=checkpoint).head.size == 19
    spoil(export.shared[GRANT_2], 3)
    fault = broken(export, since=checkpoint)
    assert str(fault).startswith(f"shared log {GRANT_2}: record 3 was changed")
    assert fault.about == GRANT_2
