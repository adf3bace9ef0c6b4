"""What a modeler is told of a query that people or a system measure: a first version, and one for each correction.

A version is begun, which charges what it releases anew, then drawn, then told: as a query to a column is. What a crash
leaves begun is drawn at the next start under the same charge, and told once. No version releases again what did not
change: that stays as it was, bit for bit.
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
from curator_service.use_cases.queries.wakeups import Bells
from curator_service.use_cases.studies.release_cache import ReleasedStudies
from service_kit.context.context import ServiceContext
from service_kit.store import audit_log
from service_kit.store.base import stamp
from service_kit.store.database import Connection

LOST = "the curator was put back to a backup since this was asked: what it told then is not known, so it tells no more"
_TOGETHER = 64
Unit = tuple[int, int]
"""What is released as one number: place and play, or place and 0 where means are released."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A version that will be told: which one, how much is still open before there is one, what was charged."""

    version: int
    open: int
    charged: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class _Drawn:
    """A version that can be told."""

    query_id: str
    version: int
    answers: list[wire.Answer]
    declined: list[int]
    fresh: int


class Versions:
    """Begins, draws and tells versions. Safe to call from several threads."""

    def __init__(self, context: ServiceContext, studies: ReleasedStudies, bells: Bells) -> None:
        self._context = context
        self._studies = studies
        self._bells = bells

    def begin(self, db: Connection, query_id: str, *, actor: str) -> Begun:
        """Begin a version if nothing is open and there is news, in the transaction that brings it.

        Where nothing is drawn it is told at once. Raises BudgetExhausted where a correction costs more than is left,
        StateConflict for a query that is told no more.
        """
        known = table.inquiry(db, query_id)
        check_told(known)
        waiting = table.count_open_of(db, query_id)
        table.change_inquiry(db, query_id, open=waiting)
        if waiting:
            return Begun(known.begun, waiting)
        earlier = table.rounds_of(db, query_id)
        basis, spec = table.last_entry(db, query_id), self._studies.of(db, known.study_id).spec
        fresh, again = self._changed(db, query_id, spec, earlier, basis)
        if earlier and not fresh and not self._gone(db, query_id, spec, earlier, basis):
            return Begun(known.begun, 0)
        version = len(earlier) + 1
        charged = self._charge(db, known, spec, version, again, earlier, actor)
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
                self._tell(db, drawn)
        return Begun(version, 0, charged)

    def _changed(
        self, db: Connection, query_id: str, spec: wire.StudyCreate, earlier: list[Any], basis: int
    ) -> tuple[list[Unit], list[Unit]]:
        """What is to be released anew, in order; and of that, what was released before."""
        now = _units(spec, table.values(db, query_id, basis))
        before = _units(spec, table.values(db, query_id, earlier[-1].basis)) if earlier else {}
        fresh = [unit for unit, values in now.items() if before.get(unit) != values]
        # Not of the last version alone: what was void meanwhile was released all the same.
        released = {_unit(unit) for one in earlier for unit in json.loads(one.fresh)}
        return fresh, [unit for unit in fresh if unit in released]

    def _gone(self, db: Connection, query_id: str, spec: wire.StudyCreate, earlier: list[Any], basis: int) -> bool:
        """Whether an answer of the last version is none any more. Nothing is drawn for that, and nothing charged."""
        now = _units(spec, table.values(db, query_id, basis))
        return any(unit not in now for unit in _units(spec, table.values(db, query_id, earlier[-1].basis)))

    def _charge(
        self,
        db: Connection,
        known: Any,
        spec: wire.StudyCreate,
        version: int,
        again: list[Unit],
        earlier: list[Any],
        actor: str,
    ) -> str | None:
        """Charge what is released again. What was charged with the query and never released is still free to be."""
        if not again or draws_nothing(spec):
            return None
        counted = Counter(place for place, _ in again)
        rows = [(table.row_at(db, known.query_id, place), n) for place, n in counted.items()]
        told = Counter(_unit(unit) for one in earlier for unit in json.loads(one.fresh))
        charges = ledger.charge_corrections(
            spec,
            lines.balance(db, known.study_id),
            rows,
            lines.row_balances(db, known.study_id, [row for row, _ in rows]),
            max(told[unit] for unit in again),
        )
        now = self._context.clock()
        lines.add(db, known.study_id, "correction", charges, query_id=known.query_id, at=stamp(now))
        notices.spent(db, self._context.outbox, known.study_id, spec, charges)
        cost = ledger.text(sum(charge.cost for charge in charges))
        details = {
            "study_id": known.study_id,
            "query_id": known.query_id,
            "version": version,
            "epsilon": cost,
            "rows": [list(row) for row in rows],
        }
        audit_log.append(db, "charge", actor=actor, now=now, details=details)
        return cost

    # --- drawing and telling ----------------------------------------------------------------------

    def settle(self, query_ids: Iterable[str]) -> None:
        """Draw and tell what was begun of these queries. What another thread told meanwhile stays as it was."""
        left = list(dict.fromkeys(query_ids))
        while left:
            group, left = left[:_TOGETHER], left[_TOGETHER:]
            while drawn := self._next_of(group):  # one version of each: the next one rests on it as it was told
                self._context.database.write(partial(self._tell_all, drawn))
            for query_id in group:
                self._bells.ring(query_id)

    def _next_of(self, query_ids: list[str]) -> list[_Drawn]:
        with self._context.database.read() as db:
            return [drawn for query_id in query_ids if (drawn := self._next(db, query_id)) is not None]

    def _next(self, db: Connection, query_id: str) -> _Drawn | None:
        """The next version of a query that was begun and not told, drawn now; None where there is none."""
        known = table.inquiry(db, query_id)
        if known is None or known.version == known.begun or known.lost:
            return None
        spec, asked = self._studies.of(db, known.study_id).spec, request_of(db, query_id)
        one = table.rounds_of(db, query_id)[known.version]
        units = _units(spec, table.values(db, query_id, one.basis))
        fresh = {unit: units[unit] for unit in map(_unit, json.loads(one.fresh))}
        drawn = release([_measured(asked, unit, values) for unit, values in fresh.items()], spec)
        told = self._as_told(db, query_id, spec, known.version) | dict(zip(fresh, drawn, strict=True))
        answered = {asked[place].row for place, _ in units}
        declined = list(dict.fromkeys(item.row for item in asked if item.row not in answered))
        return _Drawn(query_id, one.version, [told[unit] for unit in units], declined, len(fresh))

    def _as_told(self, db: Connection, query_id: str, spec: wire.StudyCreate, version: int) -> dict[Unit, wire.Answer]:
        """The answers of a version that was told; none of version 0."""
        if version == 0:
            return {}
        basis = table.rounds_of(db, query_id)[version - 1].basis
        units = _units(spec, table.values(db, query_id, basis))
        reply = wire.QueryReply.model_validate_json(table.revision(db, query_id, version).body)
        return dict(zip(units, reply.answers, strict=True))

    def _tell_all(self, drawn: list[_Drawn], db: Connection) -> None:
        for one in drawn:
            self._tell(db, one)

    def _tell(self, db: Connection, drawn: _Drawn) -> None:
        """Store a version with its record. Nothing where it was told already: no version is told twice."""
        known = table.inquiry(db, drawn.query_id)
        if known.lost or known.version != drawn.version - 1:
            return
        now = self._context.clock()
        reply = wire.QueryReply(
            id=drawn.query_id,
            study_id=known.study_id,
            state="answered",
            version=drawn.version,
            created_at=now,
            answers=drawn.answers,
            declined=drawn.declined,
            salt=secrets.token_hex(16),
        )
        body = reply.model_dump_json().encode()
        table.tell(db, known.grant_id, drawn.query_id, drawn.version, body, stamp(now))
        details = {
            "study_id": known.study_id,
            "query_id": drawn.query_id,
            "version": drawn.version,
            "released": drawn.fresh,
            "reply_sha256": sha256(body),
        }
        audit_log.append(db, "query.answered", actor="curator", now=now, details=details)


def most_by_row(db: Connection, study_id: str) -> dict[int, int]:
    """How often any answer about a row was released at most, of rows of which one was released again."""
    counted: Counter[tuple[str, Unit]] = Counter()
    for query_id, _, fresh in table.corrected(db, study_id):
        counted.update((query_id, _unit(unit)) for unit in json.loads(fresh))
    found: dict[int, int] = {}
    for (query_id, (place, _)), n in counted.items():
        if n > 1:
            row = table.row_at(db, query_id, place)
            found[row] = max(found.get(row, 0), n)
    return found


def check_told(known: Any) -> None:
    """StateConflict for a query that is told no more."""
    if known.lost:
        raise StateConflict(LOST)


def request_of(db: Connection, query_id: str) -> list[wire.RowPlays]:
    """What a query asked."""
    return wire.QueryRequest.model_validate_json(store.find(db, store.queries, query_id).request).rows


def _unit(told: list[int]) -> Unit:
    place, play = told
    return place, play


def _units(spec: wire.StudyCreate, values: dict[tuple[int, int], float]) -> dict[Unit, tuple[tuple[int, float], ...]]:
    """What is released, each as one number, in order: play and value of all that was measured of it."""
    mean = releases_mean(spec)
    found: dict[Unit, tuple[tuple[int, float], ...]] = {}
    for (place, play), value in values.items():
        unit = (place, 0 if mean else play)
        found[unit] = (*found.get(unit, ()), (play, value))
    return found


def _measured(asked: list[wire.RowPlays], unit: Unit, values: tuple[tuple[int, float], ...]) -> Measured:
    return Measured(asked[unit[0]].row, [play for play, _ in values], [value for _, value in values])
