"""One run: fetch the candidates, choose, ask, store, until it ends."""

import json
import random
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from modeler_service import store
from modeler_service.algorithms.algorithm import memory_of
from modeler_service.candidates import fetched
from modeler_service.choosing import Choosing, Proposal
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


def query_of(row: int) -> wire.QueryRequest:
    """How a run asks for one measurement."""
    return wire.QueryRequest(rows=[wire.RowPlays(row=row, plays=1)])


def was_asked(db: Connection, key: str, request_sha256: str | None) -> bool:
    """Whether a run chose what a request under this key asks; None: whatever it asks."""
    run_id, _, number = key.rpartition(":")
    trial = store.trial(db, run_id, int(number)) if number.isdecimal() and len(number) < 10 else None
    return trial is not None and request_sha256 in (None, sha256(query_body(query_of(trial.row))))


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
        with StudyClient(
            self._spec.curator_url,
            self._token,
            self._spec.study_id,
            timeout_s=self._settings.curator_timeout_seconds,
            verify=str(self._settings.curator_ca) if self._settings.curator_ca else True,
            observe=self._witness.tell,
            cancelled=self._signal.is_set,
            progress=self._signal.progress,
        ) as curator:
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
        for name in ("release_sha256", "n", "r", "direction", "kernel", "measurement_noise_variance", "answers"):
            if self._begun is not None and getattr(self._begun, name) != getattr(study, name):
                raise ProtocolViolated(f"the study's {name} is not what it was when the run began")

    def _candidates(self, curator: StudyClient, study: wire.StudyView) -> Matrix:
        capacity = self._spec.iterations + self._spec.initial_rows
        if memory_of(self._spec.algorithm, study.n, study.r, capacity) > self._settings.run_memory_max_bytes:
            raise MemoryError
        return fetched(curator, study, self._folder, self._settings.candidates_max_bytes, self._retry)

    def _loop(self, curator: StudyClient, study: wire.StudyView, candidates: Matrix) -> Ending:
        choosing = Choosing(self._spec, study, candidates)
        warnings = json.dumps(choosing.warnings)
        self._write(lambda db: store.change_run(db, self._identity, warnings=warnings))
        while True:
            number = choosing.seen + 1
            if (outcome := self._stored(number)) is None:
                row = self._pending(number)
                proposals = choosing.next() if row is None else []
                if row is None and not proposals:
                    break
                self._signal.check()
                if row is None:
                    row = self._keep(number, proposals[0])
                outcome = self._ask(curator, number, row)
                if number % self._settings.countersign_every == 0:
                    self._settle(curator, study)
            choosing.observe(outcome.row, outcome.y, outcome.passport)
            self._signal.progress()
        self._conclude(curator, study)
        return {"state": "completed", "ended_because": choosing.ended_because}

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

    def _stored(self, number: int) -> wire.Answer | None:
        """The answer of a trial that was answered before the run was taken up."""
        if number > len(self._trials) or self._trials[number - 1].y is None:
            return None
        trial = self._trials[number - 1]
        passport = wire.NoisePassport.model_validate_json(trial.passport)
        return wire.Answer(row=trial.row, play=1, plays=trial.plays, y=trial.y, passport=passport)

    def _pending(self, number: int) -> int | None:
        """The row of a trial that was chosen before the run was taken up, and not answered."""
        return int(self._trials[number - 1].row) if number <= len(self._trials) else None

    def _keep(self, number: int, proposal: Proposal) -> int:
        """Store what was chosen before it is asked; the row."""
        now, values = stamp(self._desk.clock()), asdict(proposal)
        self._write(lambda db: store.add_trial(db, run_id=self._identity, number=number, chosen_at=now, **values))
        return proposal.row

    def _ask(self, curator: StudyClient, number: int, row: int) -> wire.Answer:
        """Ask for one measurement; answer and exchange are stored in one transaction."""
        reply, told = self._retry(lambda: curator.ask(query_of(row), key=f"{self._identity}:{number}"))
        answer = next((a for a in reply.answers if a.row == row), None)
        if answer is None or len(reply.answers) != 1:
            self._witness.tell(told.exchange, told.receipt)
            raise ProtocolViolated("the curator answered another row than was asked")
        if told.receipt is None:
            self._witness.tell(told.exchange, None)
            raise ProtocolViolated("the curator's answer came without a receipt of its log")
        now = self._desk.clock()

        def work(db: Connection) -> None:
            self._hold(db)
            store.answer_trial(
                db,
                self._identity,
                number,
                answered_at=stamp(now),
                query_id=reply.id,
                y=answer.y,
                plays=answer.plays,
                passport=answer.passport.model_dump_json(),
                reply=told.body,  # the log has its digest: so nobody can change y afterwards
            )
            if self._waited:
                store.change_run(db, self._identity, waits=0, waiting_since=None)
            self._witness.keep(db, told.exchange, told.receipt)

        self._desk.database.write(work)
        self._waited = False
        return answer

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
