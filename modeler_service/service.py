"""The modeler's use cases, without HTTP."""

import csv
import io
import json
import secrets

from modeler_service import store
from modeler_service.addresses import check_address
from modeler_service.runs import Runs, end, halted_state
from modeler_service.settings import Settings
from modeler_service.suggestions import Suggestions
from modeler_service.views import trial_view
from shared import wire
from shared.audit import sha256
from shared.errors import StateConflict
from shared.serving.desk import Asked, Desk, Effect
from shared.serving.store.base import moment, stamp
from shared.serving.store.database import Connection
from shared.serving.store.replies import StoredReply

CSV_COLUMNS = (
    "number", "phase", "row", "y", "plays", "mean", "sd", "acquisition", "ties", "measurement_variance",
    "privacy_family", "privacy_scale", "privacy_variance", "query_id", "chosen_at", "answered_at",
)  # fmt: skip


class Modeler:
    """Runs and their trials. Safe to call from several threads."""

    def __init__(self, desk: Desk, settings: Settings) -> None:
        self.desk = desk
        self._settings = settings
        self._runs = Runs(desk, settings)
        self.suggestions = Suggestions(desk, settings)

    def close(self) -> None:
        """Leave the runs; the next start takes them up."""
        self.suggestions.close()
        self._runs.close()

    def start(self, asked: Asked, spec: wire.RunCreate) -> StoredReply:
        """Store a run and queue it. Its token is sealed and never shown again."""
        check_address(spec.curator_url, "curator_url", plain_http=self._settings.allow_plain_http)
        identity, settings = f"run_{secrets.token_hex(8)}", spec.model_dump_json(exclude={"token"})

        def effect(db: Connection) -> Effect:
            store.add_run(
                db,
                id=identity,
                state="queued",
                spec=settings,
                sealed_token=self.desk.seal(spec.token.encode()),
                created_at=stamp(self.desk.clock()),
            )
            details = {
                "run_id": identity,
                "study_id": spec.study_id,
                "algorithm": spec.algorithm.name,
                "spec_sha256": sha256(settings.encode()),  # a replay starts from these settings
            }
            return Effect(self._view(db, identity), "run.created", details)

        reply = self.desk.once(asked, effect)
        if not reply.replayed:
            self._runs.submit(identity)
        return reply

    def stop(self, asked: Asked, identity: str) -> StoredReply:
        """Tell a run to end after the query under way; at once where none is. Durable.

        Raises StateConflict if it ended by itself.
        """
        return self._halt(asked, identity, "stop", ended=("stopped",))

    def pause(self, asked: Asked, identity: str) -> StoredReply:
        """Tell a run to halt after the query under way; at once where none is. Durable.

        Raises StateConflict if it has ended.
        """
        return self._halt(asked, identity, "pause", ended=())

    def _halt(self, asked: Asked, identity: str, what: str, *, ended: tuple[str, ...]) -> StoredReply:
        def effect(db: Connection) -> Effect:
            row, now = store.run(db, identity), self.desk.clock()
            if row.ended_at is not None and row.state not in ended:
                raise StateConflict("the run has ended already")
            if row.ended_at is None:
                store.change_run(db, identity, **{f"{what}_asked_at": stamp(now)})
                told = halted_state(store.run(db, identity))
                if row.state != "running" and told is not None and row.state != told["state"]:
                    end(db, identity, told, now)
            return Effect(self._view(db, identity), f"run.{what}_asked", {"run_id": identity}, 200)

        reply = self.desk.once(asked, effect)
        self._runs.halt(identity)
        return reply

    def resume(self, asked: Asked, identity: str) -> StoredReply:
        """Let a paused run go on, and one that waits try now. Raises StateConflict if it has ended."""

        def effect(db: Connection) -> Effect:
            row = store.run(db, identity)
            if row.ended_at is not None or row.stop_asked_at is not None:
                raise StateConflict("the run has ended, or was told to: it cannot be resumed")
            state = row.state if row.state == "running" else "queued"
            store.change_run(db, identity, state=state, pause_asked_at=None, waits_until=None)
            return Effect(self._view(db, identity), "run.resumed", {"run_id": identity}, 200)

        reply = self.desk.once(asked, effect)
        if not reply.replayed:
            self._runs.submit(identity)
        return reply

    def replace_token(self, asked: Asked, identity: str, told: wire.TokenReplacement) -> StoredReply:
        """Seal another token of the grant for a run. Raises StateConflict if it has ended."""

        def effect(db: Connection) -> Effect:
            if store.run(db, identity).ended_at is not None:
                raise StateConflict("the run has ended: start another")
            store.change_run(db, identity, sealed_token=self.desk.seal(told.token.encode()))
            return Effect(self._view(db, identity), "run.token_replaced", {"run_id": identity}, 200)

        reply = self.desk.once(asked, effect)
        self._runs.halt(identity)  # its worker takes it up again, with the new token
        return reply

    def run(self, identity: str) -> wire.RunView:
        """One run."""
        with self.desk.database.read() as db:
            return self._view(db, identity)

    def runs(self, after: int, limit: int) -> list[tuple[int, wire.RunView]]:
        """Runs with their sequence numbers."""
        with self.desk.database.read() as db:
            found = store.run_page(db, after=after, limit=limit)
            return [(row.seq, self._view(db, row.id)) for row in found]

    def trials(self, identity: str, after: int, limit: int) -> list[wire.TrialView]:
        """Trials of a run in order."""
        with self.desk.database.read() as db:
            store.run(db, identity)
            return [trial_view(row) for row in store.trial_page(db, identity, after=after, limit=limit)]

    def export(self, identity: str) -> wire.RunExport:
        """Everything needed to redo a run, given the release."""
        with self.desk.database.read() as db:
            trials = [trial_view(row) for row in store.trial_page(db, identity)]
            return wire.RunExport(run=self._view(db, identity), trials=trials)

    def export_csv(self, identity: str) -> str:
        """The trials as CSV, one line each."""
        text = io.StringIO()
        writer = csv.DictWriter(text, CSV_COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for trial in self.export(identity).trials:
            line = trial.model_dump(mode="json")
            if trial.passport is not None:
                line["measurement_variance"] = trial.passport.measurement_variance
                for name in ("family", "scale", "variance"):
                    line[f"privacy_{name}"] = getattr(trial.passport.privacy, name)
            writer.writerow(line)
        return text.getvalue()

    def _view(self, db: Connection, identity: str) -> wire.RunView:
        row = store.run(db, identity)
        spec = wire.RunSpec.model_validate_json(row.spec)
        study = wire.StudyView.model_validate_json(row.study) if row.study else None
        best = store.best(db, identity, largest=study.direction == "maximize") if study else None
        return wire.RunView(
            id=row.id,
            state=row.state,
            study=study,
            trials=store.answered(db, identity),
            best=wire.Best(trial=best.number, row=best.row, y=best.y) if best else None,
            created_at=moment(row.created_at),
            started_at=moment(row.started_at) if row.started_at else None,
            heartbeat_at=moment(row.heartbeat_at) if row.heartbeat_at else None,
            waits_until=moment(row.waits_until) if row.waits_until else None,
            ended_at=moment(row.ended_at) if row.ended_at else None,
            ended_because=row.ended_because,
            problem=wire.RunProblem(**json.loads(row.problem)) if row.problem else None,
            warnings=json.loads(row.warnings) if row.warnings else [],
            name=spec.name,
            curator_url=spec.curator_url,
            study_id=spec.study_id,
            algorithm=spec.algorithm,
            iterations=spec.iterations,
            initial_rows=spec.initial_rows,
            seed=spec.seed,
            kernel=spec.kernel,
        )
