"""Forecasts of quality: jobs for the owner, one at a time, each in a process of its own."""

import json
import logging
import queue
import secrets
import threading
from typing import Any

from pydantic import TypeAdapter

from curator_service import store
from curator_service.forecasts.cells import ROWS_MIN, cells_of
from curator_service.forecasts.worker import Job, News, Worker
from curator_service.privacy import entropy
from curator_service.service.advisories import names
from curator_service.settings import Settings
from curator_service.store import forecasts as table
from curator_service.vault import Vault, new_id
from shared import wire
from shared.errors import BlindoptError, Invalid, StateConflict
from shared.matrix import Matrix
from shared.serving.desk import Asked, Desk, Effect
from shared.serving.store import logs
from shared.serving.store.base import moment, stamp
from shared.serving.store.database import Connection, StoreFault
from shared.serving.store.replies import StoredReply

log = logging.getLogger("blindopt.forecasts")
CLOSE_SECONDS = 5.0
STOPPED = "the curator was stopped before this forecast was done: ask for it again"
_POINTS = TypeAdapter(list[wire.ForecastPoint])
_AGAIN_SECONDS = 1.0


class Forecasts:
    """At most one forecast runs, others wait in their order. What it finds out is shown to the owner alone.

    One that a crash or a shutdown interrupted is ``failed`` from the next start on. Logs tell ids and how it
    ended, never what was found.
    """

    def __init__(self, desk: Desk, vault: Vault, settings: Settings) -> None:
        self._desk = desk
        self._vault = vault
        self._waiting_max = settings.forecasts_waiting_max
        self._seconds_max = settings.forecast_seconds_max
        self._progress: dict[str, float] = {}
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._current: tuple[str, Worker] | None = None
        self._closing = threading.Event()
        desk.database.write(self._recover)
        # A daemon: a process that is not closed in order must not wait for a forecast.
        self._thread = threading.Thread(target=self._serve, daemon=True, name="forecasts")
        self._thread.start()

    def _recover(self, db: Connection) -> None:
        for identity in table.running(db):
            self._settle(db, identity, state="failed", problem=STOPPED)

    # --- what the owner asks ----------------------------------------------------------------------

    def start(self, asked: Asked, study_id: str, forecast: wire.ForecastCreate) -> StoredReply:
        """Queue a forecast. Raises Invalid where it cannot be made, StateConflict where too many wait."""
        self._desk.key_of(asked)
        self._check(study_id, forecast)
        begun: str | None = None

        def effect(db: Connection) -> Effect:
            nonlocal begun
            if table.count_running(db) > self._waiting_max:
                raise StateConflict(
                    f"{self._waiting_max} forecasts wait already: let one end, or cancel one, before you ask for more"
                )
            identity = new_id("fct")
            store.insert(
                db,
                table.forecasts,
                id=identity,
                study_id=study_id,
                state="running",
                spec=forecast.model_dump_json(),
                progress=0.0,
                points="[]",
                created_at=stamp(self._desk.clock()),
            )
            begun = identity
            details = {
                "study_id": study_id,
                "forecast_id": identity,
                "levels": len(forecast.epsilons),
                "mechanisms": len(forecast.mechanisms),
                "functions": forecast.functions,
                "queries": forecast.queries,
                "rows": forecast.rows,
            }
            return Effect(self._view(table.find(db, identity)), "forecast.started", details, 202)

        reply = self._desk.once(asked, effect)
        if begun is not None and not reply.replayed:
            self._queue.put(begun)
        return reply

    def one(self, study_id: str, identity: str) -> wire.ForecastView:
        """A forecast of a study. Raises NotFound."""
        with self._desk.database.read() as db:
            return self._view(table.find(db, identity, study_id))

    def page(self, study_id: str, after: int, limit: int) -> list[tuple[int, wire.ForecastView]]:
        """Forecasts of a study with their sequence numbers."""
        with self._desk.database.read() as db:
            store.find(db, store.studies, study_id)
            return [(row.seq, self._view(row)) for row in table.page(db, study_id, after=after, limit=limit)]

    def cancel(self, asked: Asked, study_id: str, identity: str) -> StoredReply:
        """End a forecast now. Raises StateConflict if it ended by itself."""

        def effect(db: Connection) -> Effect:
            row = table.find(db, identity, study_id)
            if row.state not in ("running", "cancelled"):
                raise StateConflict("the forecast has ended already")
            if row.state == "running":
                self._end(db, identity, state="cancelled")
            view = self._view(table.find(db, identity))
            return Effect(view, "forecast.cancelled", {"study_id": study_id, "forecast_id": identity}, 200)

        reply = self._desk.once(asked, effect)
        with self._lock:
            if self._current is not None and self._current[0] == identity:
                self._current[1].kill()
        return reply

    def close(self) -> None:
        """Stop the work, now. What has not ended is told as failed at the next start."""
        self._closing.set()
        with self._lock:
            if self._current is not None:
                self._current[1].kill()
        self._queue.put(None)
        self._thread.join(CLOSE_SECONDS)

    def _check(self, study_id: str, forecast: wire.ForecastCreate) -> None:
        # Before the transaction: calibrating many mechanisms takes long. What is checked never changes.
        with self._desk.database.read() as db:
            (study, rows), withdrawn = _study(db, study_id), names(db)
        cells_of(study, forecast, withdrawn)
        if rows < ROWS_MIN:
            raise Invalid(f"a forecast needs a dataset of {ROWS_MIN} rows or more")

    def _view(self, row: Any) -> wire.ForecastView:
        progress = self._progress.get(row.id, row.progress) if row.state == "running" else row.progress
        return wire.ForecastView(
            id=row.id,
            study_id=row.study_id,
            state=row.state,
            progress=progress,
            created_at=moment(row.created_at),
            ended_at=moment(row.ended_at) if row.ended_at else None,
            problem=row.problem,
            spec=wire.ForecastCreate.model_validate_json(row.spec),
            points=_POINTS.validate_json(row.points),
        )

    # --- the work ---------------------------------------------------------------------------------

    def _serve(self) -> None:
        while (identity := self._queue.get()) is not None and not self._closing.is_set():
            try:
                ending = self._work(identity)
            except BlindoptError as error:
                ending = {"state": "failed", "problem": str(error)}
            except Exception as error:  # its text may quote a value
                log.error("fault", extra={"fields": {"forecast_id": identity, "kind": type(error).__name__}})
                ending = {"state": "failed", "problem": f"a fault on our side ({type(error).__name__}): ask again"}
            if ending is not None and not self._closing.is_set():
                self._keep(identity, ending)
            self._progress.pop(identity, None)

    def _work(self, identity: str) -> dict[str, Any] | None:
        """Run one forecast; how it ended, or None where it had ended before."""
        with self._desk.database.read() as db:
            row = table.find(db, identity)
            (study, _), withdrawn = _study(db, row.study_id), sorted(names(db))
        if row.state != "running":
            return None
        asked = wire.ForecastCreate.model_validate_json(row.spec)
        values = self._sample(study, asked.rows)
        job = Job(study=study, asked=asked, n=len(values), seed=secrets.randbits(63), withdrawn=withdrawn)
        worker = Worker()
        late = threading.Event()

        def too_late() -> None:
            late.set()
            worker.kill()

        timer = threading.Timer(self._seconds_max, too_late)
        timer.daemon = True
        timer.start()
        last: News | None = None
        try:
            with self._lock:
                self._current = identity, worker
            if self._closing.is_set() or not self._is_running(identity):
                worker.kill()  # since we looked
            for news in worker.work(job, values):
                if news.progress is not None:
                    self._progress[identity] = news.progress
                last = news
        finally:
            timer.cancel()
            with self._lock:
                self._current = None
            status = worker.end()
        return self._ending(last, late=late.is_set(), status=status)

    def _ending(self, last: News | None, *, late: bool, status: int) -> dict[str, Any]:
        if last is not None and last.points is not None:
            points = _POINTS.dump_json(last.points).decode()
            return {"state": "completed", "points": points, "progress": 1.0}
        if last is not None and last.problem is not None:
            return {"state": "failed", "problem": last.problem}
        if late:
            return {
                "state": "failed",
                "problem": (
                    f"it took longer than {self._seconds_max} s (FORECAST_SECONDS_MAX): "
                    "ask for fewer rows, functions, queries or levels"
                ),
            }
        return {
            "state": "failed",
            "problem": f"its process ended with status {status}; if memory was short, ask for fewer rows",
        }

    def _is_running(self, identity: str) -> bool:
        with self._desk.database.read() as db:
            return bool(table.find(db, identity).state == "running")

    def _sample(self, study: wire.StudyCreate, most: int) -> Matrix:
        """The features' raw columns of up to ``most`` records, chosen at random."""
        with self._desk.database.read() as db:
            names = [c["name"] for c in json.loads(store.find(db, store.datasets, study.dataset_id).columns)]
        values = self._vault.dataset(study.dataset_id)
        chosen = entropy.sample(len(values), min(most, len(values)))
        places = [names.index(feature.column) for feature in study.features]
        sampled: Matrix = values[chosen][:, places]
        return sampled

    def _keep(self, identity: str, ending: dict[str, Any]) -> None:
        """Store an end, once the database can be written: a forecast never runs for ever."""
        while not self._closing.is_set():
            try:
                self._desk.database.write(lambda db: self._settle(db, identity, **ending))
                return
            except (BlindoptError, StoreFault):
                self._closing.wait(_AGAIN_SECONDS)

    def _settle(self, db: Connection, identity: str, **told: Any) -> None:
        """End a forecast, unless it has ended, and log that it did."""
        if self._end(db, identity, **told):
            details = {"study_id": table.find(db, identity).study_id, "forecast_id": identity, "state": told["state"]}
            logs.append(db, "forecast.ended", actor="curator", now=self._desk.clock(), details=details)

    def _end(self, db: Connection, identity: str, **told: Any) -> bool:
        progress = {"progress": self._progress[identity]} if identity in self._progress else {}
        return table.end(db, identity, ended_at=stamp(self._desk.clock()), **(progress | told))


def _study(db: Connection, study_id: str) -> tuple[wire.StudyCreate, int]:
    """A study, and how many rows its dataset has."""
    study = wire.StudyCreate.model_validate_json(store.find(db, store.studies, study_id).spec)
    return study, int(store.find(db, store.datasets, study.dataset_id).rows)
