"""Files in a process of their own: the queue, the bounds, every end of a reading. And the fast way to read CSV."""

import asyncio
import errno
import io
import os
import signal
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindopt.errors import Busy, DatasetInvalid
from blindopt.wire import ReadingChoice
from curator_service.datasets.csv_source import CsvSource
from curator_service.datasets.reading import read_table
from curator_service.datasets.readings import SMALL_BYTES, Reading, Readings, is_parquet
from curator_service.datasets.sources import Limits
from curator_service.datasets.survey import survey
from curator_service.datasets.worker import PROGRAM, Job, Reply
from service_kit.runner import Worker
from service_kit.runner.runner import Kind, Runner, Task

LIMITS = Limits(rows=10**6, columns=50)


def outcome(content, columns=None, decimal=None):
    """Everything that is read of a file, or everything that is said against it."""
    try:
        seen = survey(io.BytesIO(content), LIMITS, parquet=False)
        choice = ReadingChoice(columns=columns, decimal=decimal)
        with read_table(io.BytesIO(content), LIMITS, choice, parquet=False) as table:
            values = np.concatenate(list(table.blocks)).tobytes()
        return seen, values, table.rounded, table.numbers.tolist(), table.reading
    except DatasetInvalid as error:
        return str(error), error.errors, error.total


CELLS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.integers(-(2**60), 2**60).map(str),
    st.sampled_from(["", " ", "1", "+1", "007", "1_0", "1,5", "nan", "NA", "inf", "1e400", "1e-400", "0x10", "1d5"]),
    st.sampled_from(["#1", "1 2", '"1"']),
    st.sampled_from(
        ["\u0661", "1\u00a0", "1\x0b", "\x1c1", "1.", ".5", "-0.0", "1e5", "1E+5", "-", "1j", "'1'", "2" * 330]
    ),
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.lists(st.lists(CELLS, min_size=2, max_size=2), min_size=1, max_size=6),
    st.lists(st.sampled_from(["1,2", "3", "", ",", "1,2,3", "4,5"]), max_size=3),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.sampled_from([",", ";", "\t"]),
    st.sampled_from([None, ["b", "a"], ["a"]]),
)
def test_what_is_read_at_once_is_what_is_read_cell_by_cell(rows, last, newline, separator, columns):
    lines = ["a,b", *(",".join(row) for row in rows), *last]
    content = newline.join(line.replace(",", separator) for line in lines).encode()
    fast = outcome(content, columns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CsvSource, "_at_once", lambda *_: None)
        assert outcome(content, columns) == fast


def test_parts_that_end_anywhere_are_read_alike():
    """Ends of parts fall everywhere: within line ends, within letters of several bytes, within quotes."""
    last = '10,-10,éé\r\n11,"-11\n",é\r\n12,-12,\r\n'.encode()
    head, row, part = "a,b,é\r\n".encode(), b"7,8," + b"9" * 500 + b"\r\n", 1 << 17
    for before in range(len(last) + 1):  # bytes of the last rows that are in the first part
        rows, rest = divmod(part - len(head) - before, len(row))
        padded = row.replace(b"9", b"9" * (1 + rest), 1)
        content = head + row * (rows - 1) + padded + last
        assert len(content) - len(last) == part - before
        _, values, _, numbers, _ = outcome(content, ["a", "b"])
        expected = [[7.0, 8.0]] * rows + [[10.0, -10.0], [11.0, -11.0], [12.0, -12.0]]
        assert np.array_equal(np.frombuffer(values).reshape(-1, 2), expected)
        assert numbers == list(range(1, rows + 4))


# --- what spreadsheets write ------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["\n\n", "\n\n\n\n", "\n,\n", "\n,\n\n,", "\r\n\r\n"])
def test_blank_lines_at_the_end_are_no_rows(end):
    seen, _, _, rows, _ = outcome(f"a,b\n1,2\n3,4{end}".encode())
    assert (seen.rows, rows) == (2, [1, 2])


def test_numbers_that_are_stored_as_others_are_counted():
    rows = ["9007199254740993,1e-400,1", "9007199254740992,0.0,2", "-9007199254740995,0e5,3", "1e300,5e-324,4"]
    content = ("id,tiny,plain\n" + "\n".join(rows)).encode()
    seen, values, rounded, _, _ = outcome(content)
    assert rounded == {"id": 2, "tiny": 1}
    assert [column.rounded for column in seen.columns] == [2, 1, 0]
    assert np.frombuffer(values).reshape(4, 3)[0, 0] == 9007199254740992.0
    file = io.BytesIO()
    pq.write_table(pa.table({"id": [2**53 + 1, 2**53, None], "x": [1.5, 2.5, 3.5]}), file)
    assert [c.rounded for c in survey(file, LIMITS, parquet=True).columns] == [1, 0]


# --- the process --------------------------------------------------------------------------------------------


@pytest.fixture
def opened():
    """Makes open files with a content."""
    with ExitStack() as files:

        def make(content=b""):
            file = files.enter_context(tempfile.TemporaryFile())
            file.write(content)
            file.flush()
            return file

        yield make


def parquet(**columns):
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, compression="zstd")
    return file.getvalue()


def repeated(length, rows):
    """A column that holds one text in every row, and in the file once."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int8()), pa.array(["x" * length]))


def surveyed(opened, filename, content, limits=LIMITS, **parts):
    file = opened(content)
    job = Job(file=file.fileno(), limits=limits, parquet=is_parquet(filename, file))
    return Reading(filename, a_task(**parts)).read(job, file)


def a_task(**parts):
    return Task(Kind("reading", PROGRAM, **parts), "rdg_1")


def test_a_process_reads_what_the_service_would_read(opened):
    content = b"a,b\n" + b"1,2\n3,4\n" * 40_000
    reply = surveyed(opened, "a.csv", content)
    seen = survey(io.BytesIO(content), LIMITS, parquet=False)
    assert (reply.rows, reply.surveyed) == (seen.rows, seen.columns)
    with pytest.raises(DatasetInvalid) as refused:
        surveyed(opened, "a.csv", b"a,b\n1,2\n3\n")
    assert refused.value.errors == [{"message": "1 cells where the header has 2", "row": 2, "line": 3}]


HUNGRY = {
    "a line without an end": ("a.csv", lambda: b"a\n" + b"1" * (1 << 22), "a line is longer than"),
    "a long text in eight rows": (
        "a.parquet",
        lambda: parquet(a=repeated(20_000_000, 8)),
        "takes more than .* of memory",
    ),
    "numbers that take no bytes": ("a.parquet", lambda: parquet(a=np.zeros(900_000), b=np.zeros(900_000)), None),
}
"""Contents are made where they are used: collecting tests took 3 GB else."""


@pytest.mark.parametrize(("filename", "content", "message"), HUNGRY.values(), ids=HUNGRY)
def test_a_file_cannot_take_more_memory_than_its_process_may(opened, filename, content, message):
    if message is None:
        assert surveyed(opened, filename, content()).rows == 900_000
        return
    with pytest.raises(DatasetInvalid, match=message):
        surveyed(opened, filename, content())


@pytest.mark.parametrize("characters", [40, 85])
def test_a_thousand_columns_of_a_hundred_different_texts_are_read_and_short_lists_are_shown(opened, characters):
    names = ["sex", *(f"c{i}" for i in range(1_000))]
    rows = (["fm"[n % 2], *(f"v{n:03}{i:04}{'x' * characters}" for i in range(1_000))] for n in range(100))
    content = "\n".join(map(",".join, [names, *rows, []])).encode()
    reply = surveyed(opened, "a.csv", content, Limits(rows=10**6, columns=1_001))
    listed = {column.name: column.values for column in reply.surveyed if column.values is not None}
    assert (reply.rows, len(reply.surveyed), listed["sex"]) == (100, 1_001, ["f", "m"])
    assert 1 < len(listed) < 1_001
    assert all(len(values) == 100 for name, values in listed.items() if name != "sex")
    assert all(column.distinct for column in reply.surveyed[1:])


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGKILL, Busy), (signal.SIGSEGV, DatasetInvalid)], ids=["killed", "crashed"]
)
def test_a_process_that_ends_early_is_reported_and_may_be_tried_again(opened, number, error):
    class Ending(Worker):
        def work(self, job, array=None):
            return iter(())

        def end(self):
            super().end()
            return -number

    with pytest.raises(error):
        surveyed(opened, "a.csv", b"a\n1\n", make_worker=Ending)


def test_a_killed_process_and_an_ending_service_interrupt_a_reading(opened):
    class Killed(Worker):
        def work(self, job, array=None):
            self.kill()
            return super().work(job, array)

    with pytest.raises(Busy, match="interrupted"):
        surveyed(opened, "a.csv", b"a\n1\n", make_worker=Killed)
    over = Reading("a.csv", a_task())
    over.task.cancel()
    file = opened(b"a\n1\n")
    with pytest.raises(Busy):
        over.read(Job(file=file.fileno(), limits=LIMITS, parquet=False), file)


@pytest.mark.parametrize("is_small", [True, False])
def test_a_full_disk_is_no_fault_of_the_file(opened, is_small):
    file = opened(b"a\n" + b"1\n" * 50_000)
    with Path("/dev/full").open("wb") as full:
        job = Job(file=file.fileno(), limits=LIMITS, parquet=False, values=full.fileno())
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)) as failed:
            Reading("a.csv", None if is_small else a_task()).read(job, file)
    assert failed.value.errno == errno.ENOSPC


# --- the queue ------------------------------------------------------------------------------------------------


class Works:
    """Work that goes on until it is released."""

    def __init__(self):
        self.begun, self.ends = [], {}

    def of(self, name):
        self.ends[name] = threading.Event()

        def work(reading):
            self.begun.append(name)
            self.ends[name].wait(60)
            return name

        return work


def test_two_csv_files_or_one_parquet_file_are_read_at_once_in_their_order():
    async def play():
        runner, works = Runner(), Works()
        queue = Readings(runner)
        large = io.BytesIO(b"x" * (SMALL_BYTES + 1))

        def send(name, filename):
            return asyncio.create_task(queue.run(filename, large, works.of(name)))

        async def until(names):
            while set(works.begun) != set(names):
                await asyncio.sleep(0.001)

        tasks = [send("1", "a.csv"), send("2", "a.csv"), send("3", "a.parquet"), send("4", "a.csv")]
        await until("12")
        small = io.BytesIO(b"a\n1\n")
        assert await queue.run("a.csv", small, lambda reading: reading.task is None)  # it waits for nobody
        shown = [(task.kind.name, task.name, ahead) for task, ahead in runner.under_way()]
        csv, parquet = ("reading", "a CSV file"), ("reading", "a Parquet file")
        assert shown == [(*csv, 0), (*csv, 0), (*parquet, 2), (*csv, 3)]
        works.ends["1"].set()
        assert await tasks[0] == "1"
        await asyncio.sleep(0.02)
        assert sorted(works.begun) == ["1", "2"]  # the Parquet file waits for both, and the next one does not pass it
        works.ends["2"].set()
        await until("123")
        works.ends["3"].set()
        await until("1234")
        works.ends["4"].set()
        assert await asyncio.gather(*tasks) == ["1", "2", "3", "4"]
        assert runner.under_way() == []

    asyncio.run(play())


def test_a_reading_that_fails_makes_way_for_the_next():
    async def play():
        queue = Readings(Runner())
        large = io.BytesIO(b"x" * (SMALL_BYTES + 1))

        def fail(reading):
            raise DatasetInvalid("broken", [], 1)

        results = await asyncio.gather(*(queue.run("a.csv", large, fail) for _ in range(5)), return_exceptions=True)
        assert [type(result) for result in results] == [DatasetInvalid] * 5
        assert await queue.run("a.csv", large, lambda reading: Reply().rows) == 0

    asyncio.run(play())
