"""Uploaded files that wait until their owner has decided how their columns are read."""

import json
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, Literal

import numpy as np

from blindopt import wire
from blindopt.audit.merkle_log import sha256
from blindopt.errors import DatasetInvalid, Erased, NotFound, StateConflict
from blindopt.wire import LABELS_MAX, ColumnChoice, SurveyedColumn
from curator_service import store
from curator_service.datasets.persons import numbers_of, two_digests
from curator_service.datasets.readings import Reading, digest_of, is_parquet, unpacked
from curator_service.datasets.sources import Limits
from curator_service.datasets.worker import Job
from curator_service.settings import Settings
from curator_service.vault import PendingFiles, Vault
from service_kit.context.context import ServiceContext
from service_kit.context.request import Effect, RequestContext
from service_kit.identity.tokens import Principal, new_id
from service_kit.store.database import Connection
from service_kit.store.stored_replies import StoredReply

KEPT_HOURS = 24
PENDING_MAX = 10
SWEEP_SECONDS = 600.0
_ID = re.compile(r"upl_[0-9a-f]{16}")
_NAME_MAX = 200
_GONE = "there is no such upload: it was registered, discarded, or is older than 24 hours"


@dataclass(frozen=True, slots=True, repr=False)
class _Note:
    """What is kept beside a pending file. ``view``: as its owner sees it, without the datasets of the same file."""

    owner: str
    view: wire.PendingUpload


class Uploads:
    """Pending files: at most 10 of each owner, each for 24 hours, for its owner alone. They survive a restart.

    All together hold at most 10 times the bytes of the largest file. They belong to no backup.
    Nothing of a file is in the log but that it came and went.
    """

    def __init__(self, context: ServiceContext, vault: Vault, settings: Settings) -> None:
        self._context = context
        self._files: PendingFiles = vault.pending
        self._scratch = vault.scratch
        self._limits = Limits(settings.dataset_rows_max, settings.dataset_columns_max, settings.upload_limit_bytes)
        self._bytes_max = settings.upload_limit_bytes
        self._keeping = threading.Lock()
        self._erased: dict[str, datetime] = {}
        """By digest of a file, when it was erased."""
        self._files.drop_unfinished()
        self.sweep()

    def sweep(self) -> None:
        now = self._context.clock()
        for upload_id, note in self._notes().items():
            if note.view.expires_at <= now:
                self._files.drop(upload_id)

    def keep(self, request: RequestContext, filename: str, file: BinaryIO, reading: Reading) -> StoredReply:
        """Survey a file and keep it. Raises DatasetInvalid for a broken file, StateConflict for one too many."""
        with unpacked(file, self._bytes_max, self._scratch) as content:
            digest = digest_of(content)
            # A multipart body has a random boundary: the same request is the same file under the same name.
            request = replace(request, body_sha256=sha256(json.dumps([filename, digest]).encode()))
            if (stored := self._context.idempotency.earlier(request)) is not None:
                return stored
            made = {"id": new_id("upl"), "expires_at": self._context.clock() + timedelta(hours=KEPT_HOURS)}
            about = made | {"filename": filename[:_NAME_MAX], "sha256": digest}
            view = self._surveyed(about, content, wire.ReadingChoice(), reading)
            try:
                view = self._counted(view, content, reading)
            except DatasetInvalid as question:
                readings: list[Any] = [fault["readings"] for fault in question.errors if "readings" in fault]
                unsure = [wire.CellReading.model_validate(cell) for cells in readings for cell in cells]
                view = view.model_copy(update={"unsure": unsure or view.unsure})
            note = {"owner": request.principal.id, "view": view.model_dump(mode="json")}
            try:
                self._store(note, view, content)
                created = wire.UploadCreated(id=view.id, expires_at=view.expires_at)
                details = {"upload_id": view.id}
                reply = self._context.idempotency.once(request, lambda db: Effect(created, "upload.kept", details))
            except BaseException:
                self._files.drop(view.id)
                raise
        if reply.replayed:  # two requests with one key at once: the other one's file counts
            self._files.drop(view.id)
        return reply

    def read(
        self, caller: Principal, view: wire.PendingUpload, file: BinaryIO, choice: wire.ReadingChoice, reading: Reading
    ) -> wire.PendingUpload:
        """Read a pending file as its owner says, count what a registration would store, and keep the choice.

        Raises DatasetInvalid for a choice that a registration would refuse.
        """
        about = view.model_dump(include={"id", "expires_at", "filename", "sha256"})
        view = self._counted(self._surveyed(about, file, choice, reading), file, reading)
        with self._keeping:
            if view.id in self._notes():  # it may be discarded meanwhile
                self._files.note(view.id, json.dumps({"owner": caller.id, "view": view.model_dump(mode="json")}))
        return self.view(caller, view.id)

    def _surveyed(
        self, about: Mapping[str, Any], content: BinaryIO, choice: wire.ReadingChoice, reading: Reading
    ) -> wire.PendingUpload:
        """What is in a file that is read so, with what is proposed for its columns if ``choice`` names none."""
        of_cells = choice.model_copy(update={"columns": None, "person": None, "rows_per_person": None})
        job = Job(
            file=reading.descriptor(content),
            limits=self._limits,
            parquet=is_parquet(about["filename"], content),
            reading=of_cells.model_copy(update={"person_ids": None}),
        )
        seen = reading.read(job, content)
        assert seen.surveyed is not None
        signs: dict[str, Any] = {"separator": seen.separator, "decimal": seen.decimal, "encoding": seen.encoding}
        columns = choice.columns or proposed(seen.surveyed, choice.person)
        sure = signs | {"decimal": choice.decimal}  # the columns that are read as numbers say it
        decided = choice.model_copy(update=sure | {"columns": columns}) if columns else None
        shown: dict[str, Any] = {
            "rows": seen.rows,
            "columns": seen.surveyed,
            "samples": seen.samples,
            "unsure": seen.unsure,
            "reading": decided,
        }
        return wire.PendingUpload(**about, **signs, **shown, registered_as=[])

    def _counted(self, view: wire.PendingUpload, content: BinaryIO, reading: Reading) -> wire.PendingUpload:
        """The same with what a registration would store: the file is read as for one, and nothing is written."""
        if view.reading is None:
            return view
        with (
            TemporaryFile(dir=self._scratch) as digests,
            TemporaryFile(dir=self._scratch) as numbers,
            Path(os.devnull).open("wb") as nowhere,
        ):
            job = Job(
                file=reading.descriptor(content),
                limits=self._limits,
                parquet=is_parquet(view.filename, content),
                reading=view.reading,
                key=os.urandom(32).hex(),  # these digests are counted, and compared with no others
                values=nowhere.fileno(),
                numbers=numbers.fileno(),
                digests=digests.fileno(),
                labels=nowhere.fileno(),
            )
            seen, kept = reading.read(job, content), None
            if view.reading.rows_per_person is not None:
                reading.check_ids(job, seen, content, digests, numbers)
                digests.seek(0)
                persons = numbers_of(two_digests(np.fromfile(digests, dtype=np.uint8))[0])
                kept = int(np.minimum(np.bincount(persons), view.reading.rows_per_person).sum())
        assert seen.columns is not None
        assert seen.reading is not None
        rows = seen.rows if kept is None else kept
        remaining = wire.RemainingRows(
            rows=rows,
            left_out=seen.left_out,
            person_rows_dropped=seen.rows - rows,
            copies=seen.copies,
            constant=[column.name for column in seen.columns if column.minimum == column.maximum],
        )
        decimal = seen.reading.decimal
        decided = view.reading.model_copy(update={"decimal": decimal})
        return view.model_copy(update={"remaining": remaining, "decimal": decimal, "reading": decided})

    def _store(self, note: Mapping[str, object], view: wire.PendingUpload, content: BinaryIO) -> None:
        """Keep a file with its note. Raises StateConflict for one too many, of its owner or of all, and Erased."""
        self.sweep()
        with self._keeping:
            if (erased := self._erased.get(view.sha256)) is not None and _made_at(view) <= erased:
                raise Erased("a dataset of this file was erased while it was read: nothing was kept")
            if sum(other.owner == note["owner"] for other in self._notes().values()) >= PENDING_MAX:
                raise StateConflict(f"{PENDING_MAX} files wait for a decision already: register or discard one first")
            if self._files.size() + content.seek(0, os.SEEK_END) > PENDING_MAX * self._bytes_max:
                raise StateConflict("the files of all owners that wait for a decision hold too much: try again later")
            content.seek(0)
            self._files.keep(view.id, content, json.dumps(note))

    def erase(self, sha256: str, at: datetime) -> None:
        """Delete the pending files that are this one, of every owner; what is sent later is a new file."""
        with self._keeping:
            self._erased[sha256] = at
            for upload_id, note in self._notes().items():
                if note.view.sha256 == sha256 and _made_at(note.view) <= at:
                    self._files.drop(upload_id)

    def view(self, caller: Principal, upload_id: str) -> wire.PendingUpload:
        """A pending file, with the datasets that are the same file. Raises NotFound."""
        note = self._note(caller, upload_id)
        with self._context.database.read() as db:
            return _with_datasets(db, note.view)

    def all(self, caller: Principal) -> list[wire.PendingUpload]:
        """The caller's pending files, oldest first."""
        views = [note.view for note in self._notes().values() if note.owner == caller.id]
        with self._context.database.read() as db:
            return [_with_datasets(db, view) for view in sorted(views, key=lambda view: view.expires_at)]

    def discard(self, request: RequestContext, upload_id: str) -> StoredReply:
        """Delete a pending file. Raises NotFound."""
        if (stored := self._context.idempotency.earlier(request)) is not None:
            self.drop(upload_id)
            return stored
        self._note(request.principal, upload_id)
        effect = Effect(wire.UploadDiscarded(id=upload_id), "upload.discarded", {"upload_id": upload_id}, 200)
        reply = self._context.idempotency.once(request, lambda db: effect)
        self.drop(upload_id)
        return reply

    @contextmanager
    def lent(self, caller: Principal, upload_id: str) -> Iterator[tuple[wire.PendingUpload, BinaryIO]]:
        """A pending file to read. Raises NotFound."""
        note = self._note(caller, upload_id)
        with ExitStack() as stack:
            try:
                file = stack.enter_context(self._files.opened(upload_id))
            except FileNotFoundError:  # another request registered or discarded it meanwhile
                raise NotFound(_GONE) from None
            yield note.view, file

    @contextmanager
    def opened(self, caller: Principal, upload_id: str) -> Iterator[tuple[wire.PendingUpload, BinaryIO]]:
        """A pending file to register; it is deleted afterwards, unless an error is raised. Raises NotFound."""
        with self.lent(caller, upload_id) as lent:
            yield lent
        self.drop(upload_id)

    def drop(self, upload_id: str) -> None:
        """Delete a file whose end is recorded: a crash may have come between the record and the deletion."""
        with self._keeping:
            self._files.drop(upload_id)

    def _note(self, caller: Principal, upload_id: str) -> _Note:
        note = self._notes().get(upload_id) if _ID.fullmatch(upload_id) else None
        if note is None or note.owner != caller.id or note.view.expires_at <= self._context.clock():
            raise NotFound(_GONE)
        return note

    def _notes(self) -> dict[str, _Note]:
        """All notes; one that does not parse, after a full disk or by a version before, is deleted with its file."""
        notes = {}
        for upload_id, note_json in self._files.notes().items():
            try:
                note = json.loads(note_json)
                view = wire.PendingUpload.model_validate_json(json.dumps(note["view"]))
                notes[upload_id] = _Note(str(note["owner"]), view)
            except (ValueError, KeyError, TypeError):
                self._files.drop(upload_id)
        return notes


def _made_at(view: wire.PendingUpload) -> datetime:
    return view.expires_at - timedelta(hours=KEPT_HOURS)


def _with_datasets(db: Connection, view: wire.PendingUpload) -> wire.PendingUpload:
    same = [row for row in store.registrations(db, view.sha256) if row.deleted_at is None]
    return view.model_copy(update={"registered_as": [wire.NamedDataset(id=row.id, name=row.name) for row in same]})


def proposed(columns: Iterable[SurveyedColumn], person: str | None = None) -> list[ColumnChoice]:
    """A choice for each column that can be read without a question; ``person`` is the column of persons.

    Rows with gaps are left out. Text of which no two cells are equal is kept as a label. Other text, types that cannot
    be read, empty columns and an index are not read.
    """
    choices = [choice for column in columns if column.name != person and (choice := _of(column)) is not None]
    labels = [choice for choice in choices if choice.kind == "label"]
    return [choice for choice in choices if choice not in labels[LABELS_MAX:]] if len(labels) < len(choices) else []


def _of(column: SurveyedColumn) -> ColumnChoice | None:
    gaps: Literal["leave_out", "refuse"] = "leave_out" if column.missing or column.odd else "refuse"
    if (column.holds == "number" or column.odd) and not column.unnamed:
        return ColumnChoice(column=column.name, missing=gaps, missing_values=column.odd)
    if column.holds == "date" and len(column.date_formats) == 1:
        return ColumnChoice(column=column.name, kind="date", date_format=column.date_formats[0], missing=gaps)
    if column.distinct:
        return ColumnChoice(column=column.name, kind="label")
    return None
