"""A run's record as it is stored, and its choices derived from it again."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modeler_service import store
from modeler_service.candidates import path_of
from modeler_service.choosing import Choosing, memory_needed
from shared import matrix, wire
from shared.errors import StateConflict
from shared.matrix import Matrix
from shared.serving.store.database import Connection


@dataclass(frozen=True, slots=True)
class Record:
    """All that the choices of a run depend on but the candidates. ``trials`` are those that were answered."""

    spec: wire.RunSpec
    study: wire.StudyView | None
    observations: list[wire.Observation]
    trials: list[Any]

    @classmethod
    def of(cls, db: Connection, identity: str) -> "Record":
        """The record of a run. Raises NotFound."""
        row = store.run(db, identity)
        return cls(
            spec=wire.RunSpec.model_validate_json(row.spec),
            study=wire.StudyView.model_validate_json(row.study) if row.study else None,
            observations=observations_of(db, identity),
            trials=[trial for trial in store.trial_page(db, identity) if trial.y is not None],
        )

    @property
    def outcomes(self) -> int:
        """How many answers and past measurements there are."""
        return len(self.observations) + len(self.trials)

    @property
    def begun(self) -> wire.StudyView:
        """What the curator told of the study. StateConflict before it did."""
        if self.study is None:
            raise StateConflict("the run has not begun: its curator has told nothing yet")
        return self.study

    def candidates(self, folder: Path) -> Matrix:
        """The candidates, as they were fetched and checked. StateConflict where they are not there."""
        path = path_of(folder, self.begun.release_sha256)
        if not path.exists() or matrix.digest(path) != self.begun.release_sha256:
            raise StateConflict("the candidates are not here: they are fetched when a run on the study works")
        return matrix.load(path)

    def memory(self, outcomes: int) -> int:
        """Bytes that the state after so many outcomes needs, about."""
        spec = self.spec.model_copy(update={"iterations": outcomes, "initial_rows": 0})
        return memory_needed(spec, self.begun, 0)

    def replayed(self, candidates: Matrix) -> Choosing:
        """The state after all answers, to be looked at and not to choose from."""
        choosing = Choosing(self.spec, self.begun, candidates, self.observations, outcomes=self.outcomes)
        for trial in self.trials:
            passport = wire.NoisePassport.model_validate_json(trial.passport)
            choosing.observe(trial.row, trial.y, passport)
        return choosing


def observations_of(db: Connection, identity: str) -> list[wire.Observation]:
    """The past measurements that a run begins with, in order."""
    return [
        wire.Observation(row=row.row, y=row.y, noise_variance=row.noise_variance)
        for row in store.observation_page(db, identity)
    ]
