"""Versions of the answer to a query that people or a system measure: the first, and one for each correction.

A version is begun (which charges every answer that it releases again), drawn, and published, as the answer of a query
to a column is. A version that a crash leaves begun is drawn at the next start under the same charge, and published
once; an answer of it whose record was withheld meanwhile, or that was not charged, is declined. An answer whose
measurements did not change is copied from the version before, bit for bit. A mean from which a measurement was taken
back is declined, without a new number and a charge; the mean of what is left is released, and charged, when the owner
requests it or another value of the item is entered.

Units are what a version releases as one number: a play, or the mean of an item's plays. Which a version has follows
from the entries and from what was released anew, so nothing else is stored. A mean from which a measurement was taken
back is held back: none of its later versions has it, until it is released anew.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Literal

from blindopt import wire
from blindopt.audit.merkle_log import sha256
from blindopt.errors import Erased, StateConflict
from curator_service import store
from curator_service.budget import ledger_lines
from curator_service.budget.budgets import Budgets
from curator_service.privacy.answers import Measured, draws_nothing, release, releases_mean, reply_salt
from curator_service.privacy.prices import Prices
from curator_service.queries import refinements
from curator_service.queries import table as inbox_store
from curator_service.queries.table import AnswerVersion, MeasuredQuery, SecondDraws
from curator_service.studies.release_cache import Released, ReleasedStudies, withheld_rows
from curator_service.vault import Vault
from service_kit.context.context import ServiceContext
from service_kit.store import audit_log
from service_kit.store.base import stamp
from service_kit.store.database import Connection
from service_kit.web.wakeups import Wakeups

LOST = "the curator was restored from a backup after this query: later answers are lost, so it gets no more"
_TOGETHER = 64
Unit = tuple[int, int]
"""One released number: index of the item in the query and play, or index and 0 where means are released."""
Units = dict[Unit, tuple[tuple[int, float], ...]]
"""Each unit with play and value of the measurements behind it, in the order of the query."""


@dataclass(frozen=True, slots=True)
class ReleasedUnits:
    """The units of a query's answer, from its entries and from the versions that were begun."""

    db: Connection
    query_id: str
    spec: wire.StudyCreate
    versions: Sequence[AnswerVersion]

    @classmethod
    def of(cls, db: Connection, query_id: str, spec: wire.StudyCreate, last: int | None = None) -> "ReleasedUnits":
        """Those of all versions of a query, or of those up to ``last``."""
        return cls(db, query_id, spec, inbox_store.versions_of(db, query_id)[:last])

    def measured(self, basis: int, entered: Mapping[tuple[int, int], float | None] = MappingProxyType({})) -> Units:
        """The units that have a measurement, by the entries up to ``basis``.

        ``entered``: values by item index and play that would be entered after these; None for a value taken back.
        """
        mean = releases_mean(self.spec)
        units: Units = {}
        values = {**inbox_store.values(self.db, self.query_id, basis), **entered}
        for (index, play), value in sorted(values.items()):
            if value is None:
                continue
            unit = (index, 0 if mean else play)
            units[unit] = (*units.get(unit, ()), (play, value))
        return units

    def published(self) -> Units:
        """The units of the last version; none without a version."""
        if not releases_mean(self.spec):  # every play that changed was released anew
            return self.measured(self.versions[-1].basis) if self.versions else {}
        published: Units = {}
        for version in self.versions:
            fresh, measured = set(version.units), self.measured(version.basis)
            published = {
                unit: values for unit, values in measured.items() if unit in fresh or published.get(unit) == values
            }
        return published

    def release_counts(self) -> Counter[Unit]:
        return Counter(unit for version in self.versions for unit in version.units)

    def to_release(self, measured: Units, means: Collection[int]) -> tuple[list[Unit], bool]:
        """Units that the next version releases anew, in order; and whether it lacks a unit that the last one has.

        ``measured``: the units that have a measurement by now.
        A unit that was released before is released anew for a value that was entered since, and for the means of
        these items; not for values that were taken back.
        """
        last = self.published()
        before = self.measured(self.versions[-1].basis) if self.versions else {}
        released = self.release_counts()

        def is_due(unit: Unit, values: tuple[tuple[int, float], ...]) -> bool:
            entered = bool(set(values) - set(before.get(unit, ())))
            return last.get(unit) != values and (unit not in released or entered or unit[0] in means)

        fresh = {unit: values for unit, values in measured.items() if is_due(unit, values)}
        return list(fresh), any(unit not in fresh and measured.get(unit) != values for unit, values in last.items())

    def held_back(self) -> set[int]:
        """Indices of the items whose mean is held back since one of its measurements was taken back."""
        if not releases_mean(self.spec):
            return set()
        measured = self.measured(inbox_store.last_entry(self.db, self.query_id))
        return {index for index, play in measured.keys() & self.release_counts().keys() - self.published().keys()}


@dataclass(frozen=True, slots=True, repr=False)
class _DrawnVersion:
    """A version that can be published; ``fresh``: the rows of its answers that are released anew, one for each.

    ``second_draws``: of records that had none.
    """

    query_id: str
    version: int
    answers: list[wire.Answer]
    fresh: list[int]
    second_draws: SecondDraws


class AnswerVersions:
    """Begins, draws and publishes versions. Safe to call from several threads."""

    def __init__(self, context: ServiceContext, studies: ReleasedStudies, budgets: Budgets, wakeups: Wakeups) -> None:
        self._context = context
        self._studies = studies
        self._budgets = budgets
        self._wakeups = wakeups

    def begin(
        self, db: Connection, query_id: str, *, actor: str, means: Collection[int] = ()
    ) -> wire.QueryMeasurements:
        """Begin a version if no measurement is open and any has changed, in the transaction of that change.

        ``means``: indices of items whose mean, which was held back, is released over what is left. Where answers have
        no noise the version is published at once. Raises BudgetExhausted if a correction costs more than remains,
        StateConflict if the query gets no more versions.
        """
        query = inbox_store.query(db, query_id)
        check_not_lost(query)
        waiting = inbox_store.count_open(db, query_id)
        inbox_store.change_query(db, query_id, open=waiting)
        if waiting:
            return _state(query_id, query.begun, waiting)
        spec, basis = self._studies.of(db, query.study_id).spec, inbox_store.last_entry(db, query_id)
        earlier = ReleasedUnits.of(db, query_id, spec)
        fresh, again, is_less = self.changed_units(earlier, earlier.measured(basis), means)
        if earlier.versions and not fresh and not is_less:
            return _state(query_id, query.begun)
        number, created_at = len(earlier.versions) + 1, stamp(self._context.clock())
        charged = self._charge(db, query, earlier, again, actor)
        inbox_store.begin_version(db, AnswerVersion(query_id, number, basis, json.dumps(fresh), created_at))
        if draws_nothing(spec):
            while (version := self._next(db, query_id)) is not None:
                self._publish(db, version)
        return _state(query_id, number, charged=charged)

    def price(self, db: Connection, query_id: str, entered: Mapping[tuple[int, int], float | None]) -> int:
        """What releasing answers again would cost if these values were entered and no measurement were open.

        ``entered``: as in ``ReleasedUnits.measured``.
        """
        spec = self._studies.of(db, inbox_store.query(db, query_id).study_id).spec
        earlier, basis = ReleasedUnits.of(db, query_id, spec), inbox_store.last_entry(db, query_id)
        _, again, _ = self.changed_units(earlier, earlier.measured(basis, entered), ())
        return 0 if draws_nothing(spec) else len(again) * Prices.of(spec).answer

    def changed_units(
        self, earlier: ReleasedUnits, measured: Units, means: Collection[int]
    ) -> tuple[list[Unit], list[Unit], bool]:
        """Units to release anew, in order; those of them that were released before; and whether any answer is gone."""
        fresh, is_less = earlier.to_release(measured, means)
        # Not of the last version alone: an answer that was void meanwhile was released all the same.
        released = earlier.release_counts()
        return fresh, [unit for unit in fresh if unit in released], is_less

    def _charge(
        self, db: Connection, query: MeasuredQuery, earlier: ReleasedUnits, again: list[Unit], actor: str
    ) -> str | None:
        """Charge every answer that is released again. The first release of each was charged with the query."""
        spec = earlier.spec
        if not again or draws_nothing(spec):
            return None
        releases_by_item = Counter(index for index, _ in again)
        rows = [(inbox_store.row_at(db, query.query_id, index), n) for index, n in releases_by_item.items()]
        counts, released = earlier.release_counts(), self._studies.of(db, query.study_id)
        most = max(counts[unit] for unit in again)
        version = {"query_id": query.query_id, "version": len(earlier.versions) + 1}
        return self._budgets.charge_correction(db, actor, released, rows, most, version)

    # --- drawing and publishing -------------------------------------------------------------------

    def settle(self, query_ids: Iterable[str]) -> None:
        """Draw and publish the begun versions of these queries, but those that another thread published meanwhile."""
        remaining = list(dict.fromkeys(query_ids))
        while remaining:
            group, remaining = remaining[:_TOGETHER], remaining[_TOGETHER:]
            while versions := self._next_of(group):  # one version of each query: the next one copies answers of it
                self._context.database.write(partial(self._publish_all, versions))
            with self._context.database.read() as db:
                grants = {query.grant_id for name in group if (query := inbox_store.find_query(db, name)) is not None}
            for name in (*group, *grants):
                self._wakeups.notify(name)

    def _next_of(self, query_ids: list[str]) -> list[_DrawnVersion]:
        with self._context.database.read() as db:
            return [version for query_id in query_ids if (version := self._next(db, query_id)) is not None]

    def _next(self, db: Connection, query_id: str) -> _DrawnVersion | None:
        """The next version of a query that was begun and not published, drawn now; None if there is none."""
        query = inbox_store.find_query(db, query_id)
        if query is None or query.version == query.begun or query.lost:
            return None
        study, items = self._studies.of(db, query.study_id), request_of(db, query_id)
        spec = study.spec
        released = ReleasedUnits.of(db, query_id, spec, query.version + 1)
        units, fresh = released.published(), released.versions[-1].units
        answers = self._published(ReleasedUnits.of(db, query_id, spec, query.version), items)
        measured = [
            Measured(items[unit[0]].row, [play for play, _ in units[unit]], [value for _, value in units[unit]])
            for unit in fresh
        ]
        samples = release(measured, spec)
        answers |= dict(zip(fresh, samples, strict=True))
        # A unit without an answer is of a row that was declined when an earlier version was published.
        answered = [answers[unit] for unit in units if unit in answers]
        second_draws = {}
        if spec.refine is not None:
            second_draws = refinements.draw(db, study, [answer.row for answer in answered])
        fresh_rows = [items[index].row for index, _ in fresh]
        return _DrawnVersion(query_id, query.version + 1, answered, fresh_rows, second_draws)

    def _published(self, units: ReleasedUnits, items: list[wire.RowPlays]) -> dict[Unit, wire.Answer]:
        """The answers of the last of these versions, which is published; none without a version."""
        if not units.versions:
            return {}
        body = inbox_store.published(units.db, units.query_id, len(units.versions)).body
        reply = wire.QueryReply.model_validate_json(body)
        answered = [unit for unit in units.published() if items[unit[0]].row not in reply.declined]
        return dict(zip(answered, reply.answers, strict=True))

    def _publish_all(self, versions: list[_DrawnVersion], db: Connection) -> None:
        for version in versions:
            self._publish(db, version)

    def _publish(self, db: Connection, version: _DrawnVersion) -> None:
        """Store a version with its log record, unless another thread has: no version is published twice.

        A row with an answer that is released anew is declined if ``declined_rows`` has it, whenever that was measured.
        """
        query = inbox_store.query(db, version.query_id)
        if query.lost or query.version != version.version - 1:
            return
        now, released = self._context.clock(), self._studies.of(db, query.study_id)
        declined = declined_rows(db, self._studies.vault, released, query, version.fresh)
        answers = [answer for answer in version.answers if answer.row not in declined]
        answered = {answer.row for answer in answers}
        rows = dict.fromkeys(item.row for item in request_of(db, version.query_id))
        refined = []
        if released.spec.refine is not None:
            sent_rows = [row for row in rows if row in answered]
            refined = refinements.of_reply(db, released, sent_rows, version.second_draws)
        reply = wire.QueryReply(
            id=version.query_id,
            study_id=query.study_id,
            state="answered",
            version=version.version,
            created_at=now,
            answers=answers,
            declined=[row for row in rows if row not in answered],
            refined=refined,
            salt=reply_salt(refinements.numbers(answers, refined)),
        )
        body = reply.model_dump_json().encode()
        inbox_store.publish(db, query.grant_id, version.query_id, version.version, body, stamp(now))
        details = {
            "study_id": query.study_id,
            "query_id": version.query_id,
            "version": version.version,
            "released": len(version.fresh),
            "reply_sha256": sha256(body),
        }
        audit_log.append(db, "query.answered", actor="curator", now=now, details=details)


def _state(query_id: str, version: int, waiting: int = 0, charged: str | None = None) -> wire.QueryMeasurements:
    state: Literal["answered", "pending"] = "answered" if version else "pending"
    return wire.QueryMeasurements(query_id=query_id, state=state, version=version, open=waiting, charged=charged)


def check_not_lost(query: MeasuredQuery) -> None:
    """Raise StateConflict or Erased for a query that gets no more versions."""
    if query.lost == inbox_store.GONE:
        raise Erased("the study was erased by its owner: its queries get no more answers")
    if query.lost:
        raise StateConflict(LOST)


def declined_rows(
    db: Connection, vault: Vault, released: Released, query: MeasuredQuery, rows: Collection[int]
) -> set[int]:
    """Those of ``rows`` whose record is withheld, or that the query was not charged for: it was withheld then.

    The second whatever the list of withheld records says by now, so that no answer leaves without its charge.
    """
    charged = ledger_lines.charged_rows(db, query.study_id, query.query_id, rows)
    return withheld_rows(db, vault, released, rows) | (set(rows) - charged)


def request_of(db: Connection, query_id: str) -> list[wire.RowPlays]:
    """The items of a query: rows, and how often each is to be measured."""
    return wire.QueryRequest.model_validate_json(store.find(db, store.queries, query_id).request).rows
