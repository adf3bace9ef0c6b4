"""Past measurements that a run begins with: read from JSON or CSV, checked line by line."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from blindopt import wire
from blindopt.errors import Invalid
from blindopt.formats.csv_files import decimal, rows

COLUMNS = ("row", "y", "noise_variance")
FAULTS_MAX = 1_000
_ROW = re.compile(r"[0-9]{1,15}")


@dataclass(frozen=True, slots=True)
class Import:
    """What was read, each with the line that it came from, and what could not be."""

    observations: list[tuple[int, wire.Observation]]
    faults: list[wire.ImportFault]


def of_json(told: wire.ObservationImport) -> Import:
    """A JSON body, whose form was checked already; lines are places in the list."""
    return Import(list(enumerate(told.observations, start=1)), [])


def of_csv(body: bytes) -> Import:
    """A CSV file with a header: ``row``, ``y``, and ``noise_variance`` where known. Raises Invalid if it is none."""
    lines = rows(body)
    _, header = next(lines, (1, []))
    if set(header) - set(COLUMNS) or not {"row", "y"} <= set(header) or len(set(header)) < len(header):
        raise Invalid("the first line must name the columns: row, y, and noise_variance where it is known")
    found: list[tuple[int, wire.Observation]] = []
    faults: list[wire.ImportFault] = []
    for line, cells in lines:
        if not cells:  # an empty line
            continue
        one = _line(line, header, cells)
        if isinstance(one, wire.Observation):
            found.append((line, one))
        elif len(faults) < FAULTS_MAX:
            faults += one
        if len(found) > wire.OBSERVATIONS_MAX:
            raise Invalid(f"a run begins with {wire.OBSERVATIONS_MAX} past measurements at most")
    return Import(found, faults[:FAULTS_MAX])


def _line(number: int, header: list[str], cells: list[str]) -> wire.Observation | list[wire.ImportFault]:
    if len(cells) != len(header):
        message = f"has {len(cells)} cells, the header {len(header)}"
        return [wire.ImportFault(line=number, field="line", message=message)]
    told = {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
    values: dict[str, int | float] = {}
    faults: list[wire.ImportFault] = []
    for name, cell in told.items():
        if name == "noise_variance" and not cell:
            continue
        value = _row(cell) if name == "row" else decimal(cell)
        if value is not None:
            values[name] = value
        else:
            message = "must be a whole number from 0" if name == "row" else "must be a finite decimal number"
            faults.append(wire.ImportFault(line=number, field=name, message=message))
    if faults:
        return faults
    try:
        return wire.Observation.model_validate(values)
    except ValidationError as error:
        return [
            wire.ImportFault(line=number, field=str(e["loc"][0]), message=e["msg"][:300])
            for e in error.errors(include_input=False, include_url=False)
        ]


def _row(cell: str) -> int | None:
    return int(cell) if _ROW.fullmatch(cell) else None


def misfits(found: Import, spec: wire.RunSpec, n: int) -> list[wire.ImportFault]:
    """What does not fit the run or its release, and what could not be read, by line: 1,000 at most."""
    faults = list(found.faults)
    for line, past in found.observations:
        if len(faults) >= FAULTS_MAX:
            break
        if past.row >= n:
            message = f"is not in the release, which has rows 0 to {n - 1}"
            faults.append(wire.ImportFault(line=line, field="row", message=message))
        if past.noise_variance is not None and takes_no_variance(spec):
            message = f"{spec.algorithm.name} takes each y for an answer of the study: leave it out"
            faults.append(wire.ImportFault(line=line, field="noise_variance", message=message))
    return sorted(faults, key=lambda fault: fault.line)[:FAULTS_MAX]


def takes_no_variance(spec: wire.RunSpec) -> bool:
    """Whether the algorithm has one law for all outcomes."""
    return isinstance(spec.algorithm, wire.FewArmsSpec)


def report(found: Import, faults: Sequence[wire.ImportFault], *, known: int, dry_run: bool) -> wire.ImportReport:
    """What an import did, or would do."""
    good = [past for line, past in found.observations if line not in {fault.line for fault in faults}]
    return wire.ImportReport(
        dry_run=dry_run,
        observations=len(good),
        rows=len({past.row for past in good}),
        total=known + len(good),
        faults=list(faults),
    )
