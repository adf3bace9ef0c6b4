"""Runs whose answers come from people: a modeler, a curator, and somebody at the inbox, as real processes."""

import pytest

from blindopt import wire
from blindopt.formats import npy_files
from modeler_service.choosing.chooser import RowChooser
from tests.curator_service.use_cases.inbox.measured_study import LAPLACE, answers_for
from tests.system.three_parties import QUICK, Village


@pytest.fixture(scope="module")
def village(make_service, tmp_path_factory, small):
    folder = tmp_path_factory.mktemp("village")
    made = Village(make_service("curator", folder).start(), make_service("modeler", folder, **QUICK).start(), small)
    yield made
    made.close()


def test_a_measurer_answers_ten_questions_and_the_run_ends(village, tmp_path, small):
    opened = village.opened()
    with village.somebody(opened[0]):
        run = village.vendor.wait(village.start(opened), timeout_s=240)
    assert (run.state, run.ended_because, run.trials, run.declined) == ("completed", "budget", 10, 0)
    export = village.vendor.export(run.id)
    z = npy_files.load(village.modeler.data / "candidates" / f"{run.study.release_sha256}.npy")
    order = small.place_of(z)
    assert [trial.y for trial in export.trials] == [small.y[order[trial.row]] for trial in export.trials]
    assert run.best.y == max(trial.y for trial in export.trials)
    assert len(village.charges(opened[0])) == 10
    village.check(opened[0], run.id, folder=tmp_path)


def test_batches_with_declines_and_private_answers_go_on_to_the_end(village, tmp_path):
    budget = wire.Budget(epsilon_per_row="1.5", epsilon_total="40")
    opened = village.opened(answers=LAPLACE, budget=budget)
    batched = {"algorithm": wire.GpBucb(name="gp_bucb"), "batch_size": 4, "repeats": "never", "iterations": 10}
    turns = {}  # of three rows the second is declined
    with village.somebody(opened[0], declines=lambda item: turns.setdefault(item.id, len(turns)) % 3 == 1):
        run = village.vendor.wait(village.start(opened, **batched), timeout_s=240)
    assert (run.ended_because, run.trials + run.declined) == ("budget", 12)
    assert run.declined == 4
    assert len(village.charges(opened[0])) == 12
    village.check(opened[0], run.id, folder=tmp_path)


def test_a_correction_and_a_late_answer_change_a_later_choice(village, tmp_path, until):
    """The oracle: a fresh RowChooser with what was known, and with what would have been known without them."""
    opened = study, _ = village.opened()
    run, items = village.start(opened), []
    for number in range(1, 7):
        (item,) = until(lambda: village.open_items(study))
        items.append(item)
        if number == 3:
            village.measurer.decline(item.query_id, wire.DeclineCreate(reason="unavailable"))
        elif number < 6:
            village.measurer.answer(item.query_id, answers_for([item], village.truth(item)))
    village.measurer.correct(items[1].query_id, answers_for(items[1:2], 7.0))
    village.measurer.answer(items[2].query_id, answers_for(items[2:3], 0.5))  # late
    village.measurer.answer(item.query_id, answers_for([item], village.truth(item)))
    with village.somebody(study):
        ended = village.vendor.wait(run, timeout_s=240)
    export = village.vendor.export(run)
    trials = export.trials
    assert [(t.y, t.version) for t in trials[1:3]] == [(7.0, 2), (0.5, 2)]
    z = npy_files.load(village.modeler.data / "candidates" / f"{ended.study.release_sha256}.npy")
    names = wire.RunSpec.model_fields.keys() & wire.RunView.model_fields.keys()
    spec = wire.RunSpec(**{name: getattr(ended, name) for name in names})
    first = {version.number: version for version in reversed(export.versions)}

    def row(number, *, corrected):
        chooser = RowChooser(spec, ended.study, z)
        for trial in trials[: number - 1]:
            y = trial.y if corrected else first[trial.number].y
            chooser.decline(trial.row) if y is None else chooser.observe(trial.row, y, trial.passport)
        return chooser.next()[0].row

    assert [row(n, corrected=n > 6) for n in range(1, 11)] == [trial.row for trial in trials]
    assert row(7, corrected=False) != trials[6].row
    assert ended.best.y == 7.0
    village.check(study, run, folder=tmp_path)


def test_an_answer_that_is_taken_back_is_forgotten_by_the_run(village, tmp_path, until):
    """The oracle: a fresh RowChooser that is shown a decline in its position, and another that is shown the answer."""
    opened = study, _ = village.opened(answers=LAPLACE)
    run, items = village.start(opened), []
    for number in range(1, 7):
        (item,) = until(lambda: village.open_items(study))
        items.append(item)
        if number < 6:
            village.measurer.answer(item.query_id, answers_for([item], 5.0 if number == 2 else village.truth(item)))
    void = wire.CorrectCreate(void=[items[1].id], reason="record")
    assert village.measurer.correct(items[1].query_id, void).charged is None
    village.measurer.answer(item.query_id, answers_for([item], village.truth(item)))
    with village.somebody(study):
        ended = village.vendor.wait(run, timeout_s=60)
    export = village.vendor.export(run)
    trials = export.trials
    assert (ended.ended_because, ended.trials, ended.declined) == ("budget", 9, 1)
    assert (trials[1].y, trials[1].declined, trials[1].version) == (None, True, 2)
    assert trials[1].row not in {trial.row for trial in trials[6:]}
    assert ended.best.trial != 2
    first = {v.number: v for v in export.versions if v.version == 1}
    assert first[2].y is not None  # what was once known stays in the record
    z = npy_files.load(village.modeler.data / "candidates" / f"{ended.study.release_sha256}.npy")
    names = wire.RunSpec.model_fields.keys() & wire.RunView.model_fields.keys()
    spec = wire.RunSpec(**{name: getattr(ended, name) for name in names})

    def row(number, *, forgotten):
        choosing = RowChooser(spec, ended.study, z)
        for trial in trials[: number - 1]:
            y = trial.y if forgotten else first[trial.number].y
            passport = trial.passport or trials[0].passport
            choosing.decline(trial.row) if y is None else choosing.observe(trial.row, y, passport)
        return choosing.next()[0].row

    assert [row(n, forgotten=n > 6) for n in range(1, 11)] == [trial.row for trial in trials]
    assert len(village.charges(study)) == 10  # nothing for what was taken back
    village.check(study, run, folder=tmp_path)


@pytest.mark.parametrize("victim", ["curator", "modeler"])
def test_killed_while_a_run_waits_for_people_nothing_is_lost(victim, village, tmp_path, until):
    opened = study, _ = village.opened()
    run, service = village.start(opened), getattr(village, victim)
    for _ in range(2):
        (item,) = until(lambda: village.open_items(study))
        until(lambda: village.vendor.run(run).state == "waiting")
        service.kill()
        if victim == "modeler":  # it is answered while nobody asks
            village.measurer.answer(item.query_id, answers_for([item], village.truth(item)))
        service.start()
        assert [again.id for again in village.open_items(study)] == ([item.id] if victim == "curator" else [])
        if victim == "curator":
            village.measurer.answer(item.query_id, answers_for([item], village.truth(item)))
    with village.somebody(study):
        ended = village.vendor.wait(run, timeout_s=240)
    assert (ended.state, ended.trials) == ("completed", 10)
    assert len(village.charges(study)) == 10
    village.check(study, run, folder=tmp_path)


def test_replies_that_are_lost_on_the_way_are_told_again_and_charged_once(village, tmp_path, bad_network):
    """Each connection breaks in the middle of some reply."""
    opened = study, _ = village.opened()
    cuts = [5_000 + 1_300 * k for k in range(8)]
    with village.somebody(study), bad_network(village.curator.port, cuts) as proxy:
        ended = village.vendor.wait(village.start(opened, url=proxy.url), timeout_s=240)
    assert (ended.state, ended.trials, proxy.broken > 5) == ("completed", 10, True)
    assert len(village.charges(study)) == 10
    village.check(study, ended.id, folder=tmp_path)


def test_a_study_closed_while_it_waits_takes_the_answer_and_ends_the_run_in_words(village, tmp_path, until):
    opened = study, _ = village.opened()
    run = village.start(opened)
    (item,) = until(lambda: village.open_items(study))
    until(lambda: village.vendor.run(run).state == "waiting")
    village.owner.close_study(study)
    village.measurer.answer(item.query_id, answers_for([item], 0.25))
    ended = village.vendor.wait(run, timeout_s=240)
    assert (ended.state, ended.ended_because, ended.trials) == ("completed", "refused", 1)
    assert ended.problem.code == "study_not_open"
    village.check(study, run, folder=tmp_path)


def test_a_grant_revoked_while_it_waits_fails_the_run_and_says_why(village, until):
    opened = study, grant = village.opened()
    run = village.start(opened)
    until(lambda: village.vendor.run(run).state == "waiting")
    village.owner.revoke(study, grant.id)
    ended = village.vendor.wait(run, timeout_s=240)
    assert (ended.state, ended.problem.code, ended.trials) == ("failed", "unauthenticated", 0)
