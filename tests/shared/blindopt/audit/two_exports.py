"""What the tests of verification and reconciliation share: exports of two parties, as pure data."""

import dataclasses
from typing import Any

from blindopt.audit import merkle_log
from blindopt.audit.checkpoints import Checkpoint, Signer
from blindopt.audit.merkle_log import Entry, Exchange, Head
from blindopt.audit.reconciliation import Export

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
    entries, peaks = [], b""
    for seq, body in enumerate(bodies):
        peaks = merkle_log.grow(peaks, seq, merkle_log.leaf_hash(body))
        entries.append(Entry(seq=seq, body=body, leaf=merkle_log.leaf_hash(body), peaks=peaks))
    return entries


def own_log(records: list[dict[str, Any]]) -> list[Entry]:
    return entries_of([merkle_log.canonical({"kind": "exchange", **r, "seq": seq}) for seq, r in enumerate(records)])


def head_of(entries: list[Entry], size: int | None = None) -> Head:
    part = entries[:size]
    peaks = part[-1].peaks if part else b""
    return Head(len(part), merkle_log.root(peaks).hex())


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


def modelers(exchanges, signed=(), lost=frozenset(), fetched=None, signer=MODELER, curator=CURATOR, grant=GRANT):
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


EXCHANGES = [exchange(position) for position in range(9)]
