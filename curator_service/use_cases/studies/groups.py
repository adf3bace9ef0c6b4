"""The groups behind candidates, as their owner sees them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from blindopt import wire
from blindopt.arrays import Matrix
from blindopt.formats import npy_files
from curator_service.measurement.groups import clipped_mean, measure_groups
from curator_service.release.groups import Groups
from curator_service.release.registry import mechanism_of
from curator_service.use_cases.studies.release_cache import Released
from curator_service.use_cases.studies.withheld_records import withheld_records
from curator_service.vault import Vault
from service_kit.store.database import Connection

SHOWN = 1_000
"""Numbers of records that a view has."""


def group_view(db: Connection, vault: Vault, study_id: str, row: int, released: Released) -> wire.GroupView:
    """A group of a released study, with its records."""
    spec, counts, mechanism = released.spec, released.report.counts, _mechanism(released.spec)
    assert counts is not None
    assert isinstance(spec.answers, wire.LaplaceAnswers)
    part = _parts(vault, released, [row])[0]
    lower = upper = None
    if isinstance(mechanism.cells, wire.GridCells):
        lower, upper = (bounds[part].tolist() for bounds in mechanism.bounds())
    members = released.members(row, withheld_records(db, vault, spec.dataset_id))
    return wire.GroupView(
        study_id=study_id,
        row=row,
        count=counts[row],
        centre=mechanism.raw_centres()[part].tolist(),
        lower=lower,
        upper=upper,
        size=len(members),
        mean=clipped_mean(released.values_of(members), spec.answers),
        records=[released.number(int(record)) for record in members[:SHOWN]],
    )


def answers(released: Released, request: list[wire.RowPlays], without: Sequence[int]) -> list[wire.Answer]:
    """Answers about groups, charged before, from their records ``without`` those that are withheld."""
    assert released.report.counts is not None
    values = [released.values_of(released.members(item.row, without)) for item in request]
    counts = [released.report.counts[item.row] for item in request]
    return measure_groups(values, counts, request, released.spec)


def withheld_from(db: Connection, vault: Vault, released: Released) -> list[int]:
    """The records that the sums of groups are without; none where candidates are records, which are declined."""
    return [] if released.groups is None else withheld_records(db, vault, released.spec.dataset_id)


def centres(vault: Vault, released: Released, rows: list[int]) -> Matrix:
    """The centres of candidates (t, d), in raw units."""
    return _mechanism(released.spec).raw_centres()[_parts(vault, released, rows)]


def _parts(vault: Vault, released: Released, rows: list[int]) -> NDArray[np.int64]:
    """The part of the partition that each candidate is: that of its centre."""
    return _mechanism(released.spec).parts_of(npy_files.load(vault.candidates(released.id))[rows])


def _mechanism(spec: wire.StudyCreate) -> Groups:
    assert isinstance(spec.release, wire.GroupsRelease)
    mechanism = mechanism_of(spec, spec.release)
    assert isinstance(mechanism, Groups)
    return mechanism
