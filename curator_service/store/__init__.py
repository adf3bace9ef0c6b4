"""The curator's schema, and the tables of datasets, studies, releases, queries. Each room has its SQL in ``table``."""

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    Column,
    Float,
    ForeignKey,
    Integer,
    Row,
    Text,
    UniqueConstraint,
    bindparam,
    delete,
    func,
    select,
    update,
)
from sqlalchemy import Table as Table

from blindopt.audit.merkle_log import sha256
from blindopt.errors import NotFound
from blindopt.wire import ReleaseReport, StudyCreate
from curator_service.salted_digests import salted_digest
from curator_service.store.base import METADATA
from service_kit.store.base import ERASABLE
from service_kit.store.database import Connection
from service_kit.store.labels import EVERYTHING, ListFilter
from service_kit.store.prepared_statement import Ahead, PreparedStatement

datasets = Table(
    "datasets",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("public", Integer, nullable=False),
    Column("rows", Integer, nullable=False),
    Column("columns", Text, nullable=False),
    Column("dropped", Text, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("archived_at", Text),
    Column("person_column", Text),
    Column("rows_per_person", Integer),
    Column("persons", Integer),
    Column("person_rows_dropped", Integer),
    Column("sandbox", Integer, nullable=False, server_default="0"),
    Column("reading", Text),
    Column("rows_left_out", Integer, nullable=False, server_default="0"),
    Column("deleted_at", Text),  # such a row is kept for the account of the file alone
    Column("erased_at", Text),  # its files, and what was measured in its studies, are erased
    Column("salt", Text),  # of the row's digests in the log; null: it was registered before version 0.3
    Column("overlaps", Text),  # a JSON list: which earlier files have people of this one; null: not compared
    Column("account", Text),  # the id under which a file of its account was registered first
    Column("overlap_decisions", Text),  # a JSON list of what the owner decided about overlaps; null: nothing
)
studies = Table(
    "studies",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("dataset_id", Text, ForeignKey("datasets.id"), nullable=False),
    Column("state", Text, nullable=False),
    Column("spec", Text, nullable=False),
    Column("releasing_key", Text),
    Column("created_at", Text, nullable=False),
    Column("opened_at", Text),
    Column("archived_at", Text),
    Column("note", Text),
    Column("tags", Text),  # a JSON list; null: none
    Column("release_problem", Text),
)
releases = Table(
    "releases",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("study_id", Text, ForeignKey("studies.id"), nullable=False, unique=True),
    Column("sha256", Text, nullable=False),
    Column("n", Integer, nullable=False),
    Column("r", Integer, nullable=False),
    Column("report", Text, nullable=False, info=ERASABLE),
    Column("created_at", Text, nullable=False),
    Column("order_salt", Text, info=ERASABLE),
)
queries = Table(
    "queries",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("study_id", Text, ForeignKey("studies.id"), nullable=False),
    Column("grant_id", Text, nullable=False),
    Column("idempotency_key", Text, nullable=False),
    Column("request_sha256", Text, nullable=False),
    Column("request", Text, nullable=False, info=ERASABLE),
    Column("created_at", Text, nullable=False),
    UniqueConstraint("grant_id", "idempotency_key"),
)
_PRESENT = datasets.c.deleted_at.is_(None)
_HAS_FILES = _PRESENT & datasets.c.erased_at.is_(None)
_BEGUN = PreparedStatement(
    select(queries.c.id, queries.c.request_sha256).where(
        queries.c.grant_id == bindparam("grant"), queries.c.idempotency_key == bindparam("key")
    )
)
_ADD_QUERY = PreparedStatement(queries.insert(), [column.key for column in queries.c if column.key != "seq"])
_RELEASE_ID = PreparedStatement(select(releases.c.id).where(releases.c.study_id == bindparam("study")))
_STATE = PreparedStatement(select(studies.c.state).where(studies.c.id == bindparam("identity")), kept=True)


def begin_query(db: Connection, **values: Any) -> None:
    _ADD_QUERY.run(db, **values)


def begun(db: Connection, grant_id: str, key: str) -> Any:
    """The query that was charged under this key, or None. A crash may have come before its answer was stored."""
    return _BEGUN.row(db, grant=grant_id, key=key)


def ahead_of(grant_id: str, key: str) -> Ahead:
    """What ``begun`` will read."""
    return _BEGUN, {"grant": grant_id, "key": key}


def newest_queries(db: Connection, study_id: str, limit: int) -> list[Row[Any]]:
    columns = queries.c.id, queries.c.grant_id, queries.c.idempotency_key
    where = queries.c.study_id == study_id
    return list(db.execute(select(*columns).where(where).order_by(queries.c.seq.desc()).limit(limit)))


def insert(db: Connection, table: Table, **values: Any) -> None:
    db.execute(table.insert(), values)


def register(db: Connection, **values: Any) -> dict[str, Any]:
    """Add a dataset to the account of its file, and return what the log says of it."""
    account = next((row.account for row in registrations(db, values["sha256"])), values["id"])
    insert(db, datasets, salt=secrets.token_hex(16), account=account, **values)
    dataset = find(db, datasets, values["id"])
    digests = {name: digest for name, digest in digests_of(dataset).items() if name != "row_sha256" and digest}
    return {"dataset_id": dataset.id, "public": bool(dataset.public), **digests}


def digests_of(dataset: Row[Any]) -> dict[str, Any]:
    """The digests that the log has of a dataset: of what decides in its row, and of its columns while it has them.

    They are salted, so that nobody guesses the file from the log. Earlier logs have ``row_sha256`` instead, unsalted.
    """
    names = "sha256", "sandbox", "rows", "rows_left_out", "person_column", "persons", "person_rows_dropped"
    deciding = json.dumps([getattr(dataset, name) for name in names])
    columns = salted_digest(dataset.columns + dataset.dropped, dataset.salt or "")
    salted = salted_digest(deciding, _row_salt(dataset) or "")
    overlaps = salted_digest(dataset.overlaps, _row_salt(dataset) or "")
    of_columns = {"columns_sha256": columns, "overlaps_sha256": overlaps}
    return {"row_sha256": sha256(deciding.encode()), "deciding_sha256": salted, **of_columns}


def no_columns(dataset: Row[Any]) -> dict[str, Any]:
    """What the row of a dataset says of its columns once they are deleted: the salt of their digest goes with them."""
    return {"columns": "[]", "dropped": "[]", "reading": None, "salt": _row_salt(dataset)}


def _row_salt(dataset: Row[Any]) -> str | None:
    """The salt of the digest of what decides in a row. It outlasts the salt of the columns, which it does not tell."""
    has_columns = dataset.erased_at is None and dataset.deleted_at is None
    return sha256(dataset.salt.encode()) if has_columns and dataset.salt is not None else dataset.salt


def change(db: Connection, table: Table, identity: str, **values: Any) -> None:
    db.execute(update(table).where(table.c.id == identity).values(**values))


def find(db: Connection, table: Table, identity: str) -> Row[Any]:
    """The row with this id. Raises NotFound, also for a deleted dataset."""
    row = db.execute(select(table).where(table.c.id == identity)).one_or_none()
    if row is None or (table is datasets and row.deleted_at is not None):
        raise NotFound(f"there is no such {table.name.removesuffix('s').replace('ie', 'y')}")
    return row


def page(
    db: Connection, table: Table, *, after: int, limit: int, list_filter: ListFilter = EVERYTHING, **equal: Any
) -> list[Row[Any]]:
    """Rows in order of sequence number, without deleted datasets; those, if named, whose columns have these values."""
    where = [
        table.c.seq > after,
        *list_filter.of(db, table),
        *(table.c[name] == value for name, value in equal.items()),
    ]
    where += [_PRESENT] if table is datasets else []
    return list(db.execute(select(table).where(*where).order_by(table.c.seq).limit(limit)))


def every(db: Connection, table: Table) -> Iterable[Row[Any]]:
    return db.execute(select(table).order_by(*table.primary_key))


def spec_of(db: Connection, study_id: str) -> StudyCreate:
    """The spec of a study. Raises NotFound."""
    return StudyCreate.model_validate_json(find(db, studies, study_id).spec)


def dataset_of(db: Connection, study_id: str) -> Row[Any]:
    """The dataset of a study. Raises NotFound."""
    return find(db, datasets, find(db, studies, study_id).dataset_id)


def is_erased(db: Connection, study_id: str) -> bool:
    """Whether the dataset of a study was erased. Raises NotFound."""
    return dataset_of(db, study_id).erased_at is not None


def release_of(db: Connection, study_id: str) -> Row[Any] | None:
    return db.execute(select(releases).where(releases.c.study_id == study_id)).one_or_none()


def report_of(db: Connection, study_id: str) -> ReleaseReport | None:
    """The report of a study's release as it was stored, or None before it."""
    release = release_of(db, study_id)
    return None if release is None else ReleaseReport.model_validate_json(release.report)


def release_id_of(db: Connection, study_id: str) -> str | None:
    row = _RELEASE_ID.row(db, study=study_id)
    return None if row is None else str(row.id)


def releases_of(db: Connection, study_ids: Sequence[str]) -> dict[str, Row[Any]]:
    rows = db.execute(select(releases).where(releases.c.study_id.in_(study_ids)))
    return {row.study_id: row for row in rows}


def datasets_of(db: Connection, identities: Iterable[str]) -> dict[str, Row[Any]]:
    return {row.id: row for row in db.execute(select(datasets).where(datasets.c.id.in_(set(identities))))}


def state_of(db: Connection, study_id: str) -> str:
    """The state of a study: draft, releasing, open or closed. Raises NotFound."""
    row = _STATE.row(db, identity=study_id)
    if row is None:
        raise NotFound("there is no such study")
    return str(row.state)


def with_files(db: Connection) -> set[str]:
    """Ids of the datasets that were neither deleted nor erased, and of releases of their studies, which have files."""
    return {*db.execute(select(datasets.c.id).where(_HAS_FILES)).scalars(), *_released(db)}


def _released(db: Connection) -> list[str]:
    joined = releases.join(studies, studies.c.id == releases.c.study_id).join(
        datasets, datasets.c.id == studies.c.dataset_id
    )
    query = select(releases.c.id).select_from(joined).where(datasets.c.erased_at.is_(None))
    return list(db.execute(query.order_by(releases.c.seq)).scalars())


def file_names(db: Connection) -> list[str]:
    """Names of the files in the vault that belong to the database."""
    names = [*sorted(with_files(db)), *(f"{name}.order" for name in _released(db))]
    for row in db.execute(select(datasets).where(_HAS_FILES)):
        names += [f"{row.id}.persons"] * (row.person_column is not None) + [f"{row.id}.numbers"] * is_renumbered(row)
        names += [f"{row.id}.spellings"] * ('"person_ids":"folded' in (row.reading or ""))
    return [f"{name}.npy" for name in names]


def registered(db: Connection, identity: str) -> Row[Any] | None:
    """The row of a dataset, also of a deleted one, or None."""
    return db.execute(select(datasets).where(datasets.c.id == identity)).one_or_none()


def readings(db: Connection) -> dict[str, str | None]:
    """How the file of each dataset was read, as JSON, by id; None for a sandbox, and where it was not recorded."""
    return {row.id: row.reading for row in db.execute(select(datasets.c.id, datasets.c.reading).where(_PRESENT))}


def kept_for_accounts(db: Connection) -> set[str]:
    return set(db.execute(select(datasets.c.id).where(datasets.c.deleted_at.is_not(None))).scalars())


def private_with_files(db: Connection) -> list[Row[Any]]:
    """The datasets with files whose records are people's: neither declared public nor made up, in order."""
    where = _HAS_FILES & (datasets.c.public == 0) & (datasets.c.sandbox == 0)
    return list(db.execute(select(datasets).where(where).order_by(datasets.c.seq)))


def column_names(dataset: Any) -> list[str]:
    return [column["name"] for column in json.loads(dataset.columns)]


def is_renumbered(dataset: Any) -> bool:
    """Whether a dataset lacks rows of its file, so that the numbers of its records are in a file of their own."""
    return dataset.person_column is not None or dataset.rows_left_out > 0


def registrations(db: Connection, sha256: str) -> list[Row[Any]]:
    """The datasets whose file has this digest, in order, also deleted ones that are kept for its account."""
    return list(db.execute(select(datasets).where(datasets.c.sha256 == sha256).order_by(datasets.c.seq)))


def account_of(db: Connection, dataset_id: str) -> str:
    """The account of a dataset now: that of an earlier one, once its owner decided so."""
    return str(db.execute(select(datasets.c.account).where(datasets.c.id == dataset_id)).scalar_one())


def in_account(db: Connection, account: str) -> list[Row[Any]]:
    """The datasets of all files of an account, in order, also deleted ones that are kept for it."""
    return list(db.execute(select(datasets).where(datasets.c.account == account).order_by(datasets.c.seq)))


def of_all_accounts(db: Connection) -> list[Row[Any]]:
    columns = datasets.c.id, datasets.c.account, datasets.c.overlap_decisions
    return list(db.execute(select(*columns).order_by(datasets.c.seq)))


def join_accounts(db: Connection, accounts: Iterable[str], account: str) -> None:
    db.execute(update(datasets).where(datasets.c.account.in_(list(accounts))).values(account=account))


def not_compared(db: Connection) -> list[Row[Any]]:
    """The private datasets that an earlier version registered, and that were compared with no other file."""
    return [row for row in private_with_files(db) if row.overlaps is None]


def is_used(db: Connection, dataset_id: str) -> bool:
    """Whether any study, tuning or other table has this dataset."""
    tables = [table for table in METADATA.tables.values() if "dataset_id" in table.c]
    return any(db.execute(select(table.c.seq).where(table.c.dataset_id == dataset_id)).first() for table in tables)


def forget_dataset(db: Connection, identity: str, at: str, *, kept: bool) -> None:
    """Delete a dataset's row; or, ``kept`` for the account of its file, what the row says of its columns."""
    if kept:
        change(db, datasets, identity, **no_columns(find(db, datasets, identity)), archived_at=at, deleted_at=at)
    else:
        db.execute(delete(datasets).where(datasets.c.id == identity))


def has_history(db: Connection, study_id: str) -> bool:
    """Whether anything that stays is about a study: a charge, a refusal, a release, a query, a message."""
    tables = [table for table in METADATA.tables.values() if "study_id" in table.c and table.name != "forecasts"]
    return any(db.execute(select(table.c.study_id).where(table.c.study_id == study_id)).first() for table in tables)


def forget_draft(db: Connection, identity: str) -> None:
    db.execute(delete(studies).where(studies.c.id == identity))


def releasing(db: Connection) -> list[Row[Any]]:
    """Studies whose release was begun and has not ended."""
    return list(db.execute(select(studies).where(studies.c.state == "releasing")))


def open_specs(db: Connection) -> list[tuple[str, str]]:
    query = select(studies.c.id, studies.c.spec).where(studies.c.state == "open").order_by(studies.c.seq)
    return [(identity, spec) for identity, spec in db.execute(query)]


def unclosed_studies(db: Connection) -> list[str]:
    return list(db.execute(select(studies.c.id).where(studies.c.state != "closed").order_by(studies.c.seq)).scalars())


def released_studies(db: Connection, sha256: str) -> list[tuple[str, str]]:
    """Ids of the released studies of a file that are not erased, by its digest, each with its dataset's id."""
    joined = studies.join(datasets, datasets.c.id == studies.c.dataset_id).join(
        releases, releases.c.study_id == studies.c.id
    )
    where = (datasets.c.sha256 == sha256) & datasets.c.erased_at.is_(None)
    query = select(studies.c.id, datasets.c.id).select_from(joined).where(where)
    return [(study, dataset) for study, dataset in db.execute(query.order_by(studies.c.seq))]


def studies_of_file(db: Connection, sha256: str) -> list[str]:
    joined = studies.join(datasets, datasets.c.id == studies.c.dataset_id)
    query = select(studies.c.id).select_from(joined).where(datasets.c.sha256 == sha256).order_by(studies.c.seq)
    return list(db.execute(query).scalars())


def studies_on(db: Connection, dataset_id: str) -> list[Row[Any]]:
    return list(db.execute(select(studies).where(studies.c.dataset_id == dataset_id).order_by(studies.c.seq)))


advisories = Table(
    "advisories",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("mechanism", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("reason", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    UniqueConstraint("mechanism", "version"),
)

Reasons = Mapping[tuple[str, int], str]


def reasons(db: Connection) -> Reasons:
    return {(row.mechanism, row.version): row.reason for row in every(db, advisories)}


forecasts = Table(
    "forecasts",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("study_id", Text, ForeignKey("studies.id"), nullable=False, index=True),
    Column("state", Text, nullable=False),
    Column("spec", Text, nullable=False),
    Column("progress", Float, nullable=False),
    Column("points", Text, nullable=False),
    Column("problem", Text),
    Column("created_at", Text, nullable=False),
    Column("ended_at", Text),
)
tunings = Table(
    "tunings",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("dataset_id", Text, ForeignKey("datasets.id"), nullable=False),
    Column("state", Text, nullable=False),
    Column("spec", Text, nullable=False),
    Column("report", Text, nullable=False),
    Column("progress", Float, nullable=False),
    Column("outcome", Text),
    Column("salt", Text, nullable=False),
    Column("problem", Text),
    Column("created_at", Text, nullable=False),
    Column("ended_at", Text),
)


def running_jobs(db: Connection, jobs: Table) -> list[str]:
    return list(db.execute(select(jobs.c.id).where(jobs.c.state == "running").order_by(jobs.c.seq)).scalars())


def count_running_jobs(db: Connection, jobs: Table, study_id: str | None = None) -> int:
    where = jobs.c.state == "running"
    where = where if study_id is None else where & (jobs.c.study_id == study_id)
    return int(db.execute(select(func.count()).where(where)).scalar_one())


def tunings_on(db: Connection, dataset_id: str) -> list[Any]:
    """Tunings of a dataset, and running ones that train on it, in order."""
    trains = (tunings.c.state == "running") & tunings.c.spec.contains(dataset_id)
    where = (tunings.c.dataset_id == dataset_id) | trains
    return list(db.execute(select(tunings).where(where).order_by(tunings.c.seq)))


def is_forecast_from(db: Connection, dataset_id: str) -> bool:
    """Whether a forecast that has not ended takes its rows from a dataset."""
    where = (forecasts.c.state == "running") & forecasts.c.spec.contains(dataset_id)
    return db.execute(select(forecasts.c.seq).where(where)).first() is not None


def end_job(db: Connection, jobs: Table, identity: str, **values: Any) -> bool:
    """End a job; False, and nothing is changed, if it has ended already."""
    where = (jobs.c.id == identity) & (jobs.c.state == "running")
    return bool(db.execute(update(jobs).where(where).values(**values)).rowcount)


def sweep_forecasts(db: Connection, before: str) -> int:
    return int(db.execute(delete(forecasts).where(forecasts.c.ended_at < before)).rowcount)


def drop_forecasts(db: Connection, study_id: str) -> int:
    return int(db.execute(delete(forecasts).where(forecasts.c.study_id == study_id)).rowcount)
