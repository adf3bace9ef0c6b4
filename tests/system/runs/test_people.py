"""Runs whose answers come from people: a modeler, a curator, and somebody at the inbox, as real processes."""

from collections import Counter

import numpy as np
import pytest
from scipy.stats import norm

from blindopt import wire
from blindopt.formats import npy_files
from blindopt.optimizer.chooser import RowChooser
from tests.curator_service.queries.inbox.measured_study import LAPLACE, answers_for
from tests.system.three_parties import QUICK, ThreeParties


@pytest.fixture(scope="module")
def parties(make_service, tmp_path_factory, small):
    folder = tmp_path_factory.mktemp("parties")
    made = ThreeParties(
        make_service("curator", folder).start(), make_service("modeler", folder, **QUICK).start(), small
    )
    yield made
    made.close()


def test_a_measurer_answers_ten_questions_and_the_run_ends(parties, tmp_path, small):
    opened = parties.opened()
    with parties.somebody(opened[0]):
        run = parties.vendor.wait(parties.start(opened), timeout_s=240)
    assert (run.state, run.ended_because, run.trials, run.declined) == ("completed", "budget", 10, 0)
    export = parties.vendor.export(run.id)
    z = npy_files.load(parties.modeler.data / "candidates" / f"{run.study.release_sha256}.npy")
    order = small.place_of(z)
    assert [trial.y for trial in export.trials] == [small.y[order[trial.row]] for trial in export.trials]
    assert run.best.y == max(trial.y for trial in export.trials)
    assert len(parties.charges(opened[0])) == 10
    parties.check(opened[0], run.id, folder=tmp_path)


def test_a_measurer_sees_how_probably_each_outcome_is_good_by_the_vendors_model(parties, tmp_path, small):
    """The oracle: the normal probability of the moments that the run exports. A run for the best says nothing."""
    level = float(np.quantile(small.y, 0.9))
    opened = parties.opened(goal=wire.FindMany(threshold=level))

    def by_record(pair):
        return pair[0], -1 if pair[1] is None else pair[1]

    seen = {}  # by measurement, since a record may be chosen again; nobody declines
    with parties.somebody(opened[0], declines=lambda item: seen.update({item.id: (item.record, item.probability)})):
        wish = {"iterations": 4, "batch_size": 2, "algorithm": wire.AUTO}
        many = parties.vendor.wait(parties.start(opened, **wish), timeout_s=240)
        stated, seen = seen, {}
        best = parties.vendor.wait(parties.start(opened, iterations=2, goal=wire.BEST, seed=5), timeout_s=240)
    z = npy_files.load(parties.modeler.data / "candidates" / f"{many.study.release_sha256}.npy")
    order, trials = small.place_of(z), parties.vendor.export(many.id).trials
    expected = [None if trial.mean is None else float(norm.sf(level, trial.mean, trial.sd)) for trial in trials]
    of_trials = [(int(order[trial.row]) + 1, p) for trial, p in zip(trials, expected, strict=True)]
    pairs = zip(*(sorted(each, key=by_record) for each in (stated.values(), of_trials)), strict=True)
    for (record, probability), (other, p) in pairs:
        assert (record, probability) == (other, p and pytest.approx(p, abs=1e-5))
    assert [p is None for p in expected] == [True] * 2 + [False] * 4
    assert [probability for _, probability in seen.values()] == [None] * 4
    parties.check(opened[0], many.id, best.id, folder=tmp_path)


@pytest.mark.slow(sibling="test_a_measurer_answers_ten_questions_and_the_run_ends")
def test_batches_with_declines_and_private_answers_go_on_to_the_end(parties, tmp_path):
    budget = wire.Budget(epsilon_per_row="0.9", epsilon_total="40")
    opened = parties.opened(answers=LAPLACE, budget=budget)
    batched = {"algorithm": wire.GpBucb(name="gp_bucb"), "batch_size": 4, "repeats": "never", "iterations": 10}
    turns = {}  # of three rows the second is declined
    with parties.somebody(opened[0], declines=lambda item: turns.setdefault(item.id, len(turns)) % 3 == 1):
        run = parties.vendor.wait(parties.start(opened, **batched), timeout_s=240)
    assert (run.ended_because, run.trials + run.declined) == ("budget", 12)
    assert run.declined == 4
    assert len(parties.charges(opened[0])) == 12
    again = batched | {"iterations": 12}  # 14 rows, of which at most the 12 that were charged are refused
    with parties.somebody(opened[0]):  # it begins with the rows of the first one, which have no budget left
        later = parties.vendor.wait(parties.start(opened, **again), timeout_s=240)
    refused = [line for line in parties.owner.ledger(opened[0]) if line.kind == "refused"]
    assert (later.ended_because, later.trials + later.declined, later.declined) == ("budget", 14, len(refused))
    assert 2 <= later.declined <= 12
    assert max(Counter(line.row for line in parties.charges(opened[0])).values()) == 1
    parties.check(opened[0], run.id, later.id, folder=tmp_path)


SECOND_DRAWS = {
    "release": wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="4"),
    "refine": wire.Refine(epsilon="8", persons=20),
}


@pytest.mark.slow(
    sibling="test_human_measured.py::test_declined_rows_count_as_trials_teach_nothing_and_are_not_chosen_again"
)
@pytest.mark.parametrize("more", [{}, SECOND_DRAWS], ids=["one draw", "second draws"])
def test_an_answer_that_is_taken_back_is_forgotten_by_the_run(more, parties, tmp_path, until):
    """The oracle: a fresh RowChooser that is shown a decline in its position, and another that is shown the answer.

    The second draw of a record leaves with its answer, and what was known of it is forgotten with that.
    """
    opened = study, _ = parties.opened(answers=LAPLACE, **more)
    run, items = parties.start(opened), []
    for number in range(1, 7):
        (item,) = until(lambda: parties.open_items(study))
        items.append(item)
        if number < 6:
            parties.measurer.answer(item.query_id, answers_for([item], 5.0 if number == 2 else parties.truth(item)))
    void = wire.CorrectCreate(void=[items[1].id], reason="record")
    assert parties.measurer.correct(items[1].query_id, void).charged is None
    parties.measurer.answer(item.query_id, answers_for([item], parties.truth(item)))
    with parties.somebody(study):
        ended = parties.vendor.wait(run, timeout_s=60)
    export = parties.vendor.export(run)
    trials = export.trials
    assert (ended.ended_because, ended.trials, ended.declined) == ("budget", 9, 1)
    assert (trials[1].y, trials[1].declined, trials[1].version) == (None, True, 2)
    assert trials[1].row not in {trial.row for trial in trials[6:]}
    assert ended.best is None  # answers are randomized
    first = {v.number: v for v in export.versions if v.version == 1}
    assert first[2].y is not None  # what was once known stays in the record
    second = [bool(trial.passport and trial.passport.z) for trial in (*trials, first[2])]
    assert second == [bool(more) and trial.y is not None for trial in (*trials, first[2])]
    z = npy_files.load(parties.modeler.data / "candidates" / f"{ended.study.release_sha256}.npy")
    names = wire.RunSpec.model_fields.keys() & wire.RunView.model_fields.keys()
    spec = wire.RunSpec(**{name: getattr(ended, name) for name in names})

    def row(number, *, forgotten):
        choosing = RowChooser(spec, ended.study, z)
        for trial in trials[: number - 1]:
            y = trial.y if forgotten else first[trial.number].y
            passport = trial.passport or first[trial.number].passport
            choosing.decline(trial.row) if y is None else choosing.observe(trial.row, y, passport)
        return choosing.next()[0].row

    assert [row(n, forgotten=n > 6) for n in range(1, 11)] == [trial.row for trial in trials]
    kinds = Counter(line.kind for line in parties.owner.ledger(study))
    measured = len({trial.row for trial in trials})
    assert (kinds["answers"], kinds["refine"]) == (10, measured if more else 0)  # nothing for what was taken back
    parties.check(study, run, folder=tmp_path)


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("victim", ["curator", "modeler"])
def test_killed_while_a_run_waits_for_people_nothing_is_lost(victim, parties, tmp_path, until):
    opened = study, _ = parties.opened()
    run, service = parties.start(opened), getattr(parties, victim)
    for _ in range(2):
        (item,) = until(lambda: parties.open_items(study))
        until(lambda: parties.vendor.run(run).state == "waiting")
        service.kill()
        if victim == "modeler":  # it is answered while nobody asks
            parties.measurer.answer(item.query_id, answers_for([item], parties.truth(item)))
        service.start()
        assert [again.id for again in parties.open_items(study)] == ([item.id] if victim == "curator" else [])
        if victim == "curator":
            parties.measurer.answer(item.query_id, answers_for([item], parties.truth(item)))
    with parties.somebody(study):
        ended = parties.vendor.wait(run, timeout_s=240)
    assert (ended.state, ended.trials) == ("completed", 10)
    assert len(parties.charges(study)) == 10
    parties.check(study, run, folder=tmp_path)


@pytest.mark.slow(sibling="test_human_measured.py::test_lost_replies_are_fetched_again_and_no_query_is_sent_twice")
def test_replies_that_are_lost_on_the_way_are_sent_again_and_charged_once(parties, tmp_path, bad_network):
    """Each connection breaks in the middle of some reply."""
    opened = study, _ = parties.opened()
    cuts = [5_000 + 1_300 * k for k in range(8)]
    with parties.somebody(study), bad_network(parties.curator.port, cuts) as proxy:
        ended = parties.vendor.wait(parties.start(opened, url=proxy.url), timeout_s=240)
    assert (ended.state, ended.trials, proxy.broken > 5) == ("completed", 10, True)
    assert len(parties.charges(study)) == 10
    parties.check(study, ended.id, folder=tmp_path)


@pytest.mark.slow(sibling="test_human_measured.py::test_a_run_waits_for_people_without_a_worker_and_goes_on_by_itself")
def test_an_answer_wakes_the_run_that_waits_for_it_without_a_worker(make_service, tmp_path, small, until):
    """This one would look again after ten minutes only."""
    seldom = {"people_hold_seconds": "0", "people_seconds": "600", "people_seconds_max": "600"}
    curator, modeler = make_service("curator", tmp_path).start(), make_service("modeler", tmp_path, **seldom).start()
    parties = ThreeParties(curator, modeler, small)
    opened = study, _ = parties.opened()
    batched = {"algorithm": wire.GpBucb(name="gp_bucb"), "batch_size": 2, "initial_rows": 2, "iterations": 2}
    run = parties.start(opened, **batched)
    for answered in range(1, 5):
        items = until(lambda: parties.open_items(study))
        until(lambda: parties.vendor.run(run).state == "waiting")
        parties.measurer.answer(items[-1].query_id, answers_for(items[-1:], parties.truth(items[-1])))
        until(lambda: parties.vendor.run(run).view.trials == answered)  # noqa: B023
    ended = parties.vendor.wait(run, timeout_s=60)
    assert (ended.state, ended.trials) == ("completed", 4)
    parties.check(study, run, folder=tmp_path)
    parties.close()
