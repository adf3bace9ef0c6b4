"""Units of an answer: what a version releases as one number, a play or the mean of an item's plays.

Which units a version has follows from the entries and from what was released anew, so nothing else is stored. A mean
from which a measurement was taken back is held back: none of its later versions has it, until it is released anew.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from blindopt import wire
from curator_service.privacy.measurement.privatize import Measured, releases_mean
from curator_service.queries import table as inbox_store
from curator_service.queries.table import AnswerVersion
from service_kit.store.database import Connection

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
        """How often each unit was released."""
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


def measurements_of(items: Sequence[wire.RowPlays], unit: Unit, values: tuple[tuple[int, float], ...]) -> Measured:
    """The measurements behind a unit, as a mechanism takes them."""
    return Measured(items[unit[0]].row, [play for play, _ in values], [value for _, value in values])
