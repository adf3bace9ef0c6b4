"""Withholding: a record or a person that is measured and released no more, from now on."""

import secrets
from typing import Any

import numpy as np

from blindopt import wire
from blindopt.errors import Invalid
from curator_service import store
from curator_service.budget.ledger_lines import account_name
from curator_service.datasets import table as withheld
from curator_service.datasets.labels import Labels
from curator_service.datasets.persons import PersonColumn
from curator_service.datasets.records import (
    file_numbers,
    file_row,
    of_units,
    person_ids_of,
    reading_of,
    withheld_records,
)
from curator_service.datasets.same_people import Comparisons, SamePeople
from curator_service.queries.inbox.inbox import Inbox
from curator_service.queries.table import unanswered_queries
from curator_service.salted_digests import salted_digest
from curator_service.studies.release_cache import ReleasedStudies
from curator_service.vault import Vault
from service_kit.context.context import ServiceContext
from service_kit.context.request import Effect, RequestContext
from service_kit.store.base import moment, stamp
from service_kit.store.database import Connection
from service_kit.store.stored_replies import StoredReply

_NAMED = 100
"""The most records that a dry run names."""


class Withholding:
    """Withholds records, in every dataset with the same people at once. Nothing that has left comes back."""

    def __init__(
        self,
        context: ServiceContext,
        vault: Vault,
        studies: ReleasedStudies,
        inbox: Inbox,
        same_people: SamePeople,
    ) -> None:
        self._same_people = same_people
        self._labels = Labels(context.seal)
        self._context = context
        self._vault = vault
        self._studies = studies
        self._inbox = inbox

    def withhold(self, request: RequestContext, dataset_id: str, body: wire.WithholdCreate) -> StoredReply:
        """Measure and release a record, or all records of a person, no more: each is declined as if nobody measured it.

        In every dataset that has the person, or else an equal record. Open measurements are declined at once. The log
        says that a record of a dataset is withheld, not which. Raises Invalid for a record that the dataset does not
        have. Withholding it again changes nothing.
        """
        if (stored := self._context.idempotency.earlier(request)) is not None:
            return stored
        queries: list[str] = []
        compared: Comparisons = {}
        with self._context.database.read() as db:
            dataset = store.find(db, store.datasets, dataset_id)
            unit = self.unit(db, dataset, body)
            self._same_people.spread(db, dataset, [unit], compared)

        def effect(db: Connection) -> Effect:
            dataset = store.find(db, store.datasets, dataset_id)
            account = account_name(db, dataset)
            salt = secrets.token_hex(16)
            details: dict[str, Any] = {"dataset_id": dataset_id, "account": account}
            if unit not in withheld.units(db, account):
                withheld.withhold(db, account, unit, salt, stamp(self._context.clock()))
                details["unit_sha256"] = salted_digest(unit, salt)
                queries.extend(self._decline_open(db, dataset))
            elsewhere = self._same_people.spread(db, dataset, [unit], compared)
            self._same_people.withhold(db, request.principal.actor, elsewhere)
            for other, _ in elsewhere.values():
                queries.extend(self._decline_open(db, other))
            count = len(withheld_records(db, self._vault, dataset_id))
            return Effect(wire.WithheldReply(dataset_id=dataset_id, records=count), "record.withheld", details, 200)

        reply = self._context.idempotency.once(request, effect)
        self._inbox.publish(queries)
        return reply

    def named(self, dataset_id: str, body: wire.WithholdCreate) -> wire.WithheldReply:
        """The records that would be withheld. The reply has their labels, and is stored nowhere. Raises Invalid."""
        with self._context.database.read() as db:
            dataset = store.find(db, store.datasets, dataset_id)
            unit = self.unit(db, dataset, body)
            stored = np.flatnonzero(of_units(self._vault, dataset, [unit]))[:_NAMED].tolist()
            count = len(withheld_records(db, self._vault, dataset_id))
            reading, numbers = reading_of(dataset), file_numbers(self._vault, dataset)
            columns = reading.labels if reading else []
            labels = self._labels.shown(db, dataset_id, columns, stored, columns)
        named = [
            wire.NamedRecord(
                record=(number := int(numbers[index])),
                file_row=file_row(reading, number),
                labels=labels.get(index, []),
            )
            for index in stored
        ]
        return wire.WithheldReply(dataset_id=dataset_id, records=count, named=named)

    def _numbered(self, db: Connection, dataset: Any, body: wire.LetterCreate) -> wire.LetterCreate:
        """The same with the number of the record that a row of the file or a label names. Raises Invalid."""
        if body.file_row is not None:
            if (first := file_row(reading_of(dataset), 1)) is None:
                raise Invalid.at("file_row", "the kind of this file is not known: give record, its number from 1")
            if body.file_row < first:
                raise Invalid.at("file_row", f"the first record is row {first} of the file")
            return body.model_copy(update={"record": body.file_row + 1 - first})
        if body.label is None:
            return body
        labelled = self._labels.find(db, dataset.id, body.label)
        if len(labelled) != 1:
            count = f"{len(labelled):,} records have this label" if labelled else "no record has this label"
            raise Invalid.at("label", f"{count}: give the row of the file instead")
        return body.model_copy(update={"record": int(file_numbers(self._vault, dataset)[labelled[0]])})

    def page(self, dataset_id: str, after: int, limit: int) -> list[tuple[int, wire.WithheldRecord]]:
        """What is withheld of a dataset's file, for the owner alone, with sequence numbers. Raises NotFound."""
        with self._context.database.read() as db:
            dataset = store.find(db, store.datasets, dataset_id)
            account, reading = account_name(db, dataset), reading_of(dataset)
            rows = store.page(db, withheld.withheld, after=after, limit=limit, account=account)
            return [(row.seq, _view(row, reading)) for row in rows]

    def unit(self, db: Connection, dataset: Any, body: wire.LetterCreate) -> str:
        """The unit that a request names. Raises Invalid if the dataset has no such record or person; quotes neither."""
        body = self._numbered(db, dataset, body)
        if body.record is not None:
            if body.record not in file_numbers(self._vault, dataset):
                message = f"the dataset has {dataset.rows} records of the file, and this is none of them"
                raise Invalid.at("record" if body.file_row is None else "file_row", message)
            return withheld.record_unit(body.record)
        assert body.person is not None
        if dataset.person_column is None:
            message = "the dataset was registered without a person column: withhold records by their numbers"
            raise Invalid.at("person", message)
        key = self._context.seal.key_for("persons")
        column = PersonColumn(dataset.person_column, key, person_ids_of(dataset))
        column.add([body.person])
        if not (self._vault.persons(dataset.id) == column.digests[0]).all(axis=1).any():
            message = "no record of the dataset is this person's: write the name as in the file's person column"
            raise Invalid.at("person", message)
        return withheld.person_unit(column.digests[0].tobytes())

    def _decline_open(self, db: Connection, dataset: Any) -> list[str]:
        """Decline what is not released yet of withheld records in all studies of the file; the ids of the queries."""
        queries: list[str] = []
        for study_id, dataset_id in store.released_studies(db, dataset.sha256):
            order = self._studies.of(db, study_id).order
            rows = np.flatnonzero(np.isin(order, withheld_records(db, self._vault, dataset_id))).tolist()
            queries += unanswered_queries(db, study_id, rows)
        for query_id in queries:
            self._inbox.decline_withheld(db, query_id)
        return queries


def _view(row: Any, reading: wire.FileReading | None) -> wire.WithheldRecord:
    numbers, persons = withheld.numbers_and_persons([row.unit])
    number = next(iter(numbers), None)
    return wire.WithheldRecord(
        seq=row.seq,
        record=number,
        file_row=None if number is None else file_row(reading, number),
        person=next((person.hex() for person in persons), None),
        created_at=moment(row.created_at),
    )
