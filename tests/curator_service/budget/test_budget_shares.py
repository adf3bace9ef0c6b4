"""The largest share of a cap that is spent, as the metrics page shows it, by the account's own figures."""

import math
from fractions import Fraction

import pytest

from service_kit.web.metrics import of_service
from tests.curator_service.budget.file_of_records import CSV, FileOfRecords

PERSONS = b"pid,a,b,y\n0,0,0,0\n0,1,1,1\n1,2,0,2\n1,0,1,3\n1,1,0,0\n2,2,1,1\n"
CHANGED = CSV.replace(b"2,1,1", b"0,0,3")


def _share(file):
    (gauge,) = (figure() for figure in file.in_process.curator.dataset_accounts.gauges())
    assert gauge.name == "blindopt_budget_share_max"
    return gauge.samples[0].value


def _up_to_a_tenth(share):
    return math.ceil(10 * Fraction(share)) / 10


@pytest.fixture
def file(tmp_path):
    made = FileOfRecords(tmp_path)
    yield made
    made.close()


def test_without_a_cap_it_is_0(file):
    file.ask(file.study(), 0, 1)
    assert _share(file) == 0.0


def test_it_is_the_largest_over_caps_of_studies_and_of_files_and_follows_each_charge(file):
    first = file.study(budget={"epsilon_per_row": "4", "queries": 100})
    assert _share(file) == _up_to_a_tenth("1/4")
    assert file.ask(first, 0, 0, 1).status_code == 201  # 1 + 2 x 0.5 of one row
    assert _share(file) == _up_to_a_tenth("2/4")
    file.study(budget={"queries": 10})
    assert file.caps("3.5").status_code == 200
    assert _share(file) == _up_to_a_tenth(Fraction(file.account().epsilon) / Fraction("3.5")) == 0.9


def test_what_is_spent_about_all_rows_of_a_person_counts_together(tmp_path):
    file = FileOfRecords(tmp_path, csv=PERSONS, fields={"person": "pid", "rows_per_person": "3"})
    study = file.study(budget={"epsilon_per_row": "2.5"})
    rows = [file.row_of(study, record) for record in (2, 3, 4)]
    assert file.ask(study, *rows).status_code == 201
    assert _share(file) == 1.0  # by rows alone it would be 0.6
    file.close()


def test_a_study_that_is_closed_no_longer_counts(file):
    study = file.study(budget={"epsilon_per_row": "1.5"})
    assert _share(file) == 0.7
    file.in_process.call("owner", "POST", f"/v1/studies/{study}:close")
    assert _share(file) == 0.0


def test_a_changed_record_changes_no_gauge(tmp_path):
    """The same acts on a file that differs in one record. The control: one query more is seen."""
    pages = []
    for name, csv in (("a", CSV), ("b", CHANGED), ("c", CSV)):
        file = FileOfRecords(tmp_path / name, csv=csv)
        study = file.study(budget={"queries": 10})
        assert file.ask(study, *range(6 if name == "c" else 5)).status_code == 201
        context = file.in_process.context
        of_curator = file.in_process.curator.dataset_accounts.gauges()
        figures = (*of_service(context, context.database.path.parent, dict, lambda: None), *of_curator)
        gauges = [figure() for figure in figures]
        skipped = ("blindopt_disk_free_bytes", "blindopt_log_checkpoint_age_seconds")  # other programs, and clocks
        pages.append([gauge for gauge in gauges if gauge.name not in skipped])
        file.close()
    assert CHANGED != CSV
    assert pages[0] == pages[1] != pages[2]
