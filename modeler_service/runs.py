"""The life of a run: fetch the candidates, choose, ask, store, until it ends."""

import json
import logging
import queue
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from modeler_service import store
from modeler_service.algorithms.algorithm import Algorithm, algorithm_of
from modeler_service.settings import Settings
from shared import matrix, wire
from shared.acquisition import Choice
from shared.client import StudyClient
from shared.errors import BlindoptError, NumericalFailure, ProtocolViolated, Remote, Unreachable
from shared.matrix import Matrix
from shared.serving.desk import Desk
from shared.serving.store.database import Connection
from shared.serving.store.tables import Log, stamp

log = logging.getLogger("blindopt.runs")
T = TypeVar("T")
CLOSE_SECONDS = 5.0
_ENDS_A_RUN = ("study_not_open", "privacy_budget_exhausted")


class Interrupted(Exception):
    """The run was told to stop, or the service is going down."""


class Runs:
    """Works on runs in threads, several at once.

    What is under way at a shutdown or a crash goes on at the next start from the stored trials, and asks
    again under the same idempotency keys.
    """

    def __init__(self, desk: Desk, settings: Settings) -> None:
        self._desk = desk
        self._settings = settings
        self._folder = settings.data_dir / "candidates"
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._closing = threading.Event()
        self._stops: dict[str, threading.Event] = {}
        self._queue: queue.SimpleQueue[str] = queue.SimpleQueue()
        # Daemons: a curator that does not answer must not keep this process from ending.
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(settings.concurrent_runs)]
        with desk.database.read() as db:
            unfinished = store.unfinished(db)
        for identity, stop_asked in unfinished:
            self.submit(identity)
            if stop_asked:
                self.stop(identity)
        for thread in self._threads:
            thread.start()

    def submit(self, identity: str) -> None:
        """Queue a stored run."""
        self._stops[identity] = threading.Event()
        self._queue.put(identity)

    def stop(self, identity: str) -> None:
        """Tell a run to end after the query under way."""
        if (event := self._stops.get(identity)) is not None:
            event.set()

    def close(self) -> None:
        """Leave runs where they are; the next start takes them up. Waits a little for queries under way."""
        self._closing.set()
        for event in list(self._stops.values()):
            event.set()
        for _ in self._threads:
            self._queue.put("")
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _serve(self) -> None:
        while (identity := self._queue.get()) and not self._closing.is_set():
            try:
                self._work(identity)
            except Exception as error:
                # A run whose end could not be stored stays as it is; the next start takes it up.
                log.error("the end of a run could not be stored", extra={"kind": type(error).__name__})

    def _work(self, identity: str) -> None:
        stop = self._stops[identity]
        try:
            if self._ended(identity):
                return
            self._end(identity, **_Run(self._desk, self._settings, self._folder, identity, stop).work())
        except Interrupted:
            if not self._closing.is_set():
                self._end(identity, state="stopped", ended_because="stopped")
        except Remote as error:
            refused = error.remote_code in _ENDS_A_RUN
            problem = {"code": error.remote_code, "detail": str(error)}
            state, because = ("completed", "refused") if refused else ("failed", "failed")
            self._end(identity, state=state, ended_because=because, problem=json.dumps(problem))
        except BlindoptError as error:
            problem = {"code": error.code, "detail": str(error)}
            self._end(identity, state="failed", ended_because="failed", problem=json.dumps(problem))
        except MemoryError:
            detail = "rows times queries need more memory than there is: ask for fewer iterations"
            problem = {"code": "out_of_memory", "detail": detail}
            self._end(identity, state="failed", ended_because="failed", problem=json.dumps(problem))
        except Exception as error:
            log.exception("a run failed", extra={"run": identity})
            problem = {"code": "internal", "detail": f"a fault on our side ({type(error).__name__})"}
            self._end(identity, state="failed", ended_because="failed", problem=json.dumps(problem))
        finally:
            self._stops.pop(identity, None)

    def _ended(self, identity: str) -> bool:
        with self._desk.database.read() as db:
            return store.run(db, identity).ended_at is not None

    def _end(self, identity: str, *, state: str, ended_because: str, problem: str | None = None) -> None:
        now = self._desk.clock()

        def work(db: Connection) -> None:
            if store.run(db, identity).ended_at is not None:
                return
            values = {"state": state, "ended_because": ended_because, "problem": problem, "ended_at": stamp(now)}
            store.change_run(db, identity, **values)
            details = {"run_id": identity, "state": state, "because": ended_because}
            Log.append(db, "run.ended", actor="modeler", now=now, details=details)

        self._desk.database.write(work)


class _Run:
    """One run, in its own thread, with one connection to its curator."""

    def __init__(self, desk: Desk, settings: Settings, folder: Path, identity: str, stop: threading.Event) -> None:
        self._desk, self._settings, self._folder = desk, settings, folder
        self._identity, self._stop = identity, stop
        with desk.database.read() as db:
            row = store.run(db, identity)
            self._trials = store.trial_page(db, identity)
        self._spec = wire.RunSpec.model_validate_json(row.spec)
        self._token = desk.unseal(row.sealed_token).decode()

    def work(self) -> dict[str, str]:
        """Run to its end; how it ended."""
        if self._stop.is_set():
            raise Interrupted
        self._desk.database.write(self._begin)
        with StudyClient(
            self._spec.curator_url,
            self._token,
            self._spec.study_id,
            timeout_s=self._settings.curator_timeout_seconds,
            verify=str(self._settings.curator_ca) if self._settings.curator_ca else True,
            observe=lambda exchange: self._desk.tell(exchange, self._identity),
            cancelled=self._stop.is_set,
        ) as curator:
            study = self._retry(curator.study)
            self._check_same(study)
            self._change(study=study.model_dump_json())
            candidates = self._candidates(curator, study)
            return self._loop(curator, study, candidates)

    def _begin(self, db: Connection) -> None:
        row = store.run(db, self._identity)
        if row.stop_asked_at is not None:  # it may have come since this thread took the run
            raise Interrupted
        started_at = row.started_at or stamp(self._desk.clock())
        store.change_run(db, self._identity, state="running", started_at=started_at)

    def _check_same(self, study: wire.StudyView) -> None:
        """ProtocolViolated if a run that goes on meets another study than it began with."""
        with self._desk.database.read() as db:
            before = store.run(db, self._identity).study
        if before is not None:
            begun = wire.StudyView.model_validate_json(before)
            for name in ("release_sha256", "n", "r", "direction", "kernel", "measurement_noise_variance"):
                if getattr(begun, name) != getattr(study, name):
                    raise ProtocolViolated(f"the study's {name} is not what it was when the run began")

    def _candidates(self, curator: StudyClient, study: wire.StudyView) -> Matrix:
        size = 8 * study.n * study.r + matrix.HEADER_MAX
        capacity = self._spec.iterations + self._spec.initial_rows
        if 8 * study.n * (capacity + study.r + 8) > self._settings.run_memory_max_bytes:
            raise MemoryError
        if size > self._settings.candidates_max_bytes:
            raise NumericalFailure(
                f"the release has {study.n} x {study.r} numbers: more than CANDIDATES_MAX_BYTES allows"
            )
        path = self._folder / f"{study.release_sha256}.npy"
        if not path.exists() or matrix.digest(path) != study.release_sha256:
            self._retry(lambda: curator.download(path, study.release_sha256, max_bytes=size))
        candidates = matrix.load(path)
        if candidates.shape != (study.n, study.r):
            raise NumericalFailure(f"the candidates are {candidates.shape}, the study says {(study.n, study.r)}")
        return candidates

    def _loop(self, curator: StudyClient, study: wire.StudyView, candidates: Matrix) -> dict[str, str]:
        spec, sign = self._spec, 1 if study.direction == "maximize" else -1
        initial = np.random.default_rng([spec.seed, 0]).permutation(study.n)[: spec.initial_rows]
        last = len(initial) + spec.iterations
        algorithm = algorithm_of(
            spec.algorithm, candidates, spec.kernel or study.kernel, sign=sign, seed=spec.seed, capacity=last
        )
        for number in range(1, last + 1):
            if (outcome := self._stored(number)) is None:
                if self._stop.is_set():
                    raise Interrupted
                row = self._choose(number, initial, algorithm, sign)
                if row is None:
                    return {"state": "completed", "ended_because": "exhausted"}
                outcome = row, self._ask(curator, number, row)
            algorithm.observe(outcome[0], sign * outcome[1])
        return {"state": "completed", "ended_because": "budget"}

    def _stored(self, number: int) -> tuple[int, float] | None:
        """Row and y of a trial that was answered before the service last started."""
        if number > len(self._trials) or self._trials[number - 1].y is None:
            return None
        trial = self._trials[number - 1]
        return trial.row, trial.y

    def _choose(self, number: int, initial: Any, algorithm: Algorithm, sign: int) -> int | None:
        if number <= len(self._trials):  # chosen before a crash, not yet answered
            return int(self._trials[number - 1].row)
        phase, choice = "initial", None
        if number <= len(initial):
            choice = Choice(row=int(initial[number - 1]), mean=None, sd=None, acquisition=None, ties=1)
        else:
            phase, choice = "algorithm", algorithm.choose(number - len(initial))
        if choice is None:
            return None
        values = {
            "row": choice.row,
            "mean": None if choice.mean is None else sign * choice.mean,
            "sd": choice.sd,
            "acquisition": choice.acquisition,
            "ties": choice.ties,
        }
        now = stamp(self._desk.clock())
        self._desk.database.write(
            lambda db: store.add_trial(db, run_id=self._identity, number=number, phase=phase, chosen_at=now, **values)
        )
        return choice.row

    def _ask(self, curator: StudyClient, number: int, row: int) -> float:
        """Ask for one measurement; answer and exchange are stored in one transaction."""
        query = wire.QueryRequest(rows=[wire.RowPlays(row=row, plays=1)])
        reply, exchange = self._retry(lambda: curator.ask(query, key=f"{self._identity}:{number}"))
        answer = next((a for a in reply.answers if a.row == row), None)
        if answer is None or len(reply.answers) != 1:
            self._desk.tell(exchange, self._identity)
            raise ProtocolViolated("the curator answered another row than was asked")
        now = self._desk.clock()

        def work(db: Connection) -> None:
            store.answer_trial(
                db,
                self._identity,
                number,
                answered_at=stamp(now),
                query_id=reply.id,
                y=answer.y,
                passport=answer.passport.model_dump_json(),
            )
            Log.append(db, "exchange", actor=self._identity, now=now, exchange=exchange)

        self._desk.database.write(work)
        return answer.y

    def _retry(self, call: Callable[[], T]) -> T:
        """Call again, ever slower, while a retry may help. Interrupted when told to stop meanwhile."""
        wait = 0.1
        for left in reversed(range(self._settings.retry_attempts)):
            try:
                return call()
            except (Remote, Unreachable) as error:
                if not left or not (error.retryable or getattr(error, "remote_retryable", False)):
                    raise
            # Jitter keeps many runs from knocking in step; it is no secret and decides nothing.
            if self._stop.wait(wait * random.uniform(0.5, 1.0)):  # noqa: S311
                raise Interrupted
            wait = min(2 * wait, self._settings.retry_seconds_max)
        raise AssertionError("unreachable")

    def _change(self, **values: Any) -> None:
        self._desk.database.write(lambda db: store.change_run(db, self._identity, **values))
