"""Suggestions without a run: those that a run makes, batches, what is refused and by which field."""

import asyncio
import signal
import socket
import threading
from contextlib import contextmanager

import httpx
import numpy as np
import pytest
import uvicorn

from blindopt import wire
from blindopt.client import StudyClient, VendorClient
from blindopt.errors import Remote
from blindopt.gp.acquisition import beta
from modeler_service import app as modeler_app
from modeler_service.settings import Settings
from modeler_service.use_cases import suggestions
from tests.given_settings import GIVEN, GP_UCB
from tests.interventions import act_before

TOKEN = "blindopt_0123456789abcdef." + "A" * 43
KERNEL = wire.Kernel(lengthscale=1.0, signal_variance=1.0, noise_variance=0.01)
LAPLACE = wire.LaplaceAnswers(mechanism="laplace", epsilon="1", value_bound=1.0)
BINARY = wire.OneBitAnswers(mechanism="one_bit", epsilon="1", value_bound=1.0)


def inline(n=30, r=2, **chosen):
    x = np.random.default_rng(3).normal(size=(n, r))
    return wire.InlineStudy(candidates=x.tolist(), direction="maximize", kernel=KERNEL, **chosen)


def seen(*pairs, **chosen):
    return [wire.SuggestionObservation(row=row, y=y, **chosen) for row, y in pairs]


@pytest.fixture(scope="module")
def opened(owner, dataset, open_study):
    """A study that the runs and suggestions here alone ask."""
    return open_study(owner, dataset)


def access(curator, opened, **chosen):
    return wire.StudyAccess(**{"curator_url": curator.url, "study_id": opened.id, "token": opened.token} | chosen)


LOOP = GP_UCB | {"initial_rows": 0}
"""A loop whose next row is always the algorithm's, with settings that are all given."""


def observed(trials):
    return [wire.SuggestionObservation(row=t.row, y=t.y, passport=t.passport) for t in trials]


# --- the same rows as a run -----------------------------------------------------------------------


FAMILIES = {
    "gp_ucb": (wire.GpUcb(name="gp_ucb"), None),
    "ei": (wire.Ei(name="ei"), None),
    "random": (wire.RandomRows(name="random"), None),
    "ldp_ata": (wire.LdpAta(name="ldp_ata"), LAPLACE),
    "ldp_moma": (wire.LdpMoma(name="ldp_moma"), LAPLACE),
    "laplace_adf": (wire.LaplaceAdf(name="laplace_adf"), LAPLACE),
    "bounded_igp": (wire.BoundedIgp(name="bounded_igp"), BINARY),
    "thompson": (wire.Thompson(name="thompson"), BINARY),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_suggestions_are_the_trials_of_a_run(name, owner, dataset, open_study, curator, vendor, run_of):
    """A run's rows, means, widths and ties to the last bit, from its settings and the outcomes before each."""
    algorithm, answers = FAMILIES[name]
    opened = open_study(owner, dataset, direction="minimize", **({"answers": answers} if answers else {}))
    spec = run_of(curator.url, opened, iterations=9, initial_rows=3, seed=5).model_copy(update={"algorithm": algorithm})
    run = vendor.wait(vendor.start(spec).id, timeout_s=60)
    assert (run.state, run.trials) == ("completed", 12), run.problem
    trials = vendor.export(run.id).trials
    for number in (0, 2, 3, 4, 8, 11):
        reply = vendor.suggest(
            wire.SuggestionRequest(
                study=access(curator, opened),
                algorithm=algorithm,
                observations=observed(trials[:number]),
                iterations=9,
                **GIVEN | {"initial_rows": 3, "seed": 5},
            )
        )
        (suggestion,), trial = reply.suggestions, trials[number]
        for field in wire.Suggestion.model_fields:
            assert getattr(suggestion, field) == getattr(trial, field), (number, field)
        assert (reply.ended_because, reply.warnings) == (None, run.warnings)
        assert (reply.recommendation is None) == (number == 0)
    settings = GIVEN | {"algorithm": algorithm, "initial_rows": 3, "iterations": 9}
    done = wire.SuggestionRequest(study=access(curator, opened), observations=observed(trials), **settings)
    reply = vendor.suggest(done)
    assert (reply.suggestions, reply.ended_because, reply.recommendation) == ([], "budget", run.recommendation)


def test_a_batch_is_the_query_of_a_run(opened, curator, vendor):
    """Also with rows that are never asked again, and a design that is not random."""
    chosen = {"repeats": "never", "initial_rows": 3, "initial_design": "maximin", "iterations": 12, "seed": 4}
    how = {"algorithm": wire.GpBucb(name="gp_bucb"), **chosen}
    run = wire.RunCreate(curator_url=curator.url, study_id=opened.id, token=opened.token, batch_size=4, **how)
    trials = vendor.export(vendor.wait(vendor.start(run).id, timeout_s=60).id).trials
    for first in (0, 3, 7, 11):
        shown = {"study": access(curator, opened), "observations": observed(trials[:first]), "count": 4}
        rows = [suggestion.row for suggestion in vendor.suggest(wire.SuggestionRequest(**shown, **how)).suggestions]
        assert rows == [trial.row for trial in trials if trial.query == first + 1]
        plain = how | {"algorithm": wire.GpUcb(name="gp_ucb")}
        assert rows == [
            suggestion.row for suggestion in vendor.suggest(wire.SuggestionRequest(**shown, **plain)).suggestions
        ]


def test_candidates_in_the_request_are_answered_as_those_of_a_study(curator, opened, vendor, small, modeler):
    with StudyClient(curator.url, opened.token, opened.id) as client:
        study = client.study()
    shown = LOOP | {"observations": seen((3, 0.2), (77, 0.5), (3, 0.25)), "seed": 2, "count": 4}
    of_study = vendor.suggest(wire.SuggestionRequest(study=access(curator, opened), **shown))
    z = np.load(modeler.data / "candidates" / f"{study.release_sha256}.npy")
    own = wire.InlineStudy(candidates=z.tolist(), direction="maximize", kernel=small.kernel, noise=study.noise)
    assert vendor.suggest(wire.SuggestionRequest(inline=own, **shown)) == of_study
    other = shown | {"observations": seen((3, 0.2), (77, 0.5), (3, 0.3))}
    assert vendor.suggest(wire.SuggestionRequest(inline=own, **other)) != of_study


def test_the_step_decides_the_weight(vendor):
    shown = LOOP | {"inline": inline(), "observations": seen((1, 0.5), (7, -0.5))}
    usual, third, late = (vendor.suggest(wire.SuggestionRequest(**shown, step=step)) for step in (None, 3, 1000))
    assert usual == third != late
    (suggestion,) = late.suggestions
    assert suggestion.acquisition == pytest.approx(
        suggestion.mean + np.sqrt(beta(30, 1000, 0.025)) * suggestion.sd, rel=1e-12
    )


def test_a_request_that_leaves_everything_open_gets_a_plan_and_no_candidate_twice(vendor):
    """Outcomes of one's own come first: those that the design would ask for are not asked for again."""
    own, observations = inline(n=12).model_copy(update={"kernel": None}), list(seen((3, 0.2), (7, 0.5)))
    design = []
    for _ in range(10):
        reply = vendor.suggest(wire.SuggestionRequest(inline=own, observations=observations))
        (suggestion,) = reply.suggestions
        design.append(suggestion.phase)
        observations += seen((suggestion.row, float(np.sin(suggestion.row))))
    assert sorted(observation.row for observation in observations) == list(range(12))
    assert (reply.plan.algorithm.name, reply.plan.initial_rows, reply.plan.repeats) == ("ei", 5, "after_all")
    assert reply.plan.reasons[0] == "The algorithm is ei: answers are not randomized."
    assert set(design[4:]) == {"algorithm"}


# --- batches --------------------------------------------------------------------------------------


def posterior(x, rows, noise):
    """Textbook mean weights and variances of a zero-mean GP with the kernel KERNEL: eqs. 2.25-2.26."""
    gram = np.exp(-0.5 * ((x[:, None] - x[None]) ** 2).sum(axis=2))
    inverse = np.linalg.inv(gram[np.ix_(rows, rows)] + np.diag(noise))
    weights = gram[:, rows] @ inverse
    return weights, 1 - np.einsum("ij,ij->i", weights, gram[:, rows])


def test_a_batch_conditions_on_its_rows_and_keeps_the_mean_of_the_outcomes(vendor):
    """Oracle: means from the outcomes alone, variances as if the batch's rows had been asked too."""
    own = inline(n=60)
    x, rows, y = np.array(own.candidates), [4, 9, 9], np.array([0.3, -0.2, -0.1])
    noise = [0.01, 0.5, 0.01]  # the second outcome has a noise of its own
    observations = seen((4, 0.3), (9, -0.2), (9, -0.1))
    observations[1] = wire.SuggestionObservation(row=9, y=-0.2, noise_variance=0.5)
    reply = vendor.suggest(wire.SuggestionRequest(inline=own, observations=observations, count=6, **LOOP))
    mean = posterior(x, rows, noise)[0] @ y
    for index, suggestion in enumerate(reply.suggestions):
        _, variance = posterior(x, rows, noise)
        bound = mean + np.sqrt(beta(60, 4 + index, 0.025) * variance)
        assert bound[suggestion.row] == pytest.approx(bound.max(), rel=1e-10)
        assert suggestion.mean == pytest.approx(mean[suggestion.row], abs=1e-10)
        assert suggestion.sd == pytest.approx(np.sqrt(variance[suggestion.row]), abs=1e-8)
        rows, noise = [*rows, suggestion.row], [*noise, 0.01]
    assert len({suggestion.row for suggestion in reply.suggestions}) > 1


def test_random_rows_end_when_every_row_was_chosen(vendor):
    shown = LOOP | {"inline": inline(n=5), "algorithm": wire.RandomRows(name="random")}
    shown["observations"] = seen((2, 0.0))
    reply = vendor.suggest(wire.SuggestionRequest(**shown, count=10))
    assert (sorted(suggestion.row for suggestion in reply.suggestions), reply.ended_because) == ([0, 1, 3, 4], None)
    shown["observations"] = seen(*((row, 0.0) for row in range(5)))
    reply = vendor.suggest(wire.SuggestionRequest(**shown, count=10))
    assert (reply.suggestions, reply.ended_because) == ([], "exhausted")


def test_epochs_of_the_theorem_may_begin_in_the_initial_rows(vendor):
    algorithm = wire.LdpMoma(name="ldp_moma", theory=True)
    reply = vendor.suggest(wire.SuggestionRequest(inline=inline(answers=LAPLACE), algorithm=algorithm, initial_rows=5))
    assert [suggestion.phase for suggestion in reply.suggestions] == ["initial"]


# --- what is refused ------------------------------------------------------------------------------


def _refused(modeler, body, status, field=None):
    with modeler.http() as http:
        reply = http.post("/v1/suggestions", content=body, headers={"Content-Type": "application/json"})
    assert (reply.status_code, reply.headers["content-type"]) == (status, "application/problem+json"), reply.text
    problem = wire.Problem.model_validate_json(reply.content)
    if field is not None:
        assert [error.field for error in problem.errors] == [field], reply.text
    assert TOKEN not in reply.text
    return problem


def _request(**chosen):
    values = {"inline": inline()} | chosen
    return wire.SuggestionRequest(**{k: v for k, v in values.items() if v is not None}).model_dump_json()


MADE = {
    "neither": ("study", {"inline": None}),
    "no kernel": (
        "kernel", {"inline": inline().model_copy(update={"kernel": None}), "algorithm": wire.IgpUcb(name="igp_ucb")},
    ),
    "a row that is not there": ("observations.1.row", {"observations": seen((29, 0.0), (30, 0.0))}),
    "a batch of an algorithm for one": (
        "count", {"inline": inline(answers=LAPLACE), "algorithm": wire.LdpAta(name="ldp_ata"), "count": 2},
    ),
    "an algorithm for other answers": ("algorithm", {"algorithm": wire.LdpAta(name="ldp_ata")}),
    "noise with a law of its own": (
        "observations.0.noise_variance",
        {"algorithm": wire.IgpUcb(name="igp_ucb"), "observations": seen((1, 0.0), noise_variance=0.1)},
    ),
    "a passport of other answers": (
        "observations.0.passport",
        {
            "inline": inline(answers=LAPLACE),
            "algorithm": wire.LaplaceAdf(name="laplace_adf"),
            "observations": seen((1, 0.0), passport=wire.NoisePassport(measurement_variance=0.0)),
        },
    ),
    "no horizon to halve": ("iterations", {"algorithm": {"name": "ei_deblurred"}}),
    "more observations than the loop": ("observations", {"observations": seen(*[(1, 0.0)] * 3), "iterations": 1}),
    "noise without its size": ("inline.noise.sd", {"inline": inline(noise=wire.NoiseLaw(family="gaussian"))}),
    "plain http to another machine": (
        "study.curator_url",
        {
            "inline": None,
            "study": wire.StudyAccess(curator_url="http://10.0.0.1:8410", study_id="std_0123456789abcdef", token=TOKEN),
        },
    ),
    "more memory than is allowed": (
        "observations", {"inline": inline(n=3), "observations": seen(*[(1, 0.0)] * 9_000)},
    ),
    "epochs of more memory than is allowed": (
        "observations",
        {"algorithm": wire.Moma(name="moma", alpha=1.0, value_bound=1.0, noise_moment=1.0, plays=10_000),
         "observations": seen(*[(1, 0.0)] * 9_000)},
    ),
    "noise that a kernel cannot be averaged over": (
        "inline", {"inline": inline(noise=wire.NoiseLaw(family="gaussian", sd=1e50)), "initial_rows": 0},
    ),
    "an outcome that the kernel cannot take": (
        "observations.1",
        {
            "observations": seen((1, 1e50), (2, -1e150)),
            "kernel": wire.Kernel(lengthscale=1.0, signal_variance=1e-50, noise_variance=1e-50),
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("called", MADE)
def test_what_cannot_be_is_refused_by_field(called, modeler):
    field, chosen = MADE[called]
    assert _refused(modeler, _request(**chosen), 422, field).code == "invalid"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ('{"inline": {"direction": "maximize", "candidates": [[0, 1], [2]]}, "algorithm": {"name": "random"}}',
         "inline.candidates.1"),
        ('{"inline": {"direction": "maximize", "candidates": [[0, NaN]]}}', "inline.candidates.0.1"),
        ('{"inline": {"direction": "maximize", "candidates": [[0, 1e51]]}}', "inline.candidates.0.1"),
        ('{"inline": {"direction": "maximize", "candidates": [[]]}}', "inline.candidates.0"),
        ('{"inline": {"direction": "maximize", "candidates": []}}', "inline.candidates"),
        ('{"inline": {"candidates": [[0]]}}', "inline.direction"),
        ('{"count": 101}', "count"),
        ('{"observations": [{"row": 1, "y": 0, "noise_variance": 1, "passport": {"measurement_variance": 0}}]}',
         "observations.0"),
        (f'{{"study": {{"curator_url": "https://u:{TOKEN}@c.example", "study_id": "std_{"0" * 16}", "token": "t"}}}}',
         "study.curator_url"),
    ],
)  # fmt: skip
def test_what_the_contract_forbids_is_refused_by_field(body, field, modeler):
    _refused(modeler, body, 422, field)


def test_a_list_of_a_million_faults_is_not_made(modeler):
    rows = ",".join(["[null]"] * 90_000)
    body = '{"inline": {"direction": "maximize", "candidates": [' + rows + "]}}"
    _refused(modeler, body, 422, "inline.candidates.0.0")


def test_a_body_over_the_limit_is_refused_and_others_keep_theirs(modeler):
    _refused(modeler, b" " * (8 << 20) + b"{}", 413)
    with modeler.http() as http:
        assert http.post("/v1/runs", content=b" " * (2 << 20)).status_code == 413


def test_the_token_of_a_refused_study_appears_nowhere(modeler, curator, opened):
    shown = {"study": access(curator, opened, token=TOKEN), "inline": None}
    problem = _refused(modeler, _request(**shown), 502)
    assert (problem.code, problem.retryable) == ("curator_refused", False)
    assert "unauthenticated (401)" in problem.detail
    assert TOKEN not in modeler.log
    assert all(TOKEN not in str(record) for record in modeler.records())


def test_a_curator_that_is_away_is_reported_as_such(modeler, opened):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    study = wire.StudyAccess(curator_url=url, study_id=opened.id, token=TOKEN)
    problem = _refused(modeler, _request(study=study, inline=None), 502)
    assert (problem.code, problem.retryable) == ("unreachable", True)


# --- what is kept ---------------------------------------------------------------------------------


def test_requests_to_the_curator_are_in_both_logs_and_nothing_else_is_kept(
    make_service, tmp_path, curator, owner, dataset, open_study
):
    """The vendor asks the curator itself, under the same grant: the modeler's log has gaps there, and verifies."""
    modeler, opened = make_service("modeler", tmp_path).start(), open_study(owner, dataset)
    request = wire.SuggestionRequest(study=access(curator, opened), algorithm=wire.GpUcb(name="gp_ucb"))
    observations = []
    with (
        VendorClient(modeler.url, modeler.token) as vendor,
        StudyClient(curator.url, opened.token, opened.id) as study,
    ):
        for number in range(3):
            (suggestion,) = vendor.suggest(request.model_copy(update={"observations": observations})).suggestions
            query = wire.QueryRequest(rows=[wire.RowPlays(row=suggestion.row)])
            (answer,) = study.ask(query, key=f"own-{number}")[0].answers
            observations.append(wire.SuggestionObservation(row=answer.row, y=answer.y, passport=answer.passport))
    exchanges = [r["exchange"] for r in modeler.records() if r.get("exchange")]
    paths = [f"/v1/studies/{opened.id}{what}" for what in ("", "/candidates", "", "")]
    assert [exchange["path"] for exchange in exchanges] == paths
    assert opened.token not in modeler.log
    assert modeler.run_in_process("audit", "verify").returncode == 0
    for table in ("runs", "trials", "replies"):
        assert modeler.rows(f"SELECT count(*) FROM {table}") == [(0,)]
    for file in modeler.data.rglob("*"):
        assert not file.is_file() or opened.token.encode() not in file.read_bytes(), file


# --- time -----------------------------------------------------------------------------------------


@contextmanager
def served(folder, **settings):
    app = modeler_app.build(Settings(data_dir=folder, **settings))
    token = app.state.context.authentication.issue("vendor", "v", days=1)[0].text
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        with httpx.Client(
            base_url=f"http://127.0.0.1:{listening.getsockname()[1]}",
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
            trust_env=False,
            timeout=30,
        ) as http:
            yield app, http
        server.handle_exit(signal.SIGTERM, None)
        thread.join()


def test_other_requests_are_answered_while_rows_are_chosen(tmp_path, monkeypatch):
    """A choice that waits for the test: the event loop does not, and a request over the limit is told to retry."""
    begun, go = threading.Event(), threading.Event()

    def choose(*_):
        begun.set()
        assert go.wait(30)

    act_before(monkeypatch, suggestions, "_check", choose)
    with served(tmp_path, concurrent_suggestions=1) as (app, http):
        replies = []
        asking = [
            threading.Thread(target=lambda: replies.append(http.post("/v1/suggestions", content=_request())))
            for _ in range(9)  # one and eight that wait
        ]
        for thread in asking:
            thread.start()
        assert begun.wait(30)
        while app.state.modeler.suggestions.under_way < 9:
            pass
        assert http.get("/v1/runs").status_code == 200
        refused = http.post("/v1/suggestions", content=_request())
        go.set()
        for thread in asking:
            thread.join()
    assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
    assert refused.headers["retry-after"] == "1"
    assert [reply.status_code for reply in replies] == [200] * 9


def test_a_request_that_takes_too_long_ends_at_its_next_step(tmp_path):
    with served(tmp_path, suggestion_seconds=1e-9) as (_, http):
        reply = http.post("/v1/suggestions", content=_request(observations=seen((1, 0.0))))
    assert (reply.status_code, reply.json()["errors"][0]["field"]) == (422, "observations")
    assert "SUGGESTION_SECONDS" in reply.text


def test_a_service_that_ends_leaves_what_is_under_way(tmp_path):
    app = modeler_app.build(Settings(data_dir=tmp_path))
    try:
        suggestions = app.state.modeler.suggestions
        request = wire.SuggestionRequest.model_validate_json(_request(observations=seen((1, 0.0))))

        def read():
            suggestions.close()
            return request

        with pytest.raises(Exception, match="ending") as refused:
            asyncio.run(suggestions.of(read, "vendor:x"))
        assert (refused.value.code, refused.value.status, refused.value.retryable) == ("draining", 503, True)
    finally:
        app.state.modeler.close()
        app.state.context.database.close()


def test_requests_that_wait_or_come_while_the_service_closes_get_a_retryable_refusal(tmp_path):
    app, go = modeler_app.build(Settings(data_dir=tmp_path, concurrent_suggestions=1)), threading.Event()
    suggestions = app.state.modeler.suggestions

    async def talk():
        first = asyncio.ensure_future(suggestions.of(lambda: go.wait(30), "vendor:x"))
        second = asyncio.ensure_future(suggestions.of(lambda: None, "vendor:x"))
        await asyncio.sleep(0.1)
        suggestions.close()
        go.set()
        return await asyncio.gather(second, suggestions.of(lambda: None, "vendor:x"), first, return_exceptions=True)

    try:
        waited, late, _ = asyncio.run(talk())
        assert [getattr(error, "code", error) for error in (waited, late)] == ["draining"] * 2
    finally:
        app.state.modeler.close()
        app.state.context.database.close()


def test_no_role_but_the_vendor_is_let_in(modeler):
    token = modeler.run_in_process("token", "create", "--role", "viewer", "--name", "v").stdout.strip()
    with VendorClient(modeler.url, token) as viewer, pytest.raises(Remote) as refused:
        viewer.suggest(wire.SuggestionRequest(inline=inline()))
    assert (refused.value.remote_status, refused.value.remote_code) == (403, "forbidden")
