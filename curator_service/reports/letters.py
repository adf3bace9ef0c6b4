"""Letters to a person: what left of her records, when, to whom, at which epsilon; signed, with proofs of each charge.

A letter names no candidate of another person. A charge of several persons is shown by its leaf hash alone: the random
ids in its record, which the letter does not have, hide what is hashed.
"""

import secrets
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import numpy as np

from blindopt import wire
from blindopt.audit import merkle_log, signed_documents
from blindopt.errors import Archived, Erased
from curator_service import store
from curator_service.budget import ledger_lines
from curator_service.budget.file_use import FileUses, StudyUse
from curator_service.datasets.records import of_units, withheld_records
from curator_service.privacy.guarantees import percent_up, surest
from curator_service.privacy.prices import Prices, exact, text, units
from curator_service.queries import table as queries
from curator_service.queries.inbox.withholding import Withholding
from curator_service.releases.report import release_status
from curator_service.reports.accounts import prices_of
from curator_service.vault import Vault
from service_kit.context.context import ServiceContext
from service_kit.context.log_archive import ArchiveFiles
from service_kit.context.request import RequestContext
from service_kit.store import audit_log, stored_replies, tokens
from service_kit.store.base import moment
from service_kit.store.database import Connection

_KINDS = ("charge", "tuning.started", "bounds.started")
_Key = tuple[str, ...]
"""What finds the record of an event: the study, the time and the query of a charge, or the id of a tuning or bounds."""
_Event = tuple[wire.LetterEvent, _Key]


class Letters:
    """Writes letters for the owner, who passes each to the person. The log has the digest of a letter, nothing more."""

    def __init__(self, context: ServiceContext, vault: Vault, uses: FileUses, withholding: Withholding) -> None:
        self._context, self._vault, self._uses, self._withholding = context, vault, uses, withholding

    def write(self, request: RequestContext, dataset_id: str, body: wire.LetterCreate) -> wire.SignedLetter:
        """The letter about a record or a person. Raises Invalid for one that the dataset does not have, and Erased."""
        trail = self._context.audit_trail
        with self._context.database.read() as db:
            letter = self._letter(db, store.find(db, store.datasets, dataset_id), body)
        document = letter.model_dump(mode="json")
        signature = signed_documents.sign(self._context.signer, wire.LETTER_TITLE, document)
        digest = merkle_log.sha256(merkle_log.canonical(document))
        details = {"dataset_id": dataset_id, "letter_sha256": digest}
        self._context.database.write(
            lambda db: trail.record(db, request, 200, "", kind="letter.written", details=details)
        )
        return wire.SignedLetter(letter=letter, signature=signature)

    def _letter(self, db: Connection, dataset: Any, body: wire.LetterCreate) -> wire.Letter:
        if dataset.erased_at is not None:
            raise Erased("the dataset was erased by its owner: nobody knows any more which record was whose")
        stored = np.flatnonzero(of_units(self._vault, dataset, [self._withholding.unit(db, dataset, body)]))
        use, column = self._uses.read(db, dataset), dataset.person_column
        unit = int(use.units[column].of(dataset.id, stored[:1])[0])
        events: list[_Event] = [
            (_event(line.kind, epsilon=epsilon, charged_at=at, sent_at=at), (line.subject,))
            for line in ledger_lines.lines_of_account(db, ledger_lines.account_name(db, dataset))
            if (kind := ledger_lines.guarantee_kind(db, line)) is not None
            for epsilon, at in [(line.epsilon if kind == "worst_case" else None, moment(line.created_at))]
        ]
        candidates: set[tuple[str, int]] = set()
        """Studies and rows of the person's candidates."""
        for study in use.studies:
            rows: list[int] = []
            if Prices.of(study.spec).by_record:
                rows = self._uses.rows_of(db, study.id, use.units[column].records(study.dataset_id, unit))
            candidates |= {(study.id, row) for row in rows}
            events += self._of_study(db, study, rows)
        total = use.everyone + int(use.of_kind(column)[unit]) + use.of_other_units(column)
        if len(use.units) > 1 or use.others:
            elsewhere = total - sum(units(event.epsilon or "0") for event, _ in events)
            events.append((wire.LetterEvent(kind="files", epsilon=text(elsewhere)), ()))
        logged = self._logged(db, {key for _, key in events if key}, candidates)
        unbounded = use.account.unproved_charges or any(_is_unbounded(db, study) for study in use.of_account)
        return wire.Letter(
            made_at=self._context.clock(),
            salt=secrets.token_hex(16),
            log_key=self._context.signer.verifier.vkey,
            checkpoint=self._context.audit_trail.sign(audit_log.head(db)),
            dataset_id=dataset.id,
            unit="record" if column is None else "person",
            records=use.declared_rows,
            epsilon=None if unbounded else text(total),
            surest=None if unbounded else percent_up(surest(wire.amount(text(total)))),
            delta=exact(use.used.delta),
            withheld=set(stored.tolist()) <= set(withheld_records(db, self._vault, dataset.id)),
            events=[event.model_copy(update={"log": logged.get(key)}) for event, key in events],
        )

    def _of_study(self, db: Connection, study: StudyUse, rows: list[int]) -> Iterator[_Event]:
        """The release of a study, what is charged to everybody, and what left of the ``rows`` of a person."""
        spec, is_exact = study.spec, isinstance(study.spec.answers, wire.NoAnswerNoise)
        release, charged_at = store.release_of(db, study.id), ledger_lines.charged_at(db, study.id) or ""
        who, kind = spec.processing.recipient, "release" if spec.release_of is None else "reused"
        to_all = {
            "study": spec.name,
            "to": [who] if who else sorted({token.name for token in tokens.of_study(db, study.id)}),
            "charged_at": moment(charged_at),
            "sent_at": None if release is None else moment(release.created_at),
        }
        of_release = min(study.release, study.everyone)
        ran = release_status(db, spec, store.report_of(db, study.id)).release
        change, promise = getattr(ran, "sensitivity", None), getattr(ran, "promise", "euclidean")
        yield (
            _event(
                "groups" if isinstance(ran, wire.GroupsRelease) else kind,
                epsilon=None if _is_unbounded(db, study) else text(of_release),
                hidden={} if change is None else {feature.column: feature.unit * change for feature in spec.features},
                promise=promise,
                **to_all,
            ),
            (study.id, charged_at, ""),
        )
        if counted := study.everyone - of_release:
            kind = "erased" if store.is_erased(db, study.id) else "counted"
            yield _event(kind, epsilon=text(counted), **to_all), ()
        of_rows = (ledger_lines.page(db, study.id, shown=ledger_lines.LineFilter(row=row)) for row in rows)
        for line in sorted((line for of_row in of_rows for line in of_row), key=lambda line: line.seq):
            if line.kind == "refused":
                continue
            kind = "answer" if line.kind == "answers" else line.kind
            replies, to = _replies(db, line.query_id)
            rows_sent = [
                (reply.created_at, item.row)
                for reply in replies
                for item in (reply.refined if kind == "refine" else reply.answers)
            ]
            at, epsilon = moment(line.created_at), None if is_exact and kind != "refine" else line.cost
            sent_at = min((sent for sent, row in rows_sent if row == line.row and sent >= at), default=None)
            fields = {"study": spec.name, "row": line.row, "to": to, "charged_at": at, "sent_at": sent_at}
            if kind == "refine":
                fields["promise"] = promise
            yield _event(kind, epsilon=epsilon, **fields), (study.id, line.created_at, line.query_id or "")

    def _logged(
        self, db: Connection, keys: set[_Key], candidates: set[tuple[str, int]]
    ) -> dict[_Key, wire.LetterRecord]:
        """The records of events, with those of them in the archive, unless a file of it is missing."""
        size, context = audit_log.head(db).size, self._context
        files = ArchiveFiles(db, context.archive, context.signer.first.vkey)
        leaves = cache(partial(files.leaves, db, None))
        logged: dict[_Key, wire.LetterRecord] = {}
        for record in files.followed_by(audit_log.of_kind(db, *_KINDS)):
            details, number = record.get("details", {}), record["seq"]
            key: _Key = (details.get("tuning_id") or details.get("bounds_id") or "",)
            if record["kind"] == "charge":
                key = details["study_id"], record["time"], details.get("query_id", "")
            if record["kind"] not in _KINDS or key not in keys:
                continue
            try:
                peaks = audit_log.entry_at(db, None, number - 1).peaks if number else b""
                proof = audit_log.consistency(db, None, number + 1, size)
            except Archived:
                peaks, proof = b"", merkle_log.consistency(leaves(), number + 1)
                for position, leaf in enumerate(leaves()[:number]):
                    peaks = merkle_log.grow(peaks, position, leaf)
            body, named = merkle_log.canonical(record), details.get("rows", "all")
            names_none = named == "all" or all((details["study_id"], row) in candidates for row, _ in named)
            logged[key] = wire.LetterRecord(
                number=number,
                leaf=merkle_log.leaf_hash(body).hex(),
                peaks=peaks.hex(),
                proof=[node.hex() for node in proof],
                body=body.decode() if names_none else None,
            )
        return logged


def _event(kind: Any, **fields: Any) -> wire.LetterEvent:
    return wire.LetterEvent(kind=kind, **fields)


def _is_unbounded(db: Connection, study: StudyUse) -> bool:
    """Whether a release has no bound, whatever the answers have."""
    return study.unbounded is not None and not prices_of(db, study.id).release_bounded


def _replies(db: Connection, query_id: str) -> tuple[list[wire.QueryReply], list[str]]:
    """What was sent in answer to a query, and to whom."""
    query = store.find(db, store.queries, query_id)
    if (measured := queries.find_query(db, query_id)) is not None:
        bodies = [queries.published(db, query_id, n).body for n in range(1, measured.version + 1)]
    else:
        stored = stored_replies.find(db, query.grant_id, query.idempotency_key, None)
        bodies = [] if stored is None or stored.reply.status != 201 else [stored.reply.body]
    names = tokens.names(db, [query.grant_id])
    return [wire.QueryReply.model_validate_json(body) for body in bodies], sorted(set(names.values()))
