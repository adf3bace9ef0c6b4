"""Accounts whose units are persons with several records."""

import pytest

from blindopt import wire
from tests.curator_service.use_cases.accounts.file_of_records import FileOfRecords

PERSONS = (0, 0, 1, 1, 1, 2)
"""The person behind each record."""
CSV = b"pid,a,b,y\n" + b"".join(b"%d,%d,%d,%d\n" % (p, i % 3, i % 2, i % 4) for i, p in enumerate(PERSONS))
WITH_PERSONS = {"person": "pid", "rows_per_person": "3"}


@pytest.fixture
def file(tmp_path):
    made = FileOfRecords(tmp_path, csv=CSV, fields=WITH_PERSONS)
    yield made
    made.close()


def _ask(file, study, *records):
    return file.ask(study, *(file.row_of(study, record) for record in records))


def test_answers_about_all_records_of_a_person_add_up_over_studies(file):
    first, second = file.study(), file.study()
    assert _ask(file, first, 2, 3).status_code == 201
    assert _ask(file, second, 4, 0).status_code == 201
    account = file.account()
    # The release is calibrated for a person already: it counts once.
    assert (account.unit, account.epsilon, account.everyone_epsilon) == ("person", "3.5", "2")
    assert account.worst_record in (3, 4, 5)
    assert [(share.epsilon, share.units) for share in account.losses] == [("3.5", 1), ("2.5", 1), ("2", 1)]


def test_a_cap_counts_the_rows_of_a_person_together(file):
    study = file.study()
    assert file.caps("2").status_code == 200
    assert _ask(file, study, 2, 3, 4).status_code == 403  # together 1.5 about one person
    assert _ask(file, study, 2, 3).status_code == 201
    assert _ask(file, study, 4).status_code == 403
    assert _ask(file, study, 0, 1, 5).status_code == 201
    assert file.account().epsilon == "2"


def test_two_registrations_with_persons_name_the_same_person_alike(file):
    again = file.register(**WITH_PERSONS)
    assert _ask(file, file.study(), 2).status_code == 201
    assert _ask(file, file.study(again), 4).status_code == 201
    account = file.account(again)
    assert (account.epsilon, account.losses[0].units) == ("3", 1)  # two releases, and an answer in each


def test_a_registration_without_persons_that_was_never_used_changes_no_figure(tmp_path):
    """Units of two kinds cannot be matched: their largest losses are added, and those of the unused one are 0."""
    file = FileOfRecords(tmp_path, csv=CSV)
    file.in_process.call("owner", "POST", f"/v1/datasets/{file.dataset}:archive")
    with_persons = file.register(**WITH_PERSONS)
    study = file.study(with_persons)
    assert file.caps("2").status_code == 200
    assert _ask(file, study, 2, 3).status_code == 201
    assert _ask(file, study, 4).status_code == 403
    for dataset, unit in ((file.dataset, "record"), (with_persons, "person")):
        account = file.account(dataset)
        assert (account.unit, account.epsilon) == (unit, "2")
        assert "their largest losses are added" in account.sentence
    file.close()


@pytest.mark.parametrize("withheld", ["0", "1", "2"])
def test_the_cap_on_a_person_holds_in_a_study_that_was_released_after_another_one_was_withheld(file, withheld):
    """The numbers of persons in its release have a gap: each row is still counted with those of its own person."""
    file.in_process.call("owner", "POST", f"/v1/datasets/{file.dataset}:withhold", json={"person": withheld})
    study = file.study(budget=wire.Budget(epsilon_per_row="2"))  # the release, and two answers about a person
    for person in {0, 1, 2} - {int(withheld)}:
        records = [record for record, owner in enumerate(PERSONS) if owner == person]
        for allowed, record in enumerate([*records, *records][:3]):
            assert _ask(file, study, record).status_code == (201 if allowed < 2 else 403)


def test_the_record_that_lost_most_has_its_number_in_the_file_also_where_rows_were_dropped(tmp_path):
    file = FileOfRecords(tmp_path, csv=CSV, fields={"person": "pid", "rows_per_person": "1"})
    study = file.study()
    assert _ask(file, study, 2).status_code == 201  # the third record that is kept: row 6 of the file
    assert file.account().worst_record == 6
    file.close()
