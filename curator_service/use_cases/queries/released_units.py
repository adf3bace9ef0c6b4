"""Units of an answer: what a version releases as one number, a play or the mean of an item's plays.

Which units a version has follows from the entries and from what was released anew, so nothing else is stored. A mean
from which a measurement was taken back is held back: none of its later versions has it, until it is released anew.
"""

import json
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from blindopt import wire
from curator_service.measurement.privatize import Measured, releases_mean
from curator_service.store import inbox as table
from service_kit.store.database import Connection

Unit = tuple[int, int]
"""One released number: index of the item in the query and play, or index and 0 where means are released."""
Units = dict[Unit, tuple[tuple[int, float], ...]]
"""Each unit with play and value of the measurements behind it, in the order of the query."""


def measured_units(db: Connection, query_id: str, spec: wire.StudyCreate, basis: int) -> Units:
    """The units that have a measurement, by the entries up to ``basis``."""
    mean = releases_mean(spec)
    units: Units = {}
    for (index, play), value in table.values(db, query_id, basis).items():
        unit = (index, 0 if mean else play)
        units[unit] = (*units.get(unit, ()), (play, value))
    return units


def published_units(db: Connection, query_id: str, spec: wire.StudyCreate, versions: Sequence[Any]) -> Units:
    """The units of the last of these versions, which are all up to that one; none without a version."""
    if not releases_mean(spec):  # every play that changed was released anew
        return measured_units(db, query_id, spec, versions[-1].basis) if versions else {}
    published: Units = {}
    for version in versions:
        fresh, now = set(fresh_units(version)), measured_units(db, query_id, spec, version.basis)
        published = {unit: values for unit, values in now.items() if unit in fresh or published.get(unit) == values}
    return published


def units_to_release(
    db: Connection,
    query_id: str,
    spec: wire.StudyCreate,
    versions: Sequence[Any],
    basis: int,
    rest: Collection[int],
) -> tuple[list[Unit], bool]:
    """Units that the next version releases anew, in order; and whether it lacks a unit that the last one has.

    A unit that was released before is released anew for a value that was entered since, and for the items of ``rest``;
    not for values that were taken back.
    """
    now, last = measured_units(db, query_id, spec, basis), published_units(db, query_id, spec, versions)
    before = measured_units(db, query_id, spec, versions[-1].basis) if versions else {}
    released = release_counts(versions)

    def is_due(unit: Unit, values: tuple[tuple[int, float], ...]) -> bool:
        entered = bool(set(values) - set(before.get(unit, ())))
        return last.get(unit) != values and (unit not in released or entered or unit[0] in rest)

    fresh = {unit: values for unit, values in now.items() if is_due(unit, values)}
    return list(fresh), any(unit not in fresh and now.get(unit) != values for unit, values in last.items())


def held_back(db: Connection, query_id: str, spec: wire.StudyCreate) -> set[int]:
    """Indices of the items whose mean is held back since one of its measurements was taken back."""
    if not releases_mean(spec):
        return set()
    versions = table.rounds_of(db, query_id)
    now = measured_units(db, query_id, spec, table.last_entry(db, query_id))
    published, released = published_units(db, query_id, spec, versions), release_counts(versions)
    return {index for index, play in now if (index, play) in released and (index, play) not in published}


def fresh_units(version: Any) -> list[Unit]:
    """The units that a version releases anew, in order."""
    return [(index, play) for index, play in json.loads(version.fresh)]


def release_counts(versions: Sequence[Any]) -> Counter[Unit]:
    """How often each unit was released by these versions."""
    return Counter(unit for version in versions for unit in fresh_units(version))


def measurements_of(items: Sequence[wire.RowPlays], unit: Unit, values: tuple[tuple[int, float], ...]) -> Measured:
    """The measurements behind a unit, as a mechanism takes them."""
    return Measured(items[unit[0]].row, [play for play, _ in values], [value for _, value in values])
