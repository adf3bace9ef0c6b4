"""Reads both ledgers: what studies have used, of whom, and the accounts of files."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import bindparam, func, select, true

from blindopt.wire import TuningCreate, TuningReport
from blindopt.wire.base import GuaranteeKind
from curator_service.budget.ledger import NO_CHARGES, Account, Balance, Cost, RowBalance
from curator_service.budget.table import LAST, LAST_OF_ROW, LINES_OF_ACCOUNT, account_lines, ledger
from curator_service.privacy.prices import units
from curator_service.store import ahead_of, datasets, queries, studies, tunings
from service_kit.store import stored_replies
from service_kit.store.base import page_of
from service_kit.store.database import Connection
from service_kit.store.prepared_statement import Ahead, PreparedStatement

_NAMED = datasets.alias("named")
_STUDIES = PreparedStatement(
    select(studies.c.id, studies.c.dataset_id, studies.c.spec)
    .join(datasets, datasets.c.id == studies.c.dataset_id)
    .where(datasets.c.sha256 == bindparam("sha256"))
    .order_by(studies.c.seq)
)
_IN_ACCOUNT = datasets.c.account == (
    select(_NAMED.c.account).where(_NAMED.c.id == bindparam("dataset")).scalar_subquery()
)
_FILES = PreparedStatement(select(datasets.c.id, datasets.c.sha256).where(_IN_ACCOUNT).order_by(datasets.c.seq))
_FILES_WITH_LINES = PreparedStatement(
    select(datasets.c.id.label("dataset_id"), datasets.c.sha256, *account_lines.c)
    .select_from(datasets.outerjoin(account_lines, account_lines.c.account == datasets.c.id))
    .where(_IN_ACCOUNT)
    .order_by(datasets.c.seq, account_lines.c.seq)
)
_ONE_BY_ONE = 200
"""More rows than this are looked up together, by prepared statements no more."""
_CHUNK = 1_000


def balance(db: Connection, study_id: str) -> Balance:
    last = LAST.row(db, study=study_id)
    return Balance() if last is None else Balance(last.release, last.total, last.total_plays)


def last_lines(db: Connection) -> list[int | None]:
    """The numbers of the last line of all studies, and of all accounts; None without any."""
    return [db.execute(select(func.max(seq))).scalar_one() for seq in (ledger.c.seq, account_lines.c.seq)]


def row_balances(db: Connection, study_id: str, rows: Iterable[int]) -> dict[int, RowBalance]:
    """The amounts spent by answers about each of ``rows`` that has any."""
    ordered, balances = sorted(set(rows)), {}
    if len(ordered) > _ONE_BY_ONE:  # persons may have a thousand rows each
        return {row: RowBalance(*of_row) for row, *of_row in rows_queried(db, study_id, ordered)}
    for row in ordered:
        last = LAST_OF_ROW.row(db, study=study_id, row=row)
        if last is not None:
            balances[row] = RowBalance(last.row_queries, last.row_plays, last.row_total)
    return balances


def charged_rows(db: Connection, study_id: str, query_id: str, rows: Iterable[int]) -> set[int]:
    """Those of ``rows`` that a query was charged for when it was asked; not those that were withheld then."""
    ordered, charged = sorted(set(rows)), set[int]()
    is_of_query = (ledger.c.query_id == query_id) & (ledger.c.kind == "answers")
    for start in range(0, len(ordered), _CHUNK):
        where = (ledger.c.study_id == study_id) & ledger.c.row.in_(ordered[start : start + _CHUNK])
        charged.update(db.execute(select(ledger.c.row).where(where, is_of_query)).scalars())
    return charged


def refined_rows(db: Connection, study_id: str) -> set[int]:
    where = (ledger.c.study_id == study_id) & (ledger.c.kind == "refine")
    return set(db.execute(select(ledger.c.row).where(where)).scalars())


def ahead_of_query(grant_id: str, key: str, study_id: str, rows: Callable[[], set[int]]) -> Iterator[Ahead]:
    """What a query of these rows, of persons with few others, will read before it is charged."""
    yield stored_replies.ahead_of(grant_id, key)
    yield ahead_of(grant_id, key)
    yield LAST, {"study": study_id}
    touched = rows()
    for row in touched if len(touched) <= _ONE_BY_ONE else ():
        yield LAST_OF_ROW, {"study": study_id, "row": row}


def rows_queried(db: Connection, study_id: str, rows: Sequence[int] | None = None) -> list[tuple[int, int, int, int]]:
    """Row, number of queries and of measurements, and amount, of each row that was queried, of ``rows`` or of all."""
    columns = ledger.c.row, ledger.c.row_queries, ledger.c.row_plays, ledger.c.row_total
    chunks = [None] if rows is None else [rows[start : start + _CHUNK] for start in range(0, len(rows), _CHUNK)]
    amounts: list[tuple[int, int, int, int]] = []
    for chunk in chunks:
        latest = _last_of_rows(study_id)
        last = latest if chunk is None else latest.where(ledger.c.row.in_(chunk))
        stored = db.execute(select(*columns).where(ledger.c.seq.in_(last) & _WAS_QUERIED))
        amounts += [(row, queries, plays, total) for row, queries, plays, total in stored]
    return amounts


def of_grant(
    db: Connection, study_id: str, grant_id: str, rows: Iterable[int] | None
) -> tuple[Balance, dict[int, RowBalance]]:
    """The amounts that the release and one grant's answers have spent: in all, and about ``rows`` (None: all).

    Without second draws, because whether an earlier grant has paid one would show.
    """
    joined = ledger.join(queries, queries.c.id == ledger.c.query_id)
    where = (ledger.c.study_id == study_id) & (queries.c.grant_id == grant_id)
    where &= ledger.c.kind.not_in(("refused", "refine"))
    # By cost: few are distinct, and their decimals are added exactly here.
    sums = func.count(), func.sum(ledger.c.plays)
    query = select(ledger.c.cost, *sums).select_from(joined).where(where).group_by(ledger.c.cost)
    of_answers = [(units(cost) * number, plays) for cost, number, plays in db.execute(query)]
    release = balance(db, study_id).release
    total = Balance(release, release + sum(cost for cost, _ in of_answers), sum(plays for _, plays in of_answers))
    balances: dict[int, RowBalance] = {}
    by_row = select(ledger.c.row, ledger.c.cost, *sums).select_from(joined)
    by_row = by_row.where(where, true() if rows is None else ledger.c.row.in_(set(rows)))
    for row, cost, number, plays in db.execute(by_row.group_by(ledger.c.row, ledger.c.cost)):
        old = balances.get(row, RowBalance())
        balances[row] = RowBalance(old.queries + number, old.plays + plays, old.total + units(cost) * number)
    return total, balances


def charged_at(db: Connection, study_id: str) -> str | None:
    """When the release was charged, once, however often a crash interrupts the draw; None before."""
    where = (ledger.c.study_id == study_id) & (ledger.c.kind == "release")
    return db.execute(select(ledger.c.created_at).where(where)).scalar()


@dataclass(frozen=True, slots=True)
class LineFilter:
    """Which lines of a ledger are listed; None: all. Times are stamps, ``until`` is not part of them."""

    row: int | None = None
    kind: str | None = None
    since: str | None = None
    until: str | None = None

    def of(self, study_id: str) -> Any:
        where: Any = ledger.c.study_id == study_id
        if self.row is not None:
            where &= ledger.c.row == self.row
        if self.kind is not None:
            where &= ledger.c.kind == self.kind
        if self.since is not None:
            where &= ledger.c.created_at >= self.since
        if self.until is not None:
            where &= ledger.c.created_at < self.until
        return where


EVERY = LineFilter()


def page(
    db: Connection,
    study_id: str,
    *,
    position: int | None = None,
    limit: int | None = None,
    newest: bool = False,
    shown: LineFilter = EVERY,
) -> list[Any]:
    """Lines of a study after a sequence number in order, or before it with the newest first."""
    query = select(ledger).where(shown.of(study_id))
    return list(db.execute(page_of(query, ledger.c.seq, position=position, newest=newest, limit=limit)))


def _last_of_rows(study_id: str, after: int = -1, before: int | None = None) -> Any:
    """Sequence numbers of the last line about every row. A refusal repeats the balances of its row, so it may be one.

    Reads the index ``ledger_by_row`` alone: to read every line of a study takes far longer.
    """
    where = (ledger.c.study_id == study_id) & (ledger.c.row > after)
    if before is not None:
        where &= ledger.c.row < before
    return select(func.max(ledger.c.seq)).where(where).group_by(ledger.c.row)


_WAS_QUERIED = ledger.c.row_queries > 0
"""False for rows that were only refused."""


def exposure(db: Connection, study_id: str, *, position: int | None, limit: int, largest: bool) -> list[Any]:
    """The last line of every row that was queried after a row, by row; or before it, with the ``largest`` first."""
    after = -1 if largest or position is None else position
    last = _last_of_rows(study_id, after, before=position if largest else None)
    order = ledger.c.row.desc() if largest else ledger.c.row
    return list(db.execute(select(ledger).where(ledger.c.seq.in_(last) & _WAS_QUERIED).order_by(order).limit(limit)))


def queried_rows(db: Connection, study_id: str) -> list[tuple[int, int, int]]:
    """Amount spent on answers, number of measurements, and how many rows have both; without rows never queried."""
    latest = ledger.c.seq.in_(_last_of_rows(study_id))
    columns = ledger.c.row_total, ledger.c.row_plays
    query = select(*columns, func.count()).where(latest & _WAS_QUERIED).group_by(*columns)
    return [(total, plays, rows) for total, plays, rows in db.execute(query)]


def row_totals(db: Connection, study_id: str) -> dict[int, int]:
    """Each row that was queried, and the amount spent on answers about it."""
    return {row: total for row, _, _, total in rows_queried(db, study_id)}


def persons_queried(
    db: Connection, study_id: str, rows_of_person: Callable[[int], Sequence[int]]
) -> dict[int, tuple[int, int]]:
    """Amount spent on answers, and number of measurements, by the first row of each person who was ever queried."""
    persons: dict[int, tuple[int, int]] = {}
    for row, _, plays, total in rows_queried(db, study_id):
        first = rows_of_person(row)[0]
        old = persons.get(first, (0, 0))
        persons[first] = old[0] + total, old[1] + plays
    return persons


def balances(db: Connection, study_ids: Sequence[str]) -> dict[str, tuple[Balance, int]]:
    """By study what it has spent, and the largest amount spent by answers about one row; none for one without lines."""
    # The amount of a row never falls, so the largest of any line is that of a last line.
    of_study = ledger.c.study_id.in_(study_ids)
    ends = select(func.max(ledger.c.seq).label("seq"), func.max(ledger.c.row_total).label("most"))
    last = ends.where(of_study).group_by(ledger.c.study_id).subquery()
    amounts = ledger.c.study_id, ledger.c.release, ledger.c.total, ledger.c.total_plays, last.c.most
    rows = db.execute(select(*amounts).join(last, last.c.seq == ledger.c.seq))
    return {study: (Balance(release, total, plays), most) for study, release, total, plays, most in rows}


def thinned(db: Connection, study_id: str, points: int) -> tuple[int, list[Any]]:
    """How many lines a study has, and at most ``points`` of them, evenly chosen, with the last; ``line``: from 1."""
    where = ledger.c.study_id == study_id
    count = db.execute(select(func.count()).select_from(ledger).where(where)).scalar_one()
    every = max(1, -(-count // (points - 1)))
    # Sequence numbers first, from the index alone; then the lines themselves.
    line = func.row_number().over(order_by=ledger.c.seq).label("line")
    numbered = select(ledger.c.seq, line).where(where).subquery()
    is_shown = (numbered.c.line % every == 1 % every) | (numbered.c.line == count)
    columns = ledger.c.total, ledger.c.total_plays, ledger.c.created_at
    query = select(numbered.c.line, *columns).join(ledger, ledger.c.seq == numbered.c.seq)
    return count, list(db.execute(query.where(is_shown).order_by(numbered.c.line)))


# --- accounts of files ------------------------------------------------------------------------------------------


def account_name(db: Connection, dataset: Any) -> str:
    """The name of the lines of a dataset's file: the id under which it was registered first."""
    account = account_of_file(db, dataset.sha256)
    assert account is not None, "the dataset itself is registered"
    return account


def account_of_file(db: Connection, sha256: str) -> str | None:
    """The name of the lines of a file with this digest; None if it was never registered."""
    same = select(datasets.c.id).where(datasets.c.sha256 == sha256)
    account: str | None = db.execute(same.order_by(datasets.c.seq).limit(1)).scalar()
    return account


def files_of(db: Connection, dataset_id: str) -> dict[str, str]:
    """The names of all files in the account of a dataset, by digest, in the order of their registration."""
    files: dict[str, str] = {}
    for row in _FILES.rows(db, dataset=dataset_id):
        files.setdefault(row.sha256, row.id)
    return files


def account_of(db: Connection, name: str) -> Account:
    """What a file's own lines charge every record of it, under the newest caps of all files in its account."""
    return files_and_account(db, name, name)[1]


def files_and_account(db: Connection, dataset_id: str, name: str) -> tuple[dict[str, str], Account]:
    files: dict[str, str] = {}
    rows = _FILES_WITH_LINES.rows(db, dataset=dataset_id)
    for row in rows:
        files.setdefault(row.sha256, row.dataset_id)
    return files, _account(db, name, [row for row in rows if row.seq is not None])


def _account(db: Connection, name: str, lines: list[Any]) -> Account:
    after = NO_CHARGES
    for line in lines:
        if line.account == name and (kind := guarantee_kind(db, line)) is not None:
            after = after.added(Cost.of(line.epsilon, line.delta), kind)
    if not lines:
        return after
    newest = max(lines, key=lambda line: line.seq)
    closed = any(line.kind == "closed" for line in lines)
    return replace(after, closed=closed).with_caps(newest.cap_epsilon, newest.cap_delta)


def guarantee_kind(db: Connection, line: Any) -> GuaranteeKind | None:
    """What the charge of a line promises; None if the line charges nothing.

    A line of before schema 15 has the kind of its tuning, as that was stored.
    """
    if line.guarantee_kind is not None or line.kind not in ("tuning", "bounds"):
        kind: GuaranteeKind | None = line.guarantee_kind
        return kind
    if line.kind == "bounds":
        return "worst_case"
    report = db.execute(select(tunings.c.report).where(tunings.c.id == line.subject)).scalar()
    return "none" if report is None else TuningReport.model_validate_json(report).guarantee_kind


def scored_by_program(db: Connection, tuning_ids: Iterable[str]) -> int:
    """How many of these tunings got their scores from the owner's program."""
    specs = db.execute(select(tunings.c.spec).where(tunings.c.id.in_(list(tuning_ids)))).scalars()
    return sum(TuningCreate.model_validate_json(spec).score.kind == "http" for spec in specs)


def studies_of(db: Connection, sha256: str) -> list[Any]:
    """Id, dataset and spec of every study on any registration of a file, in order."""
    return _STUDIES.rows(db, sha256=sha256)


def open_accounts(db: Connection) -> list[str]:
    first = select(func.min(datasets.c.seq)).group_by(datasets.c.sha256)
    query = select(datasets.c.id).where(datasets.c.seq.in_(first)).order_by(datasets.c.seq)
    return [account for account in db.execute(query).scalars() if not account_of(db, account).closed]


def lines_of_account(db: Connection, account: str) -> list[Any]:
    return LINES_OF_ACCOUNT.rows(db, account=account)
