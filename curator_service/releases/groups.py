"""The groups behind candidates, as their owner sees them."""

from collections.abc import Sequence

from blindopt import wire
from blindopt.arrays import Matrix
from blindopt.formats import npy_files
from curator_service.budget import ledger_lines
from curator_service.datasets.records import withheld_records
from curator_service.privacy.measurement.groups import clipped_mean, measure_groups
from curator_service.privacy.prices import text
from curator_service.releases.mechanisms.groups import Groups
from curator_service.releases.mechanisms.registry import mechanism_of
from curator_service.studies.release_cache import Released
from curator_service.vault import Vault
from service_kit.store.database import Connection

SHOWN = 1_000
"""Numbers of records that a view has."""
_Bounds = Sequence[list[float] | None]


def group_entries(db: Connection, vault: Vault, rows: list[int], released: Released) -> list[wire.GroupEntry]:
    """Groups of a released study by candidate: public values, what was released, and what it has cost."""
    counts = released.report.counts
    assert counts is not None
    balances, middles = ledger_lines.row_balances(db, released.study_id, set(rows)), centres(vault, released, rows)
    lower, upper = _bounds(vault, released, rows)
    return [
        wire.GroupEntry(
            row=row,
            count=counts[row],
            centre=centre,
            lower=low,
            upper=high,
            spent=text(balances[row].total if row in balances else 0),
        )
        for row, centre, low, high in zip(rows, middles.tolist(), lower, upper, strict=True)
    ]


def group_view(db: Connection, vault: Vault, row: int, released: Released) -> wire.GroupView:
    spec = released.spec
    assert isinstance(spec.answers, wire.LaplaceAnswers)
    (entry,) = group_entries(db, vault, [row], released)
    members = released.members(row, withheld_records(db, vault, spec.dataset_id))
    return wire.GroupView(
        **entry.model_dump(),
        study_id=released.study_id,
        size=len(members),
        mean=clipped_mean(released.values_of(members), spec.answers),
        records=[released.number(int(record)) for record in members[:SHOWN]],
        file_rows=[at for record in members[:SHOWN] if (at := released.file_row(int(record))) is not None] or None,
    )


def answers(released: Released, request: list[wire.RowPlays], without: Sequence[int]) -> list[wire.Answer]:
    """Answers about groups, charged before, from their records ``without`` those that are withheld."""
    assert released.report.counts is not None
    sums = released.sums_without(without)[[item.row for item in request]].tolist()
    counts = [released.report.counts[item.row] for item in request]
    return measure_groups(sums, counts, request, released.spec)


def centres(vault: Vault, released: Released, rows: list[int]) -> Matrix:
    """The centres of candidates (t, d), in raw units."""
    mechanism, z = _mechanism(released.spec), _scaled(vault, released, rows)
    return mechanism.in_raw_units(z) if mechanism.private else mechanism.raw_centres()[mechanism.parts_of(z)]


def _bounds(vault: Vault, released: Released, rows: list[int]) -> tuple[_Bounds, _Bounds]:
    """Lower and upper bounds of candidates that are parts of a grid, in raw units; None for others."""
    mechanism = _mechanism(released.spec)
    if not isinstance(mechanism.cells, wire.GridCells):
        return [None] * len(rows), [None] * len(rows)
    cells, (lower, upper) = mechanism.parts_of(_scaled(vault, released, rows)), mechanism.bounds()
    return lower[cells].tolist(), upper[cells].tolist()


def _scaled(vault: Vault, released: Released, rows: list[int]) -> Matrix:
    z: Matrix = npy_files.load(vault.candidates(released.id))[rows]
    return z


def _mechanism(spec: wire.StudyCreate) -> Groups:
    assert isinstance(spec.release, wire.GroupsRelease)
    mechanism = mechanism_of(spec, spec.release)
    assert isinstance(mechanism, Groups)
    return mechanism
