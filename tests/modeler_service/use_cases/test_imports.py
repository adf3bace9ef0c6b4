"""Past measurements line by line: every fault has its line, and no value."""

import pytest

from blindopt import wire
from blindopt.errors import Invalid
from modeler_service.use_cases import imports
from tests.shared.blindopt.optimizer.small_runs import spec


def read(text):
    return imports.of_csv(text.encode() if isinstance(text, str) else text)


def faults(text):
    return [(fault.line, fault.field) for fault in read(text).faults]


def test_a_good_file_is_read_as_it_stands():
    past = read("\ufeffrow,y,noise_variance\r\n3,-0.5,\r\n\r\n3,1e-3,0.25\r\n0,+7.,0\r\n")
    assert past.faults == []
    assert past.observations == [
        (2, wire.Observation(row=3, y=-0.5)),
        (4, wire.Observation(row=3, y=0.001, noise_variance=0.25)),
        (5, wire.Observation(row=0, y=7.0, noise_variance=0.0)),
    ]


def test_columns_may_come_in_any_order():
    assert read("y,row\n2.5,1\n").observations == [(2, wire.Observation(row=1, y=2.5))]


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("1", "line"),
        ("1,2,3,4", "line"),
        ("1.0,2,", "row"),
        ("-1,2,", "row"),
        (",2,", "row"),
        ("1e3,2,", "row"),
        ("\uff19,2,", "row"),
        ("9999999999999999,2,", "row"),
        ("1,,", "y"),
        ("1,nan,", "y"),
        ("1,inf,", "y"),
        ("1,0x10,", "y"),
        ("1,1_000,", "y"),
        ("1,1e999,", "y"),
        ("1,1e151,", "y"),
        ("1,=1+1,", "y"),
        ("1,2,-1", "noise_variance"),
        ("1,2,x", "noise_variance"),
        ("1,2,1e101", "noise_variance"),
    ],
)
def test_a_bad_line_is_reported_by_line_and_field_and_without_its_value(line, field):
    past = read(f"row,y,noise_variance\n0,1,\n{line}\n2,3,\n")
    assert [(fault.line, fault.field) for fault in past.faults] == [(3, field)]
    assert [number for number, _ in past.observations] == [2, 4]
    assert not any(cell and len(cell) > 1 and cell in past.faults[0].message for cell in line.split(","))


def test_a_cell_of_fifty_thousand_digits_is_read_in_time_as_in_a_table_of_records():
    assert faults(f"row,y\n0,{'0' * 50_000}1\n1,{'1' * 50_000}\n") == [(3, "y")]


def test_a_line_without_end_is_refused_before_it_is_taken_apart():
    with pytest.raises(Invalid, match="longer than"):
        read(b"row,y\n0," + b"1," * 40_000)


def test_every_bad_line_is_reported_up_to_a_thousand():
    assert faults("row,y\nx,y\n1,2\nx,1\n1,y\n") == [(2, "row"), (2, "y"), (4, "row"), (5, "y")]
    assert len(read("row,y\n" + "x,y\n" * 3_000).faults) == 1_000


NO_FILES = ("", "row\n1\n", "row,y,z\n1,2,3\n", "row,y,y\n1,2,3\n", "1,2\n", b"row,y\n\xff,1\n", 'row,y\n"1,2\n')


@pytest.mark.parametrize("text", NO_FILES)
def test_what_is_no_such_file_is_refused(text):
    with pytest.raises(Invalid):
        read(text)


def test_more_than_a_run_may_begin_with_are_refused():
    most = wire.OBSERVATIONS_MAX
    assert len(read("row,y\n" + "1,2\n" * most).observations) == most
    with pytest.raises(Invalid, match="10000"):
        read("row,y\n" + "1,2\n" * (most + 1))


def test_lines_that_do_not_fit_the_run_are_reported():
    past = read("row,y,noise_variance\n4,1,\n5,1,\nx,1,\n4,1,0.5\n")
    misfits = imports.misfits(past, spec("gp_ucb"), 5)
    assert [(fault.line, fault.field) for fault in misfits] == [(3, "row"), (4, "row")]
    misfits = imports.misfits(past, spec("igp_ucb"), 5)
    assert [(fault.line, fault.field) for fault in misfits] == [(3, "row"), (4, "row"), (5, "noise_variance")]
    report = imports.report(past, misfits, before=7, dry_run=True)
    assert (report.observations, report.rows, report.total) == (1, 1, 8)
    listed = imports.of_json(wire.ObservationImport(observations=[wire.Observation(row=9, y=0.0)]))
    assert [(f.line, f.field) for f in imports.misfits(listed, spec(), 9)] == [(1, "row")]
