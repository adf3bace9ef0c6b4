"""Accounts whose units are persons with several records."""

import math
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from blindopt import wire
from curator_service.privacy import prices
from tests.curator_service.budget.file_of_records import FileOfRecords, spec_of

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


def test_a_draft_on_records_of_persons_has_an_account_without_any_spending(file):
    draft = file.draft()
    (account,) = file.in_process.call("owner", "GET", "/v1/accounts")["accounts"]
    assert (account["study_id"], account["state"], account["row_epsilon"]) == (draft, "draft", "0")


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
    """Units of two kinds cannot be matched: This adds the largest amount of each, and those of the unused one are 0."""
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
        assert "This adds the largest amount of each" in account.sentence
    file.close()


def test_a_person_with_as_many_rows_as_declared_has_lost_so_many_times_as_much(tmp_path):
    """Without a person column: the caps are per record, and the account shows both figures."""
    file = FileOfRecords(tmp_path, csv=CSV)
    study = file.study(rows_per_person=3)
    assert file.account().person == wire.DeclaredPerson(rows=3, epsilon="3", delta="0")
    assert _ask(file, study, 2).status_code == 201
    gaussian = wire.GaussianRelease(mechanism="gaussian", epsilon="0.5", delta=1e-5)
    file.study(release=gaussian)  # of a file whose persons have three rows, whatever this study declares
    account = file.account()
    assert (account.epsilon, account.delta) == ("2", "0.00001")
    assert (account.person.epsilon, float(account.person.delta)) == ("6", pytest.approx(3e-5 * math.exp(2 * 0.5)))
    assert Decimal(account.person.delta) > Decimal("3e-5") * Decimal(1).exp()  # rounded up
    assert "for a person with 3 records, as declared, epsilon 6 (delta 0.0000815485)." in account.sentence
    body = spec_of(file.dataset, rows_per_person=4)
    checked = file.in_process.call("owner", "POST", "/v1/studies:check", json=body)["account"]
    assert (checked["with_epsilon"], checked["person"]["rows"], checked["person"]["epsilon"]) == ("3", 4, "12")
    assert file.caps("2.5").status_code == 200  # of a record
    shown = file.in_process.call("owner", "GET", f"/v1/studies/{study}/account")
    assert (shown["row_epsilon"], shown["person_epsilon"]) == ("1.5", "4.5")
    file.close()


@given(st.integers(2, 9), st.floats(0.01, 5.0), st.floats(1e-12, 1e-3))
@settings(deadline=None, derandomize=True, max_examples=50)
def test_the_delta_of_several_records_bounds_that_of_the_gaussian_law_itself(k, epsilon, delta):
    """The exact delta of a Gaussian mechanism whose mean moves k times as far (Balle & Wang 2018, Theorem 8)."""

    def of(shift, loss):
        a, b = shift / 2 - loss / shift, -shift / 2 - loss / shift
        return stats.norm.cdf(a) - math.exp(loss) * stats.norm.cdf(b)

    shift = optimize.brentq(lambda s: of(s, epsilon) - delta, 1e-3, 50.0)
    bound = prices.group_delta(Decimal(repr(epsilon)), Decimal(repr(delta)), k)
    assert float(bound) >= of(k * shift, k * epsilon) * (1 - 1e-6)


@pytest.mark.slow(every=3)
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
