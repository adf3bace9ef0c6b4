"""What a modeler may do with a study: look at it, fetch its candidates, ask for measurements."""

import json
import secrets
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from curator_service import store
from curator_service.measurement.column import measure
from curator_service.privacy.guarantees import guarantee
from curator_service.release.registry import mechanism_of
from curator_service.vault import Vault, new_id
from shared import wire
from shared.errors import Invalid, NotFound, StudyNotOpen, UnknownRow
from shared.matrix import Vector
from shared.serving.desk import Asked, Desk, Effect
from shared.serving.store.database import Connection
from shared.serving.store.tables import StoredReply, stamp
from shared.serving.tokens import Principal


@dataclass(frozen=True, slots=True, repr=False)
class _Released:
    """What never changes once a study is released, read once."""

    spec: wire.StudyCreate
    id: str
    sha256: str
    n: int
    r: int
    order: NDArray[np.int64]
    outcomes: Vector
    """The measurement column in the order of the file, memory-mapped."""


class Exchanges:
    """The modeler's requests. Nothing it is told depends on the data but n, Z and the answers."""

    def __init__(self, desk: Desk, vault: Vault, limits: wire.Limits) -> None:
        self._desk = desk
        self._vault = vault
        self._limits = limits
        self._known: dict[str, _Released] = {}

    def study(self, identity: str) -> wire.StudyView:
        """All that a modeler may know of a study. StudyNotOpen before the release."""
        with self._desk.database.read() as db:
            released, state = self._released(db, identity), store.state_of(db, identity)
        spec, mechanism = released.spec, mechanism_of(released.spec)
        private = None if isinstance(spec.release, wire.IdentityRelease) else spec.release
        return wire.StudyView(
            id=identity,
            state="closed" if state == "closed" else "open",
            n=released.n,
            r=released.r,
            release_id=released.id,
            release_sha256=released.sha256,
            mechanism=mechanism.name,
            status=mechanism.status,
            epsilon=private.epsilon if private else None,
            delta=private.delta if private else None,
            sensitivity=private.sensitivity if private else None,
            noise=mechanism.noise(len(spec.features)),
            answers=spec.answers,
            direction=spec.measurement.direction,
            measurement_noise_variance=spec.measurement.noise_variance,
            kernel=spec.kernel,
            limits=self._limits,
            guarantee=guarantee(spec.release, len(spec.features)),
        )

    def candidates(self, identity: str) -> tuple[Path, str]:
        """The file of Z and its digest."""
        with self._desk.database.read() as db:
            released = self._released(db, identity)
        return self._vault.candidates(released.id), released.sha256

    def ask(self, asked: Asked, identity: str, request: wire.QueryRequest) -> StoredReply:
        """Measure rows: effect, reply and record are one transaction. Answers never change after.

        The noise is drawn before it, so that nobody waits for a draw; what was drawn for a request that
        turns out to be a repeat, or comes to a closed study, is dropped unseen.
        """
        if (found := self._desk.earlier(asked)) is not None:
            return found
        with self._desk.database.read() as db:
            released = self._released(db, identity)
            _check_open(db, identity)
        self._check(request, released.n)
        outcomes = released.outcomes[released.order[[item.row for item in request.rows]]]
        answers = measure(outcomes, request.rows, released.spec.measurement)
        return self._desk.once(asked, lambda db: self._answer(db, asked, identity, request, answers))

    def _answer(
        self, db: Connection, asked: Asked, identity: str, request: wire.QueryRequest, answers: list[wire.Answer]
    ) -> Effect:
        _check_open(db, identity)
        now = self._desk.clock()
        reply = wire.QueryReply(
            id=new_id("qry"),
            study_id=identity,
            state="answered",
            created_at=now,
            answers=answers,
            salt=secrets.token_hex(16),
        )
        store.insert(
            db,
            store.queries,
            id=reply.id,
            study_id=identity,
            kid=asked.principal.kid,
            request=request.model_dump_json(),
            reply=reply.model_dump_json().encode(),
            created_at=stamp(now),
        )
        return Effect(reply, "exchange", {"query_id": reply.id})

    def query(self, principal: Principal, study_id: str, identity: str) -> StoredReply:
        """The stored reply of a query of one's own. NotFound for another's."""
        with self._desk.database.read() as db:
            row = store.find(db, store.queries, identity)
        if (row.study_id, row.kid) != (study_id, principal.kid):
            raise NotFound("there is no such query")
        return StoredReply(200, row.reply)

    def _released(self, db: Connection, identity: str) -> _Released:
        if (known := self._known.get(identity)) is None:
            study, release = store.find(db, store.studies, identity), store.release_of(db, identity)
            if release is None:
                raise StudyNotOpen("the study has not released its candidates yet")
            spec = wire.StudyCreate.model_validate_json(study.spec)
            columns = json.loads(store.find(db, store.datasets, spec.dataset_id).columns)
            place = [column["name"] for column in columns].index(spec.measurement.column)
            known = self._known[identity] = _Released(
                spec=spec,
                id=release.id,
                sha256=release.sha256,
                n=release.n,
                r=release.r,
                order=self._vault.order(release.id),
                outcomes=self._vault.dataset(spec.dataset_id)[:, place],
            )
        return known

    def _check(self, request: wire.QueryRequest, n: int) -> None:
        most_rows, most_plays = self._limits.rows_per_query, self._limits.plays_per_row
        if len(request.rows) > most_rows:
            raise Invalid(f"a query may ask {most_rows} rows at most", [{"field": "rows", "message": "too many"}])
        for place, item in enumerate(request.rows):
            if item.plays > most_plays:
                fault: dict[str, object] = {"field": f"rows.{place}.plays", "message": "too many"}
                raise Invalid(f"a row may be played {most_plays} times at most", [fault])
            if item.row >= n:
                raise UnknownRow(f"rows.{place}.row: the release has rows 0 to {n - 1}")


def _check_open(db: Connection, identity: str) -> None:
    if store.state_of(db, identity) != "open":
        raise StudyNotOpen("the study is closed: it answers no more queries")
