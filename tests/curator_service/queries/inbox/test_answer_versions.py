"""Versions of answers: their law, recovery after a crash, and their checks, which find broken ones."""

from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy import stats

from blindopt import wire
from blindopt.errors import LogBroken
from curator_service.integrity import log_checks
from curator_service.integrity.restore import close_after_restore
from curator_service.queries import table as inbox_store
from curator_service.queries.answer_versions import AnswerVersions
from curator_service.studies.release_cache import ReleasedStudies
from curator_service.vault import Vault
from service_kit.store import audit_log
from service_kit.store.database import Database
from tests import beside, postgres
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator
from tests.curator_service.queries.inbox.measured_study import LAPLACE
from tests.scale import scaled

PLAYS = 40
SURE = 1e-9


class Stepwise(AnswerVersions):
    """Draws and publishes in steps; while ``crashed``, does neither after a commit."""

    crashed = False

    def settle(self, query_ids):
        if not self.crashed:
            super().settle(query_ids)

    def draw(self, query_id):
        return self._next_of([query_id])

    def publish(self, drawn):
        self._context.database.write(lambda db: self._publish_all(drawn, db))


@pytest.fixture
def queried(in_process, small, draft_of):
    """Opens a study, asks for rows and answers as many measurements as there are values: study, query, measurements."""
    return partial(_queried, in_process, small, draft_of)


def _queried(in_process, small, draft_of, rows, *values, plays=1, answers=LAPLACE, **draft):
    study = in_process.open(small.csv, lambda dataset: draft_of(dataset, answers=answers, **draft))
    query = in_process.ask(study, rows, plays)
    items = in_process.items(query)
    if values:
        assert in_process.enter("answer", query, items[: len(values)], *values).status_code == 200
    return study, query, items


def _use(in_process, kind, studies=None):
    """Serve the inbox with versions of another kind, or of other studies."""
    curator = in_process.curator
    versions = kind(in_process.context, studies or curator.released, curator.budgets, curator.wakeups)
    in_process.use(versions)
    return versions


def _draws(in_process, study, y):
    """y with its noise, through the whole path, and again after a correction of each measurement."""
    query = in_process.ask(study, list(range(scaled(50))), PLAYS)
    items = in_process.items(query)
    assert in_process.enter("answer", query, items, *[y] * len(items)).status_code == 200
    first = [answer.y for answer in in_process.reply(study, query).answers]
    wrong = [y + 1e-9] * len(items)
    assert in_process.enter("correct", query, items, *wrong).status_code == 200
    return np.array(first), np.array([answer.y for answer in in_process.reply(study, query).answers])


@pytest.mark.slow(every=2)
@pytest.mark.parametrize(("y", "at"), [(1.5, 1.5), (400.0, 5.0)])
def test_an_answer_of_the_inbox_has_the_noise_that_its_passport_says(in_process, small, draft_of, y, at):
    """2,000 draws: half the scale fails; a right one, once in 10^9. Corrections have noise of their own."""
    study = in_process.open(small.csv, lambda dataset: draft_of(dataset, answers=LAPLACE))
    law = stats.laplace(loc=at, scale=2 * 5.0 / 0.5)
    first, second = _draws(in_process, study, y)
    for draws in (first, second):
        assert stats.kstest(draws, law.cdf).pvalue > SURE
    assert abs(stats.pearsonr(first, second).statistic) < 5 / len(first) ** 0.5
    in_process.check()


class WeakStudies(ReleasedStudies):
    """Studies with less noise than their owner chose."""

    def of(self, db, identity):
        released = super().of(db, identity)
        weak = released.spec.answers.model_copy(update={"epsilon": "1"})  # at 0.75 one run in 10,000 missed it
        return replace(released, spec=released.spec.model_copy(update={"answers": weak}))


def test_noise_of_another_scale_would_be_seen(in_process, small, draft_of, tmp_path):
    study = in_process.open(small.csv, lambda dataset: draft_of(dataset, answers=LAPLACE))
    _use(in_process, AnswerVersions, WeakStudies(Vault(tmp_path / "data" / "files")))
    first, _ = _draws(in_process, study, 1.5)
    assert stats.kstest(first, stats.laplace(loc=1.5, scale=20.0).cdf).pvalue < SURE


def _corrected(in_process, queried):
    """Three rows, of which one is corrected: the query's answer before and after, and its lines of the ledger."""
    study, query, items = queried([3, 4, 5], 1.0, 2.0, 3.0)
    before = in_process.reply(study, query)
    assert in_process.enter("correct", query, items[1:2], -1.0).status_code == 200
    lines = in_process.call("owner", "GET", f"/v1/studies/{study}/ledger")["entries"]
    return before, in_process.reply(study, query), [line for line in lines if line["query_id"] == query]


def _check_correction(before, after, lines):
    assert [a.model_dump_json() for a in after.answers[::2]] == [a.model_dump_json() for a in before.answers[::2]]
    assert after.answers[1] != before.answers[1]
    assert [(line["kind"], line["row"], line["epsilon"]) for line in lines[3:]] == [("correction", 4, "0.5")]


def test_a_correction_keeps_what_did_not_change_bit_for_bit(in_process, queried):
    _check_correction(*_corrected(in_process, queried))


class DrawsAllAnew(AnswerVersions):
    """Releases every answer of a query again when any is corrected."""

    def changed_units(self, earlier, *more):
        fresh, again, is_less = super().changed_units(earlier, *more)
        whole, *_ = super().changed_units(replace(earlier, versions=[]), *more)
        return (whole if earlier.versions else fresh), again, is_less


def test_a_curator_that_draws_all_anew_or_charges_nothing_is_found(in_process, queried):
    _use(in_process, DrawsAllAnew)
    correction = _corrected(in_process, queried)
    with pytest.raises(AssertionError):
        _check_correction(*correction)
    with pytest.raises(LogBroken, match="3 answers anew"):
        in_process.check()


class ChargesNothing(AnswerVersions):
    """Corrects for nothing."""

    def _charge(self, *arguments):
        return None


def test_a_correction_that_is_not_charged_is_found(in_process, queried):
    _use(in_process, ChargesNothing)
    _corrected(in_process, queried)
    with pytest.raises(LogBroken, match="1 answers anew"):
        in_process.check()


def test_a_correction_in_a_study_with_a_changed_record_charges_and_releases_nothing(in_process, queried, monkeypatch):
    study, query, items = queried([3], 1.0)
    finding = LogBroken("a line of its ledger was changed", about=study)
    monkeypatch.setitem(in_process.context.audit_trail._findings, "first", [finding])
    refused = in_process.enter("correct", query, items, 2.0)
    assert (refused.status_code, refused.json()["code"]) == (503, "record_changed")
    monkeypatch.undo()
    assert in_process.reply(study, query).version == 1
    assert in_process.enter("correct", query, items, 2.0).status_code == 200
    assert in_process.reply(study, query).version == 2


def test_an_answer_released_often_is_held_against_its_cap_beside_one_released_once(in_process, queried):
    """Two plays of one record, each another person's: only the first is corrected three times, which is its cap."""
    budget = wire.Budget(epsilon_per_row="2")
    draft = {"answers": LAPLACE, "privacy_unit": "answer", "budget": budget}
    study, query, items = queried([3], 1.0, 2.0, plays=2, **draft)
    for value in (1.1, 1.2, 1.3):
        assert in_process.enter("correct", query, items[:1], value).status_code == 200
    refused = in_process.enter("correct", query, items, 1.4, 2.4)
    assert (refused.status_code, refused.json()["code"]) == (403, "privacy_budget_exhausted")
    assert in_process.reply(study, query).version == 4
    assert in_process.enter("correct", query, items[1:], 2.4).status_code == 200
    in_process.check()


# --- answers that are taken back --------------------------------------------------------------------


def _take_back(in_process, query, items, key=None, **more):
    body = {"void": [item["id"] for item in items], "reason": "record", **more}
    return in_process.send("measurer", "POST", f"/v1/queries/{query}:correct", key=key, json=body)


def _ledger(in_process, study, query):
    lines = in_process.call("owner", "GET", f"/v1/studies/{study}/ledger")["entries"]
    return [(line["kind"], line["row"], line["epsilon"]) for line in lines if line["query_id"] == query]


def test_an_answer_taken_back_is_declined_in_the_next_version_and_costs_nothing(in_process, queried):
    study, query, items = queried([3, 4, 5], 1.0, 2.0, 3.0)
    before, spent = in_process.reply(study, query), _ledger(in_process, study, query)
    done = _take_back(in_process, query, items[1:2], key="once")
    assert (done.status_code, done.json()["version"], done.json()["charged"]) == (200, 2, None)
    assert _take_back(in_process, query, items[1:2], key="once").content == done.content
    after = in_process.reply(study, query)
    assert (after.version, after.declined) == (2, [4])
    assert [a.model_dump_json() for a in after.answers] == [a.model_dump_json() for a in before.answers[::2]]
    assert _ledger(in_process, study, query) == spent
    (now,) = [i for i in in_process.items(query) if i["id"] == items[1]["id"]]
    assert (now["state"], now["value"], now["version"], now["reason"]) == ("declined", None, 1, "record")
    in_process.check()
    again = _take_back(in_process, query, items[1:2])
    assert (again.status_code, "is declined" in again.json()["detail"]) == (409, True)


@pytest.mark.parametrize("value", [2.0, -1.0])
def test_an_answer_in_the_place_of_a_void_one_is_drawn_anew_and_charged_whatever_it_is(in_process, queried, value):
    study, query, items = queried([3, 4], 1.0, 2.0)
    before = in_process.reply(study, query)
    _take_back(in_process, query, items[1:])
    entered = in_process.enter("answer", query, items[1:], value)
    assert (entered.json()["version"], entered.json()["charged"]) == (3, "0.5")
    after = in_process.reply(study, query)
    assert (after.declined, [a.row for a in after.answers]) == ([], [3, 4])
    assert after.answers[0] == before.answers[0]
    assert after.answers[1].y != before.answers[1].y
    assert _ledger(in_process, study, query)[2:] == [("correction", 4, "0.5")]
    in_process.check()


class ForgetsVoidAnswers(AnswerVersions):
    """Charges again only what the last version released."""

    def changed_units(self, earlier, *more):
        fresh, again, is_less = super().changed_units(earlier, *more)
        last = earlier.versions[-1].units if earlier.versions else []
        return fresh, [unit for unit in again if unit in last], is_less


def test_a_curator_that_takes_a_void_answer_for_never_released_is_found(in_process, queried):
    """Else fresh noise would be free, as often as an answer is taken back and entered again."""
    _use(in_process, ForgetsVoidAnswers)
    _, query, items = queried([3], 1.0)
    _take_back(in_process, query, items)
    assert in_process.enter("answer", query, items, 1.0).json()["charged"] is None
    with pytest.raises(LogBroken, match="1 answers anew"):
        in_process.check()


def test_where_the_caps_allow_no_other_answer_a_void_one_stays_void(in_process, queried):
    budget = wire.Budget(epsilon_per_row="0.7")
    study, query, items = queried([3], 1.0, budget=budget)
    assert _take_back(in_process, query, items).status_code == 200
    refused = in_process.enter("answer", query, items, 1.0)
    assert (refused.status_code, refused.json()["code"]) == (403, "privacy_budget_exhausted")
    assert in_process.reply(study, query).declined == [3]
    head = "measurement_id;value\n" + f"{items[0]['id']};1.5\n"
    sheet = in_process.send("measurer", "POST", "/v1/inbox:import", content=head, headers={"content-type": "text/csv"})
    assert sheet.status_code == 403
    assert in_process.reply(study, query).declined == [3]
    in_process.check()


# --- means that are held back -----------------------------------------------------------------------

MEANS = LAPLACE.model_copy(update={"plays": "mean", "epsilon": "500"})  # so much that a mean is seen through its noise


def _release_mean(in_process, query, *items, role="owner", key=None):
    body = {"measurement_ids": [item["id"] for item in items]}
    return in_process.send(role, "POST", f"/v1/queries/{query}:release_mean", json=body, key=key)


def _means(in_process, study, query):
    """Row, plays and y of each mean that the modeler has now, and the rows without one."""
    reply = in_process.reply(study, query)
    return [(a.row, a.plays, pytest.approx(a.y, abs=0.3)) for a in reply.answers], reply.declined


def _answered_means(queried, **more):
    """Three measurements of each of two records, released as means: study, query, measurements."""
    return queried([3, 4], 1.0, 2.0, 4.5, 0.0, 0.0, 3.0, plays=3, answers=MEANS, **more)


def test_a_measurement_of_a_mean_is_taken_back_at_the_cap_without_a_number_or_a_charge(in_process, queried):
    """Consent that is withdrawn is honoured, whatever is spent: the candidate is declined, the other mean is copied."""
    budget = wire.Budget(epsilon_per_row="500", epsilon_total="1000")
    study, query, items = _answered_means(queried, budget=budget)
    before, spent = in_process.reply(study, query), _ledger(in_process, study, query)
    done = _take_back(in_process, query, items[:1], reason="consent")
    assert (done.status_code, done.json()["version"], done.json()["charged"]) == (200, 2, None)
    after = in_process.reply(study, query)
    assert ([a.model_dump_json() for a in after.answers], after.declined) == (
        [before.answers[1].model_dump_json()],
        [3],
    )
    assert _ledger(in_process, study, query) == spent
    again = _take_back(in_process, query, items[1:2], reason="consent")  # held back already: nothing changes
    assert (again.status_code, again.json()["version"], again.json()["charged"]) == (200, 2, None)
    refused = _release_mean(in_process, query)
    assert (refused.status_code, refused.json()["code"]) == (403, "privacy_budget_exhausted")
    assert in_process.reply(study, query) == after
    assert _ledger(in_process, study, query) == spent
    assert [item["mean_held_back"] for item in in_process.items(query)] == [True] * 3 + [False] * 3
    in_process.check()


def test_the_mean_of_what_is_left_is_released_when_the_owner_says_so_and_charged(in_process, queried):
    study, query, items = _answered_means(queried)
    nothing = _release_mean(in_process, query)
    assert (nothing.status_code, nothing.json()["code"]) == (409, "state_conflict")
    for held in (items[2:3], items[5:]):
        assert _take_back(in_process, query, held).json()["charged"] is None
    assert _means(in_process, study, query) == ([], [3, 4])
    assert _release_mean(in_process, query, items[0], role="measurer").status_code == 403
    foreign = _release_mean(in_process, query, {"id": "msr_0000000000000000"})
    assert (foreign.status_code, foreign.json()["errors"][0]["field"]) == (422, "measurement_ids.0")
    done = _release_mean(in_process, query, items[2], key="once")  # any measurement of the record
    assert (done.status_code, done.json()["version"], done.json()["charged"]) == (200, 4, "500")
    assert _release_mean(in_process, query, items[2], key="once").content == done.content
    assert _means(in_process, study, query) == ([(3, 2, 1.5)], [4])
    assert _release_mean(in_process, query, items[0]).status_code == 409
    first = in_process.reply(study, query).answers[0]
    assert _release_mean(in_process, query).json()["charged"] == "500"
    assert _means(in_process, study, query) == ([(3, 2, 1.5), (4, 2, 0.0)], [])
    assert in_process.reply(study, query).answers[0] == first  # copied
    assert _ledger(in_process, study, query)[2:] == [("correction", 3, "500"), ("correction", 4, "500")]
    assert not any(item["mean_held_back"] for item in in_process.items(query))
    in_process.check()


def test_another_value_of_the_record_releases_its_mean_and_another_record_s_does_not(in_process, queried):
    """A late measurement that joins a mean already released is another mean, and charged; so is a correction."""
    study, query, items = _answered_means(queried)
    _take_back(in_process, query, items[2:3])
    assert in_process.enter("correct", query, items[3:4], 3.0).json()["charged"] == "500"
    assert _means(in_process, study, query) == ([(4, 3, 2.0)], [3])
    assert in_process.enter("answer", query, items[2:3], 4.5).json()["charged"] == "500"  # the value that it had
    assert _means(in_process, study, query) == ([(3, 3, 2.5), (4, 3, 2.0)], [])
    _take_back(in_process, query, items[2:3])
    assert in_process.enter("correct", query, items[:1], 2.0).json()["charged"] == "500"
    assert _means(in_process, study, query) == ([(3, 2, 2.0), (4, 3, 2.0)], [])
    _take_back(in_process, query, items[:2])
    assert _means(in_process, study, query) == ([(4, 3, 2.0)], [3])
    assert _release_mean(in_process, query).status_code == 409  # nothing is left of it
    in_process.check()


def test_a_measurement_taken_back_before_the_first_release_leaves_a_mean_that_the_query_paid_for(in_process, queried):
    study, query, items = queried([3], 4.5, 2.0, plays=3, answers=MEANS)
    assert _take_back(in_process, query, items[:1]).json()["version"] == 0
    assert in_process.enter("answer", query, items[2:], 1.0).json()["charged"] is None
    assert _means(in_process, study, query) == ([(3, 2, 1.5)], [])
    in_process.check()


def test_a_mean_held_back_stays_so_through_a_crash_and_is_drawn_once_when_it_is_released(in_process, queried):
    study, query, items = _answered_means(queried)
    before = in_process.reply(study, query)
    versions = _use(in_process, Stepwise)
    versions.crashed = True
    _take_back(in_process, query, items[:1])
    assert _release_mean(in_process, query).json()["charged"] == "500"
    assert _take_back(in_process, query, items[1:2]).json()["version"] == 4
    assert in_process.reply(study, query) == before  # begun, and not published
    versions.crashed = False
    versions.settle([query])
    path = f"/v1/studies/{study}/queries/{query}?version="
    bodies = [in_process.call("modeler", "GET", f"{path}{version}") for version in (2, 3, 4)]
    assert {body["version"] for body in bodies} == {4}
    with in_process.context.database.read() as db:
        stored = [wire.QueryReply.model_validate_json(inbox_store.published(db, query, v).body) for v in (2, 3, 4)]
    assert [reply.declined for reply in stored] == [[3], [], [3]]
    assert [len(reply.answers) for reply in stored] == [1, 2, 1]
    assert {reply.answers[-1].model_dump_json() for reply in stored} == {before.answers[1].model_dump_json()}
    assert stored[1].answers[0].y == pytest.approx(3.25, abs=0.3)  # of 2.0 and 4.5
    assert [line[0] for line in _ledger(in_process, study, query)] == ["answers", "answers", "correction"]
    versions.settle([query])
    assert in_process.reply(study, query).version == 4
    in_process.check()


def test_no_mean_of_a_record_that_is_withheld_is_released(in_process, queried):
    study, query, items = _answered_means(queried)
    _take_back(in_process, query, [items[0], items[3]])
    dataset = in_process.call("owner", "GET", f"/v1/studies/{study}")["spec"]["dataset_id"]
    body = {"record": items[0]["record"]}
    in_process.call("owner", "POST", f"/v1/datasets/{dataset}:withhold", json=body)
    assert _release_mean(in_process, query, items[1]).status_code == 409
    assert _take_back(in_process, query, items[1:2]).status_code == 200
    assert _release_mean(in_process, query).json()["charged"] == "500"
    assert _means(in_process, study, query) == ([(4, 2, 1.5)], [3])


class ReleasesTheRest(AnswerVersions):
    """Releases the mean of what is left by itself, as it did once."""

    def begin(self, db, query_id, *, actor, means=()):
        return super().begin(db, query_id, actor=actor, means=range(9))


def test_a_curator_that_releases_the_rest_by_itself_is_refused_at_the_cap(in_process, queried):
    """The control: what these tests forbid."""
    budget = wire.Budget(epsilon_per_row="500")
    _, query, items = _answered_means(queried, budget=budget)
    _use(in_process, ReleasesTheRest)
    assert _take_back(in_process, query, items[:1], reason="consent").status_code == 403


def test_values_and_void_answers_are_corrected_together_and_each_fault_is_named(in_process, queried):
    study, query, items = queried([3, 4, 5], 1.0, 2.0, 3.0, answers=wire.NONE)
    value = [{"measurement_id": items[0]["id"], "value": 9.0}]
    wrong = _take_back(in_process, query, [items[1], items[0]], values=value)
    assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (422, "void.1")
    for body in ({"void": [items[1]["id"]]}, {"values": value, "reason": "record"}, {"values": []}):
        assert in_process.send("measurer", "POST", f"/v1/queries/{query}:correct", json=body).status_code == 422
    assert in_process.reply(study, query).version == 1
    assert _take_back(in_process, query, items[1:2], values=value).status_code == 200
    after = in_process.reply(study, query)
    assert ([(a.row, a.y) for a in after.answers], after.declined, after.version) == ([(3, 9.0), (5, 3.0)], [4], 2)
    in_process.check()


# --- two threads at once, and a crash in between ----------------------------------------------------


def test_of_two_draws_of_one_version_one_is_published(in_process, queried):
    """Two threads draw and publish: the later draw is dropped, and a correction copies from the first."""
    versions = _use(in_process, Stepwise)
    study, query, items = queried([3])
    versions.crashed = True
    in_process.enter("answer", query, items, 1.0)
    in_process.enter("correct", query, items, 2.0)
    assert in_process.send("modeler", "GET", f"/v1/studies/{study}/queries/{query}").status_code == 202
    early, late = (versions.draw(query) for _ in range(2))
    assert early[0].answers != late[0].answers
    versions.publish(early)
    published = in_process.reply(study, query)
    versions.publish(late)
    assert in_process.reply(study, query) == published
    assert published.answers == early[0].answers
    versions.crashed = False
    versions.settle([query])
    versions.settle([query])
    assert in_process.reply(study, query).version == 2
    kinds = [line["kind"] for line in in_process.call("owner", "GET", f"/v1/studies/{study}/ledger")["entries"]]
    assert kinds == ["release", "answers", "correction"]
    in_process.check()


def test_the_next_request_publishes_what_a_crash_left(in_process, queried):
    versions = _use(in_process, Stepwise)
    study, query, items = queried([3])
    versions.crashed = True
    first = in_process.enter("answer", query, items, 1.0, key="same")
    versions.crashed = False
    again = in_process.enter("answer", query, items, 1.0, key="same")
    assert (first.content, again.headers["idempotency-replayed"]) == (again.content, "true")
    assert in_process.reply(study, query).version == 1


def test_after_a_restore_nothing_is_drawn_that_may_have_been_drawn_before(in_process, small, draft_of):
    study = in_process.open(small.csv, lambda dataset: draft_of(dataset, answers=LAPLACE))
    pending, answered = in_process.ask(study, [3], key="a"), in_process.ask(study, [4], key="b")
    items = {query: in_process.items(query) for query in (pending, answered)}
    in_process.enter("answer", answered, items[answered], 1.0)
    in_process.context.database.write(lambda db: close_after_restore(db, in_process.context))
    assert in_process.enter("answer", pending, items[pending], 1.0).status_code == 409
    assert in_process.enter("correct", answered, items[answered], 2.0).status_code == 409
    reply = in_process.send("modeler", "GET", f"/v1/studies/{study}/queries/{pending}")
    assert (reply.status_code, reply.json()["code"]) == (403, "study_not_open")
    assert in_process.reply(study, answered).version == 1
    in_process.curator.deadlines.look()
    in_process.check()


# --- what a modeler, an auditor and the logs can see -------------------------------------------------

WORDS = ("zq_left", "How much?", "furlong", "slip seven", "consent", "measurer", "msr_", "by hand")
VALUES = ("1.234567", "2.345678", "9.876543")


def test_nothing_that_people_see_or_write_reaches_a_modeler_or_the_logs(in_process, small, draft_of, caplog):
    """What is shown, notes, reasons, values, names; in what a modeler can fetch, in what auditors read, in logs."""
    caplog.set_level("DEBUG")
    release = wire.GaussianRelease(mechanism="gaussian", epsilon="1", delta=1e-5)
    chosen = {"answers": LAPLACE, "release": release, "measurement": {"unit": "furlong"}}
    study = in_process.open(small.csv, lambda dataset: draft_of(dataset, **chosen), public=False)
    query = in_process.ask(study, [3, 4, 5])
    items, path = in_process.items(query), f"/v1/queries/{query}"
    assert "furlong" in str(items)
    seen = [in_process.send("modeler", "GET", f"/v1/studies/{study}/queries/{query}")]
    entries = {"values": [{"measurement_id": items[0]["id"], "value": 1.234567}], "note": "slip seven"}
    in_process.call("measurer", "POST", f"{path}:answer", json=entries)
    refusal = {"values": [{"measurement_id": items[0]["id"], "value": 9.876543}] * 2}
    refused = in_process.send("measurer", "POST", f"{path}:answer", json=refusal)
    assert refused.status_code == 422
    assert "9.876543" not in refused.text
    declined = {"measurement_ids": [items[1]["id"]], "reason": "consent", "note": "slip seven"}
    in_process.call("measurer", "POST", f"{path}:decline", json=declined)
    in_process.enter("answer", query, items[2:], 2.345678)
    in_process.enter("correct", query, items[2:], 1.234567)
    paths = "", "/revisions", f"/queries/{query}", f"/queries/{query}?version=9", "/queries/qry_0000000000000000"
    seen += [in_process.send("modeler", "GET", f"/v1/studies/{study}{end}") for end in paths]
    seen += [in_process.send("modeler", "GET", f"/v1/audit/{what}") for what in ("entries", "checkpoint")]
    seen += [in_process.send("modeler", "GET", f"/v1/inbox{end}") for end in ("", ".csv")]
    for reply in seen:
        for word in (*WORDS, *VALUES):
            said = reply.text.replace("needs the role owner or measurer", "").replace("drawal of consent", "")
            assert word not in said, (reply.url.path, word)
    read = "".join(
        str(entry) for entry in in_process.call("owner", "GET", "/v1/audit/entries?page_size=1000")["entries"]
    )
    for word in (*VALUES, "slip seven", "consent", "furlong", "How much?"):
        assert word not in read
        assert word not in caplog.text
    assert "measurement.declined" in read  # the search does see what is there


def test_a_query_may_request_many_measurements(in_process, queried):
    """10,000 measurements in one query: all are there, and answered in one request."""
    study, query, items = queried(list(range(100)), plays=100, answers=wire.NONE)
    assert len(items) == wire.MEASUREMENTS_MAX
    in_process.app.state.context.audit_trail.check_sound()
    half = len(items) // 2
    for part in (items[:half], items[half:]):
        assert in_process.enter("answer", query, part, *range(len(part))).status_code == 200
    assert len(in_process.reply(study, query).answers) == wire.MEASUREMENTS_MAX


# --- tampering --------------------------------------------------------------------------------------

TAMPERED = {
    "a value": "UPDATE entries SET value = value + 1 WHERE seq = 2",
    "a value in its last bit": "UPDATE entries SET value = 1.0000000000000002 WHERE seq = 1",
    "a note": "UPDATE entries SET note = 'x' WHERE seq = 1",
    "who": "UPDATE entries SET name = 'x' WHERE seq = 1",
    "an entry gone": "DELETE FROM entries WHERE seq = 3",
    "an entry more": "INSERT INTO entries SELECT 99, measurement_id, query_id, kind, version + 1, value, reason, note, "
    "actor, name, salt, created_at FROM entries WHERE seq = 1",
    "a state": "UPDATE measurements SET state = 'open' WHERE seq = 1",
    "a row": "UPDATE measurements SET row = 17 WHERE seq = 1",
    "a measurement gone": "DELETE FROM measurements WHERE seq = 4",
    "a version's bytes": "UPDATE revisions SET body = replace(body, '3', '4') WHERE version = 1",
    "a version gone": "DELETE FROM revisions WHERE version = 2",
    "a version of another place": "UPDATE revisions SET seq = 7 WHERE version = 2",
    "what is released anew": "UPDATE rounds SET fresh = '[[0, 1], [1, 1]]' WHERE version = 2",
    "a version that was begun": "DELETE FROM rounds WHERE version = 2",
    "where a query stands": "UPDATE inquiries SET version = 0",
    "a query that is told no more": "UPDATE inquiries SET lost = 1",
    "a query gone": "DELETE FROM inquiries WHERE open > 0",
    "a charge": "DELETE FROM ledger WHERE kind = 'correction'",
    "the pending reply": "UPDATE replies SET body = body || ' ' WHERE status = 202",
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory, small, draft_of):
    """A database with an answered, corrected query and a pending one."""
    curator = InProcessCurator(tmp_path_factory.mktemp("finished"))
    _corrected(curator, partial(_queried, curator, small, draft_of))
    _queried(curator, small, draft_of, [9])
    curator.check()
    path = curator.context.database.path
    curator.close()
    return path


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("kind", TAMPERED)
def test_whoever_changes_a_table_of_the_inbox_is_found(finished, tmp_path, kind):
    path = tmp_path / "curator.sqlite"
    beside.copy(finished, path)
    with closing(beside.connect(path)) as db, db:
        beside.drop_triggers(db)
        assert db.execute(TAMPERED[kind]).rowcount >= 1
    with Database.read_from(path, postgres.address_for(path)) as db, pytest.raises(LogBroken):
        log_checks.check(db, (entry.record for entry in audit_log.walk(db)))


def test_untouched_it_verifies(finished):
    with Database.read_from(finished, postgres.address_for(finished)) as db:
        log_checks.check(db, (entry.record for entry in audit_log.walk(db)))


# --- what a modeler sees of it --------------------------------------------------------------------------

VISIBLE = {
    "pending": {"id", "study_id", "state", "created_at", "due_at"},
    "answered": {"id", "study_id", "state", "version", "created_at", "answers", "declined", "salt"},
    "answer": {"row", "play", "plays", "y", "passport"},
    "revision": {"seq", "query_id", "version"},
    "revisions": {"revisions", "next_page_token"},
}


def test_a_modeler_sees_of_people_what_is_listed_here_and_nothing_else(in_process, small, draft_of):
    """Not who measured, when, why a measurement was declined, nor how many people there are."""
    study = in_process.open(small.csv, lambda dataset: draft_of(dataset, answers=LAPLACE))
    plain = set(in_process.call("modeler", "GET", f"/v1/studies/{study}"))
    assert plain == set(wire.StudyView.model_fields) - {"refine"}
    query = in_process.ask(study, [3, 4, 5])
    path = f"/v1/studies/{study}/queries/{query}"
    assert set(in_process.call("modeler", "GET", path)) == VISIBLE["pending"]
    items = in_process.items(query)
    assert in_process.enter("answer", query, items[:2], 1.5, 1.75).is_success
    declined = {"measurement_ids": [items[2]["id"]], "reason": "consent", "note": "slip seven"}
    in_process.call("measurer", "POST", f"/v1/queries/{query}:decline", json=declined)
    assert in_process.enter("correct", query, items[:1], 2.5).is_success
    for version in ("", "?version=1", "?version=2"):
        answered = in_process.call("modeler", "GET", f"{path}{version}")
        assert set(answered) == VISIBLE["answered"]
        assert all(set(answer) == VISIBLE["answer"] for answer in answered["answers"])
        assert answered["declined"] == [5]
    revisions = in_process.call("modeler", "GET", f"/v1/studies/{study}/revisions")
    assert set(revisions) == VISIBLE["revisions"]
    assert [revision["version"] for revision in revisions["revisions"]] == [1, 2]
    assert all(set(revision) == VISIBLE["revision"] for revision in revisions["revisions"])
