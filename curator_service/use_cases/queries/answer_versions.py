"""Versions of the answer to a query that people or a system measure: the first, and one for each correction.

A version is begun (which charges every answer that it releases again), drawn, and published, as the answer of a query
to a column is. A version that a crash leaves begun is drawn at the next start under the same charge, and published
once. An answer whose measurements did not change is copied from the version before, bit for bit.
"""

import json
import secrets
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from blindopt import wire
from blindopt.audit.merkle_log import sha256
from blindopt.errors import StateConflict
from curator_service import store
from curator_service.measurement.privatize import Measured, draws_nothing, release, releases_mean
from curator_service.privacy import ledger
from curator_service.store import inbox as table
from curator_service.store import ledger as lines
from curator_service.use_cases import notices
from curator_service.use_cases.queries.wakeups import Wakeups
from curator_service.use_cases.studies.release_cache import ReleasedStudies
from service_kit.context.context import ServiceContext
from service_kit.store import audit_log
from service_kit.store.base import stamp
from service_kit.store.database import Connection

LOST = "the curator was restored from a backup after this query: later answers are lost, so it gets no more"
_TOGETHER = 64
Unit = tuple[int, int]
"""One released number: index of the item in the query and play, or index and 0 where means are released."""


@dataclass(frozen=True, slots=True)
class BegunVersion:
    """A version that will be published: its number, how many measurements are still open, what was charged."""

    version: int
    open: int
    charged: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class _DrawnVersion:
    """A version that can be published; ``fresh``: how many of its answers are released anew."""

    query_id: str
    version: int
    answers: list[wire.Answer]
    declined: list[int]
    fresh: int


class AnswerVersions:
    """Begins, draws and publishes versions. Safe to call from several threads."""

    def __init__(self, context: ServiceContext, studies: ReleasedStudies, wakeups: Wakeups) -> None:
        self._context = context
        self._studies = studies
        self._wakeups = wakeups

    def begin(self, db: Connection, query_id: str, *, actor: str) -> BegunVersion:
        """Begin a version if no measurement is open and any has changed, in the transaction of that change.

        Where answers have no noise it is published at once. Raises BudgetExhausted if a correction costs more than
        remains, StateConflict if the query gets no more versions.
        """
        inquiry = table.inquiry(db, query_id)
        check_not_lost(inquiry)
        waiting = table.count_open_of(db, query_id)
        table.change_inquiry(db, query_id, open=waiting)
        if waiting:
            return BegunVersion(inquiry.begun, waiting)
        earlier = table.rounds_of(db, query_id)
        basis, spec = table.last_entry(db, query_id), self._studies.of(db, inquiry.study_id).spec
        fresh, again = self._changed(db, query_id, spec, earlier, basis)
        if earlier and not fresh and not self._is_any_void(db, query_id, spec, earlier, basis):
            return BegunVersion(inquiry.begun, 0)
        version = len(earlier) + 1
        charged = self._charge(db, inquiry, spec, version, again, earlier, actor)
        table.begin_round(
            db,
            query_id=query_id,
            version=version,
            basis=basis,
            fresh=json.dumps(fresh),
            created_at=stamp(self._context.clock()),
        )
        table.change_inquiry(db, query_id, begun=version)
        if draws_nothing(spec):
            while (drawn := self._next(db, query_id)) is not None:
                self._publish(db, drawn)
        return BegunVersion(version, 0, charged)

    def _changed(
        self, db: Connection, query_id: str, spec: wire.StudyCreate, earlier: list[Any], basis: int
    ) -> tuple[list[Unit], list[Unit]]:
        """Units to release anew, in order; and those of them that were released before."""
        now = _units(spec, table.values(db, query_id, basis))
        before = _units(spec, table.values(db, query_id, earlier[-1].basis)) if earlier else {}
        fresh = [unit for unit, values in now.items() if before.get(unit) != values]
        # Not of the last version alone: an answer that was void meanwhile was released all the same.
        released = _released(earlier)
        return fresh, [unit for unit in fresh if unit in released]

    def _is_any_void(
        self, db: Connection, query_id: str, spec: wire.StudyCreate, earlier: list[Any], basis: int
    ) -> bool:
        """Whether any answer of the last version has become void. That draws nothing and charges nothing."""
        now = _units(spec, table.values(db, query_id, basis))
        return any(unit not in now for unit in _units(spec, table.values(db, query_id, earlier[-1].basis)))

    def _charge(
        self,
        db: Connection,
        inquiry: Any,
        spec: wire.StudyCreate,
        version: int,
        again: list[Unit],
        earlier: list[Any],
        actor: str,
    ) -> str | None:
        """Charge every answer that is released again. The first release of each was charged with the query."""
        if not again or draws_nothing(spec):
            return None
        releases_by_item = Counter(index for index, _ in again)
        rows = [(table.row_at(db, inquiry.query_id, index), n) for index, n in releases_by_item.items()]
        release_counts = _released(earlier)
        charges = ledger.charge_corrections(
            spec,
            lines.balance(db, inquiry.study_id),
            rows,
            lines.row_balances(db, inquiry.study_id, [row for row, _ in rows]),
            max(release_counts[unit] for unit in again),
        )
        now = self._context.clock()
        lines.add(db, inquiry.study_id, "correction", charges, query_id=inquiry.query_id, at=stamp(now))
        notices.spent(db, self._context.outbox, inquiry.study_id, spec, charges)
        cost = ledger.text(sum(charge.cost for charge in charges))
        details = {
            "study_id": inquiry.study_id,
            "query_id": inquiry.query_id,
            "version": version,
            "epsilon": cost,
            "rows": [list(row) for row in rows],
        }
        audit_log.append(db, "charge", actor=actor, now=now, details=details)
        return cost

    # --- drawing and publishing -------------------------------------------------------------------

    def settle(self, query_ids: Iterable[str]) -> None:
        """Draw and publish the begun versions of these queries, but those that another thread published meanwhile."""
        remaining = list(dict.fromkeys(query_ids))
        while remaining:
            group, remaining = remaining[:_TOGETHER], remaining[_TOGETHER:]
            while drawn := self._next_of(group):  # one version of each query: the next one copies answers of it
                self._context.database.write(partial(self._publish_all, drawn))
            for query_id in group:
                self._wakeups.notify(query_id)

    def _next_of(self, query_ids: list[str]) -> list[_DrawnVersion]:
        with self._context.database.read() as db:
            return [drawn for query_id in query_ids if (drawn := self._next(db, query_id)) is not None]

    def _next(self, db: Connection, query_id: str) -> _DrawnVersion | None:
        """The next version of a query that was begun and not published, drawn now; None if there is none."""
        inquiry = table.inquiry(db, query_id)
        if inquiry is None or inquiry.version == inquiry.begun or inquiry.lost:
            return None
        spec, items = self._studies.of(db, inquiry.study_id).spec, request_of(db, query_id)
        begun = table.rounds_of(db, query_id)[inquiry.version]
        units = _units(spec, table.values(db, query_id, begun.basis))
        fresh = {unit: units[unit] for unit in map(_unit, json.loads(begun.fresh))}
        drawn = release([_measured(items, unit, values) for unit, values in fresh.items()], spec)
        answers = self._published(db, query_id, spec, inquiry.version) | dict(zip(fresh, drawn, strict=True))
        answered = {items[index].row for index, _ in units}
        declined = list(dict.fromkeys(item.row for item in items if item.row not in answered))
        return _DrawnVersion(query_id, begun.version, [answers[unit] for unit in units], declined, len(fresh))

    def _published(
        self, db: Connection, query_id: str, spec: wire.StudyCreate, version: int
    ) -> dict[Unit, wire.Answer]:
        """The answers of a published version; none for version 0."""
        if version == 0:
            return {}
        basis = table.rounds_of(db, query_id)[version - 1].basis
        units = _units(spec, table.values(db, query_id, basis))
        reply = wire.QueryReply.model_validate_json(table.revision(db, query_id, version).body)
        return dict(zip(units, reply.answers, strict=True))

    def _publish_all(self, versions: list[_DrawnVersion], db: Connection) -> None:
        for drawn in versions:
            self._publish(db, drawn)

    def _publish(self, db: Connection, drawn: _DrawnVersion) -> None:
        """Store a version with its log record, unless another thread has: no version is published twice."""
        inquiry = table.inquiry(db, drawn.query_id)
        if inquiry.lost or inquiry.version != drawn.version - 1:
            return
        now = self._context.clock()
        reply = wire.QueryReply(
            id=drawn.query_id,
            study_id=inquiry.study_id,
            state="answered",
            version=drawn.version,
            created_at=now,
            answers=drawn.answers,
            declined=drawn.declined,
            salt=secrets.token_hex(16),
        )
        body = reply.model_dump_json().encode()
        table.add_revision(db, inquiry.grant_id, drawn.query_id, drawn.version, body, stamp(now))
        details = {
            "study_id": inquiry.study_id,
            "query_id": drawn.query_id,
            "version": drawn.version,
            "released": drawn.fresh,
            "reply_sha256": sha256(body),
        }
        audit_log.append(db, "query.answered", actor="curator", now=now, details=details)


def check_not_lost(inquiry: Any) -> None:
    """Raise StateConflict for a query that gets no more versions."""
    if inquiry.lost:
        raise StateConflict(LOST)


def request_of(db: Connection, query_id: str) -> list[wire.RowPlays]:
    """The items of a query: rows, and how often each is to be measured."""
    return wire.QueryRequest.model_validate_json(store.find(db, store.queries, query_id).request).rows


def _released(versions: list[Any]) -> Counter[Unit]:
    """How often each unit was released by these versions."""
    return Counter(_unit(unit) for version in versions for unit in json.loads(version.fresh))


def _unit(pair: list[int]) -> Unit:
    index, play = pair
    return index, play


def _units(spec: wire.StudyCreate, values: dict[tuple[int, int], float]) -> dict[Unit, tuple[tuple[int, float], ...]]:
    """The units that a version releases, in order, each with play and value of its measurements."""
    mean = releases_mean(spec)
    units: dict[Unit, tuple[tuple[int, float], ...]] = {}
    for (index, play), value in values.items():
        unit = (index, 0 if mean else play)
        units[unit] = (*units.get(unit, ()), (play, value))
    return units


def _measured(items: list[wire.RowPlays], unit: Unit, values: tuple[tuple[int, float], ...]) -> Measured:
    return Measured(items[unit[0]].row, [play for play, _ in values], [value for _, value in values])
