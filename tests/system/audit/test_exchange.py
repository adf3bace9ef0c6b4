"""Both services over REST: what a run leaves on both sides, and what the modeler gets to see."""

import hashlib
import io
import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from blindopt import wire
from blindopt.audit import merkle_log, reconciliation
from blindopt.audit.checkpoints import Checkpoint, Verifier
from blindopt.client import StudyClient
from blindopt.client.connection import Watch
from blindopt.errors import Remote
from curator_service.cli import app as curator_cli

LAPLACE = wire.LaplaceAnswers(mechanism="laplace", epsilon="1", value_bound=1.0)
GAUSSIAN = wire.GaussianRelease(mechanism="gaussian", epsilon="1", delta=1e-5)


@pytest.fixture(scope="module")
def run(vendor, curator, owner, dataset, open_study, run_of):
    """A finished run of 20 queries against a study of its own."""
    opened = open_study(owner, dataset)
    started = vendor.start(run_of(curator.url, opened, iterations=17, initial_rows=3, seed=4))
    ended = vendor.wait(started.id, timeout_s=240)
    assert (ended.state, ended.ended_because, ended.trials, ended.problem) == ("completed", "budget", 20, None)
    return ended


@pytest.fixture(scope="module")
def exports(run, curator, modeler, tmp_path_factory):
    """All that each tells, exported by its command line beside the running service."""
    folder = tmp_path_factory.mktemp("exports")
    paths = []
    for service in (curator, modeler):
        done = service.run_in_process("audit", "export")
        assert (done.returncode, done.stderr) == (0, "")
        paths.append(folder / f"{service.name}.jsonl")
        paths[-1].write_text(done.stdout)
    return paths


def _candidates(curator, opened):
    with curator.http(opened.token) as modeler:
        reply = modeler.get(f"/v1/studies/{opened.id}/candidates")
    return np.load(io.BytesIO(reply.content), allow_pickle=False)


def test_both_exports_verify_and_hold_one_log_of_a_run_byte_for_byte(run, exports):
    sides = [reconciliation.read(path) for path in exports]
    for side in sides:
        assert reconciliation.verify_export(side).size == len(side.own)
    assert reconciliation.reconcile(*sides, run.study_id) == (22, [])
    grant, path = run.study.grant_id, f"/v1/studies/{run.study_id}"
    first, second = ([entry.body for entry in side.shared[grant]] for side in sides)
    assert first == second
    exchanges_told = sides[0].exchanges(grant)
    assert [(e["method"], e["path"], e["status"]) for e in exchanges_told] == [
        ("GET", path, 200),
        ("GET", f"{path}/candidates", 200),
        *[("POST", f"{path}/queries", 201)] * 20,
    ]
    assert [e["position"] for e in exchanges_told] == list(range(22))
    assert exchanges_told[1]["reply_sha256"] == run.study.release_sha256
    assert [e["idempotency_key"] for e in exchanges_told[2:]] == [f"{run.id}:{n}" for n in range(1, 21)]
    assert len({e["request_id"] for e in exchanges_told}) == 22


def test_an_exchange_has_one_request_id_in_the_logs_of_both_processes(run, curator, modeler):
    sent, answered = (
        {line["request_id"]: line["status"] for line in map(json.loads, log.splitlines()) if line["message"] == message}
        for log, message in ((modeler.log, "exchange"), (curator.log, "request"))
    )
    assert len(sent) >= 22
    assert '"route": "/v1/studies/*/queries"' in modeler.log
    assert sent.items() <= answered.items()


def test_each_party_holds_the_signature_of_the_other_under_the_whole_log_of_a_run(run, exports):
    grant = run.study.grant_id
    curator, modeler = (reconciliation.read(path) for path in exports)
    head = merkle_log.verify(curator.shared[grant], index="position")
    assert curator.keys[grant] == modeler.key
    assert modeler.keys[run.study_id] == curator.key == run.study.log_key
    (countersigned,) = curator.of_kind("countersignature", grant)
    assert Verifier.parse(modeler.key).verify_countersignature(countersigned)[0].head == head
    receipts = [Verifier.parse(curator.key).verify(note).head for note in modeler.of_kind("receipt", grant)]
    assert [receipt.size for receipt in receipts] == list(range(1, 23))
    assert receipts[-1] == head


def test_a_digest_in_the_logs_is_that_of_the_bytes_that_travelled(run, curator, exports):
    stored = """
    SELECT q.id, r.body FROM queries q
    JOIN replies r ON r.principal = q.grant_id AND r.idempotency_key = q.idempotency_key WHERE q.study_id = ?
    """
    queries = dict(curator.rows(stored, run.study_id))
    assert len(queries) == 20
    records = [entry.record for entry in reconciliation.read(exports[0]).own]
    bodies = {
        r["details"]["query_id"]: r["exchange"]["reply_sha256"]
        for r in records
        if (r.get("exchange") or {}).get("study_id") == run.study_id and "query_id" in r.get("details", {})
    }
    assert bodies == {identity: hashlib.sha256(reply).hexdigest() for identity, reply in queries.items()}


def test_the_logs_over_rest_are_those_of_the_command_line(run, exports, owner, vendor):
    for client, path in ((owner, exports[0]), (vendor, exports[1])):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for grant in (None, run.study.grant_id):
            exported = [line for line in lines if "seq" in line and line["grant_id"] == grant]
            over_rest = [entry.model_dump() for entry in client.audit(grant)]
            assert len(exported) >= 22
            assert over_rest[: len(exported)] == exported


def test_the_checkpoint_is_the_signed_head_of_the_log(exports, curator, modeler):
    for service, path in zip((curator, modeler), exports, strict=True):
        with service.http() as client:
            size = client.get("/v1/audit/checkpoint").json()["size"]
            listed = client.get("/v1/audit/entries", params={"page_size": 2, "page_token": str(size - 3)}).json()
            body = client.get("/v1/audit/checkpoint").json()
            key = Verifier.parse(client.get("/v1/meta").json()["log_key"])
        assert [entry["seq"] for entry in listed["entries"]] == [size - 2, size - 1]
        assert listed["next_page_token"] is None
        peaks = bytes.fromhex(listed["entries"][-1]["peaks"])
        head = merkle_log.Head(size, merkle_log.root(peaks).hex())
        assert (body["size"], body["root"]) == (head.size, head.root)
        assert key.verify(body["note"]) == Checkpoint(f"{key.name}/log", head)
        assert size >= len(reconciliation.read(path).own)


def test_reconcile_finds_nothing_between_honest_parties(run, curator, modeler, exports):
    for service in (curator, modeler):
        done = service.run_in_process("audit", "reconcile", run.study_id, *map(str, exports))
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.strip() == "22 exchanges compared, 0 differences"


def _reconcile(study_id, *exports):
    """The command, in this process."""
    return CliRunner().invoke(curator_cli, ["audit", "reconcile", study_id, *map(str, exports)])


def test_a_study_that_no_log_knows_is_no_agreement(exports):
    done = _reconcile("std_0000000000000000", *exports)
    assert done.exit_code == 3
    assert "std_0000000000000000" in done.output


def test_candidates_of_identity_are_the_scaled_rows_in_a_secret_order(small, curator, opened):
    z = _candidates(curator, opened)
    order = small.place_of(z)
    assert sorted(order) == list(range(400))
    np.testing.assert_array_equal(z, small.scaled[order])
    # A random order leaves one row in its place on average; 20 or more, once in 10^18 releases.
    assert (order == np.arange(400)).sum() < 20


def test_two_releases_of_the_same_data_have_orders_of_their_own(small, curator, owner, dataset, open_study, opened):
    other = open_study(owner, dataset)
    first, second = (small.place_of(_candidates(curator, of)) for of in (opened, other))
    assert (first == second).sum() < 20


def test_the_answer_for_a_row_is_the_outcome_of_that_row_exactly(small, curator, opened):
    z = _candidates(curator, opened)
    order = small.place_of(z)
    with curator.http(opened.token) as modeler:
        answers = []
        for start in range(0, 400, 100):
            rows = [{"row": row, "plays": 1} for row in range(start, start + 100)]
            key = {"Idempotency-Key": f"all-{start}"}
            answers += modeler.post(f"/v1/studies/{opened.id}/queries", json={"rows": rows}, headers=key).json()[
                "answers"
            ]
    assert [answer["row"] for answer in answers] == list(range(400))
    assert [answer["y"] for answer in answers] == small.y[order].tolist()
    assert {answer["passport"]["measurement_variance"] for answer in answers} == {0.0}


def test_measurement_noise_is_drawn_anew_for_every_play_and_named_in_the_passport(
    small, curator, owner, dataset, open_study
):
    noisy = open_study(owner, dataset, noise_variance=4.0)
    order = small.place_of(_candidates(curator, noisy))
    with curator.http(noisy.token) as modeler:
        rows = [{"row": row, "plays": 10} for row in range(40)]
        reply = modeler.post(
            f"/v1/studies/{noisy.id}/queries", json={"rows": rows}, headers={"Idempotency-Key": "k"}
        ).json()
    assert [(a["row"], a["play"]) for a in reply["answers"]] == [(r, p) for r in range(40) for p in range(1, 11)]
    noise = np.array([a["y"] - small.y[order[a["row"]]] for a in reply["answers"]])
    assert len(set(noise)) == 400
    assert 1.5 < noise.std() < 2.5  # 400 draws of sd 2: seven standard errors either way
    assert {a["passport"]["measurement_variance"] for a in reply["answers"]} == {4.0}


# --- what leaves the curator, for every release mechanism -------------------------------------------------------


MECHANISMS = {
    "identity": {"mechanism": "identity"},
    "po_gp_ucb": {"mechanism": "po_gp_ucb", "epsilon": "4", "delta": 1e-5, "r": 2, "acknowledge_refuted": True},
    "gaussian": {"mechanism": "gaussian", "epsilon": "4", "delta": 1e-5},
    "gaussian turned": {"mechanism": "gaussian", "epsilon": "4", "delta": 1e-5, "rotate": True},
    "planar_laplace": {"mechanism": "planar_laplace", "epsilon": "4"},
    "one feature": {"epsilon": "4", "promise": "one_feature"},
    "planar_laplace turned": {"mechanism": "planar_laplace", "epsilon": "4", "rotate": True},
    "gaussian_projection of 13": {"mechanism": "gaussian_projection", "epsilon": "4", "delta": 1e-5, "r": 3},
    "axes of 13": {"mechanism": "axes", "axes": "private", "radius": 8.0, "epsilon": "4", "delta": 1e-5, "r": 2},
    "groups": {"mechanism": "groups", "epsilon": "4", "cells": {"kind": "grid", "parts": [3, 3]}, "min_count": 1},
    "auto": {"epsilon": "4"},
    "auto turned": {"epsilon": "4", "delta": 1e-5, "rotate": True},
    "auto of 13": {"epsilon": "1", "delta": 1e-5},
}
TAKEN = {
    "one feature": "planar_laplace",
    "auto": "planar_laplace",
    "auto turned": "planar_laplace",
    "auto of 13": "planar_laplace",
}


def _columns(small, name):
    """Names and rows of the features: those of the small data, or 13 where the mechanism is for many."""
    if not name.endswith("of 13"):
        return small.names[:2], small.x
    return tuple(f"zq_w{j:02}" for j in range(13)), np.random.default_rng(6).uniform(-3, 3, (400, 13)).round(6)


def _csv(small, name, stretch):
    names, x = _columns(small, name)
    lines = [",".join([*names, small.names[2]])]
    lines += [",".join(map(repr, row)) for row in (np.column_stack([x, small.y]) * stretch).tolist()]
    return "\n".join(lines).encode()


@pytest.fixture(scope="module")
def open_by(owner, small, open_study):
    """Opens a study by a mechanism of MECHANISMS, on data that may be stretched."""

    def make(name, stretch=1.0, **more):
        lower, upper = small.bounds
        names, _ = _columns(small, name)
        features = [wire.Feature(column=c, lower=lower, upper=upper, scale=small.scale) for c in names]
        if name == "groups":
            more = {"answers": wire.AutoAnswers(epsilon="4", value_bound=1.0)} | more
        dataset = owner.register(f"{name} {stretch}", _csv(small, name, stretch), public=name == "identity")
        return open_study(owner, dataset, MECHANISMS[name], features=features, **more)

    return make


def test_every_mechanism_that_a_release_may_name_is_walked_here():
    """A new one is not forgotten."""
    schema = wire.StudyCreate.model_json_schema(mode="validation")["$defs"]
    mechanisms = {d["properties"]["mechanism"].get("const") for name, d in schema.items() if name.endswith("Release")}
    assert mechanisms == {said.get("mechanism", "auto") for said in MECHANISMS.values()}


def _private(small, study):
    """Texts that belong to the owner alone: of columns, data, bounds, scale, and what was computed from records."""
    private = [*small.names, "zq_w", study.view.spec.dataset_id, "3.21875", "3.46875", "0.65625"]
    return private + [f"{value:.6g}" for value in (study.view.report.sigma_min, study.view.report.omega) if value]


# Words that name what depends on the data, or what the owner alone knows.
# The gap "Public inputs" says "bounds"; no field may.
FORBIDDEN = ("sigma_min", "omega", "branch", "largest_r", "lower", "upper", '"bounds"', "dataset_id", "column")


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("name", MECHANISMS)
def test_no_reply_to_a_modeler_names_what_the_owner_alone_may_know(name, small, curator, owner, open_by):
    """Every reply of a whole run, and of every refusal that a modeler can provoke, headers too."""
    study = open_by(name)
    dataset = study.view.spec.dataset_id
    path, seen = f"/v1/studies/{study.id}", []
    with curator.http(study.token) as modeler:
        key = iter(range(100))

        def ask(body):
            return modeler.post(f"{path}/queries", json=body, headers={"Idempotency-Key": str(next(key))})

        seen += [modeler.get(path), modeler.get(f"{path}/candidates")]
        answered = ask({"rows": [{"row": 3, "plays": 2}, {"row": 5}]})
        seen += [answered, modeler.get(f"{path}/queries/{answered.json()['id']}")]
        seen += [ask({"rows": [{"row": 400}]}), ask({"rows": [{"row": -1}]}), ask({"rows": []}), ask({"x": 1})]
        seen += [ask({"rows": [{"row": r} for r in range(101)]}), ask({"rows": [{"row": 1, "plays": 101}]})]
        seen += [modeler.post(f"{path}/queries", json={"rows": [{"row": 1}]})]
        seen += [modeler.get(f"{path}/queries/qry_0000000000000000"), modeler.get("/v1/studies/std_0000000000000000")]
        seen += [modeler.get(f"{path}/candidates", headers={"Range": "bytes=999999999-"})]
        seen += [modeler.get(p) for p in ("/v1/studies", "/v1/datasets", f"{path}/grants")]
        seen += [modeler.get(p) for p in (f"{path}/ledger", f"{path}/exposure")]
        seen += [modeler.get(f"/v1/audit/{p}") for p in ("entries", "checkpoint", "consistency?first=1&second=2")]
        seen += [modeler.get(f"/v1/datasets/{dataset}"), modeler.post(f"{path}:preview")]
        owner.close_study(study.id)
        seen += [modeler.get(path), ask({"rows": [{"row": 1}]})]
    assert [reply.status_code for reply in seen].count(500) == 0
    private = _private(small, study)
    for reply in seen:
        text = (reply.content + repr(reply.headers.items()).encode()).decode("latin-1").lower()
        text = text.replace('"measurement_source":"column"', "")  # where y comes from is public, which column is not
        url_path = reply.request.url.path.lower()  # a problem document names the path that was asked
        for word in FORBIDDEN + tuple(private):
            assert word.lower() not in text.replace(url_path, ""), (word, reply.request.method, url_path, text)


# All that a modeler can see of a study. A new field needs a decision: may it depend on the data?
# Raised caps are the owner's own acts and words.
VISIBLE = {
    "seen_by",  # the word modeler
    "left_out",  # numbers of candidates that the owner withheld, as their declined queries show
    "parts",  # of Z, which the modeler fetches: empty for a small release; where they begin depends on n and r alone
    "id", "state", "n", "r", "release_id", "release_sha256", "mechanism", "status", "epsilon", "delta", "sensitivity",
    "noise", "noise.family", "noise.sd", "answers", "answers.mechanism", "privacy_unit", "budget",
    "budget_changes", "budget.epsilon_per_row", "budget.epsilon_total", "budget.queries", "grant_id", "log_key",
    "direction", "measurement_source", "measurement_noise_variance", "kernel", "kernel.kind", "kernel.lengthscale",
    "goal", "goal.kind", "kernel.signal_variance", "kernel.noise_variance", "kernel.mean", "limits",
    "limits.rows_per_query", "limits.plays_per_row", "guarantee", "not_protected", "reply_after_ms", "sandbox",
}  # fmt: skip
PRIVATE_ANSWERS = {f"answers.{name}" for name in ("epsilon", "value_bound", "noise_bound", "centre", "plays")}
# The same of an answered query, and of every refusal. Only y depends on the data.
VISIBLE_ANSWER = {
    "row", "play", "plays", "y", "passport", "passport.privacy", "passport.privacy.family", "passport.privacy.scale",
    "passport.privacy.bound", "passport.privacy.variance", "passport.clip", "passport.measurement_variance",
    "passport.measurement_variance_known",
}  # fmt: skip
VISIBLE_REFUSAL = {
    "type", "title", "status", "detail", "instance", "code", "retryable", "request_id", "errors", "errors.field",
    "errors.message", "budget", "budget.cap", "budget.row", "budget.requested", "budget.spent", "budget.limit",
    "budget.remaining",
}  # fmt: skip


def _paths(value, prefix=""):
    for key, inner in value.items():
        yield prefix + key
        for item in inner if isinstance(inner, list) else [inner]:
            if isinstance(item, dict):
                yield from _paths(item, f"{prefix}{key}.")


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_modeler_sees_of_a_study_what_is_listed_here_and_nothing_else(name, curator, open_by):
    """Not why auto chose, nor whether Z was turned."""
    study = open_by(name)
    with curator.http(study.token) as modeler:
        view = modeler.get(f"/v1/studies/{study.id}").json()
    assert set(_paths(view)) == VISIBLE | (PRIVATE_ANSWERS if name == "groups" else set())
    assert view["mechanism"] == TAKEN.get(name, name.split()[0])
    # What claims nothing has no epsilon, whatever its owner declared.
    sound = view["status"] == "sound"
    assert sound == (name not in ("po_gp_ucb", "identity"))
    assert (view["epsilon"] is not None) == sound
    assert (view["sensitivity"] is not None) == (sound and name != "groups")  # which hide every change
    assert (view["delta"] is not None) == (
        sound and (name.endswith("of 13") or "gaussian" in name)
    )  # the others are pure


@pytest.mark.parametrize(("epsilon", "family"), [("0.5", "one_bit"), ("2", "piecewise"), ("100", "laplace")])
def test_a_modeler_sees_by_name_what_auto_does_to_answers(epsilon, family, curator, owner, dataset, open_study):
    said = wire.AutoAnswers(mechanism="auto", epsilon=epsilon, value_bound=0.5, noise_bound=0.1, centre=0.5)
    study = open_study(owner, dataset, GAUSSIAN, answers=said)
    with StudyClient(curator.url, study.token, study.id) as modeler:
        view = modeler.study()
        answered, _ = modeler.ask(wire.QueryRequest(rows=[wire.RowPlays(row=1)]), key="one")
    assert view.answers.mechanism == answered.answers[0].passport.privacy.family == family
    assert view.answers.model_dump(exclude={"mechanism"}) == said.model_dump(exclude={"mechanism"})
    assert owner.study(study.id).view.spec.answers == said  # auto, as the owner chose


def test_a_modeler_sees_of_private_answers_what_is_listed_here_and_nothing_else(curator, owner, dataset, open_study):
    """With auto, which chooses for the owner: why it did is not told, though it is public."""
    release = wire.AutoRelease(mechanism="auto", epsilon="1", delta=0.1)
    budget = wire.Budget(epsilon_per_row="3", queries=4)
    study = open_study(owner, dataset, release, answers=LAPLACE, budget=budget, reply_after_ms=5)
    with curator.http(study.token) as modeler:
        path, keys = f"/v1/studies/{study.id}", iter("abcdefgh")
        view = modeler.get(path).json()
        assert set(_paths(view)) == VISIBLE | PRIVATE_ANSWERS
        assert (view["mechanism"], view["delta"], view["status"]) == ("gaussian", 0.1, "sound")

        def ask(*rows):
            body = {"rows": [{"row": row, "plays": plays} for row, plays in rows]}
            return modeler.post(f"{path}/queries", json=body, headers={"Idempotency-Key": next(keys)}).json()

        answered = ask((3, 2))
        assert set(answered) == {"id", "study_id", "state", "version", "created_at", "answers", "declined", "salt"}
        for answer in answered["answers"]:
            assert set(_paths(answer)) == VISIBLE_ANSWER
        refusals = [ask((400, 1)), ask((3, 1)), ask((1, 101)), ask((1, 1), (2, 2)), ask((1, 3)), ask()]
        assert {refusal["code"] for refusal in refusals} == {"unknown_row", "privacy_budget_exhausted", "invalid"}
        for refusal in refusals:
            assert set(_paths(refusal)) <= VISIBLE_REFUSAL


def test_what_a_modeler_sees_of_answers_does_not_depend_on_the_values(small, curator, owner, open_study):
    """The same questions about data that are stretched: but for y and what is random, both replies read alike."""
    bodies = []
    for stretch in (1.0, 0.01):
        dataset = owner.register("stretched", _csv(small, "gaussian", stretch))
        budget = wire.Budget(epsilon_per_row="2")
        study = open_study(owner, dataset, GAUSSIAN, answers=LAPLACE, budget=budget)
        with curator.http(study.token) as modeler:
            replies = []
            for key, rows in enumerate(([(0, 1), (399, 1)], [(0, 1)], [(400, 1)], [(5, 101)])):
                body = {"rows": [{"row": row, "plays": plays} for row, plays in rows]}
                headers = {"Idempotency-Key": f"alike {key}"}
                replies.append(modeler.post(f"/v1/studies/{study.id}/queries", json=body, headers=headers))
        ours = ("id", "study_id", "created_at", "salt", "request_id", "instance")
        plain = [{k: v for k, v in reply.json().items() if k not in ours} for reply in replies]
        for answer in (item for reply in plain for item in reply.get("answers", [])):
            del answer["y"]
        bodies.append((plain, [reply.status_code for reply in replies]))
    assert bodies[0] == bodies[1]
    assert bodies[0][1] == [201, 403, 404, 422]


def test_a_modeler_s_preview_is_refused_before_anything_is_looked_at(curator, owner, dataset, open_study):
    """How long a preview takes may depend on the data: nobody but the owner gets as far as the work."""
    study = open_study(owner, dataset)
    shown = []
    with curator.http(study.token) as modeler:
        for identity in (study.id, "std_0000000000000000"):
            reply = modeler.post(f"/v1/studies/{identity}:preview")
            assert (reply.status_code, reply.json()["code"]) == (403, "forbidden")
            shown.append({k: v for k, v in reply.json().items() if k not in ("instance", "request_id")})
        assert modeler.get(f"/v1/studies/{study.id}/accounting").status_code == 403
    assert shown[0] == shown[1]


# How many groups are candidates follows from their noisy numbers of records, which are released and charged.
OF_RECORDS = [name for name in MECHANISMS if name not in ("identity", "groups")]


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("name", OF_RECORDS)
def test_what_a_modeler_sees_does_not_depend_on_the_values(name, curator, open_by):
    """Two data sets with the same number of rows: but for ids and digests, the two studies read alike."""
    replies = []
    for stretch in (1.0, 0.01):
        study = open_by(name, stretch)
        with curator.http(study.token) as modeler:
            view = modeler.get(f"/v1/studies/{study.id}").json()
        replies.append({k: v for k, v in view.items() if k not in ("id", "grant_id", "release_id", "release_sha256")})
    assert replies[0] == replies[1]


# --- the same through both processes: a run, and every byte that the curator sent to it -------------------------


def _bytes_sent(proxy):
    """All that went back, connection by connection; neither compressed nor sealed, so that words can be looked for."""
    return "".join(bytes(sent).decode("latin-1") for sent in proxy.back)


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("name", MECHANISMS)
def test_a_run_in_a_process_of_its_own_is_sent_nothing_that_the_owner_alone_may_know(
    name, small, curator, vendor, open_by, run_of, bad_network
):
    """Every byte on the wire from the curator to the modeler's process, from the first look to the last answer."""
    study = open_by(name)
    with bad_network(curator.port, []) as proxy:
        started = vendor.start(run_of(proxy.url, study, iterations=3, initial_rows=2, seed=4))
        ended = vendor.wait(started.id, timeout_s=240)
    assert (ended.state, ended.trials, ended.problem) == ("completed", 5, None)
    sent = _bytes_sent(proxy)
    assert sent.count('"answers":[{') == 5
    assert f'"mechanism":"{TAKEN.get(name, name.split()[0])}"' in sent
    words = (*FORBIDDEN, *_private(small, study), '"rotate"', '"why"')
    sent = sent.replace('"measurement_source":"column"', "")  # where y comes from is public, which column is not
    assert [word for word in words if word in sent] == []
    with curator.http() as owner:  # the control: the same words, where they may be read
        shown = owner.get(f"/v1/studies/{study.id}").text
    columns, _ = _columns(small, name)
    assert all(word in shown for word in (*columns, small.names[2], study.view.spec.dataset_id, '"lower"', '"why"'))


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("name", OF_RECORDS)
def test_a_run_is_sent_as_much_whatever_the_values(name, curator, vendor, open_by, run_of, bad_network):
    """Data that are stretched: replies of the same kinds in the same order, view and Z of the same length."""
    shapes = []
    for stretch in (1.0, 0.01):
        study = open_by(name, stretch)
        with bad_network(curator.port, []) as proxy:
            started = vendor.start(run_of(proxy.url, study, iterations=1, initial_rows=2, random=True, seed=4))
            assert vendor.wait(started.id, timeout_s=240).state == "completed"
        sent = _bytes_sent(proxy)
        statuses, lengths = re.findall(r"HTTP/1.1 (\d+)", sent), re.findall(r"(?i)content-length: (\d+)", sent)
        shapes.append((statuses, lengths[:2]))
    assert shapes[0] == shapes[1]
    assert int(shapes[0][1][1]) == 128 + 400 * 8 * study.view.report.r  # Z alone


@pytest.mark.parametrize("reason", ["unknown_row", "study_not_open", "unauthenticated"])
def test_a_refused_query_is_recorded_alike_by_both_parties(reason, curator, owner, dataset, open_study):
    """Refusals are records too: the same fields on both sides, one each. So is that of a revoked grant."""
    study, replies = open_study(owner, dataset), []
    if reason == "study_not_open":
        owner.close_study(study.id)
    if reason == "unauthenticated":
        owner.revoke(study.id, study.grant_id)
    before = len(curator.records())
    query = wire.QueryRequest(rows=[wire.RowPlays(row=400 if reason == "unknown_row" else 0)])
    with (
        StudyClient(
            curator.url, study.token, study.id, watch=Watch(lambda exchange, _: replies.append(exchange))
        ) as client,
        pytest.raises(Remote) as refused,
    ):
        client.ask(query, key="refused-1")
    assert refused.value.remote_code == reason
    recorded = [record["exchange"] for record in curator.records()[before:]]
    assert recorded == [replies[0].as_json()]
    assert [entry.body.encode() for entry in owner.audit(study.grant_id)] == [replies[0].body]
    assert replies[0].status == refused.value.remote_status
