"""A long run in as many points as a chart shows: each has the best of all trials until it, also of those left out."""

import itertools

import pytest
from sqlalchemy import text

from modeler_service import store
from modeler_service.context import open_context
from modeler_service.settings import Settings
from modeler_service.store import TrialFilter
from tests.modeler_service.stored_trials import add_run, chosen_trial

OUTCOMES = [None, 3.0, 1.0, None, 7.0, 2.0, 7.0, -1.0, 9.0, 0.0, 4.0, None, 8.0]


@pytest.fixture
def database(tmp_path):
    with open_context(Settings(data_dir=tmp_path / "data")) as context:

        def work(db):
            for run in ("run_1", "run_2"):
                add_run(db, run)
                for number, y in enumerate(OUTCOMES, start=1):
                    store.add_trial(db, chosen_trial(run, number))
                    sign = 1 if run == "run_1" else -1
                    if y is not None:
                        db.execute(
                            text(f"UPDATE trials SET y = {sign * y} WHERE run_id = '{run}' AND number = {number}")
                        )

        context.database.write(work)
        yield context.database


@pytest.mark.parametrize("points", [2, 3, 5, 12, 13, 100])
def test_each_point_has_the_best_of_all_trials_until_it(database, points):
    for run, largest, sign in (("run_1", True, 1), ("run_2", False, -1)):
        with database.read() as db:
            count, shown = store.curve(db, run, points, largest=largest)
        assert count == len(OUTCOMES)
        assert len(shown) <= points
        assert (shown[0].number, shown[-1].number) == (1, len(OUTCOMES))
        gaps = {later.number - earlier.number for earlier, later in itertools.pairwise(shown[:-1])}
        assert len(gaps) <= 1
        for point in shown:
            until = [y for y in OUTCOMES[: point.number] if y is not None]
            assert point.best == (sign * max(until) if until else None)
            assert point.y == (None if OUTCOMES[point.number - 1] is None else sign * OUTCOMES[point.number - 1])


def test_the_newest_trials_come_first_and_lead_to_those_before(database):
    with database.read() as db:
        first = [row.number for row in store.trial_page(db, "run_1", newest=True, limit=5)]
        then = [row.number for row in store.trial_page(db, "run_1", position=first[-1], newest=True, limit=50)]
    assert first + then == list(range(len(OUTCOMES), 0, -1))


@pytest.mark.parametrize(("first", "last"), [(1, 4), (5, 9), (9, 9), (7, 100)])
def test_a_part_of_a_run_has_the_best_of_all_trials_until_then(database, first, last):
    with database.read() as db:
        _, whole = store.curve(db, "run_1", 100, largest=True)
        count, part = store.curve(db, "run_1", 100, largest=True, first=first, last=last)
    assert count == len(OUTCOMES)
    assert part == [point for point in whole if first <= point.number <= last]


SORTS = ("number", "row", "mean", "y")
CHOSEN = {
    "all": (TrialFilter(), lambda t: True),
    "range": (TrialFilter(first=3, last=11), lambda t: 3 <= t["number"] <= 11),
    "candidate": (TrialFilter(row=5), lambda t: t["row"] == 5),
    "answered": (TrialFilter(state="answered", phase="initial"), lambda t: t["y"] is not None),
    "open": (TrialFilter(state="open"), lambda t: t["y"] is None),
    "nothing": (TrialFilter(phase="algorithm"), lambda t: False),
}


@pytest.mark.slow(every=5)
@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("name", CHOSEN)
def test_trials_are_filtered_and_sorted_as_python_does_page_by_page(database, name, sort, largest):
    chosen, matches = CHOSEN[name]
    listed = [{"number": n, "row": n, "mean": None, "y": y} for n, y in enumerate(OUTCOMES, start=1)]
    listed = [trial for trial in listed if matches(trial)]
    valued = sorted((t for t in listed if t[sort] is not None), key=lambda t: -t[sort] if largest else t[sort])
    expected = [t["number"] for t in (*valued, *(t for t in listed if t[sort] is None))]
    shown = []
    with database.read() as db:
        for offset in range(0, len(OUTCOMES) + 4, 4):
            order = {"sort": sort, "largest": largest, "offset": offset, "limit": 4}
            total, rows = store.sorted_trials(db, "run_1", chosen, **order)
            assert total == len(expected)
            shown += [row.number for row in rows]
        walked = store.trial_page(db, "run_1", chosen, newest=True, limit=50)
    assert shown == expected
    assert [row.number for row in walked] == sorted(expected, reverse=True)


@pytest.mark.parametrize(
    "look",
    [
        lambda db: store.answered(db, "run_1"),
        lambda db: store.run_counts(db, "run_1"),
        lambda db: store.best_trial(db, "run_1", largest=True),
        lambda db: store.last_fit(db, "run_1"),
        lambda db: store.curve(db, "run_1", 5, largest=True),
    ],
    ids=["answered", "counts", "best", "last_fit", "curve"],
)
def test_a_list_of_runs_is_read_from_indexes(database, look):
    """A scan of a long run's trials would read all replies beside them."""
    statements = []
    with database.read() as db:
        db.connection.set_trace_callback(statements.append)
        look(db)
        db.connection.set_trace_callback(None)
        plans = [step[3] for query in statements for step in db.connection.execute(f"EXPLAIN QUERY PLAN {query}")]
    of_trials = [step for step in plans if "trials" in step]
    assert of_trials, plans
    assert all("INDEX trials_" in step for step in of_trials), of_trials


def test_runs_are_counted_by_state_however_many_there_are(database):
    def work(db):
        states = {"paused": None, "waiting": "people", "completed": "people", "failed": None}
        for number, (state, waits) in enumerate([*states.items(), ("waiting", "curator"), ("waiting", "people")]):
            add_run(db, f"run_x{number}")
            store.change_run(db, f"run_x{number}", state=state, waiting_for=waits)

    database.write(work)
    with database.read() as db:
        counted = store.run_states(db)
    assert sorted(counted, key=str) == sorted(
        [
            ("completed", "people", 1),
            ("failed", None, 1),
            ("paused", None, 1),
            ("running", None, 2),
            ("waiting", "curator", 1),
            ("waiting", "people", 2),
        ],
        key=str,
    )
