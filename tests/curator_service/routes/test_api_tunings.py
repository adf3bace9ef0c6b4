"""Tunings over the real API: what is released, what it costs, who sees it, and what a crash leaves."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from decimal import Decimal
from itertools import product

import numpy as np
import pytest

from blindopt import wire
from blindopt.client import Owner
from blindopt.errors import Remote
from tests.curator_service.number_traces import tells
from tests.curator_service.tuning.scoring.scorer import KEY, serving
from tests.curator_service.tuning_case import NAMES, PENALTIES, Case, csv_of, registered, rows_of, scores

WAIT = 240.0
WIDE = wire.TuningCaps(epsilon="100000", delta=0.5)


class Replies:
    """What the scorer of this module answers, until a test says otherwise."""

    def __init__(self):
        self.make = self.good

    @staticmethod
    def good(request, count):
        point = request["hyperparameters"]
        return 200, json.dumps({"score": 0.2 * point["depth"] + point["rate"]}).encode()

    def __call__(self, request, count):
        return self.make(request, count)


@pytest.fixture(scope="module")
def replies():
    return Replies()


@pytest.fixture(scope="module")
def scorer(replies):
    with serving(replies) as scorer:
        yield scorer


@pytest.fixture(autouse=True)
def _good_again(request):
    if "scorer" in request.fixturenames:
        replies, scorer = request.getfixturevalue("replies"), request.getfixturevalue("scorer")
        replies.make = replies.good
        scorer.requests.clear(), scorer.keys.clear()


@pytest.fixture(scope="module")
def settings(scorer, tmp_path_factory):
    secret = tmp_path_factory.mktemp("scorer") / "key"
    secret.write_text(KEY + "\n")
    return {
        "scorer_url": scorer.url,
        "scorer_secret_file": str(secret),
        "scorer_attempts": "3",
        "scorer_timeout_seconds": "30",
    }


@pytest.fixture(scope="module")
def curator(make_service, tmp_path_factory, settings):
    """One of its own, with a scorer."""
    return make_service("curator", tmp_path_factory.mktemp("tunings"), **settings).start()


@pytest.fixture(scope="module")
def owner(curator):
    with Owner(curator.url, curator.token, timeout_s=60) as client:
        yield client


@pytest.fixture
def hurried(make_service, tmp_path, settings):
    """The owner of a curator that gives what a test names a second."""

    @contextmanager
    def open_(setting):
        service = make_service("curator", tmp_path, **settings | {setting: "1"}).start()
        with Owner(service.url, service.token, timeout_s=240) as client:
            yield client
        service.kill()

    return open_


@pytest.fixture(scope="module")
def case(owner):
    return registered(owner)


def _ended(owner, spec):
    return owner.wait_tuning(owner.start_tuning(spec).id, timeout_s=WAIT, poll_s=0.02)


# --- what is released -----------------------------------------------------------------------------


LOSSES = {
    "zero_one": lambda margin: float(margin <= 0),
    "ramp": lambda margin: min(max((1 - margin) / 2, 0), 1),
    "clipped_logistic": lambda margin: min(np.log1p(np.exp(-margin)), 0.8),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_with_hardly_any_noise_it_releases_the_best_point_and_its_score(owner, case, loss):
    """Against scores that were computed another way, from the raw rows."""
    said = {"loss": loss, "clip": 0.8} if loss == "clipped_logistic" else {"loss": loss}
    ended = _ended(owner, case.spec("1000", score=said))
    true = scores(rows_of(150, 1), rows_of(200, 2), LOSSES[loss])
    assert (ended.state, ended.problem, ended.progress) == ("completed", None, 1)
    assert true[ended.result.index] == pytest.approx(max(true), abs=1e-3)
    assert ended.result.hyperparameters == {"lambda": PENALTIES[ended.result.index]}
    assert ended.result.value == pytest.approx(true[ended.result.index], abs=1e-3)
    assert (ended.clipped, ended.evaluations) == (0, len(PENALTIES))
    assert owner.tuning(ended.id) == ended


def test_noise_has_the_scale_that_the_preview_tells(owner, case):
    """v~ alone, so that all of epsilon is on it: the mean |error| of 40 Laplace draws is their scale.

    A quarter or 2.2 of it but for one chance in 10^8: gamma(40).
    """
    budget = wire.TuningBudget(epsilon="8", index_share="0")  # so that no draw reaches an end of the score
    spec = case.spec(grid=[wire.TuningAxis(name="lambda", values=[0.1])], budget=budget)
    report = owner.preview_tuning(spec)
    assert report.value_scale == pytest.approx(1 / (200 * 8), rel=1e-3)
    true = scores(rows_of(150, 1), rows_of(200, 2), LOSSES["zero_one"])[PENALTIES.index(0.1)]
    begun = [owner.start_tuning(spec).id for _ in range(8)]
    errors = []
    for _ in range(5):
        errors += [owner.wait_tuning(i, timeout_s=WAIT, poll_s=0.01).result.value - true for i in begun]
        begun = [owner.start_tuning(spec).id for _ in range(8)] if len(errors) < 40 else []
    assert len(set(errors)) == len(errors) == 40
    assert 0.25 < np.mean(np.abs(errors)) / report.value_scale < 2.2


def test_an_http_score_is_asked_for_every_point_and_signed(owner, case, scorer):
    ended = _ended(owner, case.http("1000"))
    assert (ended.state, ended.problem) == ("completed", None)
    assert ended.result.hyperparameters == {"depth": 3.0, "rate": 0.2}
    assert ended.result.index == 5
    assert ended.result.value == pytest.approx(0.8, abs=1e-3)
    assert [request["hyperparameters"] for request in scorer.requests] == [
        {"depth": d, "rate": r} for d in (1.0, 2.0, 3.0) for r in (0.1, 0.2)
    ]
    assert {request["model"] for request in scorer.requests} == {"trees"}
    assert {(request["validation_dataset_id"], request["records"]) for request in scorer.requests} == {
        (case.validation.id, 200)
    }
    assert scorer.keys == [f"{ended.id}:{n}" for n in range(1, 7)]
    assert scorer.forged == 0


def test_scores_outside_the_range_are_clipped_and_counted_for_the_owner_alone(curator, owner, case, replies):
    replies.make = lambda request, count: (200, b'{"score": %r}' % (7 if count % 2 else 0.5))
    ended = _ended(owner, case.http("1000"))
    assert (ended.state, ended.clipped, ended.evaluations) == ("completed", 3, 6)
    assert ended.result.value == pytest.approx(1.0, abs=1e-3)
    assert "clipped" not in json.dumps([r for r in curator.records() if r["kind"].startswith("tuning.")])


def test_scores_of_records_are_clipped_one_by_one(owner, case, replies):
    """Half of the records score 3, which counts as 1."""
    replies.make = lambda request, count: (200, json.dumps({"scores": [3.0, 0.0] * 100}).encode())
    ended = _ended(owner, case.http("1000", reply="records"))
    assert ended.result.value == pytest.approx(0.5, abs=1e-3)
    assert ended.clipped == 6 * 100


def test_a_score_of_the_whole_dataset_gets_noise_for_its_whole_range(owner, case):
    """200 times that of a mean over 200 records: no declaration bounds how far one record moves an AUC."""
    mean, whole = (owner.preview_tuning(case.http("1000", reply=reply)) for reply in ("mean", "whole"))
    assert whole.value_sensitivity == pytest.approx(200 * mean.value_sensitivity)
    assert "any function of the validation dataset" in whole.guarantee
    assert "scorer's word" not in whole.guarantee
    ended = _ended(owner, case.http("1000", reply="whole"))
    assert (ended.state, ended.result.index) == ("completed", 5)
    assert ended.result.value == pytest.approx(0.8, abs=0.1)


def test_the_seed_of_a_simulation_cannot_be_picked_by_previews(owner):
    """Two runs of one request have sensitivities of their own; a preview has a third. The control: previews agree."""
    case = registered(owner, m=50, seed=32)
    prior = wire.TuningPrior(lengthscale=1.0, one_minus_k1=1e-4, evaluations=5)
    method = wire.GpUcbSimulated(name="gp_ucb_simulated", prior=prior, pairs=200)
    spec = case.spec(method=method, budget=wire.TuningBudget(epsilon="1", delta=0.05), caps=WIDE)
    previews = [owner.preview_tuning(spec).index_sensitivity for _ in range(2)]
    ended = [_ended(owner, spec) for _ in range(2)]
    assert [view.state for view in ended] == ["completed"] * 2
    assert len({previews[0], *(view.report.index_sensitivity for view in ended)}) == 3
    assert previews[0] == previews[1]


# --- how it fails, with its charge ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "word"),
    [
        (lambda request, count: (200, b'{"score": NaN}'), "finite"),
        (lambda request, count: (200, b'{"score": 0.125}') if count < 4 else (200, b'{"score": Infinity}'), "finite"),
        (lambda request, count: (503, b""), "failed 3 times"),
    ],
    ids=["NaN", "infinity", "unavailable"],
)
def test_a_scorer_that_fails_fails_the_tuning_and_the_charge_stays(owner, case, replies, reply, word):
    replies.make = reply
    before = owner.uses(case.validation.id)
    ended = _ended(owner, case.http())
    assert (ended.state, ended.result, ended.clipped) == ("failed", None, None)
    assert word in ended.problem
    assert "its charge stays" in ended.problem
    assert "0.125" not in ended.problem
    (line,) = owner.uses(case.validation.id)[len(before) :]
    assert (line.kind, line.tuning_id, line.epsilon) == ("tuning", ended.id, "1")


@pytest.mark.slow(sibling="test_a_scorer_that_fails_fails_the_tuning_and_the_charge_stays")
def test_a_slow_scorer_is_given_up(hurried, replies):
    replies.make = lambda request, count: time.sleep(1.5) or (200, b'{"score": 0.5}')
    with hurried("scorer_timeout_seconds") as owner:
        ended = _ended(owner, registered(owner, m=20).http())
    assert ended.state == "failed"
    assert "did not answer in time" in ended.problem


def test_without_a_scorer_an_http_score_is_refused(make_service, tmp_path):
    service = make_service("curator", tmp_path).start()
    with Owner(service.url, service.token) as owner:
        case = registered(owner)
        with pytest.raises(Remote, match="SCORER_URL") as refused:
            owner.start_tuning(case.http())
        assert refused.value.remote_status == 422
        assert owner.uses(case.validation.id) == []
    service.kill()


# --- what it costs ----------------------------------------------------------------------------------


def test_a_preview_spends_nothing_and_tells_what_will_be_spent(owner):
    case = registered(owner, seed=11)
    report = owner.preview_tuning(case.spec("0.3", "5"))
    assert (report.epsilon, report.delta, report.points, report.records) == ("0.3", "0", 5, 200)
    assert Decimal(report.index_epsilon) + Decimal(report.value_epsilon) == Decimal("0.3")
    assert report.index_sensitivity == pytest.approx(1 / 200, rel=1e-6)
    assert report.expected_value_error > 0
    assert "Worst case: 0.3-differential privacy" in report.guarantee
    assert (report.spent_epsilon, report.cap_epsilon) == ("0", "5")
    assert owner.uses(case.validation.id) == []
    begun = owner.start_tuning(case.spec("0.3", "5"))
    assert begun.report == report
    again = owner.preview_tuning(case.spec("0.3", "7"))
    assert (again.spent_epsilon, again.cap_epsilon) == ("0.3", "5")


def test_requests_at_once_never_spend_more_than_the_cap(owner):
    """Eight at once under a cap for three: three are made."""
    case = registered(owner, m=20, seed=23)
    spec = case.spec("1", "3")

    def start(_):
        try:
            return owner.start_tuning(spec).id
        except Remote as refusal:
            return refusal.remote_status, refusal.remote_code

    with ThreadPoolExecutor(8) as pool:
        views = list(pool.map(start, range(8)))
    assert views.count((403, "privacy_budget_exhausted")) == 5
    assert len({view for view in views if isinstance(view, str)}) == 3
    lines = owner.uses(case.validation.id)
    assert sorted(line.kind for line in lines) == ["refused"] * 5 + ["tuning"] * 3
    assert lines[-1].total_epsilon == "3"


def test_the_same_key_gets_the_same_bytes_and_is_charged_once(curator, owner):
    case = registered(owner, m=20, seed=16)
    body, headers = case.spec().model_dump(mode="json"), {"Idempotency-Key": "once"}
    with curator.http() as http:
        first = http.post("/v1/tunings", json=body, headers=headers)
        assert first.status_code == 202, first.text
        ended = owner.wait_tuning(first.json()["id"], timeout_s=WAIT)
        again = http.post("/v1/tunings", json=body, headers=headers)
        assert http.get(first.headers["Location"]).json()["id"] == ended.id
    assert (again.status_code, again.content) == (202, first.content)
    assert (again.headers["Idempotency-Replayed"], again.headers["Location"]) == ("true", first.headers["Location"])
    assert len(owner.uses(case.validation.id)) == 1


def test_the_charge_is_there_before_the_first_score_is_asked(curator, owner, case, replies):
    """The scorer itself looks."""
    seen = []

    def look(request, count):
        seen.append([line.tuning_id for line in owner_beside.uses(case.validation.id)])
        return 200, b'{"score": 0.5}'

    with Owner(curator.url, curator.token, timeout_s=60) as owner_beside:
        replies.make = look
        ended = _ended(owner, case.http())
    assert ended.state == "completed"
    assert all(ended.id in ids for ids in seen)
    assert len(seen) == 6


# --- what cannot be ---------------------------------------------------------------------------------


def _grid(**said):
    return {"grid": [{"name": "lambda", "values": PENALTIES} | said]}


def _score(**said):
    return {"score": said}


CENTRE = "method.search.centre", "method.prior.centre"
FAR = {"name": "kusner_3", "search": {"lengthscale": 1.0, "centre": 1e12}}
ABOVE = {"name": "gp_design", "prior": {"lengthscale": 1.0, "one_minus_k1": 1e-4, "centre": 0.1}}
BAD = [
    ({"method": {"name": "magic"}}, "method.name"),
    ({"grid": []}, "grid"),
    (_grid(values=[]), "grid.0.values"),
    (_grid(values=[1.0, 1.0]), "grid.0"),
    (_grid(values=[0.0, 1.0]), "grid.0.values"),
    (_grid(name="depth"), "grid"),
    (_grid(values=[float(v) for v in range(1, 2_002)]), "grid.0.values"),
    ({"budget": {"epsilon": "0"}}, "budget.epsilon"),
    ({"budget": {"epsilon": "-1"}}, "budget.epsilon"),
    ({"caps": {}}, "caps.epsilon"),
    ({"caps": {"epsilon": "0"}}, "caps.epsilon"),
    ({"validation_dataset_id": "ds_0"}, "validation_dataset_id"),
    ({"seed": 1}, "seed"),
    ({"method": FAR}, CENTRE[0]),
    ({"method": ABOVE, "budget": {"epsilon": "1", "delta": 0.01}}, CENTRE[1]),
    (_score(training_dataset_id="private"), "score.training_dataset_id"),
    (_score(training_dataset_id="ds_0000000000000000"), "score.training_dataset_id"),
    (_score(label="zt_other"), "score.label"),
    (_score(features=[{"column": "zt_other", "lower": 0, "upper": 1}]), "score.features.0.column"),
    (_score(features=[{"column": "zt_age", "lower": 1.5, "upper": 1}]), "score.features.0"),
    (_score(label="zt_age"), "score"),
    (_score(loss="hinge"), "score.loss"),
    (_score(threshold=5.0), "score.threshold"),
    (_score(kind="magic"), "score.kind"),
    (_score(kind="http", model="m", lower=1.0, upper=1.0), "score"),
    (_score(kind="http", model="m", lower=2.0, upper=1.0), "score"),
]


def test_what_cannot_be_is_refused_with_its_field_before_any_charge(curator, owner, case):
    before, wrong = owner.uses(case.validation.id), []
    with curator.http() as http:
        for (number, (change, field)), path in product(enumerate(BAD), ("/v1/tunings", "/v1/tunings:preview")):
            body = case.spec().model_dump(mode="json")
            score = change.get("score", {})
            if score.get("training_dataset_id") == "private":
                score = {"training_dataset_id": case.validation.id}
            body |= change | {"score": score if score.get("kind") == "http" else body["score"] | score}
            reply = http.post(path, json=body, headers={"Idempotency-Key": f"bad {number}"})
            fields = [error["field"] for error in reply.json().get("errors", [])]
            if (reply.status_code, reply.json()["code"], fields) != (422, "invalid", [field]):
                wrong.append((path, change, field, reply.text))
            if field in CENTRE:
                assert "must lie in the range of the score, -1 to 0" in reply.json()["errors"][0]["message"]
    assert wrong == []
    assert owner.uses(case.validation.id) == before


def test_training_and_validation_on_one_file_are_refused_before_any_charge(owner):
    """By the same id, and by the same bytes under another one; the control is every other test."""
    data = csv_of(rows_of(20, 31))
    public, again = owner.register("public", data, public=True), owner.register("again", data)
    for validation in (public, again):
        case = Case(public, validation)
        for ask in (owner.preview_tuning, owner.start_tuning):
            with pytest.raises(Remote, match="is the validation dataset, or the same file") as refused:
                ask(case.spec())
            assert refused.value.remote_status == 422
        assert owner.uses(validation.id) == []


def test_a_column_that_only_the_training_dataset_has_is_refused(owner, case):
    other = owner.register("other columns", csv_of(rows_of(20, 3), ("zt_age", "zt_weight", NAMES[2])))
    with pytest.raises(Remote, match=r"score\.features\.1\.column: the validation dataset has no such column"):
        owner.start_tuning(case.spec(validation_dataset_id=other.id))


def test_an_archived_dataset_is_not_tuned_on(curator, owner):
    case = registered(owner, m=20, seed=17)
    with curator.http() as http:
        path = f"/v1/datasets/{case.validation.id}:archive"
        assert http.post(path, headers={"Idempotency-Key": "old"}).status_code == 200
    with pytest.raises(Remote, match="archived") as refused:
        owner.start_tuning(case.spec())
    assert refused.value.remote_status == 409


# --- lives and ends ---------------------------------------------------------------------------------


@pytest.fixture
def stuck(replies):
    """The scorer answers no more until the test is over, or calls what it is given."""
    free = threading.Event()
    replies.make = lambda request, count: (free.wait(60), (200, b'{"score": 0.5}'))[1]

    def go_on():
        replies.make = replies.good
        free.set()

    yield go_on
    free.set()


def test_one_that_runs_and_one_that_waits_can_be_cancelled_and_stay_charged(owner, case, stuck, scorer, until):
    runs, waits = (owner.start_tuning(case.http()).id for _ in range(2))
    until(lambda: scorer.requests)
    for identity in (waits, runs):
        view = owner.cancel_tuning(identity)
        assert (view.state, view.result, view.problem) == ("cancelled", None, None)
    stuck()
    assert _ended(owner, case.http()).state == "completed"  # the next one runs
    assert owner.cancel_tuning(runs).state == "cancelled"
    charged = {line.tuning_id for line in owner.uses(case.validation.id)}
    assert {runs, waits} <= charged


@pytest.mark.slow(sibling="test_one_that_runs_and_one_that_waits_can_be_cancelled_and_stay_charged")
def test_a_kill_or_a_shutdown_leaves_it_failed_with_its_charge_and_draws_no_second_time(
    make_service, tmp_path, settings, stuck, scorer, until
):
    service = make_service("curator", tmp_path, **settings).start()
    with Owner(service.url, service.token, timeout_s=60) as owner:
        case = registered(owner, m=20, seed=18)
        for end in (service.kill, service.stop):
            scorer.requests.clear()
            runs, waits = (owner.start_tuning(case.http()).id for _ in range(2))
            until(lambda: scorer.requests)
            assert end() in (None, 0)
            count = len(scorer.requests)
            service.start()
            for identity in (runs, waits):
                view = owner.tuning(identity)
                assert (view.state, view.result) == ("failed", None)
                assert "its charge stays" in view.problem
            assert len(scorer.requests) == count
        assert len(owner.uses(case.validation.id)) == 4
        stuck()
        assert _ended(owner, case.http()).state == "completed"
    assert service.run_in_process("audit", "verify").returncode == 0, service.run_in_process("audit", "verify").stderr


@pytest.mark.usefixtures("stuck")
def test_more_than_may_wait_are_refused_and_not_charged(make_service, tmp_path, settings):
    service = make_service("curator", tmp_path, **settings, tunings_waiting_max="1").start()
    with Owner(service.url, service.token, timeout_s=60) as owner:
        case = registered(owner, m=20, seed=19)
        for _ in range(2):
            owner.start_tuning(case.http())
        with pytest.raises(Remote, match="1 tunings wait") as refused:
            owner.start_tuning(case.http())
        assert refused.value.remote_status == 409
        assert len(owner.uses(case.validation.id)) == 2
    service.kill()


# --- who sees what --------------------------------------------------------------------------------


def test_nothing_of_the_trace_leaves_in_logs_records_or_replies(curator, owner, case, replies):
    """Scores that are recognisable; the released value is 0.8 with hardly any noise."""
    scores = [0.1234567, 0.2345678, 0.3456789, 0.4567891, 0.5678912, 0.8]
    replies.make = lambda request, count: (200, json.dumps({"score": scores[request["evaluation"] - 1]}).encode())
    ended = _ended(owner, case.http("1000"))
    assert ended.result.index == 5
    auditor = curator.run_in_process("token", "create", "--role", "auditor", "--name", "t").stdout.strip()
    with curator.http(auditor) as http:
        read = http.get(f"/v1/datasets/{case.validation.id}/account").text
    everything = curator.log + json.dumps(curator.records()) + owner.tuning(ended.id).model_dump_json() + read
    everything += repr(curator.rows("SELECT * FROM tunings") + curator.rows("SELECT * FROM tuning_ledger"))
    for score in scores[:-1]:
        assert not tells(everything, str(score)[:8])
    assert tells(everything, str(ended.result.value)[:8])  # the control: what is released is found this way
    records = [r for r in curator.records() if r.get("details", {}).get("tuning_id") == ended.id]
    assert [r["kind"] for r in records] == ["tuning.started", "tuning.ended"]
    assert str(ended.result.value) not in json.dumps(records)
    assert str(ended.result.value) not in curator.log


# --- every method -----------------------------------------------------------------------------------

PRIOR = wire.TuningPrior(lengthscale=1.0, one_minus_k1=1e-6, evaluations=10)
SEARCH = wire.TuningSearch(lengthscale=1.0, evaluations=10)
METHODS = {
    "grid_exponential": wire.GridExponential(name="grid_exponential", selection="exponential"),
    "weights": wire.GridExponential(name="grid_exponential", use_weights=True),
    "gp_design": wire.GpDesign(name="gp_design", prior=PRIOR),
    "gp_ucb_simulated": wire.GpUcbSimulated(name="gp_ucb_simulated", prior=PRIOR, pairs=200),
    "kusner_1": wire.Kusner1(name="kusner_1", prior=PRIOR),
    "kusner_2": wire.Kusner2(name="kusner_2", prior=PRIOR, whole_grid=True),
    "kusner_3": wire.Kusner3(name="kusner_3", search=SEARCH),
    "public_weights": wire.PublicWeights(name="public_weights", search=SEARCH),
}


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_previewed_charged_run_and_reported(owner, case, name):
    """In its own words; what is released is what the method releases."""
    assumes, seed = "prior" in type(METHODS[name]).model_fields, 1_000 + list(METHODS).index(name)
    budget = wire.TuningBudget(epsilon="2", delta=0.05 if assumes else 0.0)
    caps = wire.TuningCaps(epsilon="100000", delta=0.5)
    spec = case.spec(method=METHODS[name], budget=budget, caps=caps, score={"loss": "ramp"})
    spec = spec.model_copy(update={"validation_dataset_id": owner.register("m", csv_of(rows_of(50, seed))).id})
    report = owner.preview_tuning(spec)
    ended = _ended(owner, spec)
    assert (ended.state, ended.problem) == ("completed", None)
    same = ["epsilon", "delta", "guarantee"]
    if name != "gp_ucb_simulated":  # whose seed is not known before it is charged
        same += ["index_scale", "value_scale", "constants", "cautions"]
    assert [getattr(ended.report, field) for field in same] == [getattr(report, field) for field in same]
    assert (report.epsilon, report.delta) == ("2", "0.05" if assumes else "0")
    assert (ended.result.index is None) == (report.index_scale is None)
    assert (ended.result.value is None) == (report.value_scale is None)
    assert ("on average" in report.guarantee.lower()) == assumes
    charges = owner.uses(spec.validation_dataset_id)
    assert (charges[-1].epsilon, charges[-1].delta) == (report.epsilon, report.delta)


def test_a_method_that_does_not_fit_its_score_is_refused_before_any_charge(owner, case):
    before = owner.uses(case.validation.id)
    for spec in (
        case.spec(method=METHODS["kusner_3"]),  # the 0/1 loss has no Lipschitz constant
        case.spec(method=METHODS["public_weights"]),
        case.spec(method=METHODS["gp_design"]),  # no delta
        case.http().model_copy(update={"method": METHODS["public_weights"]}),
    ):
        with pytest.raises(Remote) as refused:
            owner.start_tuning(spec)
        assert (refused.value.remote_status, refused.value.remote_code) == (422, "tuning_impossible")
    assert owner.uses(case.validation.id) == before


def test_a_plan_that_takes_too_long_is_refused_and_names_the_setting(hurried):
    prior = PRIOR.model_copy(update={"evaluations": 400})  # far more than a second's work on any machine
    method = wire.GpUcbSimulated(name="gp_ucb_simulated", prior=prior, pairs=100_000)
    with hurried("tuning_plan_seconds_max") as owner:
        case = registered(owner, m=20)
        spec = case.spec(method=method, budget=wire.TuningBudget(epsilon="1", delta=0.05))
        with pytest.raises(Remote, match="TUNING_PLAN_SECONDS_MAX"):
            owner.start_tuning(spec)
        assert owner.uses(case.validation.id) == []


# --- persons, and records that are withheld ----------------------------------------------------------


@pytest.fixture(scope="module")
def visits(owner):
    """A case whose validation records are the visits of 60 persons, of whom two visits each are kept."""
    head, *lines = csv_of(rows_of(150, 9)).decode().splitlines()
    csv = "\n".join([f"{head},who", *(f"{line},P{number % 60}" for number, line in enumerate(lines))]) + "\n"
    validation = owner.register("visits", csv.encode(), person="who", rows_per_person=2)
    return Case(owner.register("training", csv_of(rows_of(150, 1)), public=True), validation)


def test_a_tuning_on_persons_costs_each_of_them_k_times(owner, visits):
    report = owner.preview_tuning(visits.spec("1"))
    assert (report.records, report.epsilon) == (120, "2")
    assert "2-differential privacy" in report.guarantee
    assert _ended(owner, visits.spec("1")).state == "completed"
    assert owner.account(visits.validation.id).everyone_epsilon == "2"


def test_a_method_with_a_delta_is_not_proved_for_persons_with_several_records(owner, visits):
    method = METHODS["gp_design"]
    with pytest.raises(Remote, match="is proved for one record, and a person here has up to 2") as refused:
        owner.preview_tuning(visits.spec("1", method=method, budget=wire.TuningBudget(epsilon="1", delta=1e-3)))
    assert refused.value.remote_status == 422


def test_withheld_records_are_not_scored(owner, visits):
    owner.withhold(visits.validation.id, person="P7")
    assert owner.preview_tuning(visits.spec("1")).records == 118
    ended = _ended(owner, visits.spec("1"))
    assert (ended.state, ended.report.records) == ("completed", 118)
