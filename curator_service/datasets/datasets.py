"""The owner's tables: register, list, archive, delete."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from types import SimpleNamespace
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from blindopt import wire
from blindopt.audit.merkle_log import sha256
from blindopt.errors import Erased, NotFound, StateConflict
from curator_service import store
from curator_service.budget import ledger_lines, overlaps
from curator_service.budget.file_use import FileUses
from curator_service.budget.views import overlaps_of
from curator_service.datasets import facts
from curator_service.datasets import table as dataset_table
from curator_service.datasets.columns import DETECTED, check_columns
from curator_service.datasets.labels import Labels
from curator_service.datasets.persons import kept_rows, numbers_of, pieces, two_digests
from curator_service.datasets.readings import Reading, digest_of, is_parquet, unpacked
from curator_service.datasets.records import person_ids_of, reading_of
from curator_service.datasets.same_people import Comparisons, SamePeople
from curator_service.datasets.sources import Limits
from curator_service.datasets.statistics import Statistics
from curator_service.datasets.uploads import Uploads
from curator_service.datasets.worker import Job, Reply
from curator_service.privacy.guarantees import CHOOSING
from curator_service.settings import Settings
from curator_service.vault import Vault
from service_kit.context.context import ServiceContext
from service_kit.context.housekeeping import Housekeeping
from service_kit.context.request import Effect, RequestContext
from service_kit.identity.tokens import new_id
from service_kit.store.base import moment, stamp
from service_kit.store.database import Connection
from service_kit.store.labels import EVERYTHING, ListFilter
from service_kit.store.stored_replies import StoredReply


@dataclass(frozen=True, slots=True)
class Upload:
    """An owner's description of a file."""

    name: str
    public: bool
    filename: str
    reading: wire.ReadingChoice = DETECTED
    gaps: tuple[str, ...] = ()
    """Columns of which the owner saw gaps or unreadable cells before choosing."""

    @property
    def person(self) -> str | None:
        return None if self.reading.person is None else self.reading.person.strip()

    def digest(self, content: str) -> str:
        """SHA-256 of the request: a multipart body has a random boundary, so its bytes do not count."""
        reading = self.reading.model_dump(mode="json", exclude_defaults=True)
        return sha256(json.dumps([self.name, self.public, self.filename, reading, content]).encode())


@dataclass(frozen=True, slots=True)
class _Persons:
    """What is recorded of a dataset's persons; None throughout without a person column."""

    persons: int | None = None
    person_rows_dropped: int | None = None


class Datasets:
    """Registered tables; their values never leave."""

    def __init__(
        self,
        context: ServiceContext,
        vault: Vault,
        settings: Settings,
        uploads: Uploads,
        same_people: SamePeople,
        uses: FileUses,
    ) -> None:
        self._context = context
        self._vault = vault
        self._same_people, self._uses = same_people, uses
        self._labels = Labels(context.seal)
        self._uploads = uploads
        self._bytes_max = settings.upload_limit_bytes
        self._limits = Limits(settings.dataset_rows_max, settings.dataset_columns_max, settings.upload_limit_bytes)
        self._import_dir = settings.import_dir
        self._housekeeping = Housekeeping(context, store.datasets, "dataset", store.find, self._view)

    def register(self, request: RequestContext, upload: Upload, file: BinaryIO, reading: Reading) -> StoredReply:
        """Check a whole file and store its numbers. Raises DatasetInvalid, and stores nothing."""
        with unpacked(file, self._bytes_max, self._vault.scratch) as content:
            digest = digest_of(content)
            request = replace(request, body_sha256=upload.digest(digest))
            if (stored := self._context.idempotency.earlier(request)) is not None:
                return stored
            return self._register(request, upload, content, digest, reading)

    def register_pending(
        self, request: RequestContext, upload: Upload, pending: wire.PendingUpload, file: BinaryIO, reading: Reading
    ) -> StoredReply:
        """Register a pending file. Raises DatasetInvalid."""
        request = replace(request, body_sha256=upload.digest(pending.id))
        upload = replace(upload, filename=pending.filename, gaps=tuple(pending.gaps))
        return self._register(request, upload, file, pending.sha256, reading)

    def earlier_pending(self, request: RequestContext, upload: Upload, upload_id: str) -> StoredReply | None:
        """The reply to an earlier request under the same key to register a pending file, which is deleted then."""
        stored = self._context.idempotency.earlier(replace(request, body_sha256=upload.digest(upload_id)))
        if stored is not None:
            self._uploads.drop(upload_id)
        return stored

    def _register(
        self, request: RequestContext, upload: Upload, file: BinaryIO, digest: str, reading: Reading
    ) -> StoredReply:
        dataset_id, scratch = new_id("ds"), self._vault.scratch
        upload = replace(upload, reading=self._with_earlier_ids(upload.reading, digest))
        try:
            with (
                TemporaryFile(dir=scratch) as numbers,
                TemporaryFile(dir=scratch) as digests,
                TemporaryFile(dir=scratch) as labels,
            ):
                with self._vault.new_dataset(dataset_id) as values:
                    job = Job(
                        file=reading.descriptor(file),
                        limits=self._limits,
                        parquet=is_parquet(upload.filename, file),
                        reading=upload.reading,
                        key=None if upload.person is None else self._context.seal.key_for("persons").hex(),
                        values=values.fileno(),
                        numbers=numbers.fileno(),
                        digests=digests.fileno(),
                        labels=labels.fileno(),
                    )
                    read = reading.read(job, file)
                    reading.check_ids(job, read, file, digests, numbers)
                counts, records = _Persons(), None
                if upload.person is not None:
                    read, counts, records = self._keep_persons(
                        dataset_id, upload, read, _mapped(numbers), _mapped(digests)
                    )
                elif read.left_out:
                    self._vault.keep_numbers(dataset_id, _mapped(numbers))
                sealed = self._labels.sealed(dataset_id, labels, records)
            stored = _unregistered(dataset_id, upload, read, counts, digest)
            comparisons: Comparisons = {}
            with self._context.database.read() as db:
                self._same_people.compare(db, stored, comparisons)

            def effect(db: Connection) -> Effect:
                compared, spread = self._same_people.compare(db, stored, comparisons)
                listed = None if upload.public else json.dumps(compared)
                details = self._add(db, dataset_id, upload, read, digest, counts, listed)
                dataset_table.add_labels(db, dataset_id, sealed)
                self._same_people.withhold(db, request.principal.actor, spread)
                return Effect(self._view(db, dataset_id), "dataset.registered", details)

            reply = self._context.idempotency.once(request, effect)
        except BaseException:
            self._vault.drop(dataset_id)
            raise
        if reply.replayed:  # two requests with one key at once: the other one's file counts
            self._vault.drop(dataset_id)
        return reply

    def _with_earlier_ids(self, reading: wire.ReadingChoice, digest: str) -> wire.ReadingChoice:
        """A choice that compares ids of persons as earlier registrations of the file do, unless it says how."""
        if reading.person is None or reading.person_ids is not None:
            return reading
        with self._context.database.read() as db:
            earlier = [ids for row in store.registrations(db, digest) if (ids := _persons_of(row)[2]) is not None]
        return reading.model_copy(update={"person_ids": earlier[0] if earlier else None})

    def _keep_persons(
        self, dataset_id: str, upload: Upload, read: Reply, numbers: NDArray[np.int64], digests: NDArray[np.int64]
    ) -> tuple[Reply, _Persons, NDArray[np.int64]]:
        """Keep at most ``rows_per_person`` rows of each person of a stored dataset, in the order of the file.

        Return them too, by their index among all that were read.
        """
        assert upload.reading.rows_per_person is not None
        assert read.columns is not None
        (of_rows, as_written), stored = two_digests(digests), self._vault.dataset(dataset_id)
        persons, statistics = numbers_of(of_rows), Statistics()
        records = kept_rows(persons, upload.reading.rows_per_person)
        # Reads the file that is replaced: it stays while it is mapped.
        self._vault.keep_dataset(dataset_id, statistics.collect(np.asarray(stored[rows]) for rows in pieces(records)))
        is_folded = upload.reading.person_ids != "as_written"
        self._vault.keep_persons(dataset_id, of_rows[records], as_written[records] if is_folded else None)
        self._vault.keep_numbers(dataset_id, numbers[records])
        rounded = {column.name: column.rounded for column in read.columns}
        columns = statistics.columns(list(rounded), rounded)
        read = read.model_copy(update={"rows": statistics.rows, "columns": columns})
        return read, _Persons(int(persons.max()) + 1, len(persons) - len(records)), records

    def _add(
        self,
        db: Connection,
        dataset_id: str,
        upload: Upload,
        read: Reply,
        digest: str,
        counts: _Persons,
        compared: str | None,
    ) -> dict[str, Any]:
        assert read.columns is not None
        assert read.reading is not None
        _check_persons_alike(db, digest, (upload.person, upload.reading.rows_per_person, read.reading.person_ids))
        details = store.register(
            db,
            overlaps=compared,
            id=dataset_id,
            name=upload.name,
            public=int(upload.public),
            rows=read.rows,
            columns=json.dumps([column.model_dump() for column in read.columns]),
            dropped=json.dumps(read.dropped),
            sha256=digest,
            created_at=stamp(self._context.clock()),
            reading=(reading := read.reading.model_copy(update={"gaps": list(upload.gaps)}).model_dump_json()),
            rows_left_out=read.left_out,
            person_column=upload.person,
            rows_per_person=upload.reading.rows_per_person,
            **asdict(counts),
        )
        details["reading_sha256"] = sha256(reading.encode())
        details["account"] = ledger_lines.account_name(db, store.find(db, store.datasets, dataset_id))
        if upload.reading.rows_per_person is not None:
            details["rows_per_person"] = upload.reading.rows_per_person
        return details

    def decide(self, request: RequestContext, dataset_id: str, body: wire.OverlapDecision) -> StoredReply:
        """Continue the account of earlier datasets with the same people, or keep it apart from theirs.

        Raises NotFound, Invalid and StateConflict.
        """

        def effect(db: Connection) -> Effect:
            details = overlaps.decide(db, self._context, dataset_id, body)
            return Effect(self._view(db, dataset_id), "dataset.decided", details, 200)

        return self._context.idempotency.once(request, effect)

    def import_path(self, name: str) -> Path:
        """A file of the import folder by its bare name. Raises NotFound."""
        path = self._import_dir / name if self._import_dir is not None else None
        try:
            usable = path is not None and Path(name).name == name and not path.is_symlink() and path.is_file()
        except (OSError, ValueError):  # a name that no file can have
            usable = False
        if path is None or not usable:
            raise NotFound("the import folder holds no such file, or none is configured")
        return path

    def view(self, dataset_id: str) -> wire.DatasetView:
        """A dataset as its owner sees it. Raises NotFound."""
        with self._context.database.read() as db:
            return self._view(db, dataset_id)

    def _view(self, db: Connection, dataset_id: str) -> wire.DatasetView:
        row = store.find(db, store.datasets, dataset_id)
        return dataset_view(row, overlaps_of(db, self._uses, row))

    def picture(self, dataset_id: str) -> wire.DatasetPicture:
        """What the values are like, for the owner alone. Raises NotFound and Erased."""
        with self._context.database.read() as db:
            dataset = store.find(db, store.datasets, dataset_id)
            if dataset.erased_at is not None:
                raise Erased("the dataset was erased by its owner")
            return facts.picture(self._vault, self._labels, db, dataset_view(dataset))

    def clips(self, dataset_id: str, clips_request: wire.ClipsRequest) -> wire.ClipsView:
        """How many values bounds would clip, for the owner alone. Raises NotFound, and Invalid for another column."""
        view = self.view(dataset_id)
        names = {column.name: j for j, column in enumerate(view.columns)}
        check_columns([column.column for column in clips_request.columns], list(names))
        positions = [names[column.column] for column in clips_request.columns]
        ends = [(column.column, (column.outer[0], column.outer[1])) for column in clips_request.columns]
        counts = facts.clipped(self._vault, view, ends)
        columns = [
            wire.ColumnClips(
                column=column.column,
                below=counts[i].below,
                above=counts[i].above,
                is_smallest=column.outer[0] == view.columns[positions[i]].minimum,
                is_largest=column.outer[1] == view.columns[positions[i]].maximum,
            )
            for i, column in enumerate(clips_request.columns)
        ]
        return wire.ClipsView(rows=view.rows, columns=columns, caution=CHOOSING)

    def page(self, after: int, limit: int, list_filter: ListFilter = EVERYTHING) -> list[tuple[int, wire.DatasetView]]:
        with self._context.database.read() as db:
            rows = store.page(db, store.datasets, after=after, limit=limit, list_filter=list_filter)
            return [(row.seq, dataset_view(row, overlaps_of(db, None, row))) for row in rows]

    def undecided(self, after: int, limit: int) -> list[tuple[int, wire.DatasetView]]:
        """Those about whose overlaps their owner has not decided, with their sequence numbers."""
        with self._context.database.read() as db:
            rows = [row for row in store.private_with_files(db) if row.seq > after and overlaps.undecided(db, row)]
            return [(row.seq, dataset_view(row, overlaps_of(db, None, row))) for row in rows[:limit]]

    def archive(self, request: RequestContext, dataset_id: str, *, archived: bool) -> StoredReply:
        """Refuse new studies on a dataset, while existing ones continue, or allow them again. Raises StateConflict."""

        def check(db: Connection, row: Any) -> None:
            if row.erased_at is not None:
                raise Erased("the dataset was erased: it stays in the archive")
            if not archived:
                _check_persons_alike(db, row.sha256, _persons_of(row))

        return self._housekeeping.archive(request, dataset_id, check, archived=archived)

    def delete(self, request: RequestContext, dataset_id: str) -> StoredReply:
        """Delete a dataset that nothing was charged on, with its files. The caps of its file stay.

        Raises StateConflict, which names what uses it. The files are deleted after the commit, or at the next start.
        """

        def remove(db: Connection, row: Any) -> dict[str, object]:
            check_unused(db, dataset_id)
            account = ledger_lines.account_name(db, row)
            kept = (
                len(store.in_account(db, row.account)) > 1
                or bool(ledger_lines.lines_of_account(db, account) or dataset_table.units(db, account))
                or store.is_used(db, dataset_id)
            )
            dataset_table.forget_labels(db, dataset_id)
            store.forget_dataset(db, dataset_id, stamp(self._context.clock()), kept=kept)
            return {"kept_for_account": kept}

        reply = self._housekeeping.delete(request, dataset_id, remove)
        self._vault.drop(dataset_id)
        return reply


def _mapped(file: BinaryIO) -> NDArray[np.int64]:
    return np.memmap(file, dtype=np.int64, mode="r")


def _unregistered(dataset_id: str, upload: Upload, read: Reply, counts: _Persons, digest: str) -> Any:
    """A stored file that is no dataset yet, as far as its people can be compared with those of others."""
    assert read.columns is not None
    columns = json.dumps([column.model_dump() for column in read.columns])
    fields = {"id": dataset_id, "sha256": digest, "rows": read.rows, "columns": columns, "rows_left_out": read.left_out}
    dropped = counts.person_rows_dropped
    return SimpleNamespace(**fields, public=upload.public, person_column=upload.person, person_rows_dropped=dropped)


def dataset_view(row: Any, overlapping: Sequence[wire.Overlap] = ()) -> wire.DatasetView:
    return wire.DatasetView(
        id=row.id,
        name=row.name,
        public=bool(row.public),
        state="archived" if row.archived_at else "active",
        rows=row.rows,
        columns=[wire.Column(**column) for column in json.loads(row.columns)],
        dropped=json.loads(row.dropped),
        sha256=row.sha256,
        sandbox=bool(row.sandbox),
        created_at=moment(row.created_at),
        erased_at=moment(row.erased_at) if row.erased_at else None,
        person_column=row.person_column,
        rows_per_person=row.rows_per_person,
        persons=row.persons,
        person_rows_dropped=row.person_rows_dropped,
        reading=reading_of(row),
        rows_left_out=row.rows_left_out,
        overlaps=list(overlapping),
    )


def check_unused(db: Connection, dataset_id: str) -> None:
    """Raise StateConflict if a study or a tuning has a dataset, with the names of all that have.

    Also if only this dataset tells who lost something by its file, or is withheld.
    """
    rows = store.studies_on(db, dataset_id)
    staying = [row for row in rows if row.state != "draft" or store.has_history(db, row.id)]
    drafts = [row for row in rows if row not in staying]
    reasons = [
        f"{subject} use it: {', '.join(named(row) for row in users)}. {advice}"
        for subject, users, advice in (
            ("studies that were released or charged", staying, "Archive the dataset instead"),
            ("tunings", store.tunings_on(db, dataset_id), "Archive the dataset instead"),
            ("drafts", drafts, "Delete them first"),
        )
        if users
    ]
    if store.is_forecast_from(db, dataset_id):
        reasons.append("a forecast under way takes its rows from it: let it end first")
    if not reasons and _is_remembered_by(db, store.find(db, store.datasets, dataset_id)):
        reasons.append(
            "its file was charged, or has withheld records, and without its people no later file of them would count "
            "that. Archive it and erase it instead"
        )
    if reasons:
        raise StateConflict("the dataset cannot be deleted: " + ". ".join(reasons))


def _is_remembered_by(db: Connection, dataset: Any) -> bool:
    """Whether a private dataset is the only one that tells who was charged by its file, or is withheld."""
    if dataset.public or dataset.sandbox:
        return False
    if dataset_table.bounds_of(db, [dataset.id], after=0, limit=1):
        return True
    account = ledger_lines.account_name(db, dataset)
    is_used = (
        any(line.kind in ("tuning", "bounds") for line in ledger_lines.lines_of_account(db, account))
        or any(ledger_lines.charged_at(db, study.id) for study in ledger_lines.studies_of(db, dataset.sha256))
        or bool(dataset_table.units(db, account))
    )
    return is_used and not any(
        row.sha256 == dataset.sha256 and row.id != dataset.id for row in store.private_with_files(db)
    )


def named(row: Any) -> str:
    """A study or tuning by its name and id, for an owner."""
    return f'"{json.loads(row.spec)["name"]}" ({row.id})'


def _persons_of(row: Any) -> tuple[str | None, int | None, wire.PersonIds | None]:
    """The person column of a stored dataset, its number of rows per person, and how its ids are compared.

    The last is None without a person column, and for a dataset that was deleted or erased, which does not say.
    """
    is_there = row.person_column is not None and row.deleted_at is None and row.erased_at is None
    return row.person_column, row.rows_per_person, person_ids_of(row) if is_there else None


def _check_persons_alike(
    db: Connection, digest: str, persons: tuple[str | None, int | None, wire.PersonIds | None]
) -> None:
    """Raise StateConflict if the file is registered with other persons, and was used or may be.

    One account counts by records and another by persons: what a person lost could not be added up.
    """
    for row in store.registrations(db, digest):
        column, rows, ids = _persons_of(row)
        is_alike = (column, rows, ids or persons[2]) == persons
        if not is_alike and (row.archived_at is None or store.is_used(db, row.id)):
            raise StateConflict(
                f'"{row.name}" ({row.id}) is a registration of this file with another person column, '
                "rows_per_person or person_ids, or without: what a person loses adds up over all of them, so they must "
                "agree. Archive it, if no study, tuning or private bounds were ever made on it; else take its settings"
            )
    account = ledger_lines.account_of_file(db, digest)
    named = [] if account is None else dataset_table.numbers_and_persons(dataset_table.units(db, account))[1]
    if persons[0] is None and named:
        raise StateConflict("persons of this file are withheld by name: register it with its person column")
