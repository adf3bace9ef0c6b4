"""Check the curator's tables against its audit log: part of `audit verify`.

Each summary follows the log record by record, then checks that its tables hold what the log says.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

from blindopt.audit.merkle_log import Json, sha256
from blindopt.errors import LogBroken, NotFound
from curator_service import store
from curator_service.budget import table as lines
from curator_service.budget.ledger import RowBalance
from curator_service.datasets import table as withheld
from curator_service.integrity.erasure_checks import ErasureLogSummary
from curator_service.integrity.inbox_checks import InboxLogSummary
from curator_service.integrity.logged_accounts import AccountLogSummary
from curator_service.integrity.logged_studies import Account, StudyLogSummary
from curator_service.integrity.tuning_checks import TuningLogSummary, check_rows
from curator_service.privacy.prices import Prices, text
from curator_service.salted_digests import salted_digest
from curator_service.store import advisories
from curator_service.studies import table as messages
from service_kit.context.log_summaries import LogSummary, PrincipalLogSummary, summarize
from service_kit.store import audit_log, stored_replies
from service_kit.store.database import Connection


def check(db: Connection, records: Iterable[Json]) -> None:
    """Check every table against the log, and that no answer precedes its charge. Raises LogBroken."""
    for finding in findings(db, records):
        raise finding


def findings(db: Connection, records: Iterable[Json]) -> Iterator[LogBroken]:
    """Check every table against the log, and yield the first finding in each group of tables."""
    erased = ErasureLogSummary()
    summaries: list[LogSummary] = [
        erased,
        PrincipalLogSummary(),
        _DatasetLogSummary(erased),
        StudyLogSummary(),
        _AdvisoryLogSummary(),
        TuningLogSummary(erased),
        _WithheldLogSummary(),
        _MessageLogSummary(erased),
        InboxLogSummary(erased),
        _ReplyLogSummary(db, erased),
        _LedgerLogSummary(db),
    ]
    yield from summarize(db, records, summaries)


class _DatasetLogSummary:
    """Datasets: which are of one file, which are public, and how each file was read, with values that fill gaps."""

    kinds = ("dataset.registered", "dataset.deleted")

    def __init__(self, erased: ErasureLogSummary) -> None:
        self._erased = erased
        self._readings: dict[str, str] = {}
        self._deleted: dict[str, bool] = {}
        self._files = AccountLogSummary()

    def follow(self, record: Json) -> None:
        details = record.get("details", {})
        if record["kind"] == "dataset.registered":
            self._files.follow(record)
        if record["kind"] == "dataset.deleted":
            self._readings.pop(details["dataset_id"], None)
            self._deleted[details["dataset_id"]] = details["kept_for_account"]
        if record["kind"] == "dataset.registered" and "reading_sha256" in details:
            self._readings[details["dataset_id"]] = details["reading_sha256"]

    def check(self, db: Connection) -> None:
        if store.kept_for_accounts(db) != {name for name, is_kept in self._deleted.items() if is_kept}:
            raise LogBroken("the deleted datasets that are kept for an account are not those of the log")
        for identity, reading in store.readings(db).items():
            if identity in self._deleted:
                raise LogBroken(f"dataset {identity} is stored, and the log says that it was deleted")
            logged = self._readings.pop(identity, None)
            if _digest(reading) != (None if identity in self._erased.datasets else logged):
                what = "how it was read is not what the log says"
                raise LogBroken(f"dataset {identity} was changed: {what}", about=identity)
        for name in self._readings:
            raise LogBroken(f"dataset {name} is missing", about=name)
        names: dict[str, str] = {}
        for row in store.every(db, store.datasets):
            fault = self._files.fault(row, names.setdefault(row.sha256, row.id))
            if fault is not None:
                raise LogBroken(fault, about=row.id)


class _AdvisoryLogSummary:
    """Withdrawals of mechanisms."""

    kinds = ("mechanism.withdrawn",)

    def __init__(self) -> None:
        self._advisories: dict[str, tuple[str, int, str]] = {}

    def follow(self, record: Json) -> None:
        details = record["details"]
        self._advisories[details["advisory_id"]] = details["mechanism"], details["version"], details["reason_sha256"]

    def check(self, db: Connection) -> None:
        stored = {
            row.id: (row.mechanism, row.version, sha256(row.reason.encode()))
            for row in store.every(db, advisories.advisories)
        }
        check_rows("advisory", stored, self._advisories)


class _WithheldLogSummary:
    """Withheld records: the log has a salted digest of each."""

    kinds = ("record.withheld",)

    def __init__(self) -> None:
        self._units: list[tuple[str, str]] = []

    def follow(self, record: Json) -> None:
        details = record.get("details", {})
        if "unit_sha256" in details:
            self._units.append((details["account"], details["unit_sha256"]))

    def check(self, db: Connection) -> None:
        stored = [(row.account, salted_digest(row.unit, row.salt)) for row in store.every(db, withheld.withheld)]
        if stored != self._units:
            raise LogBroken("the withheld records are not those of the log: one was changed, added or removed")


class _MessageLogSummary:
    """Messages of vendors, decisions about them, and raises of caps: the log has the digest of each text.

    That of a message and of a decision's word is salted: a value of y may be in them.
    """

    kinds = ("message.received", "message.decided", "study.caps_raised")

    def __init__(self, erased: ErasureLogSummary) -> None:
        self._erased = erased
        self._messages: list[tuple[Any, ...]] = []
        self._decisions: list[tuple[Any, ...]] = []
        self._raises: list[tuple[Any, ...]] = []
        self._studies: dict[str, str] = {}

    def follow(self, record: Json) -> None:
        kind, details = record["kind"], record.get("details", {})
        if kind == "message.received":
            grant = record["exchange"]["grant_id"]
            self._messages.append((details["message_id"], details["study_id"], grant, details["message_sha256"]))
            self._studies[details["message_id"]] = details["study_id"]
        elif kind == "message.decided":
            self._decisions.append((details["message_id"], details["decision"], details["word_sha256"]))
        elif kind == "study.caps_raised":
            content = details["before"], details["after"], details["reason_sha256"]
            self._raises.append((details["study_id"], *content))

    def check(self, db: Connection) -> None:
        stored: dict[str, list[tuple[Any, ...]]] = {
            "messages": [
                (m.id, m.study_id, m.grant_id, salted_digest(m.body, m.salt))
                for m in store.every(db, messages.messages)
            ],
            "decisions": [
                (d.message_id, d.decision, salted_digest(d.word, d.salt)) for d in store.every(db, messages.decisions)
            ],
            "raises of caps": [
                (c.study_id, json.loads(c.before), json.loads(c.after), _digest(c.reason))
                for c in store.every(db, messages.budget_changes)
            ],
        }
        logged = {"messages": self._messages, "decisions": self._decisions, "raises of caps": self._raises}
        for name, rows in stored.items():
            if list(map(self._kept, rows)) != list(map(self._kept, logged[name])):
                raise LogBroken(f"the {name} are not those of the log: one was changed, added or removed")

    def _kept(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """What is left to compare: without the digest, which comes last, where the text is erased."""
        return row[:-1] if self._studies.get(row[0]) in self._erased.studies else row


def _digest(text: str | None) -> str | None:
    return None if text is None else sha256(text.encode())


class _ReplyLogSummary:
    """Stored replies to modelers: the first under each key, which every later one must repeat."""

    kinds = None

    def __init__(self, db: Connection, erased: ErasureLogSummary) -> None:
        self._stored = stored_replies.Answers(db)
        self._erased = erased
        self._count = 0
        self._studies: dict[str, str] = {}
        """By grant."""
        self._marked: dict[str, str] = {}
        """By grant, the key of a reply in whose place is the marker of an erasure."""

    def follow(self, record: Json) -> None:
        exchange = record.get("exchange")
        if not exchange or exchange["method"] != "POST" or exchange["status"] >= 300:
            return
        grant, key = exchange["grant_id"], exchange["idempotency_key"]
        stored = self._stored.find(grant, key, record["seq"])
        self._studies[grant] = exchange["study_id"]
        if stored is None:
            raise LogBroken(f"the stored answer under key {key} is missing", about=grant)
        if stored_replies.is_erased(stored.body):
            self._marked.setdefault(grant, key)
        elif (stored.status, sha256(stored.body)) != (exchange["status"], exchange["reply_sha256"]):
            raise LogBroken(f"the stored answer under key {key} was changed", about=grant)
        self._count += not exchange["replayed"]

    def check(self, db: Connection) -> None:
        gone = {grant for grant, study in self._studies.items() if study in self._erased.studies}
        for grant in self._marked.keys() - gone:
            raise LogBroken(f"the stored answer under key {self._marked[grant]} was changed", about=grant)
        for grant in gone:
            for row in stored_replies.answers_of(db, grant):
                if stored_replies.describes(row.body):
                    what = f"the answer under key {row.idempotency_key} is stored, and the log says it was erased"
                    raise LogBroken(what, about=grant)
        if stored_replies.count_answers(db) == self._count:
            return
        logged = {
            (exchange["grant_id"], exchange["idempotency_key"])
            for exchange in (record.get("exchange") for record in audit_log.of_kind(db, "exchange", *_ANSWERING))
            if exchange
        }
        for grant, key in stored_replies.answer_keys(db):
            if (grant, key) not in logged:
                raise LogBroken(f"the stored answer under key {key} is not in the log", about=grant)
        raise LogBroken("an answer is in the log twice, as if it were new")


_ANSWERING = ("checkpoint.countersigned", "message.received")
"""Kinds of records, beside exchanges, about requests of modelers that are answered."""


class _LedgerLogSummary:
    """Charges and refusals of studies, and the queries that were charged."""

    kinds = None

    def __init__(self, db: Connection) -> None:
        self._db = db
        self._accounts: dict[str, _Lines] = {}
        self._charged: dict[str, bool] = {}
        """By query, whether it was answered."""

    def follow(self, record: Json) -> None:
        details, exchange = record.get("details", {}), record.get("exchange")
        if record["kind"] in ("charge", "charge.refused"):
            if (study := details["study_id"]) not in self._accounts:
                self._accounts[study] = _Lines(_prices(self._db, study))
            self._accounts[study].take(details, refused=record["kind"] == "charge.refused")
            query = details.get("query_id")
            if (query in self._charged) != ("version" in details):  # a correction follows the charge of its query
                raise LogBroken(f"query {query} was charged twice, or corrected before it was charged", about=study)
            if query is not None:
                self._charged.setdefault(query, False)
        elif exchange and exchange["status"] in (201, 202) and not exchange["replayed"] and "query_id" in details:
            query = details["query_id"]
            if (is_answered := self._charged.get(query)) is not False:
                what = "answered twice" if is_answered else "answered before it was charged"
                raise LogBroken(f"query {query} was {what}", about=exchange["study_id"])
            self._charged[query] = True

    def check(self, db: Connection) -> None:
        counts = dict.fromkeys(self._accounts, 0)
        for line in store.every(db, lines.ledger):
            count, study = counts.get(line.study_id, 0), line.study_id
            if study not in self._accounts or count >= len(self._accounts[study]):
                raise LogBroken(f"ledger line {line.seq} is not in the log", about=study)
            if self._accounts[study].digest(count) != _line_digest(lines.content(line)):
                what = "it was changed, or one is missing"
                raise LogBroken(f"ledger line {line.seq} is not what the log says: {what}", about=study)
            counts[study] = count + 1
        for study, account in self._accounts.items():
            if counts[study] != len(account):
                what = f"lacks the last of {len(account)} lines in the log"
                raise LogBroken(f"the ledger of {study} {what}", about=study)
        for row in store.every(db, store.queries):
            if self._charged.pop(row.id, None) is None:
                raise LogBroken(f"query {row.id} is missing in the log", about=row.study_id)
        for name in self._charged:
            raise LogBroken(f"query {name} is missing in the table of queries")


_DIGEST = 16


def _line_digest(content: tuple[Any, ...]) -> bytes:
    return hashlib.blake2b(repr(content).encode(), digest_size=_DIGEST).digest()


class _Lines(Account):
    """The ledger of one study as the log describes it, with a digest of each line."""

    def __init__(self, prices: Prices) -> None:
        super().__init__(prices)
        self._digests = bytearray()

    def __len__(self) -> int:
        return len(self._digests) // _DIGEST

    def digest(self, count: int) -> bytes:
        """The digest of the line after ``count`` others."""
        return bytes(self._digests[count * _DIGEST : (count + 1) * _DIGEST])

    def _add(
        self, kind: str, query: str | None, row: int | None, plays: int, cost: int, cap: str | None, of_row: RowBalance
    ) -> None:
        now = self.balance
        balances = of_row.queries, of_row.plays, of_row.total, now.release, now.total, now.plays
        self._digests += _line_digest((kind, query, row, plays, text(cost), cap, *balances))


def _prices(db: Connection, study_id: str) -> Prices:
    try:
        return Prices.of(store.spec_of(db, study_id))
    except NotFound:
        raise LogBroken(f"study {study_id} was charged and is missing", about=study_id) from None
