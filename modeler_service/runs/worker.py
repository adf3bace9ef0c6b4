"""One run: fetch the candidates, choose, ask, store, until it ends."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from blindopt import wire
from blindopt.arrays import Matrix
from blindopt.audit.merkle_log import sha256
from blindopt.client import StudyClient, query_body
from blindopt.errors import ProtocolViolated, Remote, Unreachable
from modeler_service import store
from modeler_service.choosing.chooser import Proposal, RowChooser, memory_needed
from modeler_service.runs.candidates import fetched
from modeler_service.runs.curator_queries import Asking, query_of
from modeler_service.runs.interrupts import Signal
from modeler_service.runs.lease import Hold, can_retry
from modeler_service.runs.posterior_views import recommended
from modeler_service.runs.record import observations_of
from modeler_service.runs.witness import Witness
from modeler_service.settings import Settings
from service_kit.context.context import ServiceContext
from service_kit.store.base import stamp
from service_kit.store.database import Connection

Ending = dict[str, Any]
SETTLED = (
    "release_sha256", "n", "r", "direction", "kernel", "measurement_noise_variance", "answers", "noise", "privacy_unit",
    "measurement_source",
)  # fmt: skip
"""What of a study its runs' choices depend on: it may not change while one goes on."""


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


class Run:
    """One run in its own thread, with one connection to its curator, while it holds the run's lease.

    ``crowded`` tells whether other runs want its worker.
    """

    def __init__(
        self,
        context: ServiceContext,
        settings: Settings,
        folder: Path,
        identity: str,
        lease: int,
        signal: Signal,
        crowded: Callable[[], bool] = lambda: False,
    ) -> None:
        self._settings, self._folder, self._identity, self._signal = settings, folder, identity, signal
        self._hold = hold = Hold(context, settings, identity, lease, signal)
        row = hold.read(lambda db: store.run(db, identity))
        last = hold.read(lambda db: store.last_fit(db, identity))
        self._observations = hold.read(lambda db: observations_of(db, identity))
        self._fit_told = _values(wire.Fitted.model_validate_json(last)) if last else None
        self._spec = wire.RunSpec.model_validate_json(row.spec)
        self._begun = wire.StudyView.model_validate_json(row.study) if row.study else None
        self._token = context.seal.open(row.sealed_token).decode()
        self._witness = Witness(context, self._spec.study_id, identity, was_asked)
        self._asking = Asking(hold, self._witness, crowded)

    def work(self) -> Ending:
        """Run to its end; how it ended. Raises Interrupted, Pending, and errors of which some may pass."""
        try:
            return self._work()
        except ProtocolViolated as error:
            self._witness.dispute(str(error))
            raise

    def _work(self) -> Ending:
        self._signal.check()
        signals: dict[str, Any] = {"cancelled": self._signal.is_set, "progress": self._signal.progress}
        with connected(self._settings, self._spec, self._token, self._witness, **signals) as curator:
            self._asking.look(curator)
            study = self._hold.retry(curator.study)
            self._check_same(study)
            self._witness.trust(study, self._spec.log_key)
            self._hold.write(lambda db: store.change_run(db, self._identity, study=study.model_dump_json()))
            self._asking.takes_time = study.measurement_source != "column"
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
        most = self._settings.candidates_max_bytes
        # Once for a run: one that waits for people comes here again at each look.
        return fetched(curator, study, self._folder, most, self._hold.retry, anew=self._begun is None)

    def _loop(self, curator: StudyClient, study: wire.StudyView, candidates: Matrix) -> Ending:
        asking, choosing = self._asking, None
        while True:
            first = (asking.settled if choosing is None else choosing.seen) + 1
            rows = asking.chosen(first)
            if asking.takes_time and not rows and asking.revise(curator):
                choosing = None
            if choosing is None:
                choosing = self._built(study, candidates)
            proposals = [] if rows else choosing.next()
            if not rows and not proposals:
                break
            self._signal.check()
            rows = rows or self._keep(first, proposals, choosing.fitted)
            answers = asking.ask(curator, first, rows)
            last, every = first + len(rows) - 1, self._settings.countersign_every
            if last // every > (first - 1) // every:
                self._settle(curator, study)
            for row, answer in zip(rows, answers, strict=True):
                self._goes_on()
                _take(choosing, row, answer)
            self._signal.progress()
        told = recommended(choosing, "asked")
        self._conclude(curator, study)
        return {
            "state": "completed",
            "ended_because": choosing.ended_because,
            "recommendation": None if told is None else told.model_dump_json(),
        }

    def _built(self, study: wire.StudyView, candidates: Matrix) -> RowChooser:
        """The state after all that is known by now: each choice is a function of that, also after a correction."""
        choosing = RowChooser(self._spec, study, candidates, self._observations, tick=self._goes_on)
        warnings = json.dumps(choosing.warnings)
        self._hold.write(lambda db: store.change_run(db, self._identity, warnings=warnings))
        for trial in self._asking.trials[: self._asking.settled]:
            self._goes_on()
            _take(choosing, trial.row, answer_in(trial))
        return choosing

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
            self._hold.retry(lambda: self._witness.settle(curator, study.grant_id))
        except Remote as error:
            if can_retry(error):
                raise

    # --- what was chosen ----------------------------------------------------------------------------

    def _keep(self, first: int, proposals: list[Proposal], fitted: wire.Fitted | None) -> list[int]:
        """Store what was chosen before it is asked; the rows."""
        now, news = stamp(self._hold.now), self._newly(fitted)

        def work(db: Connection) -> None:
            for number, proposal in enumerate(proposals, start=first):
                values = asdict(proposal) | {"fitted": news if number == first else None}
                store.add_trial(db, run_id=self._identity, number=number, query=first, chosen_at=now, **values)

        self._hold.write(work)
        return [proposal.row for proposal in proposals]

    def _newly(self, fitted: wire.Fitted | None) -> str | None:
        """A fit as it is stored, unless it was told before. A correction may bring another to as many answers."""
        if fitted is None or _values(fitted) == self._fit_told:
            return None
        self._fit_told = _values(fitted)
        return fitted.model_dump_json()


def answer_in(trial: Any) -> wire.Answer | None:
    """The answer that is stored of a trial; None where it was declined."""
    if trial.y is None:
        return None
    passport = wire.NoisePassport.model_validate_json(trial.passport)
    return wire.Answer(row=trial.row, play=1, plays=trial.plays, y=trial.y, passport=passport)


def _take(choosing: RowChooser, row: int, answer: wire.Answer | None) -> None:
    if answer is None:
        choosing.decline(row)
    else:
        choosing.observe(row, answer.y, answer.passport)


def _values(fitted: wire.Fitted) -> dict[str, Any]:
    """What tells one fit from another: rounded, and so the same however often it is made."""
    return fitted.model_dump(exclude={"log_likelihood"})
