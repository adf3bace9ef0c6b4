"""Released studies that call a hook before they read the outcomes of a query."""

from collections.abc import Callable
from typing import Any

from blindopt.arrays import Vector
from curator_service.use_cases.studies.release_cache import Released, ReleasedStudies
from curator_service.vault import Vault


class _Watched:
    """A released study; all but the outcomes comes straight from it."""

    def __init__(self, released: Released, before_measuring: Callable[[], object]) -> None:
        self._released = released
        self._before_measuring = before_measuring

    def __getattr__(self, name: str) -> Any:
        return getattr(self._released, name)

    def outcomes(self, rows: list[int]) -> Vector:
        self._before_measuring()
        return self._released.outcomes(rows)


class WatchedStudies(ReleasedStudies):
    """In place of ``ReleasedStudies``: to crash, close a study or take time between a charge and its draw."""

    def __init__(self, vault: Vault, before_measuring: Callable[[], object]) -> None:
        super().__init__(vault)
        self._before_measuring = before_measuring

    def known(self, identity: str) -> Any:
        released = super().known(identity)
        return None if released is None else _Watched(released, self._before_measuring)

    def of(self, db: Any, identity: str) -> Any:
        return _Watched(super().of(db, identity), self._before_measuring)
