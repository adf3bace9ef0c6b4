"""Privacy as whoever asks sees it: audits of epsilon over HTTP, and noise that no restart repeats.

Each with a curator that is broken on purpose, in a process of its own, which has to be caught over the same HTTP.
"""

import functools
import io
import math

import httpx
import numpy as np
import pytest
from scipy import optimize, stats

from blindopt import wire
from blindopt.client import Owner
from curator_service.privacy.calibration import gaussian_sd
from tests.builders import registered_apart
from tests.curator_service.privacy.epsilon_audit import MISTAKEN, at_least, lower_bound
from tests.scale import scaled

ANSWERS = {"one_bit": wire.OneBitAnswers, "piecewise": wire.PiecewiseAnswers, "laplace": wire.LaplaceAnswers}
CENTRE, BOUND = 0.3, 1e-4


@pytest.fixture(scope="module")
def started(make_service, tmp_path_factory):
    """A curator of its own: honest, or broken in one way."""

    @functools.cache
    def start(broken=None):
        service = make_service("curator", tmp_path_factory.mktemp("black-box"), tunings_waiting_max="100000")
        if broken is None:
            return service.start()
        service.module = "tests.system.privacy.broken_curator"
        with pytest.MonkeyPatch.context() as named:
            named.setenv("BROKEN", broken)
            return service.start()

    return start


def ask(http: httpx.Client, study, key: str, rows: list[tuple[int, int]]) -> list[float]:
    body = {"rows": [{"row": row, "plays": plays} for row, plays in rows]}
    reply = http.post(f"/v1/studies/{study.id}/queries", json=body, headers={"Idempotency-Key": key})
    assert reply.status_code == 201, reply.text
    return [answer["y"] for answer in reply.json()["answers"]]


def candidates(http: httpx.Client, study) -> np.ndarray:
    return np.load(io.BytesIO(http.get(f"/v1/studies/{study.id}/candidates").content), allow_pickle=False)


# --- answers: the query route ---------------------------------------------------------------------


def audited_answers(service, kind, small, open_study, queries) -> float:
    """The epsilon that 3,000 answers a side and query prove, at 1e-6 a side.

    Every row lies outside a narrow clip, on one side or the other, a thousand times further than it is wide.
    """
    said = ANSWERS[kind](mechanism=kind, epsilon="1", value_bound=BOUND, noise_bound=0.0, centre=CENTRE)
    with Owner(service.url, service.token) as owner:
        study = open_study(owner, owner.register(f"answers {kind}", small.csv, public=True), answers=said)
    with service.http(study.token) as http:
        y = small.y[small.place_of(candidates(http, study))]
        above, below = (int(np.flatnonzero(side)[0]) for side in (y > CENTRE + 0.1, y < CENTRE - 0.1))
        sides = {above: [], below: []}
        for n in range(queries):
            for row, drawn in sides.items():
                drawn += ask(http, study, f"{row}:{n}", [(row, 100)] * 30)
    high, low = ((np.array(drawn) - CENTRE) / BOUND for drawn in sides.values())
    assert len(high) == len(low) == 3_000 * queries
    return lower_bound(high, low)


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("kind", ANSWERS)
def test_an_audit_over_http_finds_no_more_than_epsilon_in_answers(kind, started, small, open_study):
    """From 6,000 answers a side, at full size 120,000."""
    assert 0.5 < audited_answers(started(), kind, small, open_study, scaled(2)) <= 1.0


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("kind", ANSWERS)
def test_answers_with_noise_for_twice_the_epsilon_are_caught_over_http(kind, started, small, open_study):
    """The control: a curator that says 1 and draws for 2."""
    assert audited_answers(started("twice_the_epsilon"), kind, small, open_study, 1) > 1.0


# --- candidates: the release route ------------------------------------------------------------------


RELEASES = {
    "planar_laplace": {"mechanism": "planar_laplace", "epsilon": "1", "sensitivity": 0.5},
    "gaussian": {"mechanism": "gaussian", "epsilon": "1", "delta": 1e-5, "sensitivity": 0.5},
    "auto": {"epsilon": "1", "sensitivity": 0.5},
}


def released(service, release, row, trials, open_study) -> np.ndarray:
    """Z (trials, 2) of so many equal rows: each is released by itself, so they are as many releases of one row."""
    features = [wire.Feature(column=c, lower=-1.0, upper=1.0, scale=1.0) for c in ("zq_left", "zq_right")]
    line = ",".join(map(repr, row)) + ",0\n"
    with Owner(service.url, service.token) as owner:
        dataset = registered_apart(owner, "equal rows", b"zq_left,zq_right,zq_yield\n" + line.encode() * trials)
        study = open_study(owner, dataset, release, features=features)
    with service.http(study.token) as http:
        return candidates(http, study)


def gaussian_epsilon(high: np.ndarray, low: np.ndarray, delta: float) -> float:
    """A bound by mu-Gaussian privacy (Dong et al. 2022, Corollary 2.13): at this delta a threshold says little."""

    def share(scores: np.ndarray) -> tuple[float, float]:
        beyond = stats.binomtest(int((scores > 0).sum()), len(scores))
        interval = beyond.proportion_ci(1 - 2 * MISTAKEN, method="exact")
        return interval.low, interval.high

    mu = stats.norm.ppf(share(high)[0]) - stats.norm.ppf(share(low)[1])

    def excess(epsilon: float) -> float:
        a, b = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
        return stats.norm.cdf(a) - math.exp(epsilon + stats.norm.logcdf(b)) - delta

    return optimize.brentq(excess, 0, 50) if mu > 0 and excess(0) > 0 else 0.0


def audited_release(service, name, trials, open_study) -> float:
    """The epsilon that so many releases of each of two neighbours prove. They differ by Delta along the diagonal."""
    low, there = np.full(2, -0.1), np.full(2, -0.1) + 0.5 / math.sqrt(2)
    scores = []
    for row in (there, low):
        z = released(service, RELEASES[name], row.tolist(), trials, open_study)
        scores.append(np.linalg.norm(z - low, axis=1) - np.linalg.norm(z - there, axis=1))
    return gaussian_epsilon(*scores, delta=1e-5) if name == "gaussian" else lower_bound(*scores)


def test_the_conversion_of_the_gaussian_audit_is_the_known_one():
    """Shares that are those of the calibrated noise, without an interval's width: epsilon 1."""
    mu, n = 1 / gaussian_sd(wire.amount("1"), 1e-5, 1.0, 2), 10**6
    shares = stats.norm.cdf([mu / 2, -mu / 2])
    high, low = (np.repeat([1.0, -1.0], [round(n * share), n - round(n * share)]) for share in shares)
    assert 0.9 < gaussian_epsilon(high, low, 1e-5) < 1.0


@pytest.mark.slow(every=3)
@pytest.mark.parametrize(("name", "least"), [("planar_laplace", 0.45), ("gaussian", 0.05), ("auto", 0.45)])
def test_an_audit_over_http_finds_no_more_than_epsilon_in_candidates(name, least, started, open_study):
    """From 10,000 releases of a row a side, at full size 200,000; the least is six sd below what such audits find."""
    assert least < audited_release(started(), name, min(scaled(10_000), 200_000), open_study) <= 1.0


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("name", RELEASES)
def test_candidates_with_noise_for_twice_the_epsilon_are_caught_over_http(name, started, open_study):
    """The control."""
    assert audited_release(started("twice_the_epsilon"), name, 10_000, open_study) > 1.0


# --- tunings ----------------------------------------------------------------------------------------


def audited_tunings(service, share, trials) -> float:
    """The epsilon that so many tunings of each of two neighbours prove, at 1e-6, by an event that is chosen before."""
    drawn = []
    with Owner(service.url, service.token, timeout_s=240) as owner:
        for wrong in (0, 1):
            spec = neighbour(owner, wrong, share)
            begun = {owner.start_tuning(spec).id for _ in range(trials)}
            ended = [owner.wait_tuning(identity, timeout_s=300, poll_s=0.05) for identity in sorted(begun)]
            assert [view.state for view in ended] == ["completed"] * trials, ended[0].problem
            drawn.append(np.array([speaks_for_the_first(view.result) for view in ended]))
    return at_least(*drawn, 0.5)


def neighbour(owner, wrong: int, share: str) -> wire.TuningCreate:
    """Ramp scores of 4 records: at lambda 1e-3 margins are past the ramp's ends, at 1e6 nearly 0.

    Three records have x = 0 and score 1/2 for any lambda; the fourth has x = 1, and its class right or wrong. So the
    first score moves by its sensitivity, g*/m, from above the second one, which stays, to below it. Alone, v~ is of
    the largest score: there is the first one only.
    """
    training = owner.register("separable", b"x,class\n" + b"1,1\n-1,0\n" * 10, public=True)
    rows = b"0,1\n" * 3 + (b"1,0\n" if wrong else b"1,1\n")
    return wire.TuningCreate(
        name="audit",
        grid=[wire.TuningAxis(name="lambda", values=[1e-3] if share == "0" else [1e-3, 1e6])],
        score=wire.LogisticScore(
            kind="logistic",
            training_dataset_id=training.id,
            features=[wire.Feature(column="x", lower=-1.0, upper=1.0, scale=1.0)],
            label="class",
            loss="ramp",
        ),
        validation_dataset_id=registered_apart(owner, f"neighbour {wrong}", b"x,class\n" + rows).id,
        budget=wire.TuningBudget(epsilon="1", index_share=share),
        caps=wire.TuningCaps(epsilon="100000"),
    )


def speaks_for_the_first(result: wire.TuningResult) -> float:
    """1 where lambda~ and v~, as far as they are told, lie where the first neighbour's would without noise.

    Its scores are -3/8 and -1/2, the other one's -5/8 and -1/2. v~ lies above -0.44 in 0.61 of the first one's draws
    and 0.24 of the other's; where noise is for eight times the epsilon, in 0.94 and 0.0013.
    """
    return float(result.index in (None, 0) and (result.value is None or result.value > -0.44))


@pytest.mark.slow(every=3)
@pytest.mark.parametrize(("share", "trials"), [("0", 100), ("0.5", 20), ("1", 20)])
def test_an_audit_over_http_finds_no_more_than_epsilon_in_tunings(share, trials, started):
    """v~ alone, both, lambda~ alone: at full size from 1,000 tunings a side.

    100 a side find eight times the epsilon, as the control shows; 20 find nothing and only show that the audit runs.
    """
    assert audited_tunings(started(), share, trials if scaled(1) == 1 else scaled(50)) <= 1.0


@pytest.mark.slow(sibling="test_answers_with_noise_for_twice_the_epsilon_are_caught_over_http")
def test_tunings_that_are_drawn_for_eight_times_the_epsilon_are_caught_over_http(started):
    """The control: 100 tunings a side miss it twice in 10^9 times, 90 once in 10^6 (by the two binomial laws)."""
    assert audited_tunings(started("eight_times_the_epsilon_in_tunings"), "0", 100) > 1.0


# --- a restart repeats no noise -------------------------------------------------------------------


def noise_of(service, small, open_study, life) -> np.ndarray:
    """What one life of a service draws: rows of Z that are all 0, as complex numbers, and answers about one y of 0.

    Whole rows, because Z lies on a public grid, on which single coordinates are equal now and then.
    """
    answers = wire.LaplaceAnswers(mechanism="laplace", epsilon="1", value_bound=1.0)
    release = wire.GaussianRelease(mechanism="gaussian", epsilon="1", delta=1e-5)
    features = [wire.Feature(column=c, lower=-1.0, upper=1.0, scale=1.0) for c in small.names[:2]]
    zeros = ",".join(small.names).encode() + b"\n" + b"0,0,0\n" * scaled(250)
    with Owner(service.url, service.token) as owner:
        dataset = registered_apart(owner, f"life {life}", zeros)
        study = open_study(owner, dataset, release, features=features, answers=answers)
    with service.http(study.token) as http:
        drawn = [candidates(http, study) @ [1, 1j]]
        drawn += [np.array(ask(http, study, str(n), [(0, 100)] * 5)) for n in range(scaled(1))]
    assert [sum(map(len, part)) for part in (drawn[:1], drawn[1:])] == [scaled(250), scaled(500)]
    return np.concatenate(drawn)


def repeated(service, small, open_study, *ends) -> int:
    """How many of the values that a service drew came before, in a first life and in one after each of ``ends``."""
    lives = [noise_of(service.start(), small, open_study, 0)]
    for end in ends:
        end()
        lives.append(noise_of(service.start(), small, open_study, len(lives)))
    service.kill()
    drawn = np.concatenate(lives)
    assert drawn.size == len(lives) * scaled(750)
    return drawn.size - np.unique(drawn).size


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("fresh", [True, False])
def test_a_service_that_was_ended_or_killed_and_started_again_repeats_no_noise(
    fresh, make_service, small, open_study, tmp_path
):
    """750 draws in each of two or three lives: three equal others by chance less than once in 10^9 times.

    Two rows on the grid of sd / 2^16 are equal with probability 2 10^-11 (1 / (4 pi 2^32)); answers lie on a finer one.

    What is forked is both ended and killed; an interpreter of its own, which takes long to start, is killed.
    """
    service = make_service("curator", tmp_path, fresh=fresh)
    ends = [service.kill] if fresh else [service.stop, service.kill]
    assert repeated(service, small, open_study, *ends) <= 2


def test_a_service_with_a_seed_would_be_caught_at_its_second_start(
    make_service, small, open_study, tmp_path, monkeypatch
):
    """The control: noise of the right law, and in each life the same."""
    service = make_service("curator", tmp_path)
    service.module = "tests.system.privacy.broken_curator"
    monkeypatch.setenv("BROKEN", "seeded")
    assert repeated(service, small, open_study, service.kill) == scaled(750)
