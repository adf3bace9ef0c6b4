"""A page of a listing costs no statement for each of its rows, or hardly any."""

from contextlib import contextmanager

import pytest
from pydantic import TypeAdapter, ValidationError
from sqlalchemy import event

from blindopt import wire
from curator_service import store as curator_store
from modeler_service import store
from service_kit.store.base import stamp
from service_kit.web.listings import Paging, Time
from tests.builders import a_study
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator
from tests.modeler_service.in_process_modeler import SPEC, modeler_at_work
from tests.modeler_service.stored_trials import ANSWER, add_run, chosen_trial
from tests.shared.service_kit.store.test_store import NOW


@pytest.mark.parametrize("size", [1, 2, 3, 6, 7, 50])
def test_pages_by_their_tokens_are_the_whole_listing_in_order(size):
    positions = [2, 3, 5, 8, 13, 21]
    letters = dict(zip(positions, "abcdef", strict=True))

    def read(after, limit):
        return [(p, letters[p]) for p in positions if p > after][:limit]

    pages, token = [], None
    while not pages or token is not None:
        items, token = Paging(size, None if token is None else int(token)).read(read)
        pages.append(items)
    assert [letter for page in pages for letter in page] == list("abcdef")
    assert [len(page) for page in pages] == [size] * (6 // size) + [6 % size] * (6 % size > 0)


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
def test_a_time_that_utc_has_not_is_refused(time):
    with pytest.raises(ValidationError, match="years 1 to 9999"):
        TypeAdapter(Time).validate_python(time)


def test_a_time_of_another_zone_is_the_same_in_utc():
    assert stamp(TypeAdapter(Time).validate_python("2026-11-22T10:00:00+02:00")) == "2026-11-22T08:00:00.000000Z"


@contextmanager
def statements(database):
    """The statements that a database runs meanwhile."""
    executed = []

    def note(conn, cursor, statement, parameters, context, executemany):
        executed.append(statement)

    with database.read() as db:
        readers = db.engine
    event.listen(readers, "before_cursor_execute", note)
    yield executed
    event.remove(readers, "before_cursor_execute", note)


def test_a_page_of_runs_tells_what_each_run_tells_and_counts_all_of_them_together(tmp_path):
    with modeler_at_work(tmp_path, work=False) as modeler:
        runs = [_run(modeler, number) for number in range(6)]
        each = [modeler.run(run) for run in runs]
        with statements(modeler.context.database) as few:
            assert [view for _, view in modeler.runs(None, 2)] == each[:2]
        with statements(modeler.context.database) as many:
            assert [view for _, view in modeler.runs(None, 50)] == each
        assert [view for _, view in modeler.runs(None, 50, newest=True)] == each[::-1]
    assert len(many) == len(few)
    counts = [(view.trials, view.declined, view.open_measurements, view.observations) for view in each]
    assert counts == [(number, number // 2, number % 2, 3 * number) for number in range(6)]


def _run(modeler, number):
    """A stored run with so many answers, half as many declines, a question that waits where it is odd."""
    run = f"run_{number:016x}"
    settings = wire.RunSpec(**SPEC.model_dump(exclude={"token", "observations", "hold"})).model_dump_json()

    def work(db):
        at = stamp(NOW)
        add_run(db, run, state="paused", spec=settings, at=at, pause_asked_at=at)
        kinds = ["y"] * number + ["declined"] * (number // 2) + ["asked"] * (number % 2)
        for position, kind in enumerate(kinds, start=1):
            store.add_trial(db, chosen_trial(run, position, chosen_at=at))
            if kind != "asked":
                store.answer_trial(db, run, position, ANSWER if kind == "y" else None, answered_at=at)
            else:
                store.ask_trials(db, run, position, 1, asked_at=at, query_id="qry_1")
        store.add_observations(db, run, [wire.Observation(row=0, y=0.0)] * (3 * number))

    modeler.context.database.write(work)
    return run


@pytest.mark.parametrize("withdrawn", [False, True], ids=["", "with a withdrawal"])
def test_a_page_of_studies_tells_what_each_study_tells_in_a_fixed_number_of_statements(withdrawn, tmp_path):
    in_process = InProcessCurator(tmp_path, rate_per_second=10_000, rate_burst=10_000)
    csv = b"a,b,y\n" + b"".join(b"%d,%d,%d\n" % (i, i * 7 % 10, i) for i in range(10))

    def study(dataset, release=wire.IdentityRelease(mechanism="identity")):
        return a_study(release, dataset_id=dataset, columns="ab", upper=10.0)

    made = [in_process.open(csv, study) for _ in range(2)]
    dataset = in_process.call("owner", "GET", f"/v1/studies/{made[0]}")["spec"]["dataset_id"]
    auto = wire.AutoRelease(mechanism="auto", epsilon="1", delta=1e-5)
    for _ in range(4):
        body = study(dataset, auto).model_dump(mode="json")
        made.append(in_process.call("owner", "POST", "/v1/studies", json=body)["id"])
    if withdrawn:
        row = {"id": "adv_1", "mechanism": "identity", "version": 1, "reason": "wrong", "created_at": "now"}
        in_process.context.database.write(lambda db: curator_store.insert(db, curator_store.advisories, **row))
    page = in_process.curator.studies.page
    with statements(in_process.context.database) as few:
        page(0, 2)
    with statements(in_process.context.database) as many:
        views = [view for _, view in page(0, 50)]
    assert views == [in_process.curator.studies.view(identity) for identity in made]
    assert len(many) == len(few)
    accounts_of = in_process.curator.accounts
    with statements(in_process.context.database) as few:
        accounts_of.accounts(0, 2)
    with statements(in_process.context.database) as many:
        accounts = [account for _, account in accounts_of.accounts(0, 50)]
    assert accounts == [accounts_of.account(identity) for identity in made]
    assert [account.release_epsilon for account in accounts[:2]] == [None if withdrawn else "0"] * 2
    assert len(many) == len(few)
    in_process.close()
