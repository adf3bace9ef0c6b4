"""What must hold of two services whatever killed them and when. Each check fails with an AssertionError."""

import gzip
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby
from pathlib import Path
from typing import Any

from blindopt import wire
from blindopt.client import Owner, StudyClient
from blindopt.formats import npy_files
from blindopt.optimizer.chooser import RowChooser
from tests import postgres
from tests.builders import a_study_of
from tests.conftest import in_process


@dataclass(frozen=True)
class Study:
    """A study under test: what its answers cost, and the token of the grant that asks."""

    id: str
    token: str
    epsilon: str = "0"
    """Of one answer; 0 for a study whose answers are exact, which are counted and not priced."""
    paced: bool = False
    """Whether replies are sent at whole periods: then the charge is durable before anything is drawn."""


def draft(
    small: Any, dataset: str, *, epsilon: str = "0", answers: int | None = None, **chosen: Any
) -> wire.StudyCreate:
    """A study on the small data: exact answers, or Laplace noise of ``epsilon``; caps that ``answers`` just fit under.

    A charge too many would be refused, and end a run.
    """
    private = epsilon != "0"
    noise = {
        "answers": wire.LaplaceAnswers(mechanism="laplace", epsilon=epsilon, value_bound=1.0) if private else wire.NONE
    }
    spent = Decimal(epsilon) * answers if private and answers else None
    kernel = wire.Kernel(lengthscale=3.0, signal_variance=1.0, noise_variance=0.1 if private else 1e-4)
    settings: dict[str, Any] = {"release": wire.IdentityRelease(mechanism="identity"), **noise, **chosen}
    if isinstance(settings["release"], wire.GaussianRelease | wire.AxesRelease) and spent is not None:
        spent += Decimal(settings["release"].epsilon)
    caps = {"queries": answers, "epsilon_total": None if spent is None else f"{spent:f}"}
    return a_study_of(small, dataset, **caps | {"kernel": kernel} | settings)


def command(service: Any, *arguments: str) -> tuple[int, str]:
    """The command line of a service beside it: exit status and what it printed. In this process: it is quicker."""
    done = in_process(service, *arguments)
    return done.exit_code, done.output


# --- the story of runs: trials here, charges and replies there --------------------------------------


def check_runs(curator: Any, modeler: Any, study: Study, runs: Iterable[str], length: int) -> None:
    """Every run ended; each trial has one charge, one answer, and the y that the curator stored."""
    keys: dict[str, int] = {}
    for run in runs:
        state, because, problem = modeler.rows("SELECT state, ended_because, problem FROM runs WHERE id = ?", run)[0]
        assert (state, because, problem) == ("completed", "budget", None), f"{run}: {(state, because, problem)}"
        trials = modeler.rows("SELECT number, query, y FROM trials WHERE run_id = ? ORDER BY number", run)
        assert [number for number, *_ in trials] == list(range(1, length + 1)), f"{run} has not all its trials"
        assert all(y is not None for *_, y in trials), f"{run} has lost an answer"
        keys |= Counter(f"{run}:{first}" for _, first, _ in trials)
    records = records_of(curator)
    check_charges(curator, study, keys, records)
    check_answers(curator, study, keys, modeler, records, records_of(modeler))


def records_of(service: Any) -> list[dict[str, Any]]:
    """The records of a service's own log, read from its database and its archive."""
    bodies = dict(service.rows("SELECT seq, body FROM log"))
    for path in sorted((service.data / "archive").glob("*.gz")):
        archived = gzip.decompress(path.read_bytes()).splitlines()[1:]
        bodies |= {json.loads(body)["seq"]: body for body in archived}
    return [json.loads(bodies[seq]) for seq in range(len(bodies))]


def check_charges(curator: Any, study: Study, keys: dict[str, int], records: list[dict[str, Any]]) -> None:
    """The ledger has one charge for each row of ``keys`` and not a unit more; the log tells each query once."""
    runs = {key.partition(":")[0] for key in keys}
    queries = [
        (query, key)
        for query, key in curator.rows(
            "SELECT id, idempotency_key FROM queries WHERE grant_id = ?", _grant(curator, study)
        )
        if key.partition(":")[0] in runs
    ]
    charged, wanted = Counter(key for _, key in queries), Counter(keys.keys())
    assert charged == wanted, f"charged otherwise than asked: {_difference(charged, wanted)}"
    answered_keys = {query: keys[key] for query, key in queries}
    with Owner(curator.url, curator.token) as owner:
        of_study = list(owner.ledger(study.id))
    lines = [line for line in of_study if line.query_id in answered_keys and line.kind == "answers"]
    refined = Counter(line.row for line in of_study if line.kind == "refine")
    assert set(refined.values()) <= {1}, "a second draw was charged twice"
    assert Counter(line.query_id for line in lines) == Counter(answered_keys), (
        "the ledger charged a query twice, or not at all"
    )
    spent = sum(Decimal(line.epsilon or "0") for line in lines)
    assert spent == sum(keys.values()) * Decimal(study.epsilon), f"the ledger's sum is {spent}"
    charge_counts = Counter(
        record["details"]["query_id"]
        for record in records
        if record["kind"] == "charge" and record["details"].get("query_id") in answered_keys
    )
    assert charge_counts == Counter(answered_keys.keys()), "the log does not tell each charge once"


def check_answers(curator, study, keys, modeler, records, modeler_records):
    """What the modeler stored is what the curator stored, and both logs tell that reply and no other."""
    grant = _grant(curator, study)
    stored = curator.rows("SELECT idempotency_key, body FROM replies WHERE principal = ? AND status = 201", grant)
    replies = {key: wire.QueryReply.model_validate_json(body) for key, body in stored if key in keys}
    assert replies.keys() == keys.keys(), "the curator has no stored answer for a trial"
    draws = {(item.row, tuple(item.z)) for reply in replies.values() for item in reply.refined}
    assert len({row for row, _ in draws}) == len(draws), "a record has two second draws"
    for run in {key.partition(":")[0] for key in keys}:
        trials = modeler.rows(
            "SELECT number, query, row, y, query_id, passport FROM trials WHERE run_id = ? AND y IS NOT NULL", run
        )
        for number, first, row, y, query_id, passport in trials:
            reply = replies[f"{run}:{first}"]
            answer = reply.answers[number - first]
            assert len(reply.answers) == keys[f"{run}:{first}"]
            answer_sent = (reply.id, answer.row, answer.y, json.loads(answer.passport.model_dump_json()))
            of_trial, z = json.loads(passport), {item.row: item.z for item in reply.refined}.get(row)
            assert (of_trial.pop("z", None), answer_sent) == (z, (query_id, row, y, of_trial)), (
                f"trial {run}:{number} has another answer than was stored"
            )
    for name, log in (("curator", records), ("modeler", modeler_records)):
        digests: dict[str, set[str]] = {}
        first: Counter[str] = Counter()
        for record in log:
            exchange = record.get("exchange")
            if exchange and exchange["status"] == 201 and exchange["idempotency_key"] in keys:
                digests.setdefault(exchange["idempotency_key"], set()).add(exchange["reply_sha256"])
                first[exchange["idempotency_key"]] += not exchange["replayed"]
        assert digests.keys() == keys.keys(), f"an answer is not in the {name}'s log"
        assert all(len(stories) == 1 for stories in digests.values()), f"the {name} tells two answers to one query"
        assert name == "modeler" or set(first.values()) <= {1}, "the curator answered a query anew"


def check_countersigned(curator: Any, modeler: Any, study: Study) -> None:
    """Both hold the modeler's signature under a history that covers every answer."""
    grant = _grant(curator, study)
    last = max(
        exchange["position"]
        for (body,) in curator.rows("SELECT body FROM shared WHERE grant_id = ?", grant)
        if (exchange := json.loads(body))["status"] == 201
    )
    for service in (curator, modeler):
        size = service.rows("SELECT max(size) FROM countersignatures WHERE grant_id = ?", grant)[0][0] or 0
        assert size > last, f"the {service.name} holds a countersignature of {size} exchanges, an answer is at {last}"


def check_choices(modeler: Any, runs: Iterable[str]) -> None:
    """Every choice is what the release, the run's settings, the seed and the answers before it make it."""
    for run in runs:
        spec_text, study_text = modeler.rows("SELECT spec, study FROM runs WHERE id = ?", run)[0]
        spec, study = wire.RunSpec.model_validate_json(spec_text), wire.StudyView.model_validate_json(study_text)
        z = npy_files.load(modeler.data / "candidates" / f"{study.release_sha256}.npy")
        choosing = RowChooser(spec, study, z)
        rows = modeler.rows(
            "SELECT query, phase, row, mean, sd, ties, y, passport, declined FROM trials"
            " WHERE run_id = ? ORDER BY number",
            run,
        )
        for first, query in groupby(rows, lambda trial: trial[0]):
            trials, choices = list(query), choosing.next()
            derived = [(first, choice.phase, choice.row, choice.mean, choice.sd, choice.ties) for choice in choices]
            stored = [trial[:6] for trial in trials]
            assert stored == derived, (
                f"trial {run}:{first} was chosen otherwise than its past says: {stored} and not {derived}, {spec}"
            )
            for _, _, row, _, _, _, y, passport, declined in trials:
                if declined:  # the budget is used up: other rows are tried before the run ends
                    choosing.decline(row)
                elif y is not None:
                    choosing.observe(row, y, wire.NoisePassport.model_validate_json(passport))


def check_exact(modeler: Any, run: str, small: Any) -> None:
    """Each answer is the outcome itself: with ``check_choices``, the run is the one that nobody disturbed."""
    ((text,),) = modeler.rows("SELECT study FROM runs WHERE id = ?", run)
    sha256 = wire.StudyView.model_validate_json(text).release_sha256
    order = small.place_of(npy_files.load(modeler.data / "candidates" / f"{sha256}.npy"))
    for number, row, y in modeler.rows("SELECT number, row, y FROM trials WHERE run_id = ?", run):
        assert y == small.y[order[row]], f"trial {run}:{number} has not the outcome of its row"


def check_replays(curator: Any, study: Study, keys: Iterable[str]) -> None:
    """Asked again under its key, a query gets the stored bytes. Adds to the logs: for the end."""
    grant = _grant(curator, study)
    with StudyClient(curator.url, study.token, study.id) as client:
        for key in keys:
            request, body = curator.rows(
                "SELECT q.request, r.body FROM queries q JOIN replies r ON r.principal = q.grant_id"
                " AND r.idempotency_key = q.idempotency_key WHERE q.grant_id = ? AND q.idempotency_key = ?",
                grant,
                key,
            )[0]
            _, reply = client.ask(wire.QueryRequest.model_validate_json(request), key=key)
            assert reply.body == body, f"a replay of {key} has other bytes"
            assert reply.exchange.replayed


def _grant(curator: Any, study: Study) -> str:
    kid = study.token.partition("_")[2].partition(".")[0]
    return str(curator.rows("SELECT principal FROM tokens WHERE kid = ?", kid)[0][0])


def _difference(a: Counter[str], b: Counter[str]) -> str:
    return f"{dict(a - b)} too much, {dict(b - a)} too little"


# --- logs, files, databases -------------------------------------------------------------------------


def check_service(service: Any) -> None:
    """Its logs, signatures and tables verify, its database is whole, no file is left over."""
    status, output = command(service, "audit", "verify")
    assert status == 0, f"audit verify of the {service.name}: {output}"
    if not postgres.ON:
        assert service.rows("PRAGMA integrity_check") == [("ok",)]
        assert service.rows("PRAGMA foreign_key_check") == []
    remaining = {path.name for path in service.data.rglob("*.part")} - {"checkpoint.part"}
    if service.name == "curator":
        named = {f"{name}.npy" for (name,) in service.rows("SELECT id FROM datasets WHERE erased_at IS NULL")}
        released = service.rows(
            "SELECT r.id FROM releases r JOIN studies s ON s.id = r.study_id JOIN datasets d ON d.id = s.dataset_id "
            "WHERE d.erased_at IS NULL"
        )
        named |= {f"{name}{end}.npy" for (name,) in released for end in ("", ".order")}
        remaining |= {path.name for path in (service.data / "files").rglob("*.npy")} ^ named
        assert service.rows("SELECT id FROM studies WHERE state = 'releasing'") == []
    assert remaining == set(), f"files of the {service.name}: {remaining}"


def faults_in(log: str) -> list[str]:
    """The lines of a service's log that report a fault of ours; a line that a kill cut in two reports none."""
    return [line for line in log.splitlines() if '"message": "fault"' in line]


def export(service: Any, folder: Path) -> Path:
    """The export of a service as a file."""
    status, output = command(service, "audit", "export")
    assert status == 0, output
    path = folder / f"{service.name}-{service.port}.jsonl"
    path.write_text(output)
    return path


def check_reconciled(curator: Any, modeler: Any, studies: Iterable[str], folder: Path) -> None:
    """The two exports tell of each study the same exchanges, to the byte."""
    ours, theirs = export(curator, folder), export(modeler, folder)
    for study in studies:
        for service in (curator, modeler):
            status, output = command(service, "audit", "reconcile", study, str(ours), str(theirs))
            assert (status, output.endswith(" exchanges compared, 0 differences\n")) == (0, True), output
