"""Released studies that call a hook before they read the outcomes of a query."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from blindopt.arrays import Vector
from curator_service.studies.release_cache import Released, ReleasedStudies
from curator_service.vault import Vault
from service_kit.store.database import Connection


@dataclass(frozen=True, slots=True, repr=False)
class _WatchedRelease(Released):
    before_measuring: Callable[[], object]

    def outcomes(self, rows: list[int]) -> Vector:
        self.before_measuring()
        return Released.outcomes(self, rows)


class WatchedStudies(ReleasedStudies):
    """In place of ``ReleasedStudies``: to crash, close a study or take time between a charge and its draw."""

    def __init__(self, vault: Vault, before_measuring: Callable[[], object]) -> None:
        super().__init__(vault)
        self._before_measuring = before_measuring

    def cached(self, identity: str, foreign_writes: int) -> Any:
        released = super().cached(identity, foreign_writes)
        return None if released is None else self._watched(released)

    def of(self, db: Connection, identity: str) -> Any:
        return self._watched(super().of(db, identity))

    def _watched(self, released: Released) -> Released:
        if isinstance(released, _WatchedRelease):
            return released
        values = {field.name: getattr(released, field.name) for field in fields(released)}
        return _WatchedRelease(**values, before_measuring=self._before_measuring)
