"""What never changes once a study is released, read once while it is asked for."""

import json
import threading
from collections import OrderedDict
from dataclasses import dataclass
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from blindopt import wire
from blindopt.arrays import Matrix, Vector
from blindopt.errors import StudyNotOpen
from curator_service import store
from curator_service.vault import Vault
from service_kit.store.database import Connection

KEPT = 64


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
    """Those asked for last stay read, ``KEPT`` of them: each holds a file open, and so does each dataset.

    Safe to call from several threads.
    """

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Released] = OrderedDict()
        self._records: WeakValueDictionary[str, Matrix] = WeakValueDictionary()  # studies of one dataset share a map

    def known(self, identity: str) -> Released | None:
        """A study that was read before, and is kept."""
        with self._lock:
            if (found := self._known.get(identity)) is not None:
                self._known.move_to_end(identity)
            return found

    def of(self, db: Connection, identity: str) -> Released:
        """A study by its id. Raises StudyNotOpen before its release."""
        if (known := self.known(identity)) is None:
            study, release = store.find(db, store.studies, identity), store.release_of(db, identity)
            if release is None:
                raise StudyNotOpen("the study has not released its candidates yet")
            spec = wire.StudyCreate.model_validate_json(study.spec)
            columns = json.loads(store.find(db, store.datasets, spec.dataset_id).columns)
            known = Released(
                spec=spec,
                report=wire.ReleaseReport.model_validate_json(release.report),
                id=release.id,
                sha256=release.sha256,
                n=release.n,
                r=release.r,
                order=self._vault.order(release.id),
                records=self._dataset(spec.dataset_id),
                names=[column["name"] for column in columns],
            )
            with self._lock:
                self._known[identity] = known
                while len(self._known) > KEPT:
                    self._known.popitem(last=False)
        return known

    def _dataset(self, identity: str) -> Matrix:
        with self._lock:
            if (records := self._records.get(identity)) is None:
                records = self._records[identity] = self._vault.dataset(identity)
            return records
