"""Studies that people or a system measure, and those who do."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shared import wire
from shared.client import MeasurerClient, OwnerClient, StudyClient
from tests.conftest import Service, Small
from tests.curator_service.inbox.asked import Asked


@pytest.fixture(scope="session")
def study_of(small: Small) -> Callable[..., wire.StudyCreate]:
    """A draft of a study that people measure."""

    def make(dataset_id: str, source: str = "inbox", measurement: dict[str, Any] | None = None, **more: Any) -> Any:
        what = {"direction": "maximize", "shown": [small.names[0]], "unit": "mg", **(measurement or {})}
        kind = wire.WebhookMeasurement(**what)
        if source == "inbox":
            kind = wire.InboxMeasurement(question="How much?", **what)
        return wire.StudyCreate(
            name="by hand",
            dataset_id=dataset_id,
            features=small.features,
            measurement=kind,
            release=wire.IdentityRelease(mechanism="identity"),
            kernel=small.kernel,
            **more,
        )

    return make


@pytest.fixture(scope="session")
def asked_of(study_of: Callable[..., wire.StudyCreate]) -> Callable[..., Any]:
    """Opens such a study."""

    @contextmanager
    def make(service: Service, dataset_id: str, **more: Any) -> Iterator[Asked]:
        with OwnerClient(service.url, service.token, timeout_s=60) as owner:
            study = owner.create_study(study_of(dataset_id, **more)).id
            owner.release(study)
            grant = owner.grant(study, wire.GrantCreate(name="modeler"))
            token = service.run("token", "create", "--role", "measurer", "--name", "Ms M").stdout.strip()
            with (
                StudyClient(service.url, grant.token, study) as modeler,
                MeasurerClient(service.url, token) as measurer,
            ):
                yield Asked(service, study, grant, token, modeler, measurer, owner)

    return make
