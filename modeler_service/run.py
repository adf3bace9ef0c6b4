"""One run: fetch the candidates, choose, ask, store, until it ends."""

import json
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from modeler_service import store
from modeler_service.answers import answers_of, values_of
from modeler_service.beliefs import recommended
from modeler_service.candidates import fetched
from modeler_service.choosing import Choosing, Proposal, memory_needed
from modeler_service.record import observations_of
from modeler_service.settings import Settings
from modeler_service.signals import Interrupted, Pending, Signal
from modeler_service.witness import Witness
from shared import wire
from shared.audit import sha256
from shared.client import Reply, StudyClient, query_body
from shared.errors import BlindoptError, ProtocolViolated, Remote, Unreachable
from shared.matrix import Matrix
from shared.serving.desk import Desk
from shared.serving.store.base import stamp
from shared.serving.store.database import Connection

T = TypeVar("T")
Ending = dict[str, Any]
LOOK_SECONDS = 2.0
"""How long one request waits for people: who stops a run does not wait longer."""
LEAST_SECONDS = 0.2
"""Between two of them, also where a curator does not wait."""


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
    """One run in its own thread, with one connection to its curator, while it holds the run's lease.

    ``crowded`` tells whether other runs want its worker: it then gives it up sooner to wait without one.
    """

    def __init__(
        self,
        desk: Desk,
        settings: Settings,
        folder: Path,
        identity: str,
        lease: int,
        signal: Signal,
        crowded: Callable[[], bool] = lambda: False,
    ) -> None:
        self._desk, self._settings, self._folder = desk, settings, folder
        self._identity, self._lease, self._signal, self._crowded = identity, lease, signal, crowded
        with desk.database.read() as db:
            row = store.run(db, identity)
            self._trials = store.trial_page(db, identity)
            last = store.last_fit(db, identity)
            self._observations = observations_of(db, identity)
        self._fit_told = _values(wire.Fitted.model_validate_json(last)) if last else None
        self._spec = wire.RunSpec.model_validate_json(row.spec)
        self._begun = wire.StudyView.model_validate_json(row.study) if row.study else None
        self._waited, self._revision = row.waits > 0, row.revision
        self._token = desk.unseal(row.sealed_token).decode()
        self._witness = Witness(desk, self._spec.study_id, identity, was_asked)

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
            self._look(curator)
            study = self._retry(curator.study)
            self._check_same(study)
            self._witness.trust(study, self._spec.log_key)
            self._write(lambda db: store.change_run(db, self._identity, study=study.model_dump_json()))
            self._begun = study
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
        takes_time, choosing = study.measurement_source != "column", None
        while True:
            first = (_settled(self._trials) if choosing is None else choosing.seen) + 1
            rows = self._chosen(first)
            if takes_time and not rows and self._revise(curator):
                choosing = None
            if choosing is None:
                choosing = self._built(study, candidates)
            proposals = [] if rows else choosing.next()
            if not rows and not proposals:
                break
            self._signal.check()
            rows = rows or self._keep(first, proposals, choosing.fitted)
            answers = self._ask(curator, first, rows)
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

    def _built(self, study: wire.StudyView, candidates: Matrix) -> Choosing:
        """The state after all that is known by now: each choice is a function of that, also after a correction."""
        choosing = Choosing(self._spec, study, candidates, self._observations, tick=self._goes_on)
        warnings = json.dumps(choosing.warnings)
        self._write(lambda db: store.change_run(db, self._identity, warnings=warnings))
        for trial in self._trials[: _settled(self._trials)]:
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
            self._retry(lambda: self._witness.settle(curator, study.grant_id))
        except Remote as error:
            if can_retry(error):
                raise

    # --- what was chosen ----------------------------------------------------------------------------

    def _chosen(self, first: int) -> list[int]:
        """The rows of the query that begins with this trial, if it was chosen before the run was taken up."""
        end = first - 1
        while end < len(self._trials) and self._trials[end].query == first:
            end += 1
        return [int(trial.row) for trial in self._trials[first - 1 : end]]

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
        """A fit as it is stored, unless it was told before. A correction may bring another to as many answers."""
        if fitted is None or _values(fitted) == self._fit_told:
            return None
        self._fit_told = _values(fitted)
        return fitted.model_dump_json()

    # --- questions and answers ----------------------------------------------------------------------

    def _ask(self, curator: StudyClient, first: int, rows: list[int]) -> list[wire.Answer | None]:
        """Ask for one measurement of each row; what the reply says of each.

        Raises Pending where people measure, and take longer than a worker is held for them.
        """
        if (query_id := self._asked(first)) is None:
            reply, told = self._retry(lambda: curator.ask(query_of(rows), key=f"{self._identity}:{first}"))
            if isinstance(reply, wire.QueryReply):
                return self._store(reply, told, first, rows)
            query_id = self._store_pending(reply, told, first)
        return self._await(curator, query_id, first, rows)

    def _asked(self, first: int) -> str | None:
        """The query of this trial at the curator, which took it before the run was taken up."""
        return self._trials[first - 1].query_id if first <= len(self._trials) else None

    def _await(self, curator: StudyClient, query_id: str, first: int, rows: list[int]) -> list[wire.Answer | None]:
        """Wait for people, for a little while."""
        deadline = time.monotonic() + self._settings.people_hold_seconds
        while (left := deadline - time.monotonic()) > 0 and not self._crowded():
            began, wait_s = time.monotonic(), min(left, LOOK_SECONDS)
            if (found := self._fetched(curator, query_id, first, rows, wait_s)) is not None:
                return found
            self._signal.check()
            self._signal.wait(max(0.0, began + min(wait_s, LEAST_SECONDS) - time.monotonic()))
        if (found := self._fetched(curator, query_id, first, rows, 0.0)) is not None:
            return found
        raise Pending

    def _look(self, curator: StudyClient) -> None:
        """Where people were asked and had not answered: whether they have. Before anything that costs more."""
        first = _settled(self._trials) + 1
        if (query_id := self._asked(first)) is None:
            return
        try:
            if self._fetched(curator, query_id, first, self._chosen(first), 0.0) is None:
                raise Pending
        except Remote as error:
            if error.remote_code != "not_found":
                raise
            return  # the token is of another grant: the study will say so
        self._reload()

    def _fetched(
        self, curator: StudyClient, query_id: str, first: int, rows: list[int], wait_s: float
    ) -> list[wire.Answer | None] | None:
        """What was measured of a query, stored; None while it is pending."""
        reply, told = self._retry(lambda: curator.query(query_id, wait_s=wait_s))
        if isinstance(reply, wire.QueryPending):
            return None
        return self._store(reply, told, first, rows, query_id=query_id)

    def _revise(self, curator: StudyClient) -> bool:
        """Read what was corrected since the last time, or answered late; whether anything was."""
        queries: dict[str, list[Any]] = {}
        for trial in self._read(lambda db: store.trial_page(db, self._identity)):
            queries.setdefault(trial.query_id, []).append(trial)
        changed, more = False, True
        while more:
            page = self._retry(lambda: curator.revisions(self._revision))
            places = [self._revision, *(revision.seq for revision in page.revisions)]
            if any(later <= earlier for earlier, later in pairwise(places)):
                raise ProtocolViolated("the curator's revisions are not in order")
            for revision in page.revisions:
                trials = queries.get(revision.query_id)  # else another run's
                if trials and revision.version > (trials[0].version or 0):
                    changed |= self._corrected(curator, trials, revision.version)
            self._revision, more = places[-1], page.next_page_token is not None and len(places) > 1
        if changed or places[-1] > places[0]:
            self._write(lambda db: store.change_run(db, self._identity, revision=self._revision))
        if changed:
            self._reload()
        return changed

    def _corrected(self, curator: StudyClient, trials: list[Any], version: int) -> bool:
        """Take another version of a query's answer."""
        query_id, first = trials[0].query_id, trials[0].number
        with self._desk.database.read() as db:
            known = store.trial(db, self._identity, first)
        if known is None or (known.version or 0) >= version:
            return False
        reply, told = self._retry(lambda: curator.query(query_id, version=version))
        if isinstance(reply, wire.QueryPending):
            raise ProtocolViolated("the curator told of an answer that it does not give")
        rows = [int(trial.row) for trial in trials]
        self._store(reply, told, first, rows, query_id=query_id, least=version)
        return True

    def _store_pending(self, reply: wire.QueryPending, told: Reply, first: int) -> str:
        """Keep that a query was taken, in one transaction with its exchange; its id."""
        self._need_receipt(told)
        now = stamp(self._desk.clock())

        def work(db: Connection) -> None:
            self._hold(db)
            store.ask_trials(db, self._identity, first, asked_at=now, query_id=reply.id)
            store.add_version(db, self._identity, first, 0, at=now, reply=told.body)
            self._has_answered(db, looked_at=now)
            self._witness.keep(db, told.exchange, told.receipt)

        self._desk.database.write(work)
        self._waited = False
        return reply.id

    def _store(
        self,
        reply: wire.QueryReply,
        told: Reply,
        first: int,
        rows: list[int],
        *,
        query_id: str | None = None,
        least: int = 1,
    ) -> list[wire.Answer | None]:
        """Keep what a query's reply says, in one transaction with its exchange; the answers.

        ``query_id``: of a query that was pending; ``least``: the version that was asked for.
        """
        try:
            answers = answers_of(reply, rows)
            if query_id not in (None, reply.id) or reply.version < least:
                raise ProtocolViolated("the curator answered another query than was asked, or an older version")
        except ProtocolViolated:
            self._witness.tell(told.exchange, told.receipt)
            raise
        self._need_receipt(told)
        now, is_kept = stamp(self._desk.clock()), query_id is not None or self._takes_time or None in answers

        def work(db: Connection) -> None:
            self._hold(db)
            if is_kept:
                store.add_version(db, self._identity, first, reply.version, at=now, reply=told.body)
            for number, answer in enumerate(answers, start=first):
                values = values_of(answer, reply) | {"query_id": reply.id}
                # The log has the reply's digest: so nobody can change y afterwards.
                values["reply"] = told.body if number == first else None
                store.answer_trial(db, self._identity, number, answered_at=now, **values)
            self._has_answered(db, looked_at=None)
            self._witness.keep(db, told.exchange, told.receipt)

        self._desk.database.write(work)
        self._waited = False
        return answers

    @property
    def _takes_time(self) -> bool:
        return self._begun is not None and self._begun.measurement_source != "column"

    def _need_receipt(self, told: Reply) -> None:
        if told.receipt is None:
            self._witness.tell(told.exchange, None)
            raise ProtocolViolated("the curator's answer came without a receipt of its log")

    def _has_answered(self, db: Connection, looked_at: str | None) -> None:
        """The next wait is a new one."""
        if self._waited or looked_at is not None or self._takes_time:
            store.change_run(db, self._identity, waits=0, waiting_since=None, waiting_for=None, looked_at=looked_at)

    # --- requests and writes ------------------------------------------------------------------------

    def _reload(self) -> None:
        self._trials = self._read(lambda db: store.trial_page(db, self._identity))

    def _read(self, work: Callable[[Connection], T]) -> T:
        with self._desk.database.read() as db:
            return work(db)

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


def _settled(trials: list[Any]) -> int:
    """How many trials have an answer, or a decline, before the first that has neither."""
    return next((place for place, trial in enumerate(trials) if trial.answered_at is None), len(trials))


def answer_in(trial: Any) -> wire.Answer | None:
    """The answer that is stored of a trial; None where it was declined."""
    if trial.y is None:
        return None
    passport = wire.NoisePassport.model_validate_json(trial.passport)
    return wire.Answer(row=trial.row, play=1, plays=trial.plays, y=trial.y, passport=passport)


def _take(choosing: Choosing, row: int, answer: wire.Answer | None) -> None:
    if answer is None:
        choosing.decline(row)
    else:
        choosing.observe(row, answer.y, answer.passport)


def _values(fitted: wire.Fitted) -> dict[str, Any]:
    """What tells one fit from another: rounded, and so the same however often it is made."""
    return fitted.model_dump(exclude={"log_likelihood"})
