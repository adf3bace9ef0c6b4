"""A curator's data folder with many queries, written without HTTP."""

import io
import json
import secrets
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from blindopt import wire
from blindopt.audit.merkle_log import sha256
from curator_service.context import open_context
from curator_service.curator import Curator
from curator_service.datasets.datasets import Upload
from curator_service.datasets.readings import Reading
from curator_service.settings import Settings
from curator_service.vault import Vault
from demo.property_data import KERNEL
from service_kit.context.request import RequestContext
from service_kit.identity.tokens import Principal
from service_kit.store.database import Connection

QUOTA = 1 << 50
"""Bytes that its grants may add to the log in a day."""
BATCH = 10_000
"""Most queries in one transaction."""
LAPLACE = wire.LaplaceAnswers(mechanism="laplace", epsilon="0.01", value_bound=5.0)


class FilledCurator:
    """A curator in this process that registers a file of 1,000 rows and fills its data folder by its own code."""

    def __init__(self, folder: Path) -> None:
        settings = Settings(data_dir=folder, log_bytes_per_grant_day=QUOTA)
        self.curator = Curator(open_context(settings), Vault(folder / "files"), settings)
        _, self.owner = self.curator.context.authentication.issue("owner", "bench", days=1)
        rows = np.random.default_rng(0).normal(size=(1_000, 3))
        text = "a,b,y\n" + "\n".join(",".join(map(repr, row)) for row in rows.tolist())
        upload = Upload(name="bench", public=True, filename="bench.csv")
        file, reading = io.BytesIO(text.encode()), Reading("bench.csv")
        reply = self.curator.datasets.register(_request(self.owner, "data"), upload, file, reading)
        self.dataset = str(json.loads(reply.body)["id"])

    def study(
        self, name: str, measurement: wire.MeasurementSpec, answers: wire.Answers = LAPLACE
    ) -> tuple[str, wire.GrantReply]:
        """Open a study with one grant."""
        spec = wire.StudyCreate(
            name=name,
            dataset_id=self.dataset,
            features=[wire.Feature(column=column, lower=-3.0, upper=3.0) for column in "ab"],
            measurement=measurement,
            release=wire.IdentityRelease(mechanism="identity"),
            answers=answers,
            kernel=KERNEL,
        )
        study = str(json.loads(self.curator.studies.create(_request(self.owner, name), spec).body)["id"])
        self.curator.releases.release(_request(self.owner, f"release {name}"), study)
        return study, self.grant(study, f"grant {name}")

    def grant(self, study: str, name: str) -> wire.GrantReply:
        """Add a grant to a study."""
        granted = self.curator.grants.grant(_request(self.owner, name), study, wire.GrantCreate(name=name))
        return wire.GrantReply.model_validate_json(granted.body)

    def query(self, study: str, grant: wire.GrantReply, count: int, *, first: int = 0, later: bool = False) -> None:
        """Store ``count`` queries of one row each, numbered from ``first``; ``later``: they wait for people."""
        principal, use_case = Principal(grant.id, grant.kid, "modeler", "bench", study), self.curator.queries
        queries = [wire.QueryRequest(rows=[wire.RowPlays(row=row)]) for row in range(1_000)]
        with self.curator.context.database.read() as db:
            released = use_case._studies.of(db, study)

        def work(db: Connection, numbers: Iterable[int]) -> None:
            for number in numbers:
                query, request = queries[number % 1_000], _request(principal, f"{study} {number}")
                if later:
                    use_case._answer_later(db, request, study, released, query)
                else:
                    use_case._answer_at_once(db, request, study, released, query)

        for start in range(first, first + count, BATCH):
            numbers = range(start, min(start + BATCH, first + count))
            self.curator.context.database.write(lambda db, numbers=numbers: work(db, numbers))  # type: ignore[misc]

    def read(self, study: str, grant: wire.GrantReply, count: int) -> None:
        """Record ``count`` exchanges that only read."""
        principal = Principal(grant.id, grant.kid, "modeler", "bench", study)
        request = replace(_request(principal, "read"), method="GET", key=None)
        trail = self.curator.context.audit_trail
        self.curator.context.database.write(
            lambda db: [trail.record(db, request, 200, request.body_sha256) for _ in range(count)]
        )


def _request(principal: Principal, name: str) -> RequestContext:
    return RequestContext(principal, secrets.token_hex(16), "POST", "/v1/bench", name, sha256(name.encode()))
