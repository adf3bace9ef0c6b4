"""Check the curator's tables against its audit log: part of `audit verify`.

Each summary follows the log record by record, then checks that its tables hold what the log says.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from blindopt.audit.merkle_log import Json, sha256
from blindopt.errors import LogBroken, NotFound
from curator_service import store
from curator_service.privacy.ledger import Balance, Prices, RowBalance, text, units
from curator_service.store import advisories, messages, withheld
from curator_service.store import ledger as lines
from curator_service.use_cases.integrity.erasure_checks import ErasureLogSummary
from curator_service.use_cases.integrity.inbox_checks import InboxLogSummary
from curator_service.use_cases.integrity.tuning_checks import TuningLogSummary, check_rows
from curator_service.use_cases.studies.salted_digests import salted_digest
from service_kit.store import stored_replies
from service_kit.store.database import Connection


class LogSummary(Protocol):
    """What the log says about some tables."""

    def follow(self, record: Json) -> None:
        """Take the next record of the log. Raises LogBroken if it contradicts an earlier one."""

    def check(self, db: Connection) -> None:
        """Raise LogBroken if a table differs from the log."""


def check(db: Connection, records: Iterable[Json]) -> str:
    """Check every table against the log, and that no answer precedes its charge. Raises LogBroken.

    Return in words what was erased, and cannot be checked any more.
    """
    erased = ErasureLogSummary()
    summaries: list[LogSummary] = [
        erased,
        _DatasetLogSummary(erased),
        _StudyLogSummary(),
        _AdvisoryLogSummary(),
        TuningLogSummary(erased),
        _WithheldLogSummary(),
        _MessageLogSummary(erased),
        InboxLogSummary(erased),
        _ReplyLogSummary(erased),
        _LedgerLogSummary(db),
    ]
    for record in records:
        for summary in summaries:
            summary.follow(record)
    for summary in summaries:
        summary.check(db)
    return erased.words


class _DatasetLogSummary:
    """Datasets: how each file was read, with lists of categories and values that fill gaps."""

    def __init__(self, erased: ErasureLogSummary) -> None:
        self._erased = erased
        self._readings: dict[str, str] = {}
        self._deleted: dict[str, bool] = {}

    def follow(self, record: Json) -> None:
        details = record.get("details", {})
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
                raise LogBroken(f"dataset {identity} was changed: how it was read is not what the log says")
        for name in self._readings:
            raise LogBroken(f"dataset {name} is missing")


@dataclass
class _LoggedStudy:
    """A study as the log describes it."""

    spec_sha256: str
    release_sha256: str | None = None
    closed: bool = False


_CLOSING = {"study.closed": "study_id", "log.restored": "closed_studies", "dataset.erased": "studies"}
"""Kinds of records that close studies, and where they name them."""


class _StudyLogSummary:
    """Studies: spec, release and state."""

    def __init__(self) -> None:
        self._studies: dict[str, _LoggedStudy] = {}

    def follow(self, record: Json) -> None:
        kind, details = record["kind"], record.get("details", {})
        if kind == "study.created":
            self._studies[details["study_id"]] = _LoggedStudy(details["spec_sha256"])
        elif kind == "study.changed":
            study = self._created(details["study_id"])
            if study.release_sha256 is not None or study.closed or study.spec_sha256 != details["replaces"]:
                raise LogBroken(f"study {details['study_id']} was changed when it was no draft, or from another one")
            study.spec_sha256 = details["spec_sha256"]
        elif kind == "study.deleted":
            study = self._created(details["study_id"])
            if study.release_sha256 is not None or study.closed:
                raise LogBroken(f"study {details['study_id']} was deleted when it was no draft")
            del self._studies[details["study_id"]]
        elif kind == "study.caps_raised":
            study = self._created(details["study_id"])
            if study.release_sha256 is None or study.closed or study.spec_sha256 != details["replaces"]:
                raise LogBroken(f"caps of study {details['study_id']} were raised when it was not open, or of another")
            study.spec_sha256 = details["spec_sha256"]
        elif kind == "study.released":
            self._created(details["study_id"]).release_sha256 = details["sha256"]
        elif kind in _CLOSING:
            for study_id in [details["study_id"]] if kind == "study.closed" else details[_CLOSING[kind]]:
                self._created(study_id).closed = True

    def _created(self, study_id: str) -> _LoggedStudy:
        if (study := self._studies.get(study_id)) is None:
            raise LogBroken(f"study {study_id} is in the log and was never created there")
        return study

    def check(self, db: Connection) -> None:
        missing = dict(self._studies)
        for row in store.every(db, store.studies):
            if (study := missing.pop(row.id, None)) is None:
                raise LogBroken(f"study {row.id} is not in the log")
            if sha256(row.spec.encode()) != study.spec_sha256:
                raise LogBroken(f"study {row.id} was changed: its spec is not the one in the log")
            release = store.release_of(db, row.id)
            if (None if release is None else release.sha256) != study.release_sha256:
                raise LogBroken(f"the release of study {row.id} is not the one in the log")
            if (row.state == "closed") != study.closed:
                raise LogBroken(f"study {row.id} is {row.state}, and the log does not say so")
        for name in missing:
            raise LogBroken(f"study {name} is missing")


class _AdvisoryLogSummary:
    """Withdrawals of mechanisms."""

    def __init__(self) -> None:
        self._advisories: dict[str, tuple[str, int, str]] = {}

    def follow(self, record: Json) -> None:
        if record["kind"] == "mechanism.withdrawn":
            details = record["details"]
            content = details["mechanism"], details["version"], details["reason_sha256"]
            self._advisories[details["advisory_id"]] = content

    def check(self, db: Connection) -> None:
        stored = {
            row.id: (row.mechanism, row.version, sha256(row.reason.encode()))
            for row in store.every(db, advisories.advisories)
        }
        check_rows("advisory", stored, self._advisories)


class _WithheldLogSummary:
    """Withheld records: the log has a salted digest of each."""

    def __init__(self) -> None:
        self._units: list[tuple[str, str]] = []

    def follow(self, record: Json) -> None:
        details = record.get("details", {})
        if record["kind"] == "record.withheld" and "unit_sha256" in details:
            self._units.append((details["account"], details["unit_sha256"]))

    def check(self, db: Connection) -> None:
        stored = [(row.account, salted_digest(row.unit, row.salt)) for row in store.every(db, withheld.withheld)]
        if stored != self._units:
            raise LogBroken("the withheld records are not those of the log: one was changed, added or removed")


class _MessageLogSummary:
    """Messages of vendors, decisions about them, and raises of caps: the log has the digest of each text.

    That of a message and of a decision's word is salted: a value of y may be in them.
    """

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

    def __init__(self, erased: ErasureLogSummary) -> None:
        self._erased = erased
        self._replies: dict[tuple[str, str], tuple[int, str]] = {}
        self._studies: dict[str, str] = {}

    def follow(self, record: Json) -> None:
        exchange = record.get("exchange")
        if not exchange or exchange["method"] != "POST" or exchange["status"] >= 300:
            return
        key, reply = (exchange["grant_id"], exchange["idempotency_key"]), (exchange["status"], exchange["reply_sha256"])
        if not exchange["replayed"] and key not in self._replies:
            self._replies[key] = reply
            self._studies[key[0]] = exchange["study_id"]
        elif self._replies.get(key) != reply:
            raise LogBroken(f"key {exchange['idempotency_key']} got another answer than the one that it had got before")

    def check(self, db: Connection) -> None:
        missing = dict(self._replies)
        for row in stored_replies.answers(db):
            reply = missing.pop((row.principal, row.idempotency_key), None)
            gone = self._studies.get(row.principal) in self._erased.studies
            if stored_replies.is_erased(row.body) and gone:
                continue
            if gone and stored_replies.describes(row.body):
                raise LogBroken(f"the answer under key {row.idempotency_key} is stored, and the log says it was erased")
            if reply is not None and (row.status, sha256(row.body)) != reply:
                raise LogBroken(f"the stored answer under key {row.idempotency_key} was changed")
            if reply is None and row.principal.startswith("grt_"):
                raise LogBroken(f"the stored answer under key {row.idempotency_key} is not in the log")
        for _, key in missing:
            raise LogBroken(f"the stored answer under key {key} is missing")


class _LedgerLogSummary:
    """Charges and refusals of studies, and the queries that were charged."""

    def __init__(self, db: Connection) -> None:
        self._db = db
        self._accounts: dict[str, _Account] = {}
        self._charged: set[str] = set()
        self._answered: set[tuple[str, str]] = set()

    def follow(self, record: Json) -> None:
        details, exchange = record.get("details", {}), record.get("exchange")
        if record["kind"] in ("charge", "charge.refused"):
            if (study := details["study_id"]) not in self._accounts:
                self._accounts[study] = _Account(_prices(self._db, study))
            self._accounts[study].take(details, refused=record["kind"] == "charge.refused")
            query = details.get("query_id")
            if (query in self._charged) != ("version" in details):  # a correction follows the charge of its query
                raise LogBroken(f"query {query} was charged twice, or corrected before it was charged")
            self._charged |= {query} - {None}
        elif exchange and exchange["status"] in (201, 202) and not exchange["replayed"] and "query_id" in details:
            if details["query_id"] not in self._charged:
                raise LogBroken(f"query {details['query_id']} was answered before it was charged")
            key = exchange["grant_id"], exchange["idempotency_key"]
            if key in self._answered:
                raise LogBroken(f"query {details['query_id']} was answered twice")
            self._answered.add(key)

    def check(self, db: Connection) -> None:
        counts = dict.fromkeys(self._accounts, 0)
        for line in store.every(db, lines.ledger):
            count = counts.get(line.study_id, 0)
            if line.study_id not in self._accounts or count >= len(self._accounts[line.study_id].lines):
                raise LogBroken(f"ledger line {line.seq} is not in the log")
            if self._accounts[line.study_id].lines[count] != lines.content(line):
                raise LogBroken(f"ledger line {line.seq} is not what the log says: it was changed, or one is missing")
            counts[line.study_id] = count + 1
        for study, account in self._accounts.items():
            if counts[study] != len(account.lines):
                raise LogBroken(f"the ledger of {study} lacks the last of {len(account.lines)} lines in the log")
        stored = {row.id for row in store.every(db, store.queries)}
        for name in stored ^ self._charged:
            where = "the log" if name in stored else "the table of queries"
            raise LogBroken(f"query {name} is missing in {where}")


@dataclass
class _Account:
    """The ledger of one study, line by line, as the log describes it."""

    prices: Prices
    balance: Balance = field(default_factory=Balance)
    rows: dict[int, RowBalance] = field(default_factory=dict)
    lines: list[tuple[Any, ...]] = field(default_factory=list)

    def take(self, details: Json, *, refused: bool) -> None:
        """Add the lines of one record. Raises LogBroken if its epsilon is not their price."""
        if refused:
            self._refuse(details)
        elif details["rows"] == "all":
            cost, old = units(details["epsilon"]), self.balance
            self.balance = Balance(old.release + cost, old.total + cost, old.plays)
            self._add("release", None, None, 0, cost, None, RowBalance())
        else:
            before = self.balance.total
            for row, count in details["rows"]:
                if "version" in details:
                    self._charge("correction", details["query_id"], row, 0, count * self.prices.answer)
                else:
                    self._charge("answers", details["query_id"], row, count, self.prices.cost(count))
            if details["epsilon"] != text(self.balance.total - before):
                raise LogBroken(f"query {details['query_id']}: the log has another epsilon than its study's price")

    def _charge(self, kind: str, query_id: str, row: int, plays: int, cost: int) -> None:
        """Add a line of answers, or of a correction, which releases answers again and is no query."""
        old, before = self.rows.get(row, RowBalance()), self.balance
        self.rows[row] = RowBalance(old.queries + (kind == "answers"), old.plays + plays, old.total + cost)
        self.balance = Balance(before.release, before.total + cost, before.plays + plays)
        self._add(kind, query_id, row, plays, cost, None, self.rows[row])

    def _refuse(self, details: Json) -> None:
        row, cap = details["row"], details["cap"]
        if details["rows"] == "all":  # a release, which a cap of the dataset's account refused
            cost = self.prices.release
            if cap == "dataset.epsilon" and details["requested"] != text(cost):
                raise LogBroken("a refused release in the log has another amount than it costs")
            self._add("refused", None, None, 0, cost, cap, RowBalance())
            return
        of_cap = [plays for requested, plays in details["rows"] if row in (None, requested)]
        cost, plays = sum(map(self.prices.cost, of_cap)), sum(of_cap)
        if details["requested"] != (str(plays) if cap == "queries" else text(cost)):
            raise LogBroken("a refusal in the log has another amount than its request costs")
        of_row = self.rows.get(row, RowBalance()) if row is not None else RowBalance()
        self._add("refused", None, row, plays, cost, cap, of_row)

    def _add(
        self, kind: str, query: str | None, row: int | None, plays: int, cost: int, cap: str | None, of_row: RowBalance
    ) -> None:
        now = self.balance
        balances = of_row.queries, of_row.plays, of_row.total, now.release, now.total, now.plays
        self.lines.append((kind, query, row, plays, text(cost), cap, *balances))


def _prices(db: Connection, study_id: str) -> Prices:
    try:
        return Prices.of(store.spec_of(db, study_id))
    except NotFound:
        raise LogBroken(f"study {study_id} was charged and is missing") from None
