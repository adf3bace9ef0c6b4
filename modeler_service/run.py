"""One run: fetch the candidates, choose, ask, store, until it ends."""

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from modeler_service import store
from modeler_service.beliefs import recommended
from modeler_service.candidates import fetched
from modeler_service.choosing import Choosing, Proposal, memory_needed
from modeler_service.record import observations_of
from modeler_service.settings import Settings
from modeler_service.signals import Interrupted, Signal
from modeler_service.witness import Witness
from shared import wire
from shared.audit import sha256
from shared.client import StudyClient, query_body
from shared.errors import BlindoptError, ProtocolViolated, Remote, Unreachable
from shared.matrix import Matrix
from shared.serving.desk import Desk
from shared.serving.store.base import stamp
from shared.serving.store.database import Connection

T = TypeVar("T")
Ending = dict[str, str | None]


SETTLED = (
    "release_sha256", "n", "r", "direction", "kernel", "measurement_noise_variance", "answers", "noise", "privacy_unit"
)  # fmt: skip
"""What of a study its runs' choices depend on: it may not change while one goes on."""


def query_of(rows: Iterable[int]) -> wire.QueryRequest:
    """How a run asks for one measurement of each of ``rows``."""
    return wire.QueryRequest(rows=[wire.RowPlays(row=row, plays=1) for row in rows])


def was_asked(db: Connection, key: str, request_sha256: str | None) -> bool:
    """Whether a run chose what a request under this key asks; None: whatever it asks."""
    run_id, _, number = key.rpartition(":")
    rows = store.query_rows(db, run_id, int(number)) if number.isdecimal() and len(number) < 10 else []
    return bool(rows) and request_sha256 in (None, sha256(query_body(query_of(rows))))


def connected(
    settings: Settings,
    spec: wire.RunSpec | wire.StudyAccess,
    token: str,
    witness: Witness,
    *,
    cancelled: Callable[[], bool] = lambda: False,
    progress: Callable[[], None] = lambda: None,
) -> StudyClient:
    """A connection to the curator of a study; every exchange is told to the witness."""
    return StudyClient(
        spec.curator_url,
        token,
        spec.study_id,
        timeout_s=settings.curator_timeout_seconds,
        verify=str(settings.curator_ca) if settings.curator_ca else True,
        observe=witness.tell,
        cancelled=cancelled,
        progress=progress,
    )


def can_retry(error: BlindoptError) -> bool:
    """Whether the same request may succeed later."""
    return error.remote_retryable if isinstance(error, Remote) else error.retryable


class Run:
    """One run in its own thread, with one connection to its curator, while it holds the run's lease."""

    def __init__(self, desk: Desk, settings: Settings, folder: Path, identity: str, lease: int, signal: Signal) -> None:
        self._desk, self._settings, self._folder = desk, settings, folder
        self._identity, self._lease, self._signal = identity, lease, signal
        with desk.database.read() as db:
            row = store.run(db, identity)
            self._trials = store.trial_page(db, identity)
            last = store.last_fit(db, identity)
            self._observations = observations_of(db, identity)
        self._fit_told = wire.Fitted.model_validate_json(last).answers if last else 0
        self._spec = wire.RunSpec.model_validate_json(row.spec)
        self._begun = wire.StudyView.model_validate_json(row.study) if row.study else None
        self._waited = row.waits > 0
        self._token = desk.unseal(row.sealed_token).decode()
        self._witness = Witness(desk, self._spec.study_id, identity, was_asked)

    def work(self) -> Ending:
        """Run to its end; how it ended. Raises Interrupted, and errors of which some may pass."""
        try:
            return self._work()
        except ProtocolViolated as error:
            self._witness.dispute(str(error))
            raise

    def _work(self) -> Ending:
        self._signal.check()
        signals: dict[str, Any] = {"cancelled": self._signal.is_set, "progress": self._signal.progress}
        with connected(self._settings, self._spec, self._token, self._witness, **signals) as curator:
            study = self._retry(curator.study)
            self._check_same(study)
            self._witness.trust(study, self._spec.log_key)
            self._write(lambda db: store.change_run(db, self._identity, study=study.model_dump_json()))
            candidates = self._candidates(curator, study)
            try:
                return self._loop(curator, study, candidates)
            except Remote as error:
                if not can_retry(error):  # refused: what was said until then is settled all the same
                    self._conclude(curator, study)
                raise

    def _check_same(self, study: wire.StudyView) -> None:
        """ProtocolViolated if a run that goes on meets another study than it began with."""
        if self._begun is not None and self._begun.grant_id != study.grant_id:
            # There its keys name other requests: what was charged and not yet answered would be charged again.
            raise ProtocolViolated("the token is of another grant than the one that the run began with")
        for name in SETTLED:
            if self._begun is not None and getattr(self._begun, name) != getattr(study, name):
                raise ProtocolViolated(f"the study's {name} is not what it was when the run began")

    def _candidates(self, curator: StudyClient, study: wire.StudyView) -> Matrix:
        if memory_needed(self._spec, study, len(self._observations)) > self._settings.run_memory_max_bytes:
            raise MemoryError
        return fetched(curator, study, self._folder, self._settings.candidates_max_bytes, self._retry)

    def _loop(self, curator: StudyClient, study: wire.StudyView, candidates: Matrix) -> Ending:
        choosing = Choosing(self._spec, study, candidates, self._observations, tick=self._goes_on)
        warnings = json.dumps(choosing.warnings)
        self._write(lambda db: store.change_run(db, self._identity, warnings=warnings))
        while True:
            first = choosing.seen + 1
            rows = self._chosen(first)
            if (answers := self._stored(first, len(rows))) is None:
                proposals = [] if rows else choosing.next()
                if not rows and not proposals:
                    break
                self._signal.check()
                rows = rows or self._keep(first, proposals, choosing.fitted)
                answers = self._ask(curator, first, rows)
                last, every = first + len(rows) - 1, self._settings.countersign_every
                if last // every > (first - 1) // every:
                    self._settle(curator, study)
            for answer in answers:
                self._goes_on()
                choosing.observe(answer.row, answer.y, answer.passport)
            self._signal.progress()
        told = recommended(choosing, "asked")
        self._conclude(curator, study)
        return {
            "state": "completed",
            "ended_because": choosing.ended_because,
            "recommendation": None if told is None else told.model_dump_json(),
        }

    def _goes_on(self) -> None:
        """Within what takes long: it is neither hung nor deaf."""
        self._signal.check()
        self._signal.progress()

    def _settle(self, curator: StudyClient, study: wire.StudyView) -> None:
        """Compare and countersign the shared log; where the curator does not answer, the next one covers it."""
        try:
            self._witness.settle(curator, study.grant_id)
        except (Remote, Unreachable):
            return

    def _conclude(self, curator: StudyClient, study: wire.StudyView) -> None:
        """Settle for the last time: a run waits for a curator that does not answer, since no next time covers it."""
        try:
            self._retry(lambda: self._witness.settle(curator, study.grant_id))
        except Remote as error:
            if can_retry(error):
                raise

    def _chosen(self, first: int) -> list[int]:
        """The rows of the query that begins with this trial, if it was chosen before the run was taken up."""
        end = first - 1
        while end < len(self._trials) and self._trials[end].query == first:
            end += 1
        return [int(trial.row) for trial in self._trials[first - 1 : end]]

    def _stored(self, first: int, count: int) -> list[wire.Answer] | None:
        """The answers of a query that was answered before the run was taken up: all at once, or none."""
        trials = self._trials[first - 1 : first - 1 + count]
        if not trials or trials[0].y is None:
            return None
        passports = [wire.NoisePassport.model_validate_json(trial.passport) for trial in trials]
        return [
            wire.Answer(row=trial.row, play=1, plays=trial.plays, y=trial.y, passport=passport)
            for trial, passport in zip(trials, passports, strict=True)
        ]

    def _keep(self, first: int, proposals: list[Proposal], fitted: wire.Fitted | None) -> list[int]:
        """Store what was chosen before it is asked; the rows."""
        now, news = stamp(self._desk.clock()), self._newly(fitted)

        def work(db: Connection) -> None:
            for number, proposal in enumerate(proposals, start=first):
                values = asdict(proposal) | {"fitted": news if number == first else None}
                store.add_trial(db, run_id=self._identity, number=number, query=first, chosen_at=now, **values)

        self._write(work)
        return [proposal.row for proposal in proposals]

    def _newly(self, fitted: wire.Fitted | None) -> str | None:
        """A fit as it is stored, unless it was told before."""
        if fitted is None or fitted.answers <= self._fit_told:
            return None
        self._fit_told = fitted.answers
        return fitted.model_dump_json()

    def _ask(self, curator: StudyClient, first: int, rows: list[int]) -> list[wire.Answer]:
        """Ask for one measurement of each row; answers and exchange are stored in one transaction."""
        reply, told = self._retry(lambda: curator.ask(query_of(rows), key=f"{self._identity}:{first}"))
        if isinstance(reply, wire.QueryPending):
            self._witness.tell(told.exchange, told.receipt)
            raise ProtocolViolated("the curator's study measures later: this modeler does not wait yet")
        answers = reply.answers
        if [answer.row for answer in answers] != rows:
            self._witness.tell(told.exchange, told.receipt)
            raise ProtocolViolated("the curator answered other rows than were asked")
        if told.receipt is None:
            self._witness.tell(told.exchange, None)
            raise ProtocolViolated("the curator's answer came without a receipt of its log")
        now = self._desk.clock()

        def work(db: Connection) -> None:
            self._hold(db)
            for number, answer in enumerate(answers, start=first):
                store.answer_trial(
                    db,
                    self._identity,
                    number,
                    answered_at=stamp(now),
                    query_id=reply.id,
                    y=answer.y,
                    plays=answer.plays,
                    passport=answer.passport.model_dump_json(),
                    # The log has its digest: so nobody can change y afterwards.
                    reply=told.body if number == first else None,
                )
            if self._waited:
                store.change_run(db, self._identity, waits=0, waiting_since=None)
            self._witness.keep(db, told.exchange, told.receipt)

        self._desk.database.write(work)
        self._waited = False
        return answers

    def _retry(self, call: Callable[[], T]) -> T:
        """Call again, ever slower, while a retry may help. Interrupted when told so meanwhile."""
        wait = 0.1
        for left in reversed(range(self._settings.retry_attempts)):
            try:
                found = call()
                self._signal.progress()
                return found
            except (Remote, Unreachable) as error:
                if not left or not can_retry(error):
                    raise
                asked = (error.retry_after_s if isinstance(error, Remote) else None) or 0.0
            # Jitter keeps many runs from knocking in step; it is no secret and decides nothing.
            pause = max(wait * random.uniform(0.5, 1.0), asked)  # noqa: S311
            self._signal.wait(min(pause, self._settings.retry_seconds_max))
            wait *= 2
        raise AssertionError("unreachable")

    def _hold(self, db: Connection) -> None:
        """Interrupted if the run was given to another worker meanwhile."""
        if not store.beat(db, self._identity, self._lease, stamp(self._desk.clock())):
            raise Interrupted

    def _write(self, work: Callable[[Connection], None]) -> None:
        def held(db: Connection) -> None:
            self._hold(db)
            work(db)

        self._desk.database.write(held)
