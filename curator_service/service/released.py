"""What never changes once a study is released, read once."""

import json
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from curator_service import store
from curator_service.vault import Vault
from shared import wire
from shared.errors import StudyNotOpen
from shared.matrix import Matrix, Vector
from shared.serving.store.database import Connection


@dataclass(frozen=True, slots=True, repr=False)
class Released:
    """A released study with its records, memory-mapped."""

    spec: wire.StudyCreate
    report: wire.ReleaseReport
    id: str
    sha256: str
    n: int
    r: int
    order: NDArray[np.int64]
    records: Matrix
    names: list[str]

    def outcomes(self, rows: list[int]) -> Vector:
        """The measurement column of these rows of Z, where y is one."""
        assert isinstance(self.spec.measurement, wire.ColumnMeasurement)
        column = self.names.index(self.spec.measurement.column)
        outcomes: Vector = self.records[self.order[rows], column]
        return outcomes

    def record(self, row: int) -> int:
        """Which record of the file a row of Z is, from 1."""
        return int(self.order[row]) + 1

    def shown(self, row: int) -> list[wire.Shown]:
        """What those who measure see of it."""
        assert not isinstance(self.spec.measurement, wire.ColumnMeasurement)
        record = self.records[self.order[row]]
        return [
            wire.Shown(column=name, value=float(record[self.names.index(name)])) for name in self.spec.measurement.shown
        ]


class ReleasedStudies:
    """Each is read once."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._known: dict[str, Released] = {}

    def known(self, identity: str) -> Released | None:
        """A study that was read before."""
        return self._known.get(identity)

    def of(self, db: Connection, identity: str) -> Released:
        """A study by its id. Raises StudyNotOpen before its release."""
        if (known := self._known.get(identity)) is None:
            study, release = store.find(db, store.studies, identity), store.release_of(db, identity)
            if release is None:
                raise StudyNotOpen("the study has not released its candidates yet")
            spec = wire.StudyCreate.model_validate_json(study.spec)
            columns = json.loads(store.find(db, store.datasets, spec.dataset_id).columns)
            known = self._known[identity] = Released(
                spec=spec,
                report=wire.ReleaseReport.model_validate_json(release.report),
                id=release.id,
                sha256=release.sha256,
                n=release.n,
                r=release.r,
                order=self._vault.order(release.id),
                records=self._vault.dataset(spec.dataset_id),
                names=[column["name"] for column in columns],
            )
        return known
