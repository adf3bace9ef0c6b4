"""What an erasure overwrites: statistics, measurements, estimates, second draws, replies, messages. The ledger stays.

Append-only tables are changed here alone: for the studies of one dataset, and notes that were kept for long enough.
"""

from collections.abc import Collection, Iterable
from typing import Any

from sqlalchemy import Table, and_, delete, func, select, update

from blindopt.audit.merkle_log import sha256
from blindopt.wire import ReleaseReport
from curator_service import store
from curator_service.datasets.table import bounds, forget_labels
from curator_service.queries import table as inbox
from curator_service.studies import table as messages
from service_kit.store import stored_replies, tokens
from service_kit.store.base import stamp as stamp
from service_kit.store.database import Connection
from service_kit.store.schema import unguarded

ERASED = "erased"
"""The state of a measurement whose value is erased; it is in no listing."""
NO_REQUEST = '{"rows":null}'
"""In place of a query that had a vendor's estimates about records."""


def erased(db: Connection) -> list[str]:
    table = store.datasets
    return list(db.execute(select(table.c.id).where(table.c.erased_at.is_not(None)).order_by(table.c.seq)).scalars())


def erased_studies(db: Connection) -> set[str]:
    return {row.id for dataset in erased(db) for row in store.studies_on(db, dataset)}


def files_of(db: Connection, dataset_id: str) -> list[str]:
    released = store.releases_of(db, [row.id for row in store.studies_on(db, dataset_id)])
    return [dataset_id, *(row.id for row in released.values())]


def overwrite(db: Connection, dataset_id: str, at: str, marker: bytes) -> tuple[dict[str, int], dict[str, str]]:
    """Overwrite all that a dataset and its studies hold of records; return how many of each kind.

    And, by study, the digest of each report of a release that was changed.

    ``marker`` takes the place of stored replies, and of messages.
    """
    studies = [row.id for row in store.studies_on(db, dataset_id)]
    queries = set(db.execute(select(store.queries.c.id).where(store.queries.c.study_id.in_(studies))).scalars())
    dataset = store.find(db, store.datasets, dataset_id)
    store.change(db, store.datasets, dataset_id, **store.no_columns(dataset), erased_at=at)
    forget_labels(db, dataset_id)
    blank = {"state": "closed", "note": None, "release_problem": None}
    db.execute(update(store.studies).where(store.studies.c.id.in_(studies)).values(blank))
    grants = {row.principal for study in studies for row in tokens.of_study(db, study)}
    replies = stored_replies.forget_all(db, sorted(grants.union(studies)), marker)  # a study's: about all groups
    reports = _reports(db, studies)
    _rewrite(db, inbox.refinements, inbox.refinements.c.study_id, studies, z="")
    estimating = store.queries.c.study_id.in_(studies) & store.queries.c.request.contains('"probability"')
    with_estimates = list(db.execute(select(store.queries.c.id).where(estimating)).scalars())
    _rewrite(db, store.queries, store.queries.c.id, with_estimates, request=NO_REQUEST)
    for identity in (dataset_id, *studies, *_owners(db, dataset_id, studies)):
        stored_replies.forget(db, identity, marker)
    db.execute(delete(store.forecasts).where(_forecasts(dataset_id, studies)))
    counts = {
        "queries": len(queries),
        "measurements": _measurements(db, studies),
        "replies": replies,
        "versions": _rewrite(db, inbox.revisions, inbox.revisions.c.query_id, queries, body=marker),
        "messages": _messages(db, studies, marker),
        "results": _results(db, dataset_id),
    }
    return counts, reports


def _owners(db: Connection, dataset_id: str, studies: Collection[str]) -> list[str]:
    """Ids of forecasts, tunings, private bounds and messages, which replies to owners begin with."""
    identities = [
        *db.execute(select(store.forecasts.c.id).where(_forecasts(dataset_id, studies))).scalars(),
        *db.execute(select(store.tunings.c.id).where(store.tunings.c.dataset_id == dataset_id)).scalars(),
        *db.execute(select(bounds.c.id).where(bounds.c.dataset_id == dataset_id)).scalars(),
        *db.execute(select(messages.messages.c.id).where(messages.messages.c.study_id.in_(studies))).scalars(),
    ]
    return [str(identity) for identity in identities]


def _reports(db: Connection, studies: Collection[str]) -> dict[str, str]:
    """Overwrite the figures of reports that were computed from the records; the new digests, by study."""
    digests = {}
    blank = {"sigma_min": None, "omega": None, "branch": None, "largest_r": None}
    for row in store.releases_of(db, list(studies)).values():
        _rewrite(db, store.releases, store.releases.c.id, [row.id], order_salt=None)
        report = ReleaseReport.model_validate_json(row.report)
        if (changed := report.model_copy(update=blank)) != report:
            report_json = changed.model_dump_json()
            _rewrite(db, store.releases, store.releases.c.id, [row.id], report=report_json)
            digests[row.study_id] = sha256(report_json.encode())
    return digests


def _forecasts(dataset_id: str, studies: Collection[str]) -> Any:
    """Which forecasts are of these studies, or took their rows from the dataset."""
    return store.forecasts.c.study_id.in_(studies) | store.forecasts.c.spec.contains(dataset_id)


def _measurements(db: Connection, studies: Collection[str]) -> int:
    """Take measurements out of every listing, and overwrite values, notes, reasons and salts; how many entries."""
    of = inbox.measurements.c.study_id.in_(studies)
    db.execute(update(inbox.measurements).where(of).values(state=ERASED, attempts=0, next_at=None, problem=None))
    db.execute(update(inbox.inquiries).where(inbox.inquiries.c.study_id.in_(studies)).values(lost=inbox.GONE, open=0))
    with unguarded(db, inbox.entries.name):
        of_entries = inbox.entries.c.measurement_id.in_(select(inbox.measurements.c.id).where(of))
        blank = {"value": None, "note": None, "reason": None, "salt": ""}
        return int(db.execute(update(inbox.entries).where(of_entries).values(blank)).rowcount)


def _messages(db: Connection, studies: Collection[str], marker: bytes) -> int:
    of = select(messages.messages.c.id).where(messages.messages.c.study_id.in_(studies))
    identities = set(db.execute(of).scalars())
    _rewrite(db, messages.decisions, messages.decisions.c.message_id, identities, word=None, salt="")
    return _rewrite(db, messages.messages, messages.messages.c.id, identities, body=marker.decode(), salt="")


def _results(db: Connection, dataset_id: str) -> int:
    """Overwrite what tunings and private bounds released, and why a tuning failed; how many there were."""
    of = store.tunings.c.dataset_id == dataset_id
    tuned = db.execute(update(store.tunings).where(of).values(outcome=None, problem=None, salt="")).rowcount
    bound = db.execute(update(bounds).where(bounds.c.dataset_id == dataset_id).values(result=None)).rowcount
    return int(tuned + bound)


def _rewrite(db: Connection, rewritten: Table, column: Any, row_ids: Iterable[str], **values: Any) -> int:
    with unguarded(db, rewritten.name):
        return sum(
            int(db.execute(update(rewritten).where(column == row_id).values(values)).rowcount)
            for row_id in sorted(row_ids)
        )


def still_there(db: Connection, studies: Collection[str]) -> int:
    """How many entries of these studies hold anything that an erasure overwrites."""
    of = inbox.measurements.c.study_id.in_(studies)
    entry = inbox.entries
    holding = and_(
        entry.c.measurement_id.in_(select(inbox.measurements.c.id).where(of)),
        entry.c.value.is_not(None) | entry.c.note.is_not(None) | (entry.c.salt != ""),
    )
    return int(db.execute(select(func.count()).select_from(entry).where(holding)).scalar_one())


def sweep_notes(db: Connection, before: str) -> list[int]:
    """Delete the notes of entries that were made before a time; the sequence numbers of those that had one."""
    where = inbox.entries.c.note.is_not(None) & (inbox.entries.c.created_at < before)
    seqs = list(db.execute(select(inbox.entries.c.seq).where(where).order_by(inbox.entries.c.seq)).scalars())
    with unguarded(db, inbox.entries.name):
        db.execute(update(inbox.entries).where(where).values(note=None))
    return seqs


def batch(db: Connection, first: int, last: int) -> list[inbox.Entry]:
    query = select(inbox.entries).where(inbox.entries.c.seq.between(first, last)).order_by(inbox.entries.c.seq)
    return [inbox.Entry(*row) for row in db.execute(query)]
