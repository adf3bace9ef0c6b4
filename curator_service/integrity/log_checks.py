"""Check the curator's tables against its audit log: part of `audit verify`.

Each summary follows the log record by record, then checks that its tables hold what the log says.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import cached_property, partial
from itertools import islice, starmap
from pathlib import Path
from typing import Any, ClassVar

from blindopt import wire
from blindopt.audit.merkle_log import Json, sha256
from blindopt.errors import BudgetExhausted, LogBroken, NotFound, StorageUnavailable
from blindopt.wire import FileReading
from curator_service import store
from curator_service.budget.ledger import A_FILE, NO_CHARGES, Account, Balance, Cost, RowBalance, is_raised, unrefined
from curator_service.budget.ledger_lines import refined_rows
from curator_service.budget.overlaps import decisions_of
from curator_service.budget.table import account_lines, ledger
from curator_service.datasets import table as withheld
from curator_service.datasets.table import bounds
from curator_service.erasure import table as erasures
from curator_service.privacy.prices import Prices, text, units
from curator_service.queries import table as inbox_store
from curator_service.queries.table import BATCHES, AnswerVersion, Entry, MeasuredQuery, Measurement, digest
from curator_service.salted_digests import salted_digest, salted_file_digest
from curator_service.studies import table as messages
from service_kit.context.log_summaries import (
    OTHER,
    LogSummary,
    Part,
    PrincipalLogSummary,
    RowDigest,
    StatefulSummary,
    summarize,
)
from service_kit.store import audit_log, stored_replies
from service_kit.store.database import Connection
from service_kit.store.stored_replies import is_erased


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


_COUNTED = ("queries", "measurements", "replies", "messages")


class ErasureLogSummary:
    """Datasets that were erased, with their studies. Other summaries look here what they cannot check any more."""

    kinds = ("dataset.erased",)

    def __init__(self) -> None:
        self.datasets: set[str] = set()
        self.studies: set[str] = set()
        self._counts: Counter[str] = Counter()

    def follow(self, record: Json) -> None:
        details = record["details"]
        self.datasets.add(details["dataset_id"])
        self.studies |= set(details["studies"])
        self._counts.update({name: details[name] for name in _COUNTED})

    def check(self, db: Connection) -> Iterator[LogBroken]:
        """Yield a dataset that is erased where the log does not say so, or the reverse."""
        stored = set(erasures.erased(db))
        for dataset_id in sorted(stored - self.datasets):
            yield LogBroken(f"dataset {dataset_id} is erased, and the log does not say so")
        for dataset_id in sorted(self.datasets - stored):
            if store.registered(db, dataset_id) is not None:
                yield LogBroken(f"dataset {dataset_id} is stored, and the log says that it was erased")
        if erasures.erased_studies(db) - self.studies:
            raise LogBroken("a study is on an erased dataset, and the log does not say that it was erased")
        if remaining := erasures.still_there(db, sorted(self.studies)):
            raise LogBroken(f"{remaining} entries of the inbox were erased, and hold values or notes")

    @property
    def words(self) -> str:
        if not self.datasets:
            return ""
        counts = ", ".join(f"{self._counts[name]} {name}" for name in _COUNTED)
        return f"erased: {len(self.datasets)} datasets with {len(self.studies)} studies, {counts}"


def erased_in_words(db: Connection) -> str:
    """What was erased, by the log, for who verifies; empty if nothing was."""
    summary = ErasureLogSummary()
    for record in audit_log.of_kind(db, *ErasureLogSummary.kinds):
        summary.follow(record)
    return summary.words


def archivable(db: Connection) -> list[StatefulSummary]:
    """The summaries of records that are archived."""
    return [InboxLogSummary(ErasureLogSummary()), _LedgerLogSummary(db), _ReplyLogSummary(db)]


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
        for dataset_id, reading in store.readings(db).items():
            if dataset_id in self._deleted:
                yield self._fault(dataset_id, f"dataset {dataset_id} is stored, and the log says that it was deleted")
            logged = self._readings.pop(dataset_id, None)
            if _digest(reading) != (None if dataset_id in self._erased.datasets else logged):
                what = "how it was read is not what the log says"
                yield self._fault(dataset_id, f"dataset {dataset_id} was changed: {what}")
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
        fault = "its columns, rows or persons are not what the log or its file says"
        return f"dataset {dataset.id} was changed: {fault}" if is_changed else None

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

    def _fault(self, dataset_id: str, fault: str) -> LogBroken:
        """A finding about a dataset, and about its account by the log; without one about all accounts."""
        account = self._registered.get(dataset_id, {}).get("account", A_FILE)
        return LogBroken(fault, about=dataset_id, others=self._joined.get(account, [account]))


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
            for row in store.every(db, store.advisories)
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
        yield from _check_lists("withheld records", stored, self._units)


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
            yield from _check_lists(name, self._by_study(name, rows), self._by_study(name, logged[name]))

    def _by_study(self, name: str, rows: list[tuple[Any, ...]]) -> defaultdict[str, list[tuple[Any, ...]]]:
        """What is left to compare: without the digest, which comes last, where the text is erased."""
        by_study: defaultdict[str, list[tuple[Any, ...]]] = defaultdict(list)
        for study, *content in rows:
            is_erased = name != "raises of caps" and study in self._erased.studies
            by_study[study].append(tuple(content[:-1] if is_erased else content))
        return by_study


def _check_lists(what: str, stored: Mapping[str, list[Any]], logged: Mapping[str, list[Any]]) -> Iterator[LogBroken]:
    """Yield each study or account of which the log has another list of ``what`` than its table."""
    for name in sorted(stored.keys() | logged.keys()):
        if stored.get(name, []) != logged.get(name, []):
            yield LogBroken(f"the {what} are not those of the log: one was changed, added or removed", about=name)


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
            elif release is not None and self._is_over(db, study, release.id):
                yield LogBroken("more persons were measured again than its owner allows", about=study)

    def _is_over(self, db: Connection, study: str, release: str) -> bool:
        """Whether second draws were charged of more persons, by the file of their records, than the study allows."""
        from curator_service.vault import Vault

        spec = store.spec_of(db, study)
        if spec.refine is None or spec.refine.persons is None or not spec.person_column:
            return False
        vault, rows = Vault(self._files), sorted(refined_rows(db, study))
        with suppress(StorageUnavailable):  # without its files it is used by nothing
            digests = vault.persons(spec.dataset_id)[vault.order(release)[rows]]
            return len({digest.tobytes() for digest in digests}) > spec.refine.persons
        return False


class _ReplyLogSummary:
    """Stored replies to modelers: the first under each key, which every later one must repeat."""

    kinds, staying_kinds = None, ()

    def __init__(self, db: Connection) -> None:
        self._db, self._stored = db, stored_replies.Answers(db)
        self._erased = ErasureLogSummary()
        self._count = self._missing = 0
        self._studies: dict[str, str] = {}
        """By grant."""
        self._marked: dict[str, str] = {}
        """By grant, the key of a reply in whose place is the marker of an erasure."""
        self._refined: defaultdict[str, dict[int, str]] = defaultdict(dict)
        """By study, the digest of each charged second draw that a reply has; empty until then. A segment's file has it,
        so it is salted with what an erasure overwrites."""
        self._salts: dict[str, str] = {}
        self._is_whole = True

    def state(self) -> Json:
        """The state after archived records: the replies to these are counted, and no service sends them any more."""
        state = {"count": self._count, "studies": self._studies, "erased": sorted(self._erased.studies)}
        refined = {study: list(digests.items()) for study, digests in self._refined.items()}
        return state | ({"refined": refined} if refined else {})

    def load(self, state: Json) -> None:
        self._count, self._studies, self._is_whole = state["count"], state["studies"], False
        self._erased.studies = set(state["erased"])
        self._refined.update({study: dict(digests) for study, digests in state.get("refined", {}).items()})

    def follow(self, record: Json) -> None:
        exchange = record.get("exchange")
        if record["kind"] in self._erased.kinds:
            self._erased.follow(record)
        self._refine(record)
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
        elif exchange["status"] == 201 and exchange["study_id"] in self._refined:
            self._check_refined(exchange["study_id"], stored.body)

    def _refine(self, record: Json) -> None:
        """Take charges of second draws, and the versions of answers that hold them."""
        details = record.get("details", {})
        if record["kind"] == "charge":
            for row in details.get("refined", ()):
                self._refined[details["study_id"]].setdefault(row, "")
        elif record["kind"] == "query.answered" and details["study_id"] in self._refined:
            version = inbox_store.find_published(self._db, details["query_id"], details["version"])
            if version is not None and not is_erased(version.body):  # another summary says that it is missing
                self._check_refined(details["study_id"], version.body)

    def _check_refined(self, study: str, body: bytes) -> None:
        """Check that a reply has second draws that were charged before it, and each as the first reply had it."""
        for refinement in json.loads(body).get("refined", ()):
            row, digest = refinement["row"], self._digest(study, json.dumps(refinement["z"]))
            if self._refined[study].get(row) is None:
                raise LogBroken(f"the second draw of candidate {row} was sent before it was charged", about=study)
            if (first := self._refined[study][row] or digest) != digest:
                raise LogBroken(f"the second draw of candidate {row} was sent in two ways", about=study)
            self._refined[study][row] = first

    def _digest(self, study: str, z: str) -> str:
        if study not in self._salts:
            release = store.release_of(self._db, study)
            self._salts[study] = release.order_salt or "" if release is not None else ""
        return sha256(f"{self._salts[study]}{z}".encode())

    def _check_stored_refinements(self, db: Connection) -> Iterator[LogBroken]:
        stored: defaultdict[str, dict[int, str]] = defaultdict(dict)
        for row in store.every(db, inbox_store.refinements):
            stored[row.study_id][row.row] = self._digest(row.study_id, row.z) if row.z else ""
        for study in stored.keys() | self._refined.keys():
            sent = {row: digest for row, digest in self._refined[study].items() if digest}
            if study in self._erased.studies:  # replies that are erased cannot say which second draws they had
                sent = {row: "" for row in stored[study] if row in self._refined[study]}
            if stored[study] != sent:
                yield LogBroken("the stored second draws are not those that were charged and sent", about=study)

    def check(self, db: Connection) -> Iterator[LogBroken]:
        yield from self._check_stored_refinements(db)
        gone = {grant for grant, study in self._studies.items() if study in self._erased.studies}
        for grant in self._marked.keys() - gone:
            yield LogBroken(f"the stored answer under key {self._marked[grant]} was changed", about=grant)
        for grant in gone:
            for row in stored_replies.answers_of(db, grant):
                if stored_replies.describes(row.body):
                    fault = f"the answer under key {row.idempotency_key} is stored, and the log says it was erased"
                    yield LogBroken(fault, about=grant)
        if stored_replies.count_answers(db) == self._count:
            return
        if not self._is_whole:
            raise LogBroken("the stored answers are not as many as the log says")
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


_ANSWERING = ("checkpoint.countersigned", "message.received", "query.all_answered")
"""Kinds of records, beside exchanges, about requests of modelers that are answered."""


@dataclass(slots=True)
class _ChargedQuery:
    study_id: str
    is_answered: bool = False


class _LedgerLogSummary:
    """Charges and refusals of studies, and the queries that were charged."""

    kinds, staying_kinds = None, ()

    def __init__(self, db: Connection) -> None:
        self._db = db
        self._accounts: dict[str, StudyLedger] = {}
        self._charged: dict[str, _ChargedQuery] = {}
        self._archived: defaultdict[str, RowDigest] = defaultdict(RowDigest)
        """By study, the queries whose charges are in archived records."""
        self._unanswered: dict[str, str] = {}
        """Those of them that have no answer in these, and their studies."""

    def state(self) -> Json:
        for name, query in self._charged.items():
            self._archived[query.study_id].add(name.encode())
            if not query.is_answered:
                self._unanswered[name] = query.study_id
        self._charged.clear()
        accounts = {study: account.state() for study, account in self._accounts.items()}
        queries = {study: asdict(digest) for study, digest in self._archived.items()}
        return {"accounts": accounts, "queries": queries, "unanswered": self._unanswered}

    def load(self, state: Json) -> None:
        for study, account in state["accounts"].items():
            self._accounts[study] = StudyLedger(partial(_prices, self._db, study))
            self._accounts[study].load(account)
        self._archived.update({study: RowDigest(**digest) for study, digest in state["queries"].items()})
        self._unanswered = state["unanswered"]

    def follow(self, record: Json) -> None:
        details, exchange = record.get("details", {}), record.get("exchange")
        if record["kind"] in ("charge", "charge.refused"):
            if (study := details["study_id"]) not in self._accounts:
                self._accounts[study] = StudyLedger(partial(_prices, self._db, study))
            self._accounts[study].take(details, refused=record["kind"] == "charge.refused")
            query, is_correction = details.get("query_id"), "version" in details  # it follows the charge of its query
            if (query in self._charged or (is_correction and self._is_archived(query, study))) != is_correction:
                raise LogBroken(f"query {query} was charged twice, or corrected before it was charged", about=study)
            if query is not None and not is_correction:
                self._charged[query] = _ChargedQuery(study)
        elif exchange and exchange["status"] in (201, 202) and not exchange["replayed"] and "query_id" in details:
            query = self._charged.get(details["query_id"])
            if query is None and self._unanswered.pop(details["query_id"], None) is not None:
                return
            if query is None or query.is_answered:
                fault = "answered before it was charged" if query is None else "answered twice"
                raise LogBroken(f"query {details['query_id']} was {fault}", about=exchange["study_id"])
            query.is_answered = True

    def _is_archived(self, query: str, study: str) -> bool:
        """Whether a query was charged in archived records; by the table, which is compared with these."""
        with suppress(NotFound):
            return self._archived[study].count > 0 and store.find(self._db, store.queries, query).study_id == study
        return False

    def check(self, db: Connection) -> Iterator[LogBroken]:
        counts = dict.fromkeys(self._accounts, 0)
        archived: defaultdict[str, RowDigest] = defaultdict(RowDigest)
        for line in store.every(db, ledger):
            count, study = counts.get(line.study_id, 0), line.study_id
            counts[study] = count + 1
            if study not in self._accounts or count >= len(self._accounts[study]):
                yield LogBroken(f"ledger line {line.seq} is not in the log", about=study)
            elif count < self._accounts[study].archived.count:
                archived[study].add(line_digest(tuple(line)[2:-1]))
            elif self._accounts[study].digest(count) != line_digest(tuple(line)[2:-1]):
                fault = "it was changed, or one is missing"
                yield LogBroken(f"ledger line {line.seq} is not what the log says: {fault}", about=study)
        for study, account in self._accounts.items():
            if counts[study] < len(account):
                what = f"lacks the last of {len(account)} lines in the log"
                yield LogBroken(f"the ledger of {study} {what}", about=study)
            elif archived[study] != account.archived:
                what = f"one of its first {account.archived.count} lines was changed"
                yield LogBroken(f"the ledger of {study} is not what the log says: {what}", about=study)
        yield from self._check_queries(db)

    def _check_queries(self, db: Connection) -> Iterator[LogBroken]:
        archived: defaultdict[str, RowDigest] = defaultdict(RowDigest)
        for row in store.every(db, store.queries):
            if archived[row.study_id].count < self._archived[row.study_id].count:
                archived[row.study_id].add(row.id.encode())
                continue
            charged = self._charged.pop(row.id, None)
            if charged is None or charged.study_id != row.study_id:
                others = [] if charged is None else [charged.study_id]
                yield LogBroken(f"query {row.id} is missing in the log", about=row.study_id, others=others)
        for name, charged in self._charged.items():
            yield LogBroken(f"query {name} is missing in the table of queries", about=charged.study_id)
        for study in archived.keys() | self._archived.keys():
            if archived[study] != self._archived[study]:
                what = f"its first {self._archived[study].count} queries are not those of the log"
                yield LogBroken(f"study {study} was changed: {what}", about=study)


def _prices(db: Connection, study_id: str) -> Prices:
    try:
        return Prices.of(store.spec_of(db, study_id))
    except (NotFound, ValueError):
        raise LogBroken(f"study {study_id} was charged and is missing, or was changed", about=study_id) from None


STUDY_KINDS = (
    "study.created",
    "study.changed",
    "study.deleted",
    "study.caps_raised",
    "study.released",
    "study.closed",
    "log.restored",
    "dataset.erased",
)
_CLOSING = {"log.restored": "closed_studies", "dataset.erased": "studies"}
"""Kinds of records that close several studies, and where they name them."""


@dataclass
class LoggedStudy:
    """A study as the log describes it."""

    spec_sha256: str
    release_sha256: str | None = None
    report_sha256: str | None = None
    """None also for a release that was recorded without it, before version 0.3."""
    closed: bool = False
    release_of: str | None = None
    """The study whose release it reads."""

    def fault(self, row: Any, release: Any) -> str | None:
        """What differs in the row of the study, or in that of its release; None if nothing does."""
        if sha256(row.spec.encode()) != self.spec_sha256:
            return f"study {row.id} was changed: its spec is not the one in the log"
        if json.loads(row.spec)["dataset_id"] != row.dataset_id:
            return f"study {row.id} was changed: it is on another dataset than its spec says"
        if release is not None and json.loads(row.spec).get("release_of") != self.release_of:
            return f"study {row.id} was changed: it reads another release than the log says"
        if (None if release is None else release.sha256) != self.release_sha256:
            return f"the release of study {row.id} is not the one in the log"
        if release is not None and self.report_sha256 not in (None, sha256(release.report.encode())):
            return f"the report of the release of study {row.id} was changed"
        if release is not None and not {"n": release.n, "r": release.r}.items() <= json.loads(release.report).items():
            return f"the release of study {row.id} was changed: its candidates are not as many as its report says"
        states = {"closed"} if self.closed else {"draft", "releasing"} if release is None else {"open"}
        if row.state not in states:
            return f"study {row.id} is {row.state}, and the log does not say so"
        return None


class StudyLogSummary:
    """Studies: spec, release and state."""

    kinds = STUDY_KINDS

    def __init__(self) -> None:
        self.studies: dict[str, LoggedStudy] = {}

    def follow(self, record: Json) -> None:
        """Take the next record of the log. Raises LogBroken if it contradicts an earlier one."""
        kind, details = record["kind"], record.get("details", {})
        if kind not in STUDY_KINDS:
            return
        if kind in _CLOSING:
            for study_id in details[_CLOSING[kind]]:
                study = self._created(study_id)
                study.closed = True  # an erasure may have changed the report, too
                study.report_sha256 = details.get("reports", {}).get(study_id, study.report_sha256)
        elif kind == "study.created":
            self.studies[details["study_id"]] = LoggedStudy(details["spec_sha256"])
        else:
            self._change(kind, details["study_id"], details)

    def _change(self, kind: str, study_id: str, details: Json) -> None:
        study = self._created(study_id)
        is_draft = study.release_sha256 is None and not study.closed
        is_same = study.spec_sha256 == details.get("replaces")
        if kind == "study.changed":
            if not is_draft or not is_same:
                raise LogBroken(
                    f"study {study_id} was changed when it was no draft, or from another one", about=study_id
                )
            study.spec_sha256 = details["spec_sha256"]
        elif kind == "study.deleted":
            if not is_draft:
                raise LogBroken(f"study {study_id} was deleted when it was no draft", about=study_id)
            del self.studies[study_id]
        elif kind == "study.caps_raised":
            if is_draft or study.closed or not is_same:
                fault = "were raised when it was not open, or of another"
                raise LogBroken(f"caps of study {study_id} {fault}", about=study_id)
            study.spec_sha256 = details["spec_sha256"]
        elif kind == "study.released":
            study.release_sha256, study.report_sha256 = details["sha256"], details.get("report_sha256")
            if (source_id := details.get("release_of")) is not None:
                study.release_of, source = source_id, self._created(source_id)
                is_copy = source.release_sha256 is not None and source.release_sha256 == study.release_sha256
                if source.release_of is not None or not is_copy:
                    fault = "has other candidates than the release that it reads"
                    raise LogBroken(f"study {study_id} {fault}", about=study_id, others=[A_FILE])
        else:
            study.closed = True

    def _created(self, study_id: str) -> LoggedStudy:
        if (study := self.studies.get(study_id)) is None:
            raise LogBroken(f"study {study_id} is in the log and was never created there", about=study_id)
        return study

    def check(self, db: Connection) -> Iterator[LogBroken]:
        """Yield what differs in the row of a study, or of its release, from the log."""
        missing = dict(self.studies)
        for row in store.every(db, store.studies):
            if (study := missing.pop(row.id, None)) is None:
                yield LogBroken(f"study {row.id} is not in the log", about=row.id, others=[A_FILE])
            elif (fault := study.fault(row, store.release_of(db, row.id))) is not None:
                yield LogBroken(fault, about=row.id, others=[A_FILE])
        for name in missing:
            yield LogBroken(f"study {name} is missing", about=name, others=[A_FILE])


_DIGEST = 16


def line_digest(content: tuple[Any, ...]) -> bytes:
    return hashlib.blake2b(repr(content).encode(), digest_size=_DIGEST).digest()


class StudyLedger:
    """What one study has spent, charge by charge, as the log describes it."""

    def __init__(self, prices: Callable[[], Prices]) -> None:
        self._prices_of = prices
        self.balance = Balance()
        self.rows: dict[int, RowBalance] = {}
        self.refined: dict[int, None] = {}
        """The rows that were charged for a second draw, in order."""
        self.archived = RowDigest()
        """The lines that rest on archived records."""
        self._digests = bytearray()

    @cached_property
    def prices(self) -> Prices:
        return self._prices_of()

    def __len__(self) -> int:
        return self.archived.count + len(self._digests) // _DIGEST

    def state(self) -> Json:
        """All that ``load`` needs to go on."""
        for start in range(0, len(self._digests), _DIGEST):
            self.archived.add(bytes(self._digests[start : start + _DIGEST]))
        self._digests.clear()
        rows = [(row, *astuple(balance)) for row, balance in self.rows.items()]
        state = {"balance": asdict(self.balance), "rows": rows, "lines": asdict(self.archived)}
        return state | ({"refined": list(self.refined)} if self.refined else {})

    def load(self, state: Json) -> None:
        self.balance, self.archived = Balance(**state["balance"]), RowDigest(**state["lines"])
        self.rows = {row: RowBalance(*balance) for row, *balance in state["rows"]}
        self.refined = dict.fromkeys(state.get("refined", ()))

    def digest(self, count: int) -> bytes:
        count -= self.archived.count
        return bytes(self._digests[count * _DIGEST : (count + 1) * _DIGEST])

    def take(self, details: Json, *, refused: bool = False) -> None:
        """Take the next charge or refusal. Raises LogBroken if its epsilon is not the price of its request."""
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
            self._refine(details)
            if details["epsilon"] != text(self.balance.total - before):
                fault = "the log has another epsilon than its study's price"
                raise LogBroken(f"query {details['query_id']}: {fault}", about=details["study_id"])

    def _refine(self, details: Json) -> None:
        """Add a line for each row of a query that has no second draw yet, where measured records leave again."""
        rows = [] if "version" in details or not self.prices.refine else details["rows"]
        fresh = unrefined(rows, self.refined)
        if details.get("refined", []) != fresh:
            fault = "the log does not charge the second draw of each of its records once"
            raise LogBroken(f"query {details['query_id']}: {fault}", about=details["study_id"])
        for row in fresh:
            self._charge("refine", details["query_id"], row, 0, self.prices.refine)
        self.refined |= dict.fromkeys(fresh)
        if fresh and len(self.refined) > self.prices.refined_rows:
            fault = "more records were refined than belong to as many persons as its owner allows"
            raise LogBroken(f"query {details['query_id']}: {fault}", about=details["study_id"])

    def _charge(self, kind: str, query_id: str, row: int, plays: int, cost: int) -> None:
        """Add a line of answers; or of a correction or a second draw, which are no queries."""
        old, before = self.rows.get(row, RowBalance()), self.balance
        self.rows[row] = RowBalance(old.queries + (kind == "answers"), old.plays + plays, old.total + cost)
        self.balance = Balance(before.release, before.total + cost, before.plays + plays)
        self._add(kind, query_id, row, plays, cost, None, self.rows[row])

    def _refuse(self, details: Json) -> None:
        row, cap, study = details["row"], details["cap"], details["study_id"]
        if details["rows"] == "all":  # a release, which a cap of the dataset's account refused
            cost = self.prices.release
            if cap == "dataset.epsilon" and details["requested"] != text(cost):
                raise LogBroken("a refused release in the log has another amount than it costs", about=study)
            self._add("refused", None, None, 0, cost, cap, RowBalance())
            return
        of_cap = [(requested, plays) for requested, plays in details["rows"] if row in (None, requested)]
        fresh = unrefined(of_cap, self.refined) if self.prices.refine else []
        cost, plays = sum(self.prices.cost(n) for _, n in of_cap), sum(n for _, n in of_cap)
        cost += self.prices.refine * len(fresh)
        costs = {"queries": [str(plays)], "refine.persons": [str(n) for n in range(1, 1 + len(fresh))]}
        if details["requested"] not in costs.get(cap, [text(cost)]):
            raise LogBroken("a refusal in the log has another amount than its request costs", about=study)
        of_row = self.rows.get(row, RowBalance()) if row is not None else RowBalance()
        self._add("refused", None, row, plays, cost, cap, of_row)

    def _add(
        self, kind: str, query: str | None, row: int | None, plays: int, cost: int, cap: str | None, of_row: RowBalance
    ) -> None:
        balance = self.balance
        balances = of_row.queries, of_row.plays, of_row.total, balance.release, balance.total, balance.plays
        self._digests += line_digest((kind, query, row, plays, text(cost), cap, *balances))


class TuningLogSummary:
    """Tunings, private bounds, and the lines of dataset accounts, as the log describes them."""

    kinds = (
        "dataset.caps",
        "dataset.decided",
        "tuning.started",
        "tuning.refused",
        "tuning.ended",
        "tuning.cancelled",
        "bounds.started",
        "bounds.refused",
        "log.restored",
    )

    def __init__(self, erased: ErasureLogSummary) -> None:
        self._erased = erased
        self._accounts: dict[str, Account] = {}
        self._lines: defaultdict[str, list[tuple[Any, ...]]] = defaultdict(list)
        """By account."""
        self._joined: dict[str, list[str]] = {}
        """By name, all files of an account that several have become."""
        self._tunings: dict[str, tuple[str, str, str | None]] = {}
        self._prices: dict[str, tuple[str, str, str]] = {}
        """Dataset, epsilon and delta of each tuning, and of private bounds."""

    def follow(self, record: Json) -> None:
        """Take the next record of the log.

        Raises LogBroken for a charge beyond a cap, a hidden raise, and an end without a start.
        """
        kind, details = record["kind"], record.get("details", {})
        if kind == "tuning.started":
            delta = None if details["cap_delta"] is None else float(details["cap_delta"])
            caps = wire.TuningCaps(epsilon=details["cap_epsilon"], delta=delta)
            # Earlier versions counted every tuning against the caps, and said no kind.
            before, kind = self._account(details["account"]), details.get("guarantee_kind", "worst_case")
            before = before.lowered(caps) if kind == "worst_case" else before
            self._tunings[details["tuning_id"]] = details["spec_sha256"], "running", None
            self._charge("tuning", details["tuning_id"], before, details)
        elif kind == "bounds.started":
            self._charge("bounds", details["bounds_id"], self._account(details["account"]), details)
        elif kind in ("tuning.refused", "bounds.refused"):
            self._add(details["account"], "refused", None, details["epsilon"], details["delta"], details["cap"])
        elif kind in ("tuning.ended", "tuning.cancelled"):
            if (started := self._tunings.get(details["tuning_id"])) is None:
                fault = f"tuning {details['tuning_id']} has ended in the log and was never started there"
                raise LogBroken(fault, about=details["tuning_id"])
            state = details.get("state", "cancelled")
            self._tunings[details["tuning_id"]] = started[0], state, details.get("outcome_sha256")
        elif kind == "dataset.caps" and details["act"] != "unchanged":
            self._change_caps(details)
        elif kind == "dataset.decided" and details["files"]:
            self._join(details)
        elif kind == "log.restored":
            for name in details.get("closed_accounts", []):
                self._accounts[name] = replace(self._account(name), closed=True)
                self._add(name, "closed", None, "0", "0", None)

    def _charge(self, kind: str, subject: str, before: Account, details: Json) -> None:
        name = details["account"]
        self._prices[subject] = details["dataset_id"], details["epsilon"], details["delta"]
        guarantee_kind = details.get("guarantee_kind")
        cost = Cost.of(details["epsilon"], details["delta"])
        try:
            self._set(name, before.charge(cost, guarantee_kind or "worst_case"))
        except BudgetExhausted:
            raise LogBroken(f"{kind} {subject} was charged beyond a cap", about=name) from None
        self._add(name, kind, subject, details["epsilon"], details["delta"], None, guarantee_kind)

    def _change_caps(self, details: Json) -> None:
        name, old = details["account"], self._account(details["account"])
        new = old.with_caps(details["cap_epsilon"], details["cap_delta"])
        raised = is_raised(old.cap_epsilon, new.cap_epsilon) or is_raised(old.cap_delta, new.cap_delta)
        if raised != (details["act"] == "raised") or raised != (details["reason_sha256"] is not None):
            raise LogBroken(f"a cap of {name} was raised, and the log does not say so and why", about=name)
        self._set(name, new)
        self._add(name, "cap", details["reason_sha256"], "0", "0", details["act"])

    def _join(self, details: Json) -> None:
        """Several accounts become one, with the lowest caps."""
        name, files = details["account"], details["files"]
        lowest = self._account(name).with_lowest(map(self._account, files))
        if lowest.cap_texts != (details["cap_epsilon"], details["cap_delta"]):
            raise LogBroken(f"accounts became that of {files[0]}, and not with the lowest caps", about=name)
        self._joined |= dict.fromkeys(files, files)
        self._set(name, lowest)
        self._add(name, "cap", None, "0", "0", "continued")

    def _set(self, name: str, account: Account) -> None:
        """The account of a file is this one, and its caps are those of all files in it."""
        for other in self._joined.get(name, ()):
            self._accounts[other] = self._account(other).with_caps(*account.cap_texts)
        self._accounts[name] = account

    def _account(self, name: str) -> Account:
        return self._accounts.get(name, NO_CHARGES)

    def _add(
        self,
        name: str,
        kind: str,
        subject: str | None,
        epsilon: str,
        delta: str,
        cap: str | None,
        guarantee_kind: str | None = None,
    ) -> None:
        after = self._account(name)
        costs, totals = Cost.of(epsilon, delta).texts, after.total.texts
        self._lines[name].append((kind, subject, *costs, cap, *after.cap_texts, *totals, guarantee_kind))

    def check(self, db: Connection) -> Iterator[LogBroken]:
        """Yield what differs in a tuning, or in a line of the ledger, from the log."""
        counts: Counter[str] = Counter()
        for row in store.every(db, account_lines):
            # The log has the digest of a reason.
            subject = sha256(row.subject.encode()) if row.kind == "cap" and row.subject is not None else row.subject
            charge = row.kind, subject, row.epsilon, row.delta, row.cap
            caps, totals = (row.cap_epsilon, row.cap_delta), (row.total_epsilon, row.total_delta)
            line = (*charge, *caps, *totals, row.guarantee_kind)
            if self._lines[row.account][counts[row.account] :][:1] != [line]:
                yield LogBroken(
                    f"line {row.seq} of the accounts of datasets is not what the log says", about=row.account
                )
            counts[row.account] += 1
        for account, lines in self._lines.items():
            if counts[account] < len(lines):
                yield LogBroken("the accounts of datasets lack lines that are in the log", about=account)
        stored: dict[str, tuple[str | None, str, str | None] | None] = {}
        gone = set()
        for row in store.every(db, store.tunings):
            stored[row.id] = salted_digest(row.spec, row.salt), row.state, salted_digest(row.outcome, row.salt)
            if row.dataset_id in self._erased.datasets:  # the salt is erased, too
                stored[row.id] = None, row.state, None
                gone.add(row.id)
            report = json.loads(row.report)
            if self._prices.get(row.id, ()) != (row.dataset_id, report["epsilon"], report["delta"]):
                stored[row.id] = None
        logged = {name: (None, t[1], None) if name in gone else t for name, t in self._tunings.items()}
        yield from check_rows("tuning", stored, logged)
        datasets = store.every(db, store.datasets)
        records = {row.id: 1 if row.person_column is None else row.rows_per_person for row in datasets}
        priced = {}
        for row in store.every(db, bounds):
            spec = json.loads(row.spec)
            price = row.dataset_id, *Cost.of(spec["wanted"]["epsilon"], "0").texts
            priced[row.id] = price if spec["records"] == records.get(row.dataset_id) else None
        # Version 0.2.0 logged epsilon as it was typed.
        charged = {
            name: (dataset, *Cost.of(epsilon, delta).texts)
            for name, (dataset, epsilon, delta) in self._prices.items()
            if name not in self._tunings
        }
        yield from check_rows("bounds", priced, charged)


def check_rows(what: str, stored: Mapping[str, object], logged: Mapping[str, object]) -> Iterator[LogBroken]:
    """Yield what differs in the rows of a table, by id, from the contents that the log records."""
    for name in sorted(stored.keys() | logged.keys()):
        if stored.get(name) != logged.get(name):
            fault = "is not what the log says: it was changed, or is not in the log" if name in stored else "is missing"
            yield LogBroken(f"{what} {name} {fault}", about=name, others=[A_FILE])


@dataclass
class InboxLogSummary:
    """Queries that people or a system measure, as the log describes them."""

    kinds: ClassVar[None] = None
    staying_kinds: ClassVar[tuple[str, ...]] = (*BATCHES, "query.answered", "retention.swept")

    erased: ErasureLogSummary
    queries: dict[str, str] = field(default_factory=dict)
    """The study of each, in their order; of archived ones, once their rows are compared with the digest of these."""
    archived: RowDigest = field(default_factory=RowDigest)
    lost: int = 0
    """How many queries, the first ones, get no more versions."""
    batches: list[tuple[int, str, str]] = field(default_factory=list)
    """The last entry of each batch, its query, and the digest of its entries."""
    versions: dict[str, list[tuple[str, int]]] = field(default_factory=lambda: defaultdict(list))
    """By query, the digest of each version and its number of answers released anew."""
    corrections: Counter[str] = field(default_factory=Counter)
    """By query, how many answers were charged again."""

    def state(self) -> Json:
        for name, study in self.queries.items():
            self.archived.add(f"{name} {study}".encode())
        self.queries.clear()
        return {"queries": asdict(self.archived), "lost": self.lost, "corrections": self.corrections}

    def load(self, state: Json) -> None:
        self.archived, self.lost = RowDigest(**state["queries"]), state["lost"]
        self.corrections.update(state["corrections"])

    def follow(self, record: Json) -> None:
        """Take the next record of the log. Raises LogBroken if it contradicts an earlier one."""
        kind, details, exchange = record["kind"], record.get("details", {}), record.get("exchange")
        if exchange and exchange["method"] == "POST" and exchange["status"] == 202 and not exchange["replayed"]:
            self.queries[details["query_id"]] = exchange["study_id"]
        elif kind in BATCHES:
            self._batch(details)
        elif kind == "query.answered":
            if details["version"] != len(self.versions[details["query_id"]]) + 1:
                raise LogBroken(f"version {details['version']} of query {details['query_id']} is out of order")
            self.versions[details["query_id"]].append((details["reply_sha256"], details["released"]))
        elif kind == "charge" and "version" in details:
            self.corrections[details["query_id"]] += sum(n for _, n in details["rows"])
        elif kind == "retention.swept":
            self._sweep(dict(details.get("batches", [])))
        elif kind == "log.restored":
            self.lost = self.archived.count + len(self.queries)

    def _batch(self, details: Json) -> None:
        last = self.batches[-1][0] if self.batches else 0
        if not details["first"] == last + 1 <= details["last"]:
            raise LogBroken(f"the log has entries {details['first']} to {details['last']} after {last}")
        self.batches.append((details["last"], details["query_id"], details["sha256"]))

    def _sweep(self, digests: dict[int, str]) -> None:
        """Take the new digests of batches whose notes were deleted."""
        for index, (last, query_id, sha) in enumerate(self.batches if digests else ()):
            self.batches[index] = last, query_id, digests.get(last, sha)

    def _is_erased(self, query_id: str) -> bool:
        return self.queries.get(query_id) in self.erased.studies

    def check(self, db: Connection) -> Iterator[LogBroken]:
        """Raise LogBroken if a row of a table differs from the log."""
        yield from ()
        self._check_archived(db)
        last = self._check_entries(db)
        waiting = self._check_measurements(db, last)
        released = _released(db)
        self._check_queries(db, waiting, released)
        self._check_published(db, released)

    def _check_archived(self, db: Connection) -> None:
        """Check the queries of archived records, the first ones, and take their studies from their rows."""
        stored, rows = RowDigest(), store.every(db, inbox_store.inquiries)
        archived = {row.query_id: row.study_id for row in islice(rows, self.archived.count)}
        for name, study in archived.items():
            stored.add(f"{name} {study}".encode())
        if stored != self.archived:
            raise LogBroken(f"the first {self.archived.count} queries of the inbox are not those of the log")
        self.queries = archived | self.queries

    def _check_entries(self, db: Connection) -> dict[str, Entry]:
        """Check each entry against the digest of its batch; return the last entry about each measurement."""
        last: dict[str, Entry] = {}
        answers: Counter[str] = Counter()
        batch: list[Entry] = []
        batches = iter(self.batches)
        current = next(batches, None)
        for seq, row in enumerate(starmap(Entry, store.every(db, inbox_store.entries)), start=1):
            if current is None or row.seq != seq:
                raise LogBroken(f"entry {row.seq} of the inbox is not in the log, or the one before it is missing")
            answers[row.measurement_id] += row.kind == "answered"
            if row.query_id != current[1] or row.version != answers[row.measurement_id]:
                raise LogBroken(f"entry {row.seq} of the inbox is not what the log says: it was changed")
            batch.append(row)
            last[row.measurement_id] = row
            if seq == current[0]:
                if digest(batch) != current[2] and not self._is_erased(current[1]):
                    raise LogBroken(f"entry {row.seq} of the inbox, or one before it, was changed")
                batch, current = [], next(batches, None)
        if current is not None:
            raise LogBroken(f"the inbox lacks entry {current[0]}, which is in the log")
        return last

    def _check_measurements(self, db: Connection, last: dict[str, Entry]) -> Counter[str]:
        """Check each measurement against its last entry and its query; return how many of each query are open."""
        waiting: Counter[str] = Counter()
        stored: dict[str, list[tuple[int, int, int, int]]] = defaultdict(list)
        for row in starmap(Measurement, store.every(db, inbox_store.measurements)):
            entry = last.pop(row.id, None)
            state = ("open", 0, None) if entry is None else (entry.kind, entry.version, entry.seq)
            state = (erasures.ERASED, *state[1:]) if self._is_erased(row.query_id) else state
            if (row.state, row.version, row.entry) != state or (entry is not None and entry.query_id != row.query_id):
                raise LogBroken(f"measurement {row.id} is not what its last entry says: it was changed")
            waiting[row.query_id] += row.state == "open"
            stored[row.query_id].append((row.position, row.row, row.play, row.plays))
        for name in last:
            raise LogBroken(f"measurement {name} is missing")
        for query_id, measurements in stored.items():
            request = store.find(db, store.queries, query_id).request
            if request == erasures.NO_REQUEST and self._is_erased(query_id):
                continue
            requested = [
                (index, item.row, play, item.plays)
                for index, item in enumerate(wire.QueryRequest.model_validate_json(request).rows)
                for play in range(1, item.plays + 1)
            ]
            if measurements != requested:
                raise LogBroken(
                    f"the measurements of query {query_id} are not those that it requested: one is missing or changed"
                )
        return waiting

    def _check_queries(
        self, db: Connection, waiting: Counter[str], released: dict[str, list[list[tuple[int, int]]]]
    ) -> None:
        missing, lost_queries = set(self.queries), set(islice(self.queries, self.lost))
        for row in starmap(MeasuredQuery, store.every(db, inbox_store.inquiries)):
            if row.query_id not in missing or self.queries[row.query_id] != row.study_id:
                raise LogBroken(f"query {row.query_id} waits for measurements, and the log does not say so")
            missing.discard(row.query_id)
            versions = released.get(row.query_id, [])
            lost = inbox_store.LOST if row.query_id in lost_queries else 0
            lost = inbox_store.GONE if self._is_erased(row.query_id) else lost
            state = (waiting.get(row.query_id, 0), len(versions), len(self.versions[row.query_id]), lost)
            if (row.open, row.begun, row.version, row.lost) != state:
                raise LogBroken(f"the state of query {row.query_id} is not what the log says")
            if row.query_id not in waiting:
                raise LogBroken(f"the measurements of query {row.query_id} are missing")
            self._check_charges(db, row, versions)
        for name in missing:
            raise LogBroken(f"query {name} waits for measurements, and its table lacks it")

    def _check_charges(self, db: Connection, row: MeasuredQuery, begun: list[list[tuple[int, int]]]) -> None:
        """Check that each answer that was released again was charged, and that versions release what the log says."""
        for version, (fresh, (_, count)) in enumerate(zip(begun, self.versions[row.query_id], strict=False), start=1):
            if len(fresh) != count:
                raise LogBroken(f"version {version} of query {row.query_id} releases other answers than the log says")
        spec = store.spec_of(db, row.study_id)
        releases = Counter(unit for fresh in begun for unit in fresh)
        again = 0 if spec.answers.mechanism == "none" else sum(n - 1 for n in releases.values())
        if again != self.corrections[row.query_id]:
            raise LogBroken(f"query {row.query_id} released {again} answers anew and was not charged so many")

    def _check_published(self, db: Connection, released: dict[str, list[list[tuple[int, int]]]]) -> None:
        """Check that the published versions are those in the log, byte for byte."""
        grant_counts: Counter[str] = Counter()
        query_counts: Counter[str] = Counter()
        for row in inbox_store.every_published(db):
            grant_counts[row.grant_id] += 1
            versions = self.versions.get(row.query_id, [])
            if row.seq != grant_counts[row.grant_id] or not 1 <= row.version <= len(versions):
                raise LogBroken(f"version {row.version} of query {row.query_id} is not in the log, or out of order")
            if self._is_erased(row.query_id) != is_erased(row.body):
                raise LogBroken(f"version {row.version} of query {row.query_id} is erased, or should be")
            if not is_erased(row.body) and sha256(row.body) != versions[row.version - 1][0]:
                raise LogBroken(f"version {row.version} of query {row.query_id} was changed")
            query_counts[row.query_id] += 1
        for query_id, versions in self.versions.items():
            if query_counts[query_id] != len(versions) or len(released.get(query_id, [])) < len(versions):
                raise LogBroken(f"a version of query {query_id} is missing")


def _released(db: Connection) -> dict[str, list[list[tuple[int, int]]]]:
    """By query, the units that each begun version releases anew. Raises LogBroken if a version is missing."""
    released: dict[str, list[list[tuple[int, int]]]] = defaultdict(list)
    for row in starmap(AnswerVersion, store.every(db, inbox_store.rounds)):
        if row.version != len(released[row.query_id]) + 1:
            raise LogBroken(f"version {row.version} of query {row.query_id} was begun out of order")
        released[row.query_id].append(row.units)
    return released
