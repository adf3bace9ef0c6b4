"""Two parties' exports as pure data: honest ones agree, whatever replies were lost; each kind of lie is reported."""

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindopt.audit import merkle_log, reconciliation
from blindopt.audit.merkle_log import Entry
from blindopt.audit.reconciliation import Difference, Export, ExportFile, reconcile, verify_export
from blindopt.errors import LogBroken
from tests.shared.blindopt.audit.two_exports import (
    CURATOR,
    EXCHANGES,
    GRANT,
    GRANT_2,
    MODELER,
    OTHER,
    STUDY,
    curators,
    entries_of,
    exchange,
    head_of,
    modelers,
    note,
    own_log,
    pair,
    signatures,
)


def differences(curator: Export, modeler: Export) -> list[Difference]:
    """The differences of two exports, each of which verifies by itself."""
    verify_export(curator)
    verify_export(modeler)
    return reconcile(curator, modeler, STUDY)[1]


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


def archived(curator: Export, size: int) -> Export:
    """The export once the first ``size`` records of the own log, which are exchanges, are archived."""
    export = dataclasses.replace(curator, own=curator.own[size - 1 :], notes=list(curator.notes))
    export.shared = {GRANT: curator.shared[GRANT][size - 1 :]}
    export.notes.append(("archived", None, note(CURATOR, head_of(curator.own, size))))
    export.notes.append(("segment", GRANT, "log-000007.jsonl.gz"))
    return export


@pytest.mark.parametrize("size", [2, 5, 8])
def test_one_root_at_the_last_archived_exchange_settles_all_before_it(size, tmp_path):
    exchanges = [exchange(position) for position in range(8)]
    curator, modeler = pair(exchanges, (8,))
    for export in (archived(curator, size), _written(archived(curator, size), tmp_path)):
        assert differences(export, modeler) == []
    changed = [exchange(0, status=200), *exchanges[1:]]
    forked, _ = pair(changed, ())
    [where, *_] = differences(_written(archived(forked, size), tmp_path), modeler)
    assert where.where == f"{GRANT} size {size}"
    assert where.what.startswith("no root that both have")
    assert where.what.endswith("compare its log-000007.jsonl.gz")


def test_an_export_whose_archived_checkpoint_is_of_another_history_does_not_verify():
    curator, _ = pair([exchange(position) for position in range(8)], ())
    export = archived(curator, 5)
    export.notes[-2] = ("archived", None, note(CURATOR, head_of(entries_of([b"{}"] * 5))))
    with pytest.raises(LogBroken, match="the first 5 records are not those"):
        verify_export(export)


def _written(export: Export, folder) -> Export:
    path = folder / "export.jsonl"
    path.write_text("".join(reconciliation.write(export)), encoding="utf-8")
    return reconciliation.read(path)


def test_lost_replies_are_those_before_the_modelers_last_exchange():
    reported = differences(*pair(EXCHANGES, lost=frozenset({2, 7, 8}), fetched=0))
    assert reported == [
        Difference(f"{GRANT} place 2", "only the curator has it: its reply was lost"),
        Difference(f"{GRANT} place 7", "only the curator has it: the modeler's tail is missing"),
        Difference(f"{GRANT} place 8", "only the curator has it: the modeler's tail is missing"),
    ]


def of_two_grants(keys: dict[str, str], modelers_too: tuple[str, ...]) -> tuple[Export, Export]:
    """The exports of a study of two grants: the curator's with pinned keys, the modeler's of only these grants."""
    by_grant = {grant: [dataclasses.replace(e, grant_id=grant) for e in EXCHANGES] for grant in (GRANT, GRANT_2)}
    curator, modeler = curators(EXCHANGES), modelers([])
    curator.shared = {grant: entries_of([e.body for e in each]) for grant, each in by_grant.items()}
    curator.own = own_log([{"exchange": e.as_json()} for each in by_grant.values() for e in each])
    curator.keys = keys
    curator.notes = [
        ("checkpoint", None, note(CURATOR, head_of(curator.own))),
        *(("checkpoint", g, note(CURATOR, head_of(curator.shared[g]), g)) for g in by_grant),
    ]
    modeler.shared = {grant: curator.shared[grant] for grant in modelers_too}
    modeler.own = own_log([{"exchange": e.as_json()} for grant in modelers_too for e in by_grant[grant]])
    modeler.keys = {STUDY: CURATOR.verifier.vkey}
    modeler.notes = [("checkpoint", None, note(MODELER, head_of(modeler.own)))]
    for grant in modelers_too:
        heads = [head_of(curator.shared[grant], size) for size in range(1, 10)]
        modeler.notes += [("receipt", grant, note(CURATOR, head, grant)) for head in heads]
    return curator, modeler


def test_both_grants_of_a_modeler_are_compared():
    curator, modeler = of_two_grants({}, (GRANT, GRANT_2))
    assert differences(curator, modeler) == []
    assert reconcile(curator, modeler, STUDY) == (18, [])


@pytest.mark.parametrize(
    ("keys", "modelers_too", "compared", "missing"),
    [
        ({}, (GRANT,), 9, ()),
        ({}, (GRANT_2,), 9, ()),
        ({}, (), 18, (GRANT, GRANT_2)),
        ({GRANT_2: MODELER.verifier.vkey}, (GRANT,), 18, (GRANT_2,)),
        ({GRANT_2: OTHER.verifier.vkey}, (GRANT,), 9, ()),
        ({GRANT_2: OTHER.verifier.vkey}, (), 9, (GRANT,)),
    ],
    ids=str,
)
def test_a_grant_that_the_modeler_lacks_is_its_own_unless_another_countersigned_it(
    keys, modelers_too, compared, missing
):
    """Without a countersignature, it is its own if it has no other shared log."""
    if not modelers_too and keys:
        keys = {**keys, GRANT: MODELER.verifier.vkey}
    curator, modeler = of_two_grants(keys, modelers_too)
    reported = [
        Difference(f"{grant} place {position}", "only the curator has it: the modeler's tail is missing")
        for grant in missing
        for position in range(9)
    ]
    assert differences(curator, modeler) == reported
    assert reconcile(curator, modeler, STUDY) == (compared, reported)


# --- files of exports -----------------------------------------------------------------------------------


def test_the_lines_of_an_export_are_these():
    """And no other member in any of them: another reader is written by this list."""
    curator, modeler = pair(EXCHANGES[:1], (1,))
    vkey, text = CURATOR.verifier.vkey, dict.fromkeys(("checkpoint", "receipt", "countersignature"), "")
    for kind, grant, each in modeler.notes:
        text[kind] = each if grant else text[kind]
    own, (entry,) = modeler.own, modeler.shared[GRANT]
    assert [json.loads(line) for line in reconciliation.write(modeler)] == [
        {"service": "blindopt-modeler", "key": MODELER.verifier.vkey},
        {"key": vkey, "subject": STUDY},
        {"kind": "checkpoint", "note": note(MODELER, head_of(own))},
        {"kind": "receipt", "grant_id": GRANT, "note": text["receipt"]},
        {"kind": "countersignature", "grant_id": GRANT, "note": text["countersignature"]},
        *(line_of(each, None) for each in own),
        line_of(entry, GRANT),
    ]
    assert json.loads(next(reconciliation.write(curator))) == {"service": "blindopt-curator", "key": vkey}


def line_of(entry: Entry, grant: str | None) -> dict[str, object]:
    return {
        "seq": entry.seq,
        "body": entry.body.decode(),
        "grant_id": grant,
        "leaf": entry.leaf.hex(),
        "peaks": entry.peaks.hex(),
    }


def test_a_record_whose_bytes_are_no_text_is_written_and_read_as_one_that_was_changed(tmp_path):
    """In a table, and in a file."""
    curator = curators(EXCHANGES)
    curator.own[4] = dataclasses.replace(curator.own[4], body=b"\xff")
    path = tmp_path / "export.jsonl"
    path.write_text("".join(reconciliation.write(curator)))
    assert reconciliation.read(path).own[4].body == "\ufffd".encode()
    with pytest.raises(LogBroken, match="record 4 was changed: its bytes do not match its hash"):
        verify_export(ExportFile(path))
    path.write_bytes("".join(reconciliation.write(curators(EXCHANGES))).encode().replace(b"run_a:4", b"run_\xff:4"))
    with pytest.raises(LogBroken, match="record 4 was changed: its bytes do not match its hash"):
        verify_export(ExportFile(path))


def lines_of_an_export() -> list[bytes]:
    return [line.encode() for line in reconciliation.write(curators(EXCHANGES))]


NO_HEADER = "{path} is no export: its first line does not name service and key"


@pytest.mark.parametrize(
    ("number", "line", "what"),
    [
        (1, None, NO_HEADER),
        (1, b'{"key": "a"}', NO_HEADER),
        (1, b'{"service": "a"}', NO_HEADER),
        (1, b"{}", NO_HEADER),
        (1, b"\xff", "{path} line 1 is not a line of an export"),
        (3, b"nonsense", "{path} line 3 is not a line of an export"),
        (3, b"", "{path} line 3 is not a line of an export"),
        (3, b"{}", "{path} line 3 is not a line of an export"),
        (3, b'{"kind": "other", "note": "a"}', "{path} line 3 is not a line of an export"),
        (3, b'{"kind": "receipt"}', "{path} line 3 is not a line of an export"),
    ],
)
def test_a_file_that_is_no_export_is_refused_at_its_line(number, line, what, tmp_path):
    """A line more: without one, a record of a log, the last line."""
    path, lines = tmp_path / "export.jsonl", lines_of_an_export()
    lines.insert(number - 1, lines[-1] if line is None else line + b"\n")
    path.write_bytes(b"".join(lines))
    with pytest.raises(LogBroken) as broken:
        ExportFile(path)
    assert str(broken.value) == what.format(path=path)


def test_an_empty_file_is_no_export(tmp_path):
    path = tmp_path / "export.jsonl"
    path.touch()
    with pytest.raises(LogBroken) as broken:
        ExportFile(path)
    assert str(broken.value) == f"{path} is empty"


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path):
    path = tmp_path / "export.jsonl"
    path.write_bytes(b"".join(lines_of_an_export()))
    export = ExportFile(path)
    path.write_bytes(b" " + b"".join(lines_of_an_export()))
    with pytest.raises(LogBroken) as broken:
        verify_export(export)
    assert str(broken.value) == f"{path} was changed while it was read"


def test_a_log_is_streamed_after_a_record_from_memory_and_from_a_file(tmp_path):
    path = tmp_path / "export.jsonl"
    path.write_bytes(b"".join(lines_of_an_export()))
    for export in (ExportFile(path), reconciliation.read(path)):
        for grant in (None, GRANT):
            assert [entry.seq for entry in export.log(grant)] == list(range(9))
            for after in (-1, 0, 4, 8, 9):
                assert [entry.seq for entry in export.log(grant, after)] == list(range(after + 1, 9))


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


@pytest.mark.parametrize(
    ("status", "path", "is_reported"),
    [
        (200, "/v1/studies", True),
        (403, "/v1/studies", True),
        (409, "/v1/studies", True),
        (404, "/v1/studies", False),
        (503, "/v1/studies", False),
        (200, "/v1/audit/checkpoint", False),
        (200, "/v1/audits", True),
        (200, "/v2/v1/audit/", True),
    ],
)
def test_an_exchange_without_a_receipt_is_reported_where_a_curator_gives_one(status, path, is_reported):
    """Reading the log is not recorded in it."""
    curator, modeler = pair(EXCHANGES)
    bare = exchange(0, position=None, grant_id=None, status=status, path=path, request_id="a" * 32)
    modeler.own = own_log([*({"exchange": e.as_json()} for e in EXCHANGES), {"exchange": bare.as_json()}])
    modeler.notes = [n for n in modeler.notes if n[1]] + [("checkpoint", None, note(MODELER, head_of(modeler.own)))]
    what = Difference(f"request {'a' * 32}", "only the modeler has it: it came without a receipt")
    assert differences(curator, modeler) == ([what] if is_reported else [])
    assert reconcile(curator, modeler, STUDY)[0] == 9 + is_reported


def test_a_curator_that_forgets_a_grant_of_whose_first_reply_the_modeler_has_no_copy_is_reported():
    """The modeler has no shared log then, but its own exchanges and their receipts; another grant agrees."""
    curator, _ = of_two_grants({}, (GRANT_2,))
    del curator.shared[GRANT]
    curator.own = own_log([{"exchange": dataclasses.replace(e, grant_id=GRANT_2).as_json()} for e in EXCHANGES])
    curator.notes = [n for n in curator.notes if n[1] == GRANT_2]
    curator.notes.append(("checkpoint", None, note(CURATOR, head_of(curator.own))))
    modeler = modelers(EXCHANGES, lost=frozenset({0}), fetched=0)
    assert differences(curator, modeler)[:8] == [
        Difference(f"{GRANT} place {position}", "only the modeler has it: the curator's tail is missing")
        for position in range(1, 9)
    ]


def test_a_curator_that_pinned_another_key_than_the_modelers_is_reported():
    curator, modeler = pair(EXCHANGES)
    curator.keys = {GRANT: OTHER.verifier.vkey}
    what = "the key that the curator holds countersignatures of is not the modeler's"
    assert differences(curator, modeler) == [Difference(GRANT, what)]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"more": 1}, "differs in more"),
        ({"more": None}, "differs in more"),
        ({"idempotency_key": ...}, "differs in idempotency_key"),
        ({"replayed": 0}, "differs in replayed"),
        ({"more": 1, "idempotency_key": ..., "status": 204}, "differs in idempotency_key, more, status"),
    ],
)
def test_a_member_of_an_exchange_that_a_party_lacks_is_named(changes, what):
    """Also where the other has null."""
    ours = exchange(0, idempotency_key=None)
    record = {name: value for name, value in (ours.as_json() | changes).items() if value is not ...}
    curator, modeler = pair([ours])
    curator.own, curator.shared = own_log([{"exchange": record}]), {GRANT: entries_of([merkle_log.canonical(record)])}
    curator.notes = [
        ("checkpoint", None, note(CURATOR, head_of(curator.own))),
        ("checkpoint", GRANT, note(CURATOR, head_of(curator.shared[GRANT]), GRANT)),
    ]
    assert differences(curator, modeler)[:1] == [Difference(f"{GRANT} place 0", what)]


KEYLESS = {"idempotency_key": None}


@pytest.mark.parametrize(
    ("first", "second", "is_reported"),
    [
        ({"status": 200}, {"status": 200}, True),
        ({"status": 201}, {"status": 201}, True),
        ({"status": 299}, {"status": 299}, True),
        ({"status": 199}, {}, False),
        ({"status": 300}, {}, False),
        ({"status": 300}, {"status": 300}, False),
        ({"status": 409}, {}, False),
        ({"method": "GET"}, {"method": "GET"}, False),
        ({"method": "GET"}, {}, False),
        (KEYLESS, KEYLESS, False),
        ({"reply_sha256": "0" * 64, "status": 200}, {"reply_sha256": "0" * 64, "status": 202, "replayed": True}, True),
    ],
    ids=str,
)
def test_a_curator_may_answer_twice_under_a_key_only_what_it_refused_before(first, second, is_reported):
    """Only accepted posts with a key bind it; what does not is passed over, and what follows it is read."""
    same = {"idempotency_key": "run_a:1", "request_sha256": EXCHANGES[1].request_sha256}
    passed_over = exchange(0, method="GET", idempotency_key=None)
    exchanges = [passed_over, exchange(1, **{**same, **first}), exchange(2, **{**same, **second})]
    what = Difference(f"{GRANT} place 2", "another answer than at place 1 under the same key")
    assert differences(*pair(exchanges)) == ([what] if is_reported else [])


# --- signatures on what is no longer there ----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["checkpoint", "receipt", "countersignature"])
def test_any_note_of_the_curator_that_the_modeler_holds_shows_a_cut_and_a_fork(kind):
    """Also a note alone: the replies were lost, and the exchanges fetched without a receipt."""
    modeler = modelers(EXCHANGES, lost=frozenset(range(9)), fetched=9)
    text = note(CURATOR, head_of(modeler.shared[GRANT]), GRANT)
    modeler.notes.append((kind, GRANT, MODELER.countersign(text, 1) if kind == "countersignature" else text))
    assert differences(curators(EXCHANGES[:4]), modeler)[5:] == [
        Difference(f"{GRANT} size 9", "the curator signed it and no longer has it: its tail was cut")
    ]
    other = [*EXCHANGES[:8], exchange(8, status=204)]
    assert differences(curators(other), modeler)[1:] == [
        Difference(f"{GRANT} size 9", "a fork: the curator signed another history than it exported")
    ]


def test_a_note_that_the_party_did_not_sign_does_not_hide_the_next():
    """Of the curator's checkpoints the modeler countersigned the second."""
    curator, _ = pair(EXCHANGES)
    text = note(CURATOR, head_of(curator.shared[GRANT]), GRANT)
    curator.notes.append(("checkpoint", GRANT, MODELER.countersign(text, 1)))
    assert differences(curator, modelers(EXCHANGES[:4]))[5:] == [
        Difference(f"{GRANT} size 9", "the modeler signed it and no longer has it: its tail was cut")
    ]


def test_a_note_on_the_empty_log_agrees_with_every_log():
    curator, modeler = pair(EXCHANGES)
    modeler.notes.append(("checkpoint", GRANT, note(CURATOR, merkle_log.EMPTY, GRANT)))
    assert differences(curator, modeler) == []
    modeler.notes[-1] = (
        "checkpoint",
        GRANT,
        note(CURATOR, dataclasses.replace(merkle_log.EMPTY, root="0" * 64), GRANT),
    )
    assert reconcile(curator, modeler, STUDY)[1] == [
        Difference(f"{GRANT} size 0", "a fork: the curator signed another history than it exported")
    ]
