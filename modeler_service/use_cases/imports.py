"""Past measurements that a run begins with, read from JSON or CSV and checked line by line."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from blindopt import wire
from blindopt.errors import Invalid, NotFound
from blindopt.formats.numbers import DecimalSigns, either, number_of
from blindopt.formats.tables import SmallTable
from blindopt.wire.base import parsed
from modeler_service import store
from service_kit.store.database import Connection

COLUMNS = ("row", "y", "noise_variance")
FAULTS_MAX = 1_000
_ROW = re.compile(r"[0-9]{1,15}")


@dataclass(frozen=True, slots=True)
class Import:
    """Observations with their line numbers, and the lines that could not be read."""

    observations: list[tuple[int, wire.Observation]]
    faults: list[wire.ImportFault]


def of_json(body: wire.ObservationImport) -> Import:
    """Read a JSON body, which was validated already; line numbers are positions in the list, from 1."""
    return Import(list(enumerate(body.observations, start=1)), [])


def of_csv(body: bytes) -> Import:
    """Read a CSV file with the header ``row``, ``y``, and ``noise_variance`` where it is known. Raises Invalid."""
    sheet = SmallTable(body)
    _, header = next(iter(sheet), (1, []))
    if set(header) - set(COLUMNS) or not {"row", "y"} <= set(header) or len(set(header)) < len(header):
        raise Invalid("the first line must name the columns: row, y, and noise_variance where it is known")
    signs = DecimalSigns(cell for _, cells in sheet for cell in cells)
    if (sign := signs.of_file(sheet.separator)) is None:
        raise Invalid(either(signs.unsure[0]))
    observations: list[tuple[int, wire.Observation]] = []
    faults: list[wire.ImportFault] = []
    for line, cells in islice(sheet, 1, None):
        if not cells:  # an empty line
            continue
        parsed = _line(line, header, cells, sign)
        if isinstance(parsed, wire.Observation):
            observations.append((line, parsed))
        elif len(faults) < FAULTS_MAX:
            faults += parsed
        if len(observations) > wire.OBSERVATIONS_MAX:
            raise Invalid(f"a run begins with {wire.OBSERVATIONS_MAX} past measurements at most")
    return Import(observations, faults[:FAULTS_MAX])


_NO_NUMBER = "must be a finite decimal number: leave out a line without one, such as a declined candidate"


def _line(
    number: int, header: list[str], cells: list[str], sign: wire.DecimalSign
) -> wire.Observation | list[wire.ImportFault]:
    if len(cells) != len(header):
        message = f"has {len(cells)} cells, the header {len(header)}"
        return [wire.ImportFault(line=number, field="line", message=message)]
    values: dict[str, int | float] = {}
    faults: list[wire.ImportFault] = []
    for name, raw_cell in zip(header, cells, strict=True):
        cell = raw_cell.strip()
        if name == "noise_variance" and not cell:
            continue
        value = _row(cell) if name == "row" else number_of(cell, sign)
        if value is not None and math.isfinite(value):
            values[name] = value
        else:
            message = "must be a whole number from 0" if name == "row" else _NO_NUMBER
            faults.append(wire.ImportFault(line=number, field=name, message=message))
    if faults:
        return faults
    try:
        return parsed(wire.Observation, values)
    except Invalid as error:
        return [
            wire.ImportFault(line=number, field=str(fault["field"]), message=str(fault["message"]))
            for fault in error.errors
        ]


def _row(cell: str) -> int | None:
    return int(cell) if _ROW.fullmatch(cell) else None


def misfits(past: Import, spec: wire.RunSpec, n: int) -> list[wire.ImportFault]:
    """Return the faults of lines that do not fit the run or its release, or could not be read: at most 1,000."""
    faults = list(past.faults)
    for line, observation in past.observations:
        if len(faults) >= FAULTS_MAX:
            break
        if observation.row >= n:
            message = f"is not in the release, which has rows 0 to {n - 1}"
            faults.append(wire.ImportFault(line=line, field="row", message=message))
        if observation.noise_variance is not None and isinstance(spec.algorithm, wire.FewArmsSpec):
            message = f"{spec.algorithm.name} takes each y for an answer of the study: leave it out"
            faults.append(wire.ImportFault(line=line, field="noise_variance", message=message))
    return sorted(faults, key=lambda fault: fault.line)[:FAULTS_MAX]


def report(past: Import, faults: Sequence[wire.ImportFault], *, before: int, dry_run: bool) -> wire.ImportReport:
    good = [observation for line, observation in past.observations if line not in {fault.line for fault in faults}]
    return wire.ImportReport(
        dry_run=dry_run,
        observations=len(good),
        rows=len({observation.row for observation in good}),
        total=before + len(good),
        faults=list(faults),
    )


def with_earlier(db: Connection, spec: wire.RunCreate) -> list[wire.Observation]:
    """Return the past measurements of a new run: those that it continues, and its own. Raises Invalid."""
    if spec.continue_from is None:
        return spec.observations
    try:
        run = store.find_run(db, spec.continue_from)
    except NotFound:
        raise _wrong_run("is no run of this modeler") from None
    answers = (trial.answer for trial in store.trial_page(db, run.id))
    past = store.observations_of(db, run.id)
    past += [wire.Observation(row=a.row, y=a.y, passport=a.passport) for a in answers if a is not None]
    if run.settings.study_id != spec.study_id:
        raise _wrong_run("is a run of another study: its answers are about other candidates")
    if not past:
        raise _wrong_run("has no answers yet")
    if len(past) + len(spec.observations) > wire.OBSERVATIONS_MAX:
        raise _wrong_run(f"has {len(past)} answers: a run begins with {wire.OBSERVATIONS_MAX} at most")
    return past + spec.observations


def _wrong_run(message: str) -> Invalid:
    return Invalid.at("continue_from", message)
