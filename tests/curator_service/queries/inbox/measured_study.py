"""A study that people or a system measure, with clients for everybody who takes part."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from blindopt import wire
from blindopt.client import Measurer, Owner, StudyClient
from tests.builders import a_study_of
from tests.conftest import Service, Small

LAPLACE = wire.LaplaceAnswers(mechanism="laplace", epsilon="0.5", value_bound=5.0)


@dataclass
class MeasuredStudy:
    """An open study at a curator, with a modeler, a measurer and the owner."""

    service: Service
    study: str
    grant: wire.GrantReply
    measurer_token: str
    modeler: StudyClient
    measurer: Measurer
    owner: Owner

    def ask(self, *rows: int, plays: int = 1, key: str | None = None) -> wire.QueryPending:
        """A query of rows."""
        items = [wire.RowPlays(row=row, plays=plays) for row in rows]
        pending, _ = self.modeler.ask(wire.QueryRequest(rows=items), key=key or f"key-{rows}-{plays}")
        assert isinstance(pending, wire.QueryPending)
        return pending

    def items(self, query_id: str) -> list[wire.InboxItem]:
        """The measurements of a query."""
        return list(self.measurer.measurements(query_id=query_id, state="all"))

    def answer(self, query_id: str, *values: float, **more: Any) -> wire.QueryMeasurements:
        """Answer the first open measurements of a query."""
        still_open = [item for item in self.items(query_id) if item.state == "open"]
        return self.measurer.answer(query_id, answers_for(still_open, *values), **more)

    def reply(self, query_id: str, **more: Any) -> wire.QueryReply:
        """The answer of a query, as the modeler gets it."""
        reply, _ = self.modeler.query(query_id, **more)
        assert isinstance(reply, wire.QueryReply)
        return reply


def answers_for(items: list[wire.InboxItem], *values: float, note: str | None = None) -> wire.AnswerCreate:
    """Values for measurements, in their order, with the consent of each person who is asked for it."""
    measured = [wire.Measured(measurement_id=i.id, value=value) for i, value in zip(items, values, strict=False)]
    return wire.AnswerCreate(values=measured, note=note, consent=any(item.consent for item in items))


def draft(
    small: Small, dataset_id: str, source: str = "inbox", measurement: dict[str, Any] | None = None, **more: Any
) -> wire.StudyCreate:
    """A draft of a study that people or a system measure."""
    what = {"direction": "maximize", "shown": [small.names[0]], "unit": "mg", **(measurement or {})}
    webhook = source == "webhook"
    kind = wire.WebhookMeasurement(**what) if webhook else wire.InboxMeasurement(question="How much?", **what)
    return a_study_of(small, dataset_id, **{"name": "by hand", "measurement": kind, "kernel": small.kernel} | more)


@contextmanager
def open_measured_study(
    small: Small, service: Service, dataset_id: str | None = None, **more: Any
) -> Iterator[MeasuredStudy]:
    """Such a study, released, with a grant and a measurer. Without a dataset, the small one is registered."""
    with Owner(service.url, service.token, timeout_s=60) as owner:
        dataset_id = dataset_id or owner.register("n", small.csv, public=True).id
        token = service.run("token", "create", "--role", "measurer", "--name", "Ms M").stdout.strip()
        body, key = draft(small, dataset_id, **more).model_dump(mode="json"), {"Idempotency-Key": uuid4().hex}
        with service.http() as patient:  # it repeats what waits for the verification of the token
            study = patient.post("/v1/studies", json=body, headers=key).raise_for_status().json()["id"]
        owner.release(study)
        grant = owner.grant(study, wire.GrantCreate(name="modeler"))
        with StudyClient(service.url, grant.token, study) as modeler, Measurer(service.url, token) as measurer:
            yield MeasuredStudy(service, study, grant, token, modeler, measurer, owner)
