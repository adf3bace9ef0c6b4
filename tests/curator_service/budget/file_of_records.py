"""A curator in this process with one file of records, and the acts that spend on it."""

from typing import Any

import httpx

from blindopt import wire
from curator_service.settings import Settings
from service_kit.store import audit_log
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator

N = 6
CSV = b"a,b,y\n" + b"\n".join(b"%d,%d,%d" % (i % 3, i % 2, i % 4) for i in range(N)) + b"\n"


def spec_of(dataset: str, **more: Any) -> dict[str, Any]:
    """The body of a study on the file: planar Laplace of epsilon 1, private answers of epsilon 0.5 by default."""
    fields: dict[str, Any] = {
        "name": "study",
        "dataset_id": dataset,
        "features": [wire.Feature(column=column, lower=0.0, upper=4.0) for column in ("a", "b")],
        "measurement": wire.ColumnMeasurement(column="y", direction="maximize"),
        "release": wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1"),
        "answers": wire.LaplaceAnswers(mechanism="laplace", epsilon="0.5", value_bound=4.0),
    }
    return wire.StudyCreate(**fields | more).model_dump(mode="json")


class FileOfRecords:
    """One file at a curator; every act is a request over ASGI."""

    def __init__(
        self,
        folder: Any,
        *,
        public: bool = False,
        csv: bytes = CSV,
        fields: dict[str, str] | None = None,
        name: str = "n",
        **settings: Any,
    ) -> None:
        self.in_process = InProcessCurator(folder, **settings)
        self.tokens: dict[str, str] = {}
        self.csv = csv
        self.dataset = self.register(public=public, name=name, **(fields or {}))

    def reopen(self) -> None:
        """Close as a kill does, with nothing said to anybody, and open again."""
        self.in_process.reopen()

    def register(self, *, public: bool = False, **more: str) -> str:
        return self.in_process.register(self.csv, public=public, **more)

    def decide(self, dataset: str, **decision: Any) -> httpx.Response:
        """Decide about a dataset that has people of earlier ones."""
        return self.in_process.send("owner", "POST", f"/v1/datasets/{dataset}:decide", json=decision)

    def draft(self, dataset: str | None = None, **more: Any) -> str:
        body = spec_of(dataset or self.dataset, **more)
        return str(self.in_process.call("owner", "POST", "/v1/studies", json=body)["id"])

    def release(self, study: str) -> httpx.Response:
        """Release a draft, whatever its preview found."""
        read = self.in_process.call("owner", "GET", f"/v1/studies/{study}")["spec_sha256"]
        body = {"spec_sha256": read, "confirm_high_risk": True, "confirm_chance": True, "confirm_consent": True}
        return self.in_process.send("owner", "POST", f"/v1/studies/{study}:release", json=body)

    def study(self, dataset: str | None = None, **more: Any) -> str:
        """An open study with a grant."""
        study = self.draft(dataset, **more)
        reply = self.release(study)
        assert reply.status_code == 200, reply.text
        return self.grant(study)

    def grant(self, study: str) -> str:
        self.in_process.grant(study, study)
        self.tokens[study] = self.in_process.tokens[study]
        return study

    def ask(
        self, study: str, *rows: int, plays: int = 1, key: str | None = None, grant: str | None = None
    ) -> httpx.Response:
        """Query rows, by the study's first grant or by another one."""
        body = {"rows": [{"row": row, "plays": plays} for row in rows]}
        return self.in_process.send(grant or study, "POST", f"/v1/studies/{study}/queries", json=body, key=key)

    def account(self, dataset: str | None = None, **query: Any) -> wire.DatasetAccount:
        path = f"/v1/datasets/{dataset or self.dataset}/account"
        reply = self.in_process.send("owner", "GET", path, params={"page_size": 1000, **query})
        assert reply.status_code == 200, reply.text
        return wire.DatasetAccount.model_validate_json(reply.content)

    def caps(self, epsilon: str | None, delta: float | None = None, **more: Any) -> httpx.Response:
        body = {"epsilon": epsilon, "delta": delta, **more}
        return self.in_process.send("owner", "PUT", f"/v1/datasets/{self.dataset}/account/caps", json=body)

    def order(self, study: str) -> list[int]:
        """The record of each row of Z, from 0: the secret that no reply shows."""
        release = self.in_process.call("owner", "GET", f"/v1/studies/{study}")["release_id"]
        return [int(record) for record in self.in_process.curator.vault.order(release)]

    def row_of(self, study: str, record: int) -> int:
        return self.order(study).index(record)

    def records(self, *kinds: str) -> list[dict[str, Any]]:
        """The details of the log's records of these kinds."""
        with self.in_process.context.database.read() as db:
            entries = [entry.record for entry in audit_log.walk(db)]
        return [record["details"] for record in entries if record["kind"] in kinds]

    def close(self) -> None:
        self.in_process.check()  # what `audit verify` checks
        self.in_process.curator.close()
        self.in_process.close()


__all__ = ["CSV", "FileOfRecords", "N", "Settings", "spec_of"]
