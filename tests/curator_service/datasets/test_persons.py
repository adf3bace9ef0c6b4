"""Persons with several rows: what is read of them, how many rows are kept, and which rows are the same person's."""

import io
from collections import Counter
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from blindopt.errors import DatasetInvalid
from blindopt.wire import ReadingChoice
from curator_service.datasets.persons import PersonColumn, RowsOfPersons, kept_rows, numbers_of, pieces
from curator_service.datasets.reading import read_table
from curator_service.datasets.sources import Limits

read_csv, read_parquet = (partial(read_table, parquet=parquet) for parquet in (False, True))
LIMITS = Limits(rows=1_000, columns=50)
KEY = b"k" * 32
NAME = "Grete-Canary"


def read(source, content, columns=None, name="who"):
    persons = PersonColumn(name, KEY)
    choice = ReadingChoice(columns=columns, person=name, rows_per_person=1)
    with source(content, LIMITS, choice, persons) as table:
        values = np.concatenate(list(table.blocks))
    return table, values, persons.digests


def csv_of(text, **more):
    return read(read_csv, io.BytesIO(text.encode()), **more)


def parquet_of(columns, **more):
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    buffer.seek(0)
    return read(read_parquet, buffer, **more)


def test_a_person_column_is_no_column_of_the_table_and_its_digests_tell_who_is_the_same():
    table, values, digests = csv_of(f"a, who ,b\n1,{NAME},2\n3, {NAME} ,4\n5,other,6\n")
    assert (table.names, table.dropped) == (["a", "b"], [])
    assert values.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert digests.shape == (3, 16)
    assert numbers_of(digests)[0] == numbers_of(digests)[1] != numbers_of(digests)[2]
    assert NAME.encode() not in digests.tobytes()


def test_digests_need_the_key():
    first, second = PersonColumn("who", KEY), PersonColumn("who", b"l" * 32)
    for persons in (first, second):
        persons.add(["7", "07", "e\u0301", "\u00e9"])
    assert not np.array_equal(first.digests, second.digests)
    assert numbers_of(first.digests).tolist() in (
        [0, 0, 1, 1],
        [1, 1, 0, 0],
    )  # 07 is 7, and both ways to write é are one


def test_numbers_and_texts_of_parquet_name_the_same_persons_as_csv():
    _, _, of_csv = csv_of("who,a\n7,1\n8,2\n7,3\n")
    for kind in (pa.int32(), pa.string(), pa.dictionary(pa.int8(), pa.string())):
        cells = [7, 8, 7] if kind == pa.int32() else ["7", "8", "7"]
        _, values, digests = parquet_of({"a": [1.0, 2.0, 3.0], "who": pa.array(cells).cast(kind)})
        assert values.ravel().tolist() == [1, 2, 3]
        assert np.array_equal(digests, of_csv)


def test_an_unnamed_person_is_a_fault_with_its_row_and_without_a_value():
    with pytest.raises(DatasetInvalid) as refused:
        csv_of(f"who,a\n{NAME},1\n  ,2\n,3\n")
    faults = refused.value.errors
    assert [(f["row"], f["line"], f["column"], f["count"]) for f in faults] == [(2, 3, "who", 2)]
    with pytest.raises(DatasetInvalid) as refused:
        parquet_of({"who": pa.array([NAME, None, ""]), "a": [1.0, 2.0, 3.0]})
    assert [(fault["row"], fault["count"]) for fault in refused.value.errors] == [(2, 2)]
    assert NAME not in str(refused.value.errors)


def test_a_person_column_that_cannot_be_is_refused():
    for text in ("a,b\n1,2\n", "who\nx\n"):  # no such column; nothing but the person
        with pytest.raises(DatasetInvalid):
            csv_of(text)
    with pytest.raises(DatasetInvalid):  # it would be stored
        csv_of("who,a\nx,1\n", columns=["who", "a"])


def test_flags_and_times_name_no_persons():
    for who in ([True, False], pa.array([1, 2], pa.timestamp("us"))):
        with pytest.raises(DatasetInvalid, match="text or numbers"):
            parquet_of({"who": who, "a": [1.0, 2.0]})


def test_at_most_k_rows_of_each_person_are_kept_in_the_order_of_the_file():
    rng = np.random.default_rng(3)
    persons = rng.integers(0, 40, size=1_000)
    persons = np.unique(persons, return_inverse=True)[1]
    for k in (1, 3, 25, 1_000):
        kept = kept_rows(persons, k)
        assert np.all(np.diff(kept) > 0)
        expected = {person: min(count, k) for person, count in Counter(persons.tolist()).items()}
        assert Counter(persons[kept].tolist()) == expected


def test_every_set_of_k_rows_is_equally_likely():
    """Six pairs of the four rows of one person; the first two of each, say, would fail at once."""
    persons, draws = np.array([0, 1, 0, 0, 1, 0]), 6_000
    pairs = Counter(tuple(row for row in kept_rows(persons, 2).tolist() if persons[row] == 0) for _ in range(draws))
    assert len(pairs) == 6
    assert stats.chisquare(list(pairs.values())).pvalue > 1e-9


def test_rows_of_the_same_person_are_told_of_each_of_them():
    persons = np.array([2, 0, 2, 1, 0, 2])
    rows = RowsOfPersons.of(persons)
    for row, person in enumerate(persons):
        assert rows.of_row(row) == np.flatnonzero(persons == person).tolist()


def test_rows_of_a_person_are_hers_where_persons_before_her_were_withheld():
    rows = RowsOfPersons.of(np.array([3, 1, 3, 5, 1]))
    assert [rows.of_row(row) for row in range(5)] == [[0, 2], [1, 4], [0, 2], [3], [1, 4]]


def test_pieces_are_all_rows_once():
    rows = np.arange(7) * 2
    assert [piece.tolist() for piece in pieces(rows, 3)] == [[0, 2, 4], [6, 8, 10], [12]]
