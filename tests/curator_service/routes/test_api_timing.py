"""The time of a reply: with a deadline it reveals neither the noise, nor a refusal's reason, nor a row."""

import asyncio
import selectors
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest
import uvloop
from scipy import stats

from blindopt import wire
from curator_service import app as curator_app
from curator_service.privacy.answers import measure
from curator_service.privacy.noise import laplace
from curator_service.settings import Settings
from service_kit.web.reply_pacing import ReplyPacing
from tests.builders import a_study, a_study_of
from tests.curator_service.replaced_noise import replace_discrete_laplace
from tests.curator_service.replaced_steps import replace_measuring
from tests.scale import scaled

UNSEEN = 1e-9  # a padded service fails about as often
SEEN = 1e-6
PERIOD_MS = 250  # half of it is five times the slowest draw: a busy machine stays inside
LAPLACE = wire.LaplaceAnswers(mechanism="laplace", epsilon="1", value_bound=1.0)
FULL = scaled(1) >= 20


def correlated(seconds, noise):
    return stats.spearmanr(seconds, np.abs(noise))


# --- the pace by itself, in a loop whose time passes without waiting --------------------------------------------


class Jumps(selectors.DefaultSelector):
    """Waits for nothing: time jumps to the next timer, so a busy machine changes no moment."""

    def __init__(self):
        super().__init__()
        self.now = 0.0

    def select(self, timeout=None):
        self.now += max(timeout or 0.0, 0.0)
        return super().select(0)


class Virtual(asyncio.SelectorEventLoop):
    def __init__(self):
        self.jumps = Jumps()
        super().__init__(self.jumps)

    def time(self):
        return self.jumps.now


def at_once(talk):
    with asyncio.Runner(loop_factory=Virtual) as runner:
        return runner.run(talk())


@pytest.mark.parametrize(("work_s", "half_ways", "wholes"), [(0.0, 1, 2), (0.012, 1, 2), (0.030, 3, 4), (0.052, 3, 4)])
def test_results_settle_half_way_and_replies_leave_at_whole_periods(work_s, half_ways, wholes):
    async def go():
        pace, now = ReplyPacing(0.04), asyncio.get_running_loop().time
        await asyncio.sleep(work_s)
        await pace.half_period()
        settled = now()
        await pace.full_period()
        pace.stop()
        return settled / 0.02, now() / 0.02

    assert at_once(go) == pytest.approx((half_ways, wholes))


def test_work_past_its_deadline_leaves_at_the_next_one():
    async def go():
        pace = ReplyPacing(0.03)
        await asyncio.sleep(0.04)
        await pace.full_period()
        pace.stop()
        return asyncio.get_running_loop().time()

    assert at_once(go) == pytest.approx(0.06)


def test_many_wait_for_one_tick_and_one_that_gives_up_takes_none_with_it():
    async def go():
        pace = ReplyPacing(0.02)
        waiting = [asyncio.create_task(pace.full_period()) for _ in range(5)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        done = await asyncio.gather(*waiting, return_exceptions=True)
        pace.stop()
        return [type(outcome) for outcome in done]

    assert at_once(go) == [asyncio.CancelledError, *[type(None)] * 4]


# --- what time tells of the noise ------------------------------------------------------------------------------


def timed_draws(answers, outcomes, count):
    """Processor seconds and answers of ``count`` draws about each of some outcomes: (outcomes, count)."""
    spec, rows, columns = a_study(answers=answers), [wire.RowPlays(row=0)], [np.array([each]) for each in outcomes]
    seconds, drawn = np.empty((2, len(outcomes), count))
    shuffled = np.random.default_rng(0)  # what comes every second time, such as a collection, is of no outcome
    for number in range(count):
        for index in shuffled.permutation(len(outcomes)):
            start = time.thread_time()  # what others do on the machine is not in it
            (answer,) = measure(columns[index], rows, spec)
            seconds[index, number] = time.thread_time() - start
            drawn[index, number] = answer.y
    return seconds, drawn


@pytest.mark.parametrize(
    "answers",
    [
        LAPLACE,
        wire.OneBitAnswers(mechanism="one_bit", epsilon="1", value_bound=1.0),
        wire.PiecewiseAnswers(mechanism="piecewise", epsilon="1", value_bound=1.0),
    ],
    ids=lambda answers: answers.mechanism,
)
def test_the_time_of_a_draw_tells_neither_its_noise_nor_the_outcome(answers):
    """By ranks: of the noise's size, of the answer, and between the ends of what is measured."""
    seconds, drawn = timed_draws(answers, (-1.0, 1.0), scaled(2_000))
    for index, outcome in enumerate((-1.0, 1.0)):
        assert correlated(seconds[index], drawn[index] - outcome).pvalue > UNSEEN
        assert stats.spearmanr(seconds[index], drawn[index]).pvalue > UNSEEN
    assert stats.mannwhitneyu(*seconds).pvalue > UNSEEN


def test_a_sampler_that_takes_longer_for_larger_noise_is_caught(monkeypatch):
    """The control: noise that is counted up to, at most ten scales. Samplers by rejection do so in effect."""

    integers = laplace.integers

    def draw(count: int, scale: float) -> np.ndarray:
        drawn = integers(count, scale)
        for _ in range(int(min(abs(int(drawn[0])) / scale, 10) * 2_000)):
            pass
        return drawn

    replace_discrete_laplace(monkeypatch, laplace, draw)
    (seconds,), (drawn,) = timed_draws(LAPLACE, (0.0,), 2_000)
    assert correlated(seconds, drawn).pvalue < SEEN


class Local:
    """A curator in this process with one study, queried in one event loop."""

    def __init__(self, folder: Path, small, **chosen):
        tempdir = tempfile.tempdir
        self.app = curator_app.build(Settings(data_dir=folder, rate_per_second=1e6, rate_burst=10**6))
        tempfile.tempdir = tempdir
        context = self.app.state.context
        self.owner, self.small, self.chosen = context.authentication.issue("owner", "o", days=1)[0].text, small, chosen

    async def open(self, http):
        async def post(path, key, **sent):
            headers = {"Authorization": f"Bearer {self.owner}", "Idempotency-Key": key}
            reply = await http.post(path, headers=headers, **sent)
            assert reply.is_success, reply.text
            return reply.json()

        small = self.small
        files = {"files": {"file": ("s.csv", small.csv)}, "data": {"name": "s", "public": "true"}}
        dataset = await post("/v1/datasets", "1", **files)
        spec = a_study_of(small, dataset["id"], answers=LAPLACE, **self.chosen)
        study = (await post("/v1/studies", "2", json=spec.model_dump(mode="json")))["id"]
        await post(f"/v1/studies/{study}:release", "3")
        token = (await post(f"/v1/studies/{study}/grants", "4", json={"name": "m"}))["token"]
        return f"/v1/studies/{study}/queries", token

    def run(self, talk):
        """``talk(ask)`` in one loop; ``ask(key, body)`` is a reply and its seconds."""

        async def go():
            transport = httpx.ASGITransport(self.app)
            async with (
                self.app.router.lifespan_context(self.app),
                httpx.AsyncClient(transport=transport, base_url="http://test") as http,
            ):
                path, token = await self.open(http)

                async def ask(key, body):
                    headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": key}
                    start = time.perf_counter()
                    reply = await http.post(path, json=body, headers=headers)
                    return reply, time.perf_counter() - start

                return await talk(ask)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # the loop that serves
            return runner.run(go())


def leaking(*arguments, share=1.0):
    """The time of a draw reveals its noise, hundreds of times as much as OpenDP's: 3 ms a unit, up to 25 ms."""
    answers = measure(*arguments)
    time.sleep(min(25.0, 3 * abs(answers[0].y)) / 1000 * share)
    return answers


TOGETHER = 20 if FULL else 1
"""Queries that are under way at once: 20,000 one after another would take an hour."""


def correlations_with_time(local, count, *, rounds=1, together=1):
    """Spearman's correlation of seconds and of the moment in the reply with the noise, over ``count`` queries.

    More ``rounds`` of as many are asked while nothing is seen: a busy machine takes more of them.
    """

    async def talk(ask):
        noise, seconds, moments = [], [], []

        async def send_query(key):
            began = time.time()
            reply, took = await ask(key, {"rows": [{"row": 0}]})
            assert reply.status_code == 201
            answered = wire.QueryReply.model_validate_json(reply.content)
            noise.append(answered.answers[0].y)
            seconds.append(took)
            moments.append(answered.created_at.timestamp() - began)

        for n in range(rounds):
            for first in range(0, count, together):
                await asyncio.gather(*(send_query(f"{n} {k}") for k in range(first, min(count, first + together))))
            correlations = correlated(seconds, noise), correlated(moments, noise)
            if max(correlation.pvalue for correlation in correlations) < SEEN:
                break
        return *correlations, seconds

    return local.run(talk)


def test_with_a_deadline_neither_a_reply_s_time_nor_what_it_says_of_time_tells_of_the_noise(
    tmp_path, small, monkeypatch
):
    """32 queries, at full size 20,000: then a tenth as loud, since 20 such draws at once miss the deadline."""
    count = scaled(1_000) if FULL else scaled(32)
    replace_measuring(monkeypatch, partial(leaking, share=0.1) if FULL else leaking)
    local = Local(tmp_path, small, reply_after_ms=PERIOD_MS)
    latency, moment, seconds = correlations_with_time(local, count, together=TOGETHER)
    assert len(seconds) == count
    assert latency.pvalue > UNSEEN
    assert moment.pvalue > UNSEEN
    assert min(seconds) >= PERIOD_MS / 1000 - 0.002


def test_without_a_deadline_the_same_queries_tell_it(tmp_path, small, monkeypatch):
    """Of 50 queries on two processors with a load of 9 the correlation was 0.3: a busy machine takes more of them."""
    replace_measuring(monkeypatch, leaking)
    latency, moment, _ = correlations_with_time(Local(tmp_path, small), 50, rounds=20)
    assert min(latency.statistic, moment.statistic) > 0
    assert max(latency.pvalue, moment.pvalue) < SEEN


def test_who_repeats_a_request_meanwhile_learns_nothing_of_the_draw(tmp_path, small, monkeypatch):
    """A draw of 1 ms and one of 12: a retry that comes after either is refused while the first is still running."""
    seen = []
    for pause in (0.001, 0.012):
        drawn = threading.Event()

        def slow(*arguments, pause=pause, drawn=drawn):
            time.sleep(pause)
            answers = measure(*arguments)
            drawn.set()
            return answers

        async def talk(ask, drawn=drawn):
            first = asyncio.create_task(ask("k", {"rows": [{"row": 0}]}))
            while not drawn.is_set():
                await asyncio.sleep(0.01)  # half way is at 750 ms
            retry, took = await ask("k", {"rows": [{"row": 0}]})
            reply, _ = await first
            again, _ = await ask("k", {"rows": [{"row": 0}]})
            assert again.content == reply.content
            assert took > 1.49
            return retry.status_code, reply.status_code

        replace_measuring(monkeypatch, slow)
        seen.append(Local(tmp_path / str(pause), small, reply_after_ms=1_500).run(talk))
    assert seen == [(409, 201)] * 2


# --- grants and refusals, over real HTTP -----------------------------------------------------------------------


def quickest_seconds(curator, study, count, enough=lambda quickest: True):
    """By kind of reply: the quickest of ``count``, interleaved. A busy machine takes more of them, until ``enough``."""
    bodies = {
        "granted": (201, {"rows": [{"row": 1}]}),
        "over budget": (403, {"rows": [{"row": 2, "plays": 50}]}),
        "unknown row": (404, {"rows": [{"row": 4_000}]}),
        "invalid": (422, {"rows": [{"row": -1}]}),
        "large and invalid": (422, {"rows": [{"row": 1}] * 999 + [{"row": "x"}]}),
        "no key": (400, {"rows": [{"row": 1}]}),
    }
    taken = {kind: [] for kind in bodies}
    with curator.http(study.token) as http:
        for n in range(10 * count):
            if n >= count and enough({kind: min(seconds) for kind, seconds in taken.items()}):
                break
            for kind, (status, body) in bodies.items():
                headers = {} if kind == "no key" else {"Idempotency-Key": f"{kind} {n}"}
                start = time.perf_counter()
                reply = http.post(f"/v1/studies/{study.id}/queries", json=body, headers=headers)
                taken[kind].append(time.perf_counter() - start)
                assert reply.status_code == status, reply.text
    return {kind: min(seconds) for kind, seconds in taken.items()}


@pytest.fixture
def paced(owner, dataset, open_study):
    """Opens studies whose cap refuses 50 plays of a row."""

    def make(**more):
        budget = wire.Budget(epsilon_per_row="45")
        return open_study(owner, dataset, answers=LAPLACE, budget=budget, **more)

    return make


def test_grants_and_refusals_of_every_kind_take_equally_long(paced, curator):
    """Within a third of a period: a reply without padding comes earlier, a late one half a period later."""
    period = 0.25
    study = paced(reply_after_ms=int(1000 * period))
    assert study.view.spec.reply_after_ms == 250
    quickest = quickest_seconds(curator, study, 3, lambda quickest: max(quickest.values()) < 4 / 3 * period)
    assert max(quickest.values()) - min(quickest.values()) < period / 3
    assert all(period <= took < 4 / 3 * period for took in quickest.values())
    with curator.http(study.token) as http:  # what is not a query is not padded
        others = []
        for _ in range(5):
            start = time.perf_counter()
            assert http.get(f"/v1/studies/{study.id}").json()["reply_after_ms"] == 250
            others.append(time.perf_counter() - start)
        assert min(others) < 0.8 * period


@pytest.mark.parametrize("end", ["%0A", "%0a?x=1", "%0D", "%00"])
def test_no_other_spelling_of_the_path_is_answered_without_the_deadline(end, paced, curator, owner):
    study = paced(reply_after_ms=20_000)
    with curator.http(study.token, **{"Idempotency-Key": "k"}) as http:
        assert http.post(f"/v1/studies/{study.id}/queries{end}", json={"rows": [{"row": 1}]}).status_code == 404
    assert [line.kind for line in owner.ledger(study.id)] == ["release"]


def test_without_a_deadline_the_time_tells_a_refusal_from_a_grant(paced, curator):
    """The control."""

    def tells(quickest):
        return 0.2 > max(quickest.values()) > 1.2 * min(quickest.values())

    assert tells(quickest_seconds(curator, paced(), 4, tells))


def test_a_study_of_another_s_keeps_its_deadline_to_itself(paced, curator):
    slow, quick = paced(reply_after_ms=20_000), paced()
    with curator.http(quick.token, **{"Idempotency-Key": "k"}) as http:
        start = time.perf_counter()
        assert http.post(f"/v1/studies/{slow.id}/queries", json={"rows": [{"row": 1}]}).status_code == 404
        assert time.perf_counter() - start < 10


def test_replies_that_wait_keep_nobody_else_waiting(paced, curator):
    """20 at once take one period together, and others are answered meanwhile."""
    study, quick = paced(reply_after_ms=1_500), paced()

    async def talk():
        limits = httpx.Limits(max_connections=30)
        async with httpx.AsyncClient(base_url=curator.url, timeout=30, limits=limits, trust_env=False) as http:

            async def ask(of, key):
                headers = {"Authorization": f"Bearer {of.token}", "Idempotency-Key": key}
                start = time.perf_counter()
                body = {"rows": [{"row": 1}]}
                reply = await http.post(f"/v1/studies/{of.id}/queries", json=body, headers=headers)
                assert reply.status_code == 201
                return time.perf_counter() - start

            waiting = [asyncio.create_task(ask(study, str(n))) for n in range(20)]
            await asyncio.sleep(0.05)
            others = [await ask(quick, str(n)) for n in range(3)]
            return await asyncio.gather(*waiting), others

    slow, others = asyncio.run(talk())
    assert all(1.49 < took < 6 for took in slow)  # one after another they would take 30 s
    assert min(others) < 0.75
