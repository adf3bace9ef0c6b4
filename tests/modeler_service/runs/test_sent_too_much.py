"""A curator that signs all that it sends, and sends without end: what is stored stays within bounds, others go on."""

import json
import secrets

import pytest

from blindopt import wire
from blindopt.audit.merkle_log import Exchange
from blindopt.client import StudyClient, Vendor
from blindopt.client.connection import Watch
from blindopt.client.log_copy import StudyLog
from blindopt.client.witness import OTHERS_MAX, Witness
from blindopt.errors import Unreachable
from modeler_service.runs.curator_queries import CORRECTIONS_MAX
from service_kit.store.base import utc_now
from tests.builders import a_run
from tests.modeler_service.in_process_modeler import modeler_at_work, start
from tests.modeler_service.lying_curator import FakeCurator

RANDOM = wire.RandomRows(name="random")
LIMIT = 1 << 20


class Padding(FakeCurator):
    """Each text of an answer is as long as it may be, up to the size of the reply."""

    size = wire.TEXT_MAX - 1_000

    def _answer(self, row):
        texts = {"study_id": "s" * self.size, "salt": "a" * (64 + wire.NUMBER_MAX)}
        return json.dumps(json.loads(super()._answer(row)) | texts).encode()


@pytest.fixture(scope="module")
def own(make_service, tmp_path_factory):
    quick = {
        "retry_attempts": "2",
        "retry_seconds_max": "0.1",
        "wait_seconds_first": "0.01",
        "wait_seconds_max": "0.01",
    }
    quick |= {"wait_hours": "0.00001", "people_seconds": "0.01", "people_seconds_max": "0.01"}
    folder = tmp_path_factory.mktemp("sizes")
    return make_service("modeler", folder, run_stored_bytes_max=str(LIMIT), **quick).start()


def started(vendor, curator, iterations):
    return vendor.start(a_run(curator.url, curator.study_id, "t", algorithm=RANDOM, iterations=iterations)).id


def stored(service, curator, run):
    """The bytes that a run of this curator takes, added up in the database."""
    query = """SELECT (SELECT coalesce(sum(length(reply)), 0) FROM trials WHERE run_id = ?)
        + (SELECT coalesce(sum(length(reply)), 0) FROM versions WHERE run_id = ?)
        + (SELECT sum(length(body) + length(peaks)) FROM shared WHERE grant_id = ?)
        + (SELECT sum(length(body) + length(note)) FROM receipts WHERE grant_id = ?)"""
    ((size,),) = service.rows(query, run, run, curator.grant, curator.grant)
    return size


def test_a_run_ends_in_words_at_its_limit_and_another_goes_on(own, vendor, study):
    with Padding(study) as liar, FakeCurator(study) as honest:
        runs = started(vendor, liar, 39), started(vendor, honest, 39)
        hostile, other = (vendor.wait(run, timeout_s=120) for run in runs)
        assert (hostile.state, hostile.problem.code, other.state) == ("failed", "curator_sent_too_much", "completed")
        assert "the curator has sent more than the 1,048,576 bytes" in hostile.problem.detail
        assert LIMIT // 2 < stored(own, liar, runs[0]) <= LIMIT
        ((counted,),) = own.rows("SELECT stored_bytes FROM runs WHERE id = ?", runs[0])
        assert stored(own, liar, runs[0]) <= counted <= LIMIT


def test_without_the_limit_the_same_curator_makes_a_run_store_more(modeler, study):
    with Padding(study) as liar, Vendor(modeler.url, modeler.token) as client:
        run = started(client, liar, 39)
        assert client.wait(run, timeout_s=120).state == "completed"
        assert stored(modeler, liar, run) > 2 * LIMIT


def test_a_reply_beyond_what_its_request_allows_is_refused_before_it_is_parsed(own, vendor, study):
    with Padding(study) as liar:
        liar.size = 200_000
        run = started(vendor, liar, 3)
        ended = vendor.wait(run, timeout_s=120)
        assert (ended.state, ended.problem.code) == ("failed", "unreachable")
        assert "the reply is larger than" in ended.problem.detail
        assert own.rows("SELECT count(*) FROM trials WHERE run_id = ? AND reply IS NOT NULL", run) == [(0,)]


def test_endless_corrections_end_the_run_and_of_several_the_newest_is_fetched(own, vendor, inbox_curator):
    curator = inbox_curator
    curator.measure = lambda row: float(row % 5)
    exchange, fetched = curator.exchange, []

    def correcting(request, path):
        if path.endswith("/revisions") and curator.rows:
            first = next(iter(curator.rows))
            for _ in range(3):  # between two looks
                curator.answer(first, secrets.randbelow(10**6) / 7)
        fetched.append("version=" in request.path)
        return exchange(request, path)

    curator.exchange = correcting
    run = started(vendor, curator, 39)
    ended = vendor.wait(run, timeout_s=120)
    assert (ended.state, ended.problem.code) == ("failed", "curator_sent_too_much")
    assert "corrected one answer more than 16 times" in ended.problem.detail
    versions = own.rows("SELECT version FROM versions WHERE run_id = ? AND query = 1 AND version > 1", run)
    assert len(versions) == sum(fetched) == CORRECTIONS_MAX
    assert sorted(version for (version,) in versions) == [4 + 3 * number for number in range(CORRECTIONS_MAX)]


def doubled(curator, times):
    """After each exchange, entries of the same request that never took place."""

    def after(method, path):
        body = json.loads(curator.bodies[-1])
        for _ in range(times):
            curator.bodies.append(Exchange(**body | {"position": len(curator.bodies)}).body)

    return after


def test_an_entry_of_a_request_counts_once_whatever_its_id(own, vendor, study):
    with FakeCurator(study) as liar:
        liar.after = doubled(liar, 60)
        run = started(vendor, liar, 5)
        ended = vendor.wait(run, timeout_s=120)
        assert (ended.state, ended.problem.code) == ("failed", "unreachable")
        assert "does not recognise" in ended.problem.detail
        ((entries,),) = own.rows("SELECT count(*) FROM shared WHERE grant_id = ?", liar.grant)
        requests = len({json.loads(body)["request_id"] for body in liar.bodies})
        assert OTHERS_MAX < entries <= OTHERS_MAX + 2 * requests < len(liar.bodies)


@pytest.mark.parametrize("has_ids", [True, False])
def test_lost_replies_are_known_by_their_ids_however_many_there_are(study, has_ids):
    """The control: with ids of another kind, as a proxy makes them, a day's are accepted."""
    with FakeCurator(study) as curator:
        log = StudyLog(None)
        witness = Witness(log, curator.study_id, log.signer, utc_now)
        watch = Watch(witness.record, id_of=witness.id_of) if has_ids else Watch(witness.record)
        with StudyClient(curator.url, "t", curator.study_id, watch=watch) as client:
            view = client.study(lambda view, note: witness.trust(view, None, note))

            def lose(method, path):
                raise ConnectionAbortedError

            curator.after = lose
            for _ in range(150):
                with pytest.raises(Unreachable):
                    client.study()
            if has_ids:
                witness.settle(client, view.grant_id)
            else:
                for _ in range(2):  # also when it is tried again
                    with pytest.raises(Unreachable, match="does not recognise"):
                        witness.settle(client, view.grant_id)
        with log.read() as copy:
            assert copy.size(view.grant_id) == 1 + (150 if has_ids else OTHERS_MAX)


def test_below_disk_min_bytes_a_running_run_waits(tmp_path, study, until):
    with FakeCurator(study) as curator:
        spec = a_run(curator.url, curator.study_id, f"blindopt_{16 * '0'}.{43 * 'A'}", algorithm=RANDOM, iterations=3)
        with modeler_at_work(tmp_path, disk_min_bytes=1 << 60) as modeler:
            run = start(modeler, spec)
            view = until(lambda: (view := modeler.run(run)).state == "waiting" and view)
            assert view.problem.code == "storage_unavailable"
            assert "DISK_MIN_BYTES" in view.problem.detail
            assert curator.query_count == 0
        with modeler_at_work(tmp_path) as modeler:  # with room it goes on
            assert until(lambda: (view := modeler.run(run)).ended_at and view).state == "completed"
