"""Release mechanisms that turned out to be wrong, and what follows for the studies that used them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from blindopt import wire
from blindopt.audit.merkle_log import sha256
from blindopt.errors import Invalid, StateConflict
from curator_service import store
from curator_service.privacy.choice import Concrete, as_run, concrete
from curator_service.privacy.guarantees import guarantee
from curator_service.release.registry import MECHANISMS
from curator_service.store import advisories as table
from curator_service.vault import new_id
from service_kit.context.context import ServiceContext
from service_kit.context.request import Effect, RequestContext
from service_kit.store.base import moment, stamp
from service_kit.store.database import Connection
from service_kit.store.stored_replies import StoredReply


@dataclass(frozen=True, slots=True)
class Advisory:
    """The withdrawal of one version of a mechanism."""

    id: str
    mechanism: str
    version: int
    reason: str
    created_at: datetime


BUILT_IN: tuple[Advisory, ...] = ()
"""Withdrawals that come with this program. They count like the owner's own, and come first."""


@dataclass(frozen=True, slots=True)
class ReleaseStatus:
    """The release of a study, as it ran or would run, why that one, and the reason of its withdrawal if any.

    ``public``: whether the owner declares that nobody in the dataset needs protection; ``sandbox``: whether it is made
    up.
    """

    release: Concrete
    why: str | None
    withdrawn: str | None
    public: bool = False
    sandbox: bool = False

    def promise(self, spec: wire.StudyCreate) -> str:
        """The guarantee of the study, in words for every party."""
        return guarantee(spec, self.withdrawn, self.release, public=self.public, sandbox=self.sandbox)


class Advisories:
    """Withdrawals of mechanisms. Each is permanent and concerns one version."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    def withdraw(self, request: RequestContext, advisory: wire.AdvisoryCreate) -> StoredReply:
        """Refuse new releases with a mechanism from now on. Raises Invalid, StateConflict."""
        faults: list[dict[str, object]] = []
        if advisory.mechanism not in (versions := _versions()):
            faults.append({"field": "mechanism", "message": "there is no such mechanism: /v1/meta lists them"})
        elif advisory.version > versions[advisory.mechanism]:
            faults.append({"field": "version", "message": "there is no such version yet: /v1/meta lists the latest"})
        if faults:
            raise Invalid("only a mechanism that this curator has can be withdrawn", faults)

        def effect(db: Connection) -> Effect:
            if (advisory.mechanism, advisory.version) in reasons(db):
                raise StateConflict("this version of the mechanism is withdrawn already")
            now = self._context.clock()
            values = advisory.model_dump(include={"mechanism", "version", "reason"})
            added = Advisory(new_id("adv"), **values, created_at=now)
            store.insert(db, table.advisories, id=added.id, **values, created_at=stamp(now))
            # The reason may be long, and its words are the owner's: the log has its digest.
            details = {
                "advisory_id": added.id,
                "mechanism": added.mechanism,
                "version": added.version,
                "reason_sha256": sha256(added.reason.encode()),
            }
            return Effect(_view(db, added), "mechanism.withdrawn", details)

        return self._context.idempotency.once(request, effect)

    def page(self, after: int, limit: int) -> list[tuple[int, wire.AdvisoryView]]:
        """Advisories with their positions from 1, those of the program first."""
        with self._context.database.read() as db:
            numbered = enumerate(_every(db), start=1)
            return [(position, _view(db, advisory)) for position, advisory in numbered if position > after][:limit]

    def withdrawn(self) -> set[str]:
        """Mechanisms whose present version is withdrawn."""
        with self._context.database.read() as db:
            return names(db)


Reasons = Mapping[tuple[str, int], str]


def reasons(db: Connection) -> Reasons:
    """The reason of each withdrawal, by mechanism and version."""
    return {(advisory.mechanism, advisory.version): advisory.reason for advisory in _every(db)}


def names(db: Connection) -> set[str]:
    """Mechanisms whose present version is withdrawn."""
    return _present(reasons(db))


def _present(withdrawn: Reasons) -> set[str]:
    versions = _versions()
    return {mechanism for mechanism, version in withdrawn if versions.get(mechanism) == version}


def release_status(
    db: Connection,
    spec: wire.StudyCreate,
    report: wire.ReleaseReport | None,
    withdrawn: Reasons | None = None,
    dataset: Any = None,
) -> ReleaseStatus:
    """The release of a study: the one that ran if there is a report of it, else the one that would run today.

    ``withdrawn`` and ``dataset``: ``reasons``, and the row of the study's dataset, if the caller has read them.
    """
    why_withdrawn = reasons(db) if withdrawn is None else withdrawn
    if dataset is None:
        dataset = store.find(db, store.datasets, spec.dataset_id)
    kind = {"public": bool(dataset.public), "sandbox": bool(dataset.sandbox)}
    if report is not None:
        release = as_run(spec, report.mechanism, report.delta)
        return ReleaseStatus(release, report.why, why_withdrawn.get((report.mechanism, report.version)), **kind)
    release, why = concrete(spec, _present(why_withdrawn))
    version = _versions().get(release.mechanism, 0)
    return ReleaseStatus(release, why, why_withdrawn.get((release.mechanism, version)), **kind)


def _versions() -> dict[str, int]:
    return {mechanism.name: mechanism.version for mechanism in MECHANISMS}


def _every(db: Connection) -> list[Advisory]:
    stored = [
        Advisory(row.id, row.mechanism, row.version, row.reason, moment(row.created_at))
        for row in store.every(db, table.advisories)
    ]
    return [*BUILT_IN, *stored]


def _view(db: Connection, advisory: Advisory) -> wire.AdvisoryView:
    return wire.AdvisoryView(
        id=advisory.id,
        mechanism=advisory.mechanism,
        version=advisory.version,
        reason=advisory.reason,
        created_at=advisory.created_at,
        affected=table.affected(db, advisory.mechanism, advisory.version),
    )
