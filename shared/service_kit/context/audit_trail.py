"""The audit trail of a service: records, receipts and checkpoints, verification, and readiness."""

import base64
import json
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from blindopt.audit.checkpoints import Checkpoint, Signer
from blindopt.audit.merkle_log import Entry, Exchange, Head, sha256
from blindopt.audit.segments import name_of
from blindopt.audit.verification import last_archived
from blindopt.errors import Archived, AuditUnavailable, LogBroken, RecordChanged, StorageUnavailable, Unauthenticated
from service_kit.background import Background
from service_kit.context.keys import write_durably
from service_kit.context.log_quotas import LogQuotas, counted_as
from service_kit.context.log_summaries import OTHER, Part
from service_kit.context.outbox import Outbox
from service_kit.context.request import RequestContext
from service_kit.identity.tokens import Principal
from service_kit.store import audit_log, checkpoints, segments
from service_kit.store.base import Clock, moment
from service_kit.store.database import Connection, Database, StoreFault
from service_kit.store.stored_replies import StoredReply

_READY_SECONDS, _REFUSED = 1.0, 300
_SAVED_EVERY_S = 1.0
_STUDY = re.compile(r"/v1/studies/(std_[0-9a-f]{16})(?![^/:])")


class Recorded(NamedTuple):
    """The receipt of an exchange between the parties, else None; position and time of its record in the own log.

    A receipt is the position in the shared log and a signed checkpoint of that log, up to this position.
    """

    receipt: str | None
    seq: int
    at: str


class StoredRecords:
    """The records of one party (``blindopt.audit.verification.Records``), as one transaction sees them.

    ``saved`` is the checkpoint that was kept outside the database, or None.
    """

    def __init__(self, db: Connection, signer: Signer, saved: str | None) -> None:
        self._db = db
        self._signer = signer
        self._saved = saved
        self._party = signer.name.partition(".")[0]
        self.service = f"blindopt-{self._party}"
        self.key = signer.verifier.vkey
        self.keys = dict(checkpoints.keys(db))
        self._archived = segments.LAST.row(db)
        self.size = audit_log.head(db).size
        """The number of records of the own log."""

    def log(self, grant: str | None, after: int = -1) -> Iterator[Entry]:
        """Stream the own log, or the one shared with a grant; entries ``after`` a position.

        Of an own log with archived segments, from the last record of those on.
        """
        first = self._archived.size - 1 if self._archived is not None and grant is None else 0
        return audit_log.walk(self._db, grant, after=max(after, first - 1))

    def grants(self) -> set[str]:
        """The grants that have a shared log, or receipts: a run may end before the log is fetched that they are of."""
        return {*audit_log.grants(self._db), *checkpoints.grants(self._db), *self._last_archived}

    def of_kind(self, kind: str, grant: str | None) -> Iterator[str]:
        """Stream the notes of one kind about one log. Checkpoints are signed now, and the saved one comes last."""
        if kind == "checkpoint":
            yield from self._checkpoints(grant)
        elif kind == "archived" and grant is None:
            yield from () if self._archived is None else [self._archived.note]
        elif kind == "archived" and grant in self._last_archived:
            yield last_archived(self._signer, grant, *self._last_archived[grant])
        elif kind == "segment" and grant is not None:
            yield from (name_of(row.number) for row in segments.every(self._db) if grant in json.loads(row.positions))
        elif grant is not None and kind == "receipt":
            yield from (row.note for row in checkpoints.receipts(self._db, grant))
        elif grant is not None and kind == "countersignature":
            yield from checkpoints.countersignatures(self._db, grant)

    @cached_property
    def _last_archived(self) -> dict[str, Any]:
        """By grant, the last archived exchange, as the summary of the last segment has it."""
        with suppress(ValueError, LookupError, TypeError):  # the summary is compared with the log by its digest
            return {} if self._archived is None else dict(json.loads(self._archived.summary)["shared"])
        return {}

    def _checkpoints(self, grant: str | None) -> Iterator[str]:
        if grant is None or self._party == "curator":  # the curator keeps the shared log and signs it
            origin = f"{self._signer.name}/{grant or 'log'}"
            yield self._signer.sign(Checkpoint(origin, audit_log.head(self._db, grant)))
        if grant is None and self._saved is not None:
            yield self._saved


class AuditTrail:
    """The own log of a service, and the logs that it shares with each grant."""

    def __init__(
        self,
        database: Database,
        signer: Signer,
        clock: Clock,
        outbox: Outbox,
        checkpoint_file: Path,
        bytes_per_grant_day: int | None = None,
    ) -> None:
        self.quotas = LogQuotas(clock, bytes_per_grant_day)
        self._database = database
        self._signer = signer
        self._clock = clock
        self._outbox = outbox
        self._saved = SavedCheckpoint(checkpoint_file, signer)
        self._fault: str | None = None
        self._findings: dict[Part, list[LogBroken]] = {"first": [], "second": []}
        self._checking = threading.Lock()
        self._readiness_checked_at = float("-inf")
        self._unready: Exception | None = None

    def record(
        self,
        db: Connection,
        request: RequestContext,
        status: int,
        reply_sha256: str,
        *,
        replayed: bool = False,
        kind: str = "exchange",
        details: dict[str, Any] | None = None,
        stored_bytes: int = 0,
    ) -> Recorded:
        """Log a request and its reply, of which ``stored_bytes`` are stored, less what was reserved for it.

        Raises AuditUnavailable where the log does not verify, LogQuotaReached.
        """
        self.check_sound()
        exchange: bytes | None = None
        receipt = None

        def body_at(position: int | None) -> bytes:
            nonlocal exchange
            # The study in the path comes first: the other party records it, and does not know the study of its token.
            in_path = _STUDY.match(request.path)
            exchange = Exchange(
                study_id=in_path[1] if in_path else request.principal.study_id or "",
                grant_id=request.principal.id,
                position=position,
                request_id=request.request_id,
                method=request.method,
                path=request.path,
                idempotency_key=request.key,
                request_sha256=request.body_sha256,
                status=status,
                reply_sha256=reply_sha256,
                replayed=replayed,
            ).body
            return exchange

        if request.principal.study_id is not None:
            grant = request.principal.id
            # Requests about the log itself, and those of an owner about a study, are not in the shared one.
            if request.path.startswith("/v1/audit/") or request.principal.role == "owner":
                body_at(None)
            else:
                entry = audit_log.share(db, grant, body_at)
                stored_bytes += len(entry.body) + len(entry.leaf) + len(entry.peaks)
                note = self.sign(audit_log.head_of(entry), grant)
                receipt = f"{entry.seq} {base64.b64encode(note.encode()).decode()}"
        actor, now = request.principal.actor, self._clock()
        added = audit_log.append(db, kind, actor=actor, now=now, details=details, exchange=exchange)
        if request.principal.study_id is not None:
            name = counted_as(request.principal.id, is_live=status != Unauthenticated.status)
            self.quotas.add(db, name, stored_bytes + added.size)
        return Recorded(receipt, added.seq, added.at)

    def record_restored(self, db: Connection, details: dict[str, Any]) -> None:
        """Log that this state comes from a backup, and that later records are lost."""
        audit_log.append(db, "log.restored", actor="cli", now=self._clock(), details=details)

    def sign(self, head: Head, grant_id: str | None = None) -> str:
        """Sign a checkpoint of the service's own log, or of the log shared with a grant."""
        return self._signer.sign(Checkpoint(f"{self._signer.name}/{grant_id or 'log'}", head))

    def head(self, grant_id: str | None = None) -> Head:
        with self._database.read() as db:
            return audit_log.head(db, grant_id)

    def export(self, db: Connection, *, saved: bool = True) -> StoredRecords:
        """All logs and signatures that this party holds, with a checkpoint of the current state of each log.

        ``db`` must have read nothing yet, so that the saved checkpoint is not newer than what it reads; without
        ``saved`` it is left out.
        """
        return StoredRecords(db, self._signer, self._saved.note() if saved else None)

    def lost(self) -> int:
        """How many more records the saved checkpoint has than the log. Raises LogBroken for another party's."""
        saved = self._saved.head()
        return 0 if saved is None else max(0, saved.size - self.head().size)

    def begin(self) -> None:
        """Verify the end of the log now, and save checkpoints of it outside the database from now on.

        If the log does not verify, the service starts, so that its log can be read, but refuses requests
        (``check_sound``).
        """
        try:
            with self._database.read() as db:
                self._saved.check(db, audit_log.check_end(db))
        except LogBroken as error:
            self._fault = str(error)
            self.notify_broken(str(error))
        else:
            self._database.after_commit = self._save

    def close(self) -> None:
        """Save a last checkpoint, unless the log is broken."""
        if self._may_save():
            self._save_now()

    def is_saved(self, size: int) -> bool:
        """Save a checkpoint now; whether the saved one covers ``size`` records."""
        self.close()
        saved = self._saved.head()
        return saved is not None and saved.size >= size

    def _save(self) -> None:
        if self._saved.is_due() and self._may_save():
            self._save_now()

    def _may_save(self) -> bool:
        """Whether the log is as this service wrote it: what another program has left of it is not signed."""
        return self._log_fault() is None and self._database.foreign_writes.are_verified

    def _save_now(self) -> None:
        # On a connection that is open already: after a commit, no further file can perhaps be opened.
        self._saved.save(self.sign(audit_log.head_of(self._database.committed_row(audit_log.LAST))))

    def checkpoint_age(self) -> float:
        """How many seconds older the checkpoint outside the database is than the log's last record.

        It is a second at most, unless its file cannot be written.
        """
        saved = self._saved.head()
        with self._database.read() as db:
            size = audit_log.head(db).size
            if not size or (saved is not None and saved.size >= size):
                return 0.0
            covered = max(1, 1 if saved is None else saved.size)
            last, saved_at = (moment(audit_log.record_at(db, seq)["time"]) for seq in (size - 1, covered - 1))
        return max(0.0, (last - saved_at).total_seconds())

    @property
    def is_sound(self) -> bool:
        """Whether no fault is known, neither of the log nor of a table."""
        return not self.findings

    def check_sound(self) -> None:
        """Raise AuditUnavailable if the log does not verify."""
        if (fault := self._log_fault()) is not None:
            raise AuditUnavailable(f"the audit log does not verify: {fault}")

    def _log_fault(self) -> str | None:
        whole = (str(finding) for finding in self._all_findings() if finding.about is None)
        return self._fault or next(whole, None)

    def check_unchanged(self, *names: str) -> None:
        """Raise RecordChanged if a stored record about one of these studies, grants or runs differs from the log.

        Or one of which it is not known what else was changed.
        """
        self.check_named(*names, OTHER)

    def check_named(self, *names: str) -> None:
        """The same for records that a finding names as one of these."""
        for finding in self._all_findings():
            if finding.about in names or not set(names).isdisjoint(finding.others):
                raise RecordChanged(
                    "a stored record about this study or dataset differs from the audit log: nothing was done"
                )

    def _all_findings(self) -> list[LogBroken]:
        return [*self._findings["first"], *self._findings["second"]]

    def check_reply(self, db: Connection, principal_id: str, key: str, log_seq: int | None, reply: StoredReply) -> None:
        """Raise RecordChanged unless a stored reply to a modeler is the one that the record at ``log_seq`` is about.

        None: it was stored before that was noted, or somebody took it away. Then the whole log is read.
        """
        about = {"grant_id": principal_id, "idempotency_key": key, "status": reply.status}
        about |= {"reply_sha256": sha256(reply.body), "replayed": False}
        try:
            records = [audit_log.record_at(db, log_seq)] if log_seq is not None else audit_log.exchanges_under(db, key)
        except LogBroken:
            records = []
        if log_seq is None and not records and segments.size(db):
            raise Archived("the answer to this request is in an archived segment of the log")
        if not any(about.items() <= record.get("exchange", {}).items() for record in records):
            self.report(LogBroken(f"the stored answer under key {key} was changed", about=principal_id))
            raise RecordChanged("the stored answer to this request differs from the audit log: it is not served")

    def check_unanswered(self, db: Connection, principal: Principal, key: str, query_id: str) -> None:
        """Raise RecordChanged if the log has a reply to a request that took effect and has none: it would be repeated.

        And Archived where its reply may be archived, since its charge is. It reads the whole log: without an edit, only
        a crash or a fault before the reply leaves such a request.
        """
        for record in audit_log.exchanges_under(db, key):
            exchange = record["exchange"]
            if (exchange["grant_id"], exchange["method"]) == (principal.id, "POST") and exchange["status"] < _REFUSED:
                self.report(LogBroken(f"the stored answer under key {key} is missing", about=principal.id))
                raise RecordChanged(
                    "the stored answer to this request is missing, and the audit log has it: nothing was done"
                )
        if segments.size(db) and not any(audit_log.of_kind(db, "charge", about=query_id)):
            raise Archived("the query was charged in an archived segment of the log: nothing was done")

    def report(self, finding: LogBroken) -> None:
        """Refuse what a finding is about until the first part of a verification has ended, and write a notice."""
        if str(finding) not in self.findings:
            self._findings["first"] = [*self._findings["first"], finding]
            self._notify_in_thread(finding)

    def replace_findings(self, part: Part, findings: Sequence[LogBroken]) -> None:
        """Take the findings of one part of a verification in place of its earlier ones, and write notices.

        A log that was reported as broken is not reported again in other words.
        """
        earlier, was_broken = self.findings, self._log_fault() is not None
        self._findings[part] = list(findings)
        for finding in findings:
            if str(finding) not in earlier and not (was_broken and finding.about is None):
                self._notify_in_thread(finding)

    def _notify_in_thread(self, finding: LogBroken) -> None:
        # The caller may be in a transaction, which a notice would wait for.
        Background("finding", partial(self.notify_broken, str(finding))).start()

    @property
    def findings(self) -> list[str]:
        """Every fault that is known, in words."""
        faults = [] if self._fault is None else [self._fault]
        return list(dict.fromkeys([*faults, *map(str, self._all_findings())]))

    def check_ready(self) -> None:
        """Raise if the database cannot be written or the log's head does not verify.

        The result is reused for ``_READY_SECONDS``: the request needs no token, and each check writes to the disk.
        """
        self.check_sound()
        self._database.check_whole()
        with self._checking:
            if time.monotonic() - self._readiness_checked_at >= _READY_SECONDS:
                self._unready = None
                try:
                    self._check_ready_now()
                except Exception as error:
                    self._unready = error
                self._readiness_checked_at = time.monotonic()
            if self._unready is not None:
                raise self._unready.with_traceback(None)

    def _check_ready_now(self) -> None:
        try:
            self._database.check_writable()
            with self._database.read() as db:
                audit_log.check_end(db, records=1)
        except (LogBroken, StoreFault) as error:
            self.notify_broken(str(error))
            raise
        if self._saved.is_missing:  # the commit of the check has tried it again
            raise StorageUnavailable("the checkpoint of the log cannot be saved: look at the disk of DATA_DIR")

    def notify_broken(self, fault: str) -> None:
        """Write a notice that the log does not verify, once a day for each fault."""
        if "log_failed" not in self._outbox.events:
            return
        now = self._clock()
        once = f"log_failed {now:%Y-%m-%d} {sha256(fault.encode())}"
        with suppress(AuditUnavailable, StoreFault):  # then only the replies report it
            self._database.write(lambda db: self._outbox.add(db, "log_failed", once=once))


class SavedCheckpoint:
    """A file with a signed checkpoint of the log, at most a second older than the log."""

    def __init__(self, file: Path, signer: Signer) -> None:
        self._file = file
        self._signer = signer
        self._saved_at = 0.0
        self.is_missing = False
        """Whether the last checkpoint that was due could not be saved."""

    def note(self) -> str | None:
        """The signed note, or None if there is none yet. Read it before the log, which may only be newer."""
        return read_note(self._file)

    def head(self) -> Head | None:
        """Size and root in the note. Raises LogBroken if this service did not sign it."""
        note = self.note()
        return None if note is None else self._signer.first.verify(note).head

    def check(self, db: Connection, head: Head) -> None:
        """Raise LogBroken unless the log, whose head is ``head``, begins with the log of the checkpoint."""
        if (saved := self.head()) is None:
            return
        if saved.size > head.size:
            raise LogBroken(f"the tail was cut: the log ends after {head.size} records, it had {saved.size}")
        if audit_log.root_at(db, None, saved.size) != saved.root:
            raise LogBroken(f"the first {saved.size} records of the log are not those that were")

    def is_due(self) -> bool:
        return time.monotonic() - self._saved_at >= _SAVED_EVERY_S

    def save(self, note: str) -> None:
        """Replace the saved note. Where the disk fails it is missing, which /readyz reports until it is saved."""
        self._saved_at, self.is_missing = time.monotonic(), True
        with suppress(OSError):
            write_durably(self._file, note.encode())
            self.is_missing = False


def read_note(file: Path) -> str | None:
    try:
        return file.read_bytes().decode(errors="replace")
    except FileNotFoundError:
        return None
