"""Check the curator's tables against its audit log: part of `audit verify`.

Each summary follows the log record by record, then checks that its tables hold what the log says.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blindopt.audit.merkle_log import Json, sha256
from blindopt.errors import LogBroken, NotFound, StorageUnavailable
from blindopt.wire import FileReading
from curator_service import store
from curator_service.budget.ledger import A_FILE
from curator_service.budget.overlaps import decisions_of
from curator_service.budget.table import ledger
from curator_service.datasets import table as withheld
from curator_service.integrity.erasure_checks import ErasureLogSummary
from curator_service.integrity.inbox_checks import InboxLogSummary
from curator_service.integrity.logged_studies import Account, StudyLogSummary, line_digest
from curator_service.integrity.tuning_checks import TuningLogSummary, check_rows
from curator_service.privacy.prices import Prices
from curator_service.salted_digests import salted_digest, salted_file_digest
from curator_service.store import advisories
from curator_service.studies import table as messages
from service_kit.context.log_summaries import OTHER, LogSummary, Part, PrincipalLogSummary, summarize
from service_kit.store import audit_log, stored_replies
from service_kit.store.database import Connection


def check(db: Connection, records: Iterable[Json]) -> None:
    """Check every table against the log, and that no answer precedes its charge. Raises LogBroken."""
    for finding in findings(db, records):
        raise finding


def findings(
    db: Connection, records: Iterable[Json], part: Part | None = None, folder: Path | None = None
) -> Iterator[LogBroken]:
    """Check every table against the log, or those of one part, and yield what differs.

    With the data ``folder``, what the log of earlier versions has no digest of is compared with the files of datasets,
    and the second part also checks the row orders.
    """
    erased, files = ErasureLogSummary(), None if folder is None else folder / "files"
    second: list[LogSummary] = [_ReplyLogSummary(db)]
    if files is not None:
        second.append(_OrderLogSummary(files))
    if part == "second":
        yield from summarize(db, records, second)
        return
    summaries: list[LogSummary] = [
        erased,
        PrincipalLogSummary(),
        _DatasetLogSummary(erased, files),
        StudyLogSummary(),
        _AdvisoryLogSummary(),
        TuningLogSummary(erased),
        _WithheldLogSummary(),
        _MessageLogSummary(erased),
        InboxLogSummary(erased),
        _LedgerLogSummary(db),
    ]
    yield from summarize(db, records, summaries + (second if part is None else []))


class _DatasetLogSummary:
    """Datasets: which are of one file or account, which are public, what each holds, and how its file was read."""

    kinds = ("dataset.registered", "dataset.deleted", "dataset.compared", "dataset.decided")

    def __init__(self, erased: ErasureLogSummary, files: Path | None) -> None:
        self._erased, self._files = erased, files
        self._readings: dict[str, str] = {}
        self._deleted: dict[str, bool] = {}
        self._registered: dict[str, Json] = {}
        """Details of ``dataset.registered``, of datasets that have a row."""
        self._decisions: defaultdict[str, list[str]] = defaultdict(list)
        """Digests, by dataset."""
        self._joined: dict[str, list[str]] = {}
        """By name, all files of an account that several have become."""

    def follow(self, record: Json) -> None:
        details = record["details"]
        dataset_id = details["dataset_id"]
        if record["kind"] == "dataset.compared":
            self._registered[dataset_id] = self._registered[dataset_id] | details
            return
        if record["kind"] == "dataset.decided":
            self._decisions[dataset_id].append(details["decision_sha256"])
            self._joined |= dict.fromkeys(details["files"], details["files"])
            return
        if record["kind"] == "dataset.deleted":
            self._readings.pop(dataset_id, None)
            self._deleted[dataset_id] = details["kept_for_account"]
            if not details["kept_for_account"]:
                self._registered.pop(dataset_id, None)
            return
        self._registered[dataset_id] = details
        if "reading_sha256" in details:
            self._readings[dataset_id] = details["reading_sha256"]

    def check(self, db: Connection) -> Iterator[LogBroken]:
        if store.kept_for_accounts(db) != {name for name, is_kept in self._deleted.items() if is_kept}:
            raise LogBroken("the deleted datasets that are kept for an account are not those of the log")
        for identity, reading in store.readings(db).items():
            if identity in self._deleted:
                yield self._fault(identity, f"dataset {identity} is stored, and the log says that it was deleted")
            logged = self._readings.pop(identity, None)
            if _digest(reading) != (None if identity in self._erased.datasets else logged):
                what = "how it was read is not what the log says"
                yield self._fault(identity, f"dataset {identity} was changed: {what}")
        names: dict[str, str] = {}
        stored = set()
        for row in store.every(db, store.datasets):
            stored.add(row.id)
            if (fault := self._change(row, names.setdefault(row.sha256, row.id))) is not None:
                yield self._fault(row.id, fault)
        for name in self._registered.keys() - stored:
            yield self._fault(name, f"dataset {name} is missing")

    def _change(self, dataset: Any, name: str) -> str | None:
        """What differs in a dataset, or in the ``name`` of its file's account; None if nothing does."""
        logged = self._registered.get(dataset.id)
        if logged is None:
            return f"dataset {dataset.id} is not in the log"
        # The first two were recorded in part, before version 0.3.
        stored = {"public": bool(dataset.public), "account": name, "rows_per_person": dataset.rows_per_person}
        if not stored.items() <= {**stored, **logged}.items():
            return f"dataset {dataset.id} was changed: its file, or whether it is public, is not what the log says"
        digests = store.digests_of(dataset)
        decisions = [sha256(json.dumps(decision).encode()) for decision in decisions_of(dataset)]
        if (dataset.account, decisions) != (self._joined.get(name, [name])[0], self._decisions[dataset.id]) or digests[
            "overlaps_sha256"
        ] != logged.get("overlaps_sha256"):
            return f"dataset {dataset.id} was changed: its account or overlaps are not what the log says"
        has_columns = dataset.id not in self._erased.datasets and dataset.id not in self._deleted
        if "columns_sha256" in logged:
            compared = {name: digest for name, digest in digests.items() if name in logged}
            if not has_columns:
                del compared["columns_sha256"]
            is_changed = not compared.items() <= logged.items()
        else:
            is_changed = has_columns and not self._fits_its_file(dataset)
        what = "its columns, rows or persons are not what the log or its file says"
        return f"dataset {dataset.id} was changed: {what}" if is_changed else None

    def _fits_its_file(self, dataset: Any) -> bool:
        """Whether a dataset of an earlier version holds what its reading and its stored values say."""
        names = [column["name"] for column in json.loads(dataset.columns)]
        if dataset.reading is not None:
            choices = FileReading.model_validate_json(dataset.reading).columns
            if names != [name for choice in choices for name in choice.stored]:
                return False
        if self._files is None:
            return True
        from curator_service.vault import Vault

        vault, persons = Vault(self._files), None
        with suppress(StorageUnavailable):  # without its files it is used by nothing
            values = vault.dataset(dataset.id)
            if (self._files / f"{dataset.id}.persons.npy").exists():
                persons = len({digest.tobytes() for digest in vault.persons(dataset.id)})
            fits_persons = persons == dataset.persons and (persons is None) == (dataset.person_column is None)
            return fits_persons and values.shape == (dataset.rows, len(names))
        return True

    def _fault(self, identity: str, fault: str) -> LogBroken:
        """A finding about a dataset, and about its account by the log; without one about all accounts."""
        account = self._registered.get(identity, {}).get("account", A_FILE)
        return LogBroken(fault, about=identity, others=self._joined.get(account, [account]))


class _AdvisoryLogSummary:
    """Withdrawals of mechanisms."""

    kinds = ("mechanism.withdrawn",)

    def __init__(self) -> None:
        self._advisories: dict[str, tuple[str, int, str]] = {}

    def follow(self, record: Json) -> None:
        details = record["details"]
        self._advisories[details["advisory_id"]] = details["mechanism"], details["version"], details["reason_sha256"]

    def check(self, db: Connection) -> Iterator[LogBroken]:
        stored = {
            row.id: (row.mechanism, row.version, sha256(row.reason.encode()))
            for row in store.every(db, advisories.advisories)
        }
        yield from check_rows("advisory", stored, self._advisories)


class _WithheldLogSummary:
    """Withheld records: the log has a salted digest of each."""

    kinds = ("record.withheld",)

    def __init__(self) -> None:
        self._units: defaultdict[str, list[str | None]] = defaultdict(list)
        """By account."""

    def follow(self, record: Json) -> None:
        details = record.get("details", {})
        if "unit_sha256" in details:
            self._units[details["account"]].append(details["unit_sha256"])

    def check(self, db: Connection) -> Iterator[LogBroken]:
        stored: defaultdict[str, list[str | None]] = defaultdict(list)
        for row in store.every(db, withheld.withheld):
            stored[row.account].append(salted_digest(row.unit, row.salt))
        for account in sorted(stored.keys() | self._units.keys()):
            if stored[account] != self._units[account]:
                what = "the withheld records are not those of the log: one was changed, added or removed"
                yield LogBroken(what, about=account)


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
            self._messages.append((details["study_id"], details["message_id"], grant, details["message_sha256"]))
            self._studies[details["message_id"]] = details["study_id"]
        elif kind == "message.decided":
            study = self._studies.get(details["message_id"], OTHER)
            self._decisions.append((study, details["message_id"], details["decision"], details["word_sha256"]))
        elif kind == "study.caps_raised":
            content = details["before"], details["after"], details["reason_sha256"]
            self._raises.append((details["study_id"], *content))

    def check(self, db: Connection) -> Iterator[LogBroken]:
        stored: dict[str, list[tuple[Any, ...]]] = {
            "messages": [
                (m.study_id, m.id, m.grant_id, salted_digest(m.body, m.salt))
                for m in store.every(db, messages.messages)
            ],
            "decisions": [
                (self._studies.get(d.message_id, OTHER), d.message_id, d.decision, salted_digest(d.word, d.salt))
                for d in store.every(db, messages.decisions)
            ],
            "raises of caps": [
                (c.study_id, json.loads(c.before), json.loads(c.after), _digest(c.reason))
                for c in store.every(db, messages.budget_changes)
            ],
        }
        logged = {"messages": self._messages, "decisions": self._decisions, "raises of caps": self._raises}
        for name, rows in stored.items():
            by_study, logged_by_study = self._by_study(name, rows), self._by_study(name, logged[name])
            for study in sorted(by_study.keys() | logged_by_study.keys()):
                if by_study[study] != logged_by_study[study]:
                    what = f"the {name} are not those of the log: one was changed, added or removed"
                    yield LogBroken(what, about=study)

    def _by_study(self, name: str, rows: list[tuple[Any, ...]]) -> defaultdict[str, list[tuple[Any, ...]]]:
        """What is left to compare: without the digest, which comes last, where the text is erased."""
        by_study: defaultdict[str, list[tuple[Any, ...]]] = defaultdict(list)
        for study, *content in rows:
            is_erased = name != "raises of caps" and study in self._erased.studies
            by_study[study].append(tuple(content[:-1] if is_erased else content))
        return by_study


def _digest(text: str | None) -> str | None:
    return None if text is None else sha256(text.encode())


class _OrderLogSummary:
    """Row orders of releases: the log has a salted digest of each file since version 0.3."""

    kinds = ("study.released", "dataset.erased")

    def __init__(self, files: Path) -> None:
        self._files = files
        self._orders: dict[str, str] = {}
        """By study."""

    def follow(self, record: Json) -> None:
        details = record["details"]
        if record["kind"] == "dataset.erased":
            for study in details["studies"]:
                self._orders.pop(study, None)
        elif "order_sha256" in details:
            self._orders[details["study_id"]] = details["order_sha256"]

    def check(self, db: Connection) -> Iterator[LogBroken]:
        for study, logged in self._orders.items():
            release = store.release_of(db, study)
            digest = None
            if release is not None:
                with suppress(OSError):
                    digest = salted_file_digest(self._files / f"{release.id}.order.npy", release.order_salt or "")
            if digest != logged:
                yield LogBroken(f"the row order of the release of study {study} was changed", about=study)


class _ReplyLogSummary:
    """Stored replies to modelers: the first under each key, which every later one must repeat."""

    kinds = None

    def __init__(self, db: Connection) -> None:
        self._stored = stored_replies.Answers(db)
        self._erased = ErasureLogSummary()
        self._count = self._missing = 0
        self._studies: dict[str, str] = {}
        """By grant."""
        self._marked: dict[str, str] = {}
        """By grant, the key of a reply in whose place is the marker of an erasure."""

    def follow(self, record: Json) -> None:
        exchange = record.get("exchange")
        if record["kind"] in self._erased.kinds:
            self._erased.follow(record)
        if not exchange or exchange["method"] != "POST" or exchange["status"] >= 300:
            return
        grant, key = exchange["grant_id"], exchange["idempotency_key"]
        stored = self._stored.find(grant, key, record["seq"])
        self._studies[grant] = exchange["study_id"]
        self._count += not exchange["replayed"]
        if stored is None:
            self._missing += not exchange["replayed"]
            raise LogBroken(f"the stored answer under key {key} is missing", about=grant)
        if stored_replies.is_erased(stored.body):
            self._marked.setdefault(grant, key)
        elif (stored.status, sha256(stored.body)) != (exchange["status"], exchange["reply_sha256"]):
            raise LogBroken(f"the stored answer under key {key} was changed", about=grant)

    def check(self, db: Connection) -> Iterator[LogBroken]:
        gone = {grant for grant, study in self._studies.items() if study in self._erased.studies}
        for grant in self._marked.keys() - gone:
            yield LogBroken(f"the stored answer under key {self._marked[grant]} was changed", about=grant)
        for grant in gone:
            for row in stored_replies.answers_of(db, grant):
                if stored_replies.describes(row.body):
                    what = f"the answer under key {row.idempotency_key} is stored, and the log says it was erased"
                    yield LogBroken(what, about=grant)
        if stored_replies.count_answers(db) == self._count:
            return
        logged = {
            (exchange["grant_id"], exchange["idempotency_key"])
            for exchange in (record.get("exchange") for record in audit_log.of_kind(db, "exchange", *_ANSWERING))
            if exchange
        }
        unlogged = [(grant, key) for grant, key in stored_replies.answer_keys(db) if (grant, key) not in logged]
        for grant, key in unlogged:
            yield LogBroken(f"the stored answer under key {key} is not in the log", about=grant)
        if stored_replies.count_answers(db) - len(unlogged) == self._count - self._missing:
            return
        raise LogBroken("an answer is in the log twice, as if it were new")


_ANSWERING = ("checkpoint.countersigned", "message.received")
"""Kinds of records, beside exchanges, about requests of modelers that are answered."""


@dataclass(slots=True)
class _ChargedQuery:
    study_id: str
    is_answered: bool = False


class _LedgerLogSummary:
    """Charges and refusals of studies, and the queries that were charged."""

    kinds = None

    def __init__(self, db: Connection) -> None:
        self._db = db
        self._accounts: dict[str, Account] = {}
        self._charged: dict[str, _ChargedQuery] = {}

    def follow(self, record: Json) -> None:
        details, exchange = record.get("details", {}), record.get("exchange")
        if record["kind"] in ("charge", "charge.refused"):
            if (study := details["study_id"]) not in self._accounts:
                self._accounts[study] = Account(_prices(self._db, study))
            self._accounts[study].take(details, refused=record["kind"] == "charge.refused")
            query = details.get("query_id")
            if (query in self._charged) != ("version" in details):  # a correction follows the charge of its query
                raise LogBroken(f"query {query} was charged twice, or corrected before it was charged", about=study)
            if query is not None:
                self._charged.setdefault(query, _ChargedQuery(study))
        elif exchange and exchange["status"] in (201, 202) and not exchange["replayed"] and "query_id" in details:
            query = self._charged.get(details["query_id"])
            if query is None or query.is_answered:
                what = "answered before it was charged" if query is None else "answered twice"
                raise LogBroken(f"query {details['query_id']} was {what}", about=exchange["study_id"])
            query.is_answered = True

    def check(self, db: Connection) -> Iterator[LogBroken]:
        counts = dict.fromkeys(self._accounts, 0)
        for line in store.every(db, ledger):
            count, study = counts.get(line.study_id, 0), line.study_id
            counts[study] = count + 1
            if study not in self._accounts or count >= len(self._accounts[study]):
                yield LogBroken(f"ledger line {line.seq} is not in the log", about=study)
            elif self._accounts[study].digest(count) != line_digest(tuple(line)[2:-1]):
                what = "it was changed, or one is missing"
                yield LogBroken(f"ledger line {line.seq} is not what the log says: {what}", about=study)
        for study, account in self._accounts.items():
            if counts[study] < len(account):
                what = f"lacks the last of {len(account)} lines in the log"
                yield LogBroken(f"the ledger of {study} {what}", about=study)
        for row in store.every(db, store.queries):
            charged = self._charged.pop(row.id, None)
            if charged is None or charged.study_id != row.study_id:
                others = [] if charged is None else [charged.study_id]
                yield LogBroken(f"query {row.id} is missing in the log", about=row.study_id, others=others)
        for name, charged in self._charged.items():
            yield LogBroken(f"query {name} is missing in the table of queries", about=charged.study_id)


def _prices(db: Connection, study_id: str) -> Prices:
    try:
        return Prices.of(store.spec_of(db, study_id))
    except (NotFound, ValueError):
        raise LogBroken(f"study {study_id} was charged and is missing, or was changed", about=study_id) from None
