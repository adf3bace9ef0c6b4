"""Datasets with a person column over REST: what is kept, what it costs a person, who sees it."""

import io
import secrets
from collections import Counter

import numpy as np
import pytest

from blindopt import wire
from blindopt.errors import Invalid, Remote
from curator_service.context import open_context
from curator_service.settings import Settings
from curator_service.store import file_names
from tests.builders import a_study_of, registered_apart
from tests.curator_service.queries.inbox.measured_study import open_measured_study

PERSONS, EACH, KEPT = 80, 5, 3
LAPLACE = wire.LaplaceAnswers(mechanism="laplace", epsilon="0.5", value_bound=1.0)
GAUSSIAN = wire.GaussianRelease(mechanism="gaussian", epsilon="1", delta=1e-5)
IDENTITY = wire.IdentityRelease(mechanism="identity")


def name_of(record: int) -> str:
    """The person of a record of the file, from 0."""
    return f"Patient-Canary-{record % PERSONS}"


def with_persons(small, salt: str = "") -> bytes:
    """The small file with a person column; ``salt`` in the header makes it another file."""
    head, *rows = small.csv.decode().splitlines()
    lines = [f"{head},who{salt}", *(f"{row},{name_of(record)}" for record, row in enumerate(rows))]
    return ("\n".join(lines) + "\n").encode()


@pytest.fixture(scope="module")
def registered(owner, small):
    return owner.register("persons", with_persons(small), public=True, person="who", rows_per_person=KEPT)


@pytest.fixture(scope="module")
def opened(owner, registered, open_study):
    """Public records with private answers, capped at two answers about a person."""
    budget = wire.Budget(epsilon_per_row="1")
    return open_study(owner, registered, IDENTITY, answers=LAPLACE, budget=budget)


@pytest.fixture(scope="module")
def records(curator, opened, small):
    """The record of the file, from 0, of each row of Z."""
    return records_of(curator, opened.token, opened.id, small)


def records_of(curator, token, study_id, small):
    with curator.http(token) as http:
        content = http.get(f"/v1/studies/{study_id}/candidates").content
    return small.place_of(np.load(io.BytesIO(content)))


@pytest.fixture
def ask(curator):
    def ask_rows(study, *rows):
        body = {"rows": [{"row": int(row), "plays": 1} for row in rows]}
        with curator.http(study.token, **{"Idempotency-Key": secrets.token_hex(8)}) as http:
            return http.post(f"/v1/studies/{study.id}/queries", json=body)

    return ask_rows


def rows_of_persons(records):
    """The rows of Z of each person."""
    rows = {}
    for row, record in enumerate(records):
        rows.setdefault(name_of(record), []).append(row)
    return list(rows.values())


def test_at_most_k_rows_of_each_person_are_kept_and_no_name_is_anywhere(registered, records, curator, small):
    assert (registered.rows, registered.persons) == (PERSONS * KEPT, PERSONS)
    assert registered.person_rows_dropped == PERSONS * (EACH - KEPT)
    assert (registered.person_column, registered.rows_per_person) == ("who", KEPT)
    assert [column.name for column in registered.columns] == list(small.names)
    assert registered.dropped == []
    assert set(Counter(name_of(record) for record in records).values()) == {KEPT}
    kept_y = small.y[records]
    assert (registered.columns[2].minimum, registered.columns[2].maximum) == (kept_y.min(), kept_y.max())
    for path in curator.data.rglob("*"):
        assert not path.is_file() or b"Patient-Canary" not in path.read_bytes(), path


def test_a_person_loses_by_all_her_rows_and_a_refusal_names_none_of_them_to_the_modeler(opened, records, ask, owner):
    first, second = rows_of_persons(records)[:2]
    assert ask(opened, first[0]).status_code == 201
    assert ask(opened, first[1]).status_code == 201
    refused = ask(opened, second[0], first[2])
    assert (refused.status_code, refused.json()["code"]) == (403, "privacy_budget_exhausted")
    assert refused.json()["budget"] == {"requested": "1", "spent": "1", "remaining": "some"}  # by row, all of it fits
    line = list(owner.ledger(opened.id))[-1]
    assert (line.kind, line.cap, line.row) == ("refused", "epsilon_per_row", first[2])
    assert ask(opened, second[0]).status_code == 201  # another person
    assert ask(opened, second[1], second[2]).status_code == 403  # together they pass the cap
    exposed = {row.row: row for row in owner.exposure(opened.id)}
    assert [exposed[row].spent for row in first[:2]] == ["1", "1"]
    assert [exposed[row].epsilon for row in first[:2]] == ["0.5", "0.5"]
    assert (exposed[second[0]].spent, exposed[second[0]].epsilon) == ("0.5", "0.5")
    assert all(row.record == records[row.row] + 1 for row in exposed.values())  # the line in the owner's file
    report = owner.accounting(opened.id)
    assert {(loss.answers, loss.rows, loss.epsilon) for loss in report.rows} == {
        (0, PERSONS - 2, "0"), (1, 1, "0.5"), (2, 1, "1"),
    }  # fmt: skip
    assert "The person that was queried most has used epsilon 1" in report.sentence


def test_the_account_of_a_study_is_its_worst_persons(opened, records, ask, owner, curator):
    third = rows_of_persons(records)[2]
    assert ask(opened, third[0], third[1]).status_code == 201
    with curator.http(curator.token) as http:
        account = http.get(f"/v1/studies/{opened.id}/account").json()
    assert account["row_epsilon"] == "1"


def test_the_log_agrees_with_a_ledger_that_counts_persons(opened, curator):
    assert curator.run("audit", "verify").returncode == 0


def test_epsilon_is_a_persons(owner, small, open_study):
    private = owner.register("private", with_persons(small, "_b"), person="who_b", rows_per_person=KEPT)
    view = open_study(owner, private, GAUSSIAN, answers=LAPLACE).view
    assert (view.spec.rows_per_person, view.spec.person_column) == (KEPT, True)  # the curator wrote it
    assert "each person's features" in view.guarantee
    alone = registered_apart(owner, "alone", small.csv)
    of_row = open_study(owner, alone, GAUSSIAN, answers=LAPLACE).view
    assert view.report.noise_sd == pytest.approx(np.sqrt(KEPT) * of_row.report.noise_sd, rel=1e-8)
    assert [f.sensitivity for f in view.report.features] == [f.sensitivity for f in of_row.report.features]


def test_a_study_takes_its_datasets_rows_per_person(owner, registered, small, dataset):
    assert owner.create_study(a_study_of(small, registered.id, rows_per_person=KEPT)).spec.rows_per_person == KEPT
    for study in (
        a_study_of(small, registered.id, rows_per_person=2),
        a_study_of(small, dataset.id, person_column=True),
    ):
        with pytest.raises(Remote) as refused:
            owner.create_study(study)
        assert refused.value.remote_status == 422


def test_registrations_of_one_file_agree_about_persons(owner, small, curator):
    file = with_persons(small, "_c")
    columns = list(small.names)
    with pytest.raises(Invalid, match="belong together"):
        owner.register("c", file, person="who_c")
    unused = owner.register("c", file, columns=columns)
    refused = refusal(owner, "c", file, person="who_c", rows_per_person=2)
    assert refused.remote_code == "state_conflict"
    assert unused.id in str(refused)
    owner_post(curator, f"/v1/datasets/{unused.id}:archive")
    used = owner.register("c", file, person="who_c", rows_per_person=2)
    assert owner.register("c again", file, person="who_c", rows_per_person=2).persons == used.persons
    owner.create_study(a_study_of(small, used.id, GAUSSIAN))
    owner_post(curator, f"/v1/datasets/{used.id}:archive")
    for settings in ({"columns": columns}, {"person": "who_c", "rows_per_person": 3}):
        assert refusal(owner, "c", file, **settings).remote_code == "state_conflict"


def refusal(owner, *given, **more) -> Remote:
    with pytest.raises(Remote) as refused:
        owner.register(*given, **more)
    return refused.value


def owner_post(curator, path):
    with curator.http(curator.token, **{"Idempotency-Key": secrets.token_hex(8)}) as http:
        assert http.post(path).status_code == 200


@pytest.mark.parametrize("rows", ["0", "1001", "2.5"])
def test_rows_per_person_is_limited(rows, curator, small):
    with curator.http(curator.token, **{"Idempotency-Key": secrets.token_hex(8)}) as http:
        fields = {"name": "x", "person": "who", "rows_per_person": rows}
        assert http.post("/v1/datasets", data=fields, files={"file": with_persons(small)}).status_code == 422


def test_people_measure_the_record_that_their_file_has_and_corrections_count_the_person(small, curator, registered):
    """The number of a record is its line in the owner's file, though other lines were left out."""
    budget = wire.Budget(epsilon_per_row="1")
    with open_measured_study(small, curator, registered.id, answers=LAPLACE, budget=budget) as study:
        where = records_of(curator, study.grant.token, study.study, small)
        first, other, _ = next(rows for rows in rows_of_persons(where) if 0 in rows)
        (item,) = study.items(study.ask(first).id)
        assert item.record == where[first] + 1
        assert small.x[item.record - 1, 0] == item.shown[0].value
        study.answer(item.query_id, 0.5)
        study.ask(other)
        correction = wire.CorrectCreate(values=[wire.Measured(measurement_id=item.id, value=0.7)])
        with pytest.raises(Remote) as refused:  # alone the row would have 0.5 left
            study.measurer.correct(item.query_id, correction)
        assert refused.value.remote_code == "privacy_budget_exhausted"


def test_a_backup_has_the_files_of_persons(curator, registered):
    with open_context(Settings(data_dir=curator.data)) as context, context.database.read() as db:
        names = file_names(db)
    assert {f"{registered.id}.{what}npy" for what in ("", "persons.", "numbers.")} <= set(names)
    assert all((curator.data / "files" / name).is_file() for name in names)
