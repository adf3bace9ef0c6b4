"""Verifying an audit log of 100,000 records."""

import io
import json
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.server import Failed, environment, scratch
from benchmarks.table import Table
from blindopt import wire
from blindopt.audit.merkle_log import sha256
from blindopt.audit.reconciliation import verify_export
from blindopt.wire.answers import NONE
from curator_service.context import open_context
from curator_service.settings import Settings
from curator_service.use_cases.curator import Curator
from curator_service.use_cases.studies.datasets import Upload
from curator_service.vault import Vault
from service_kit.context.request import RequestContext
from service_kit.identity.tokens import Principal
from service_kit.store.database import Connection

RECORDS = 100_000
RECORDS_PER_TRANSACTION = 10_000
ROUNDS = 3


def built(folder: Path) -> tuple[float, float]:
    """A curator's log of RECORDS records, made by its own code: seconds to make it, and to verify the export.

    A query with private answers is two records, and one exchange of the shared log.
    """
    curator = Curator(context := open_context(settings := Settings(data_dir=folder)), Vault(folder / "files"), settings)
    study, asking = study_of(curator)
    query = wire.QueryRequest(rows=[wire.RowPlays(row=7)])
    released = curator.exchange._check(asking(0), study, query)
    started = time.perf_counter()
    remaining, number = RECORDS - context.audit_trail.head().size, 0
    while remaining > 0:
        batch = [asking(number + i) for i in range(min(RECORDS_PER_TRANSACTION, remaining) // 2 or 1)]

        def work(db: Connection, request_of: list[RequestContext] = batch) -> None:
            for request in request_of:
                answers = curator.exchange._measured(released, query)
                curator.exchange._answer_at_once(db, request, study, released, query, answers)

        context.database.write(work)
        number += len(batch)
        remaining = RECORDS - context.audit_trail.head().size
    making = time.perf_counter() - started
    with context.database.read() as db:
        export = context.audit_trail.export(db)
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        head = verify_export(export)
        times.append(time.perf_counter() - started)
    context.close()
    if head.size < RECORDS:
        raise Failed(f"the log holds {head.size} records, not {RECORDS}")
    return making, float(np.median(times))


def study_of(curator: Curator, answers: wire.Answers = NONE) -> tuple[str, Callable[[int], RequestContext]]:
    """An open study of 1,000 rows, and the requests of its one grant by number."""
    _, owner = curator.context.authentication.issue("owner", "bench", days=1)

    def request_of(who: Principal, name: str) -> RequestContext:
        return RequestContext(who, secrets.token_hex(16), "POST", "/v1/bench", name, sha256(name.encode()))

    rows = np.random.default_rng(0).normal(size=(1_000, 3))
    text = "a,b,y\n" + "\n".join(",".join(map(repr, row)) for row in rows.tolist())
    upload = Upload(name="bench", public=True, columns=None, filename="bench.csv")
    dataset = json.loads(curator.datasets.register(request_of(owner, "data"), upload, io.BytesIO(text.encode())).body)
    spec = wire.StudyCreate(
        name="bench",
        dataset_id=dataset["id"],
        features=[wire.Feature(column=name, lower=-3.0, upper=3.0) for name in "ab"],
        measurement=wire.ColumnMeasurement(column="y", direction="maximize"),
        release=wire.IdentityRelease(mechanism="identity"),
        answers=answers,
    )
    study = json.loads(curator.studies.create(request_of(owner, "study"), spec).body)["id"]
    curator.releases.release(request_of(owner, "release"), study)
    granted = curator.grants.grant(request_of(owner, "grant"), study, wire.GrantCreate(name="bench"))
    grant = json.loads(granted.body)
    modeler = Principal(grant["id"], grant["kid"], "modeler", "bench", study)
    return study, lambda number: request_of(modeler, f"query {number}")


def command(folder: Path, *words: str) -> tuple[float, str]:
    """Median seconds of a whole process of the curator's command line, and what it said."""
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "curator_service", *words],
            env=environment({"BLINDOPT_CURATOR_DATA_DIR": str(folder)}),
            capture_output=True,
            text=True,
            check=False,
        )
        times.append(time.perf_counter() - started)
        if done.returncode:
            raise Failed(f"curator_service {' '.join(words)}: {done.stderr}")
    return float(np.median(times)), done.stdout


def tables() -> list[Table]:
    """The whole command, its start alone, and the pure function."""
    with scratch() as folder:
        making, pure = built(folder)
        whole, output = command(folder, "audit", "verify")
        start, _ = command(folder, "--version")
    if int(output.split()[0]) < RECORDS:
        raise Failed(f"audit verify said: {output}")
    seconds = [
        ("python -m curator_service audit verify, whole process", whole),
        ("python -m curator_service --version, whole process", start),
        ("blindopt.audit.reconciliation.verify_export, in memory", pure),
        ("appending them, 10,000 in a transaction", making),
    ]
    return [
        Table(
            f"A log of {RECORDS:,} records (goal: verified in less than 5 s)",
            ["what", "seconds", "records a second"],
            [[what, took, None if took is start else RECORDS / took] for what, took in seconds],
        )
    ]
