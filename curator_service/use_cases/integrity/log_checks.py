"""What must hold between the curator's tables and its log, whatever happened: part of `audit verify`."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from blindopt import wire
from blindopt.audit.merkle_log import Json, sha256
from blindopt.errors import LogBroken, NotFound
from curator_service import store
from curator_service.privacy.ledger import Balance, Prices, RowBalance, text, units
from curator_service.store import advisories as advisories_of
from curator_service.store import ledger as lines
from curator_service.use_cases.accounts import tuning_accounts
from curator_service.use_cases.integrity import inbox_checks
from service_kit.store import stored_replies
from service_kit.store.database import Connection


def check(db: Connection, records: Iterable[Json]) -> None:
    """The ledger is what the log tells, line by line; no answer without its charge, none changed. Raises LogBroken."""
    charged: set[str] = set()
    answered: set[tuple[str, str]] = set()
    settled: dict[tuple[str, str], tuple[int, str]] = {}
    accounts: dict[str, _Account] = {}
    studies: dict[str, _Told] = {}
    advisories: dict[str, tuple[str, int, str]] = {}
    tunings, measured = tuning_accounts.Told(), inbox_checks.Told()
    for record in records:
        tunings.follow(record)
        measured.follow(record)
        details = record.get("details", {})
        exchange = record.get("exchange")
        _follow(studies, record["kind"], details)
        if record["kind"] == "mechanism.withdrawn":
            told = details["mechanism"], details["version"], details["reason_sha256"]
            advisories[details["advisory_id"]] = told
        if exchange and exchange["method"] == "POST" and exchange["status"] < 300:
            _settle(settled, exchange)
        if record["kind"] in ("charge", "charge.refused"):
            if (study := details["study_id"]) not in accounts:
                accounts[study] = _Account(_prices(db, study))
            accounts[study].take(details, refused=record["kind"] == "charge.refused")
            name = details.get("query_id")
            if (name in charged) != ("version" in details):  # a correction follows the charge of its query
                raise LogBroken(f"query {name} was charged twice, or corrected before it was charged")
            charged |= {name} - {None}
        elif exchange and exchange["status"] in (201, 202) and not exchange["replayed"] and "query_id" in details:
            if details["query_id"] not in charged:
                raise LogBroken(f"query {details['query_id']} was answered before it was charged")
            place = exchange["grant_id"], exchange["idempotency_key"]
            if place in answered:
                raise LogBroken(f"query {details['query_id']} was answered twice")
            answered.add(place)
    _check_studies(db, studies)
    _check_advisories(db, advisories)
    tunings.check(db)
    measured.check(db)
    _check_ledger(db, accounts)
    _check_queries(db, charged)
    _check_replies(db, settled)


@dataclass
class _Told:
    """What the log tells of a study."""

    spec_sha256: str
    release_sha256: str | None = None
    closed: bool = False


def _follow(studies: dict[str, _Told], kind: str, details: Json) -> None:
    if kind == "study.created":
        studies[details["study_id"]] = _Told(details["spec_sha256"])
    elif kind == "study.changed":
        study = studies[details["study_id"]]
        if study.release_sha256 is not None or study.closed or study.spec_sha256 != details["replaces"]:
            raise LogBroken(f"study {details['study_id']} was changed when it was no draft, or from another one")
        study.spec_sha256 = details["spec_sha256"]
    elif kind == "study.released":
        studies[details["study_id"]].release_sha256 = details["sha256"]
    elif kind == "study.closed":
        studies[details["study_id"]].closed = True
    elif kind == "log.restored":
        for study_id in details["closed_studies"]:
            studies[study_id].closed = True


def _check_studies(db: Connection, told: dict[str, _Told]) -> None:
    """Each study is as it was made, released what it released, and is closed if it was. Raises LogBroken."""
    for row in store.all_studies(db):
        if (study := told.pop(row.id, None)) is None:
            raise LogBroken(f"study {row.id} is not in the log")
        if sha256(row.spec.encode()) != study.spec_sha256:
            raise LogBroken(f"study {row.id} was changed: its spec is not the one that the log tells")
        release = store.release_of(db, row.id)
        if (None if release is None else release.sha256) != study.release_sha256:
            raise LogBroken(f"the release of study {row.id} is not the one that the log tells")
        if (row.state == "closed") != study.closed:
            raise LogBroken(f"study {row.id} is {row.state}, and the log does not tell so")
    for name in told:
        raise LogBroken(f"study {name} is missing")


def _check_advisories(db: Connection, told: dict[str, tuple[str, int, str]]) -> None:
    """Each withdrawal is what the log tells, and none is missing. Raises LogBroken."""
    left = dict(told)
    for row in advisories_of.every(db):
        if left.pop(row.id, None) != (row.mechanism, row.version, sha256(row.reason.encode())):
            raise LogBroken(f"advisory {row.id} is not what the log says: it was changed, or was never made")
    for name in left:
        raise LogBroken(f"advisory {name} is missing")


def _settle(settled: dict[tuple[str, str], tuple[int, str]], exchange: Json) -> None:
    """Note the reply that a key got at first. LogBroken for another one under it ever after."""
    place, told = (exchange["grant_id"], exchange["idempotency_key"]), (exchange["status"], exchange["reply_sha256"])
    if not exchange["replayed"] and place not in settled:
        settled[place] = told
    elif settled.get(place) != told:
        raise LogBroken(f"key {exchange['idempotency_key']} got another answer than the one that it had got before")


@dataclass
class _Account:
    """The ledger of one study, line by line, as the log tells it."""

    prices: Prices
    balance: Balance = field(default_factory=Balance)
    rows: dict[int, RowBalance] = field(default_factory=dict)
    lines: list[tuple[Any, ...]] = field(default_factory=list)

    def take(self, details: Json, *, refused: bool) -> None:
        """Add the lines that a record tells of."""
        if refused:
            self._refuse(details)
        elif details["rows"] == "all":
            cost, old = units(details["epsilon"]), self.balance
            self.balance = Balance(old.release + cost, old.total + cost, old.plays)
            self._add("release", None, None, 0, cost, None, RowBalance())
        elif "version" in details:
            for row, releases in details["rows"]:
                self._correct(details["query_id"], row, releases)
            told = text(sum(releases for _, releases in details["rows"]) * self.prices.answer)
            if details["epsilon"] != told:
                raise LogBroken(
                    f"query {details['query_id']}: the log tells another epsilon of a correction than it is"
                )
        else:
            for row, plays in details["rows"]:
                self._answer(details["query_id"], row, plays)
            told = text(sum(self.prices.cost(plays) for _, plays in details["rows"]))
            if details["epsilon"] != told:
                raise LogBroken(f"query {details['query_id']}: the log tells another epsilon than its study's price")

    def _answer(self, query_id: str, row: int, plays: int) -> None:
        cost, old, before = self.prices.cost(plays), self.rows.get(row, RowBalance()), self.balance
        self.rows[row] = RowBalance(old.queries + 1, old.plays + plays, old.total + cost)
        self.balance = Balance(before.release, before.total + cost, before.plays + plays)
        self._add("answers", query_id, row, plays, cost, None, self.rows[row])

    def _correct(self, query_id: str, row: int, releases: int) -> None:
        cost, old, before = releases * self.prices.answer, self.rows.get(row, RowBalance()), self.balance
        self.rows[row] = replace(old, total=old.total + cost)
        self.balance = replace(before, total=before.total + cost)
        self._add("correction", query_id, row, 0, cost, None, self.rows[row])

    def _refuse(self, details: Json) -> None:
        row = details["row"]
        of_cap = [plays for asked, plays in details["rows"] if row in (None, asked)]
        cost, plays = sum(map(self.prices.cost, of_cap)), sum(of_cap)
        if details["requested"] != (str(plays) if details["cap"] == "queries" else text(cost)):
            raise LogBroken("a refusal tells another amount than what was asked costs")
        of_row = self.rows.get(row, RowBalance()) if row is not None else RowBalance()
        self._add("refused", None, row, plays, cost, details["cap"], of_row)

    def _add(
        self, kind: str, query: str | None, row: int | None, plays: int, cost: int, cap: str | None, of_row: RowBalance
    ) -> None:
        now = self.balance
        balances = of_row.queries, of_row.plays, of_row.total, now.release, now.total, now.plays
        self.lines.append((kind, query, row, plays, text(cost), cap, *balances))


def _prices(db: Connection, study_id: str) -> Prices:
    try:
        return Prices.of(wire.StudyCreate.model_validate_json(store.find(db, store.studies, study_id).spec))
    except NotFound:
        raise LogBroken(f"study {study_id} was charged and is missing") from None


def _check_ledger(db: Connection, accounts: dict[str, _Account]) -> None:
    places = dict.fromkeys(accounts, 0)
    for line in lines.every(db):
        place = places.get(line.study_id, 0)
        if line.study_id not in accounts or place >= len(accounts[line.study_id].lines):
            raise LogBroken(f"ledger line {line.seq} is not in the log")
        if accounts[line.study_id].lines[place] != lines.told(line):
            raise LogBroken(f"ledger line {line.seq} is not what the log says: it was changed, or one is missing")
        places[line.study_id] = place + 1
    for study, account in accounts.items():
        if places[study] != len(account.lines):
            raise LogBroken(f"the ledger of {study} lacks the last of {len(account.lines)} lines that the log tells")


def _check_queries(db: Connection, charged: set[str]) -> None:
    told = {row.id for row in store.all_queries(db)}
    for name in told ^ charged:
        where = "the log" if name in told else "the table of queries"
        raise LogBroken(f"query {name} is missing in {where}")


def _check_replies(db: Connection, settled: dict[tuple[str, str], tuple[int, str]]) -> None:
    """The stored replies of modelers are those that the log tells, every one."""
    left = dict(settled)
    for row in stored_replies.answers(db):
        told = left.pop((row.principal, row.idempotency_key), None)
        if told is not None and (row.status, sha256(row.body)) != told:
            raise LogBroken(f"the stored answer under key {row.idempotency_key} was changed")
        if told is None and row.principal.startswith("grt_"):
            raise LogBroken(f"the stored answer under key {row.idempotency_key} is not in the log")
    for _, key in left:
        raise LogBroken(f"the stored answer under key {key} is missing")
