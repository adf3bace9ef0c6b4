"""A file in a process of its own: whatever is in it, the memory that reading takes is bounded, and requests go on.

The process gets open files and no paths: that of the records, and those that it writes. It opens no other.
"""

import io
import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from blindopt.arrays import Matrix
from blindopt.errors import DatasetInvalid
from blindopt.formats import npy_files
from blindopt.formats.tables import words_beyond_utf8
from blindopt.wire import (
    CellReading,
    Column,
    DecimalSign,
    Encoding,
    FileReading,
    ReadingChoice,
    Separator,
    SurveyedColumn,
)
from curator_service.datasets.parquet_source import import_arrow
from curator_service.datasets.persons import PersonColumn
from curator_service.datasets.reading import open_source, read_table
from curator_service.datasets.sources import Findings, Limits, refuse
from curator_service.datasets.statistics import Statistics
from curator_service.datasets.survey import Surveyed, survey
from service_kit import runner

MIB = 1 << 20
MEMORY = {False: 40 * MIB, True: 96 * MIB}
"""What reading may take beyond what the process has when it begins, for CSV and for Parquet."""


class Job(runner.Message):
    """What to read. Files are descriptors of the process: ``file`` is read, the others are written.

    ``values`` None: find out what the columns hold. Else the chosen columns are written there as npy,
    to ``numbers`` the number in the file of each row that is kept as int64, to ``digests`` its person's digest, to
    ``labels`` a line with its labels.
    """

    file: int | None
    parquet: bool
    limits: Limits
    reading: ReadingChoice = ReadingChoice()
    key: str | None = None
    """The key of the digests of persons, in hexadecimal digits."""
    values: int | None = None
    numbers: int | None = None
    digests: int | None = None
    labels: int | None = None
    rows: list[int] = []
    """Rows of the file, from 1, whose ids of persons are sent back; nothing else is done."""


class Reply(runner.Reply):
    """Progress, what the columns hold, what was written, or why the file is refused."""

    rows: int = 0
    separator: Separator | None = None
    encoding: Encoding | None = None
    decimal: DecimalSign | None = None
    unsure: list[CellReading] = []
    surveyed: list[SurveyedColumn] | None = None
    samples: list[str] = []
    copies: int | None = None
    columns: list[Column] | None = None
    dropped: list[str] = []
    reading: FileReading | None = None
    left_out: int = 0
    ids: list[str] = []
    grouped: list[tuple[int, str]] = []
    errors: list[dict[str, object]] = []
    errors_total: int = 0
    errno: int | None = None
    """Of a fault that is not the file's: the disk may be full."""


def read(job: Job, file: BinaryIO, sender: runner.Sender[Reply]) -> Reply:
    """Do a job on an open file. A refused file is a reply, with all that is to be shown."""
    try:
        if job.rows:
            return Reply(ids=_ids(job, file))
        if job.values is not None:
            return _written(job, file, sender)
        seen, samples = _surveyed(job, file, sender)
        signs = {"separator": seen.separator, "encoding": seen.encoding, "decimal": seen.decimal}
        return Reply(rows=seen.rows, surveyed=seen.columns, samples=samples, unsure=seen.unsure, **signs)
    except DatasetInvalid as error:
        return _refused(error)
    except MemoryError:
        advice = "write it with smaller row groups, or as CSV" if job.parquet else "its rows or texts are too long"
        limit = f"{MEMORY[job.parquet] // MIB} MiB"
        return _refused(refuse(f"reading the file takes more than {limit} of memory: {advice}"))
    except OSError as fault:
        return Reply(problem="a file cannot be written", errno=fault.errno)


def _surveyed(job: Job, file: BinaryIO, sender: runner.Sender[Reply]) -> tuple[Surveyed, list[str]]:
    """What is in a file; of one that is not UTF-8, as Windows-1252 reads it, with words to check."""
    choice = job.reading
    try:
        seen = survey(file, job.limits, choice, parquet=job.parquet, on_progress=sender.progress)
    except DatasetInvalid:
        if job.parquet or choice.encoding is not None or not words_beyond_utf8(file):
            raise
        choice = choice.model_copy(update={"encoding": "windows-1252"})
        seen = survey(file, job.limits, choice, parquet=False, on_progress=sender.progress)
    return seen, words_beyond_utf8(file) if seen.encoding == "windows-1252" else []


def _ids(job: Job, file: BinaryIO) -> list[str]:
    assert job.reading.person is not None
    name, ids = job.reading.person.strip(), dict.fromkeys(job.rows, "")
    with open_source(file, job.limits, job.reading, parquet=job.parquet) as source:
        for block in source.blocks([name], Findings(), [name]):
            cells = block.columns[0]
            assert isinstance(cells, list)
            ids |= {row: cell for row, cell in zip(block.rows, cells, strict=True) if row in ids}
    return [ids[row] for row in job.rows]


def _refused(error: DatasetInvalid) -> Reply:
    return Reply(problem=str(error), errors=error.errors, errors_total=error.total)


def _written(job: Job, file: BinaryIO, sender: runner.Sender[Reply]) -> Reply:
    persons = None
    if job.reading.person is not None and job.key is not None:
        persons = PersonColumn(job.reading.person.strip(), bytes.fromhex(job.key), job.reading.person_ids or "folded_1")
    statistics = Statistics()
    with (
        _sink(job.values) as values,
        _sink(job.numbers) as numbers,
        _sink(job.digests) as digests,
        _sink(job.labels) as labels,
        read_table(file, job.limits, job.reading, persons, parquet=job.parquet) as table,
    ):

        def blocks() -> Iterator[Matrix]:
            for block in table.blocks:
                yield block
                numbers.write(table.taken_numbers())
                labels.write(table.taken_labels())
                if persons is not None:
                    digests.write(persons.taken())
                sender.progress(table.source.progress)

        npy_files.write(values, statistics.collect(blocks()))
    return Reply(
        rows=statistics.rows,
        columns=statistics.columns(table.names, table.rounded),
        dropped=table.dropped,
        reading=table.reading,
        left_out=table.left_out,
        copies=statistics.copies,
        grouped=[] if persons is None else persons.grouped,
    )


def _sink(descriptor: int | None) -> BinaryIO:
    return io.BytesIO() if descriptor is None else open(descriptor, "wb", closefd=False)


def _work(job: Job, array: Matrix | None, sender: runner.Sender[Reply]) -> Reply:
    if job.parquet:
        import_arrow()
    (used,) = re.findall(r"VmData:\s*(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    limit = int(used) * 1_024 + MEMORY[job.parquet]
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    assert job.file is not None
    with open(job.file, "rb", closefd=False) as file:
        return read(job, file, sender)


PROGRAM = runner.Program(__name__, Job, Reply, _work, core=0, niceness=10)
