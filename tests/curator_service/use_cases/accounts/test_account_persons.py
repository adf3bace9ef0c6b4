"""Accounts whose units are persons with several records, and a file that is registered both ways."""

import numpy as np
import pytest

from curator_service.store import datasets
from tests.curator_service.use_cases.accounts.file_of_records import FileOfRecords

PERSONS = (0, 0, 1, 1, 1, 2)
"""The person behind each record."""


def _give_persons(file, dataset, column="pid", persons=PERSONS):
    """What a registration with a person column stores: a keyed digest for each record."""
    digests = np.array([[7 * person + 1] * 16 for person in persons], dtype=np.uint8)
    file.in_process.curator.releases._vault.keep_persons(dataset, digests)
    change = datasets.update().where(datasets.c.id == dataset)
    values = {"person_column": column, "rows_per_person": 3, "persons": 3, "person_rows_dropped": 0}
    file.in_process.context.database.write(lambda db: db.execute(change.values(**values)))


@pytest.fixture
def file(tmp_path):
    made = FileOfRecords(tmp_path)
    yield made
    made.close()


def _ask(file, study, *records):
    return file.ask(study, *(file.row_of(study, record) for record in records))


def test_answers_about_all_records_of_a_person_add_up_over_studies(file):
    _give_persons(file, file.dataset)
    first, second = file.study(), file.study()
    assert _ask(file, first, 2, 3).status_code == 201
    assert _ask(file, second, 4, 0).status_code == 201
    account = file.account()
    # The release is calibrated for a person already: it counts once.
    assert (account.unit, account.epsilon, account.everyone_epsilon) == ("person", "3.5", "2")
    assert account.worst_record in (3, 4, 5)
    assert [(share.epsilon, share.units) for share in account.losses] == [("3.5", 1), ("2.5", 1), ("2", 1)]


def test_a_cap_counts_the_rows_of_a_person_together(file):
    _give_persons(file, file.dataset)
    study = file.study()
    assert file.caps("2").status_code == 200
    assert _ask(file, study, 2, 3, 4).status_code == 403  # together 1.5 about one person
    assert _ask(file, study, 2, 3).status_code == 201
    assert _ask(file, study, 4).status_code == 403
    assert _ask(file, study, 0, 1, 5).status_code == 201
    assert file.account().epsilon == "2"


def test_registrations_whose_units_cannot_be_matched_add_their_largest_losses(file):
    again = file.register()
    _give_persons(file, again)
    of_records, of_persons = file.study(), file.study(again)
    assert file.caps("3.5").status_code == 200
    _ask(file, of_records, 0)
    _ask(file, of_persons, 2, 3)
    for dataset, unit in ((file.dataset, "record"), (again, "person")):
        account = file.account(dataset)
        assert (account.unit, account.epsilon) == (unit, "3.5")
        assert "Some registrations of the file count persons" in account.sentence
    assert _ask(file, of_records, 0).status_code == 403
    assert _ask(file, of_persons, 4).status_code == 403


def test_two_registrations_with_persons_name_the_same_person_alike(file):
    again = file.register()
    _give_persons(file, file.dataset)
    _give_persons(file, again, persons=(2, 2, 2, 1, 1, 0))
    _ask(file, file.study(), 0)
    _ask(file, file.study(again), 5)
    assert file.account().epsilon == "3"  # person 0: 2 releases, and an answer in each
