"""What an owner decides about a file whose people are in earlier files: to continue their account, or to keep it apart.

Until it is decided nothing of the file is released, tuned or bounded.
"""

import json
from collections.abc import Iterable
from typing import Any

from blindopt import wire
from blindopt.audit.merkle_log import sha256
from blindopt.errors import Invalid, NotFound, OverlapUndecided, StateConflict
from curator_service import store
from curator_service.budget import ledger_lines, table
from service_kit.context.context import ServiceContext
from service_kit.store.base import stamp
from service_kit.store.database import Connection


def undecided(db: Connection, dataset: Any) -> list[dict[str, Any]]:
    """The overlaps of a dataset, as JSON, about which its owner has not decided."""
    apart = {
        name
        for row in store.registrations(db, dataset.sha256)
        for decision in decisions_of(row)
        for name in decision["apart"]
    }
    # An earlier dataset that is forgotten was charged nothing.
    return [
        overlap
        for overlap in json.loads(dataset.overlaps or "[]")
        if overlap["dataset_id"] not in apart
        and (other := store.registered(db, overlap["dataset_id"])) is not None
        and other.account != dataset.account
    ]


def decisions_of(dataset: Any) -> list[dict[str, Any]]:
    decisions: list[dict[str, Any]] = json.loads(dataset.overlap_decisions or "[]")
    return decisions


def check_decided(db: Connection, dataset_id: str) -> None:
    """Raise OverlapUndecided for a dataset with an overlap that is undecided, or that is not compared yet.

    So for every registration of its file: those declared public, too, if another one is private.
    """
    dataset = store.find(db, store.datasets, dataset_id)
    waiting = {row.id for row in store.not_compared(db)}
    for row in store.registrations(db, dataset.sha256):
        if row.id in waiting:
            raise OverlapUndecided("the people of this file are compared with those of earlier ones: try again soon")
        for overlap in undecided(db, row)[:1]:
            matched, of, unit = overlap["matched"], overlap["of"], overlap["unit"]
            raise OverlapUndecided(
                f"{matched} of {of} {unit}s of this file are in {overlap['dataset_id']} too: decide for {row.id} "
                "whether it continues the account of the earlier dataset"
            )


def decide(db: Connection, context: ServiceContext, dataset_id: str, body: wire.OverlapDecision) -> dict[str, Any]:
    """Store a decision, and join accounts with their lowest caps; the details for the log, of ``dataset.decided``.

    Raises Invalid for datasets that cannot be continued, and for a reason that is missing or about nothing.
    """
    dataset = store.find(db, store.datasets, dataset_id)
    continued = _continued(db, dataset, body.continues)
    accounts = {dataset.account, *(row.account for row in continued)}
    rows = sorted((row for account in accounts for row in store.in_account(db, account)), key=lambda row: row.seq)
    in_accounts = {row.id for row in rows}
    apart = [name for overlap in undecided(db, dataset) if (name := overlap["dataset_id"]) not in in_accounts]
    if bool(apart) != (body.separate is not None):
        message = f"is missing: say why the account of {', '.join(apart)} is not continued, or continue it"
        raise Invalid.at("separate", message if apart else "is about nothing: no other overlap is undecided")
    with_same_names = any(overlap["dataset_id"] in in_accounts for overlap in json.loads(dataset.overlaps or "[]"))
    decision = {
        "continues": body.continues,
        # If nobody is in the earlier files, their persons have other names.
        "pseudonyms_differ": bool(continued) and (body.pseudonyms_differ or not with_same_names),
        "apart": apart,
        "separate": body.separate,
    }
    names: dict[str, str] = {}
    for row in rows if continued else ():
        names.setdefault(row.sha256, row.id)
    files = list(names.values())
    context.audit_trail.check_unchanged(*files, dataset_id)
    name, caps = ledger_lines.account_name(db, dataset), [ledger_lines.account_of(db, file) for file in files]
    stored = json.dumps([*decisions_of(dataset), decision])
    store.change(db, store.datasets, dataset_id, overlap_decisions=stored)
    after = ledger_lines.account_of(db, name)
    if continued:
        store.join_accounts(db, accounts, rows[0].account)
        after = after.with_lowest(caps)
        table.add_to_account(db, name, "cap", after=after, at=stamp(context.clock()), cap="continued")
    return {
        "dataset_id": dataset_id,
        "account": name,
        "continues": body.continues,
        "files": files,
        "decision_sha256": sha256(json.dumps(decision).encode()),
        "cap_epsilon": after.cap_texts[0],
        "cap_delta": after.cap_texts[1],
    }


def _continued(db: Connection, dataset: Any, continues: Iterable[str]) -> list[Any]:
    """The earlier datasets whose account a dataset continues, also deleted and erased ones. Raises Invalid."""
    if dataset.public or dataset.sandbox:
        raise StateConflict("nobody in this dataset needs protection: it continues no account")
    rows = []
    for number, dataset_id in enumerate(continues):
        row, field = store.registered(db, dataset_id), f"continues.{number}"
        if row is None:
            raise NotFound("there is no such dataset to continue")
        if row.public or row.sandbox or row.seq >= dataset.seq or row.sha256 == dataset.sha256:
            raise Invalid.at(field, "names no earlier private dataset of another file")
        if (row.person_column is None) != (dataset.person_column is None):
            message = "names a dataset that has a person column, or has none, unlike this one: what a person uses "
            raise Invalid.at(field, f"{message}cannot be added up. Register this file in the same way")
        rows.append(row)
    return rows
