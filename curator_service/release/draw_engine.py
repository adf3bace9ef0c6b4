"""Where releases are drawn: in this process, or at the owner's own Dask cluster, near the records."""

import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from blindopt.arrays import Matrix
from blindopt.errors import NumericalFailure
from curator_service.privacy.noise import OnProgress
from curator_service.privacy.noise.parallel import PIECE_DRAWS
from curator_service.release import draw_parts
from curator_service.release.draw_parts import DrawPart
from curator_service.release.mechanism import Assessment, Mechanism
from curator_service.release.row_noise import RowNoise
from curator_service.scaling import ScaledRows
from service_kit.dask_cluster import Certificates, DaskCluster

PART_DRAWS = 8 * PIECE_DRAWS
"""Draws in one part: about a second of one processor, and a quarter of one for Gaussian noise."""
_FOLDER = "draw-"
_log = logging.getLogger(__name__)


class DrawEngine(Protocol):
    """Draws releases."""

    def draw(
        self, mechanism: Mechanism, rows: ScaledRows, records: Path, out: Matrix, on_progress: OnProgress
    ) -> Assessment:
        """Fill ``out`` (n, r) as ``mechanism.draw`` does; ``records`` is the file of ``rows.values``."""
        ...

    def clean(self) -> None:
        """Delete what a crash left of draws."""
        ...


class ProcessDraws:
    """Draws in this process and in its children."""

    def draw(
        self, mechanism: Mechanism, rows: ScaledRows, records: Path, out: Matrix, on_progress: OnProgress
    ) -> Assessment:
        """Draw with the mechanism itself."""
        return mechanism.draw(rows, out, on_progress)

    def clean(self) -> None:
        """There is nothing outside of the vault."""


@runtime_checkable
class RowByRow(Protocol):
    """A mechanism that draws each row by itself."""

    def row_noise(self, d: int) -> RowNoise:
        """What a draw does to each row."""
        ...


@dataclass(frozen=True, slots=True)
class ClusterDraws:
    """Draws at the workers of a cluster, which read records from the folder ``files`` and write their parts there.

    The law of Z is that of a draw in this process: each worker draws from its own operating system, and no generator's
    state is shared. If a part fails, is begun twice, or its worker ends, the whole draw is void: its parts are deleted,
    none is drawn again, and nothing of them leaves. The workers are the owner's, and see records. Mechanisms that need
    all rows at once are drawn in this process. ``connect`` makes the connection to the cluster.
    """

    address: str
    certificates: Certificates | None
    files: Path
    step_seconds: float
    part_draws: float = PART_DRAWS
    connect: Callable[[str, Certificates | None], DaskCluster] = DaskCluster

    def draw(
        self, mechanism: Mechanism, rows: ScaledRows, records: Path, out: Matrix, on_progress: OnProgress
    ) -> Assessment:
        """Draw at the workers. Raises EngineUnavailable without any, and NumericalFailure if one fails."""
        if not isinstance(mechanism, RowByRow):
            _log.info("a release of %s needs all rows at once: it is drawn in this process", mechanism.name)
            return mechanism.draw(rows, out, on_progress)
        cluster = self.connect(self.address, self.certificates)
        try:
            cluster.check()
            with self._folder() as folder:
                parts = self._prepare(folder, mechanism.row_noise(rows.d), rows, records)
                self._draw_all(cluster, parts, out, on_progress)
        finally:
            cluster.close()
        return Assessment()

    def _prepare(self, folder: Path, noise: RowNoise, rows: ScaledRows, records: Path) -> list[DrawPart]:
        try:
            os.link(records, folder / draw_parts.VALUES)
        except OSError:  # another file system
            shutil.copyfile(records, folder / draw_parts.VALUES)
        np.save(folder / draw_parts.ORDER, rows.order, allow_pickle=False)
        if (rotation := noise.new_rotation(rows.d)) is not None:
            np.save(folder / draw_parts.ROTATION, rotation, allow_pickle=False)
        whole = DrawPart(str(folder), 0, 0, rows.n, tuple(rows.columns), tuple(rows.features), noise)
        size = max(1, int(self.part_draws / noise.law.draws_per_row))
        return [
            replace(whole, number=number, first=first, last=min(first + size, rows.n))
            for number, first in enumerate(range(0, rows.n, size))
        ]

    def _draw_all(self, cluster: DaskCluster, parts: list[DrawPart], out: Matrix, on_progress: OnProgress) -> None:
        done = 0
        ended = cluster.each(draw_parts.draw_part, parts, self.step_seconds, lambda: on_progress(done / len(out)))
        with closing(ended):
            for number, problem in ended:
                if problem != "":
                    _log.warning("a worker gave up a part of a release: %s", problem)
                    raise NumericalFailure(draw_parts.VOID)
                draw_parts.take_part(parts[number], out)
                done += parts[number].last - parts[number].first

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        """A folder of one draw, which is deleted with all that is in it: a worker that still writes then fails."""
        folder = self.files / f"{_FOLDER}{secrets.token_hex(8)}"
        folder.mkdir(mode=0o700)
        try:
            yield folder
        finally:
            _remove(folder)

    def clean(self) -> None:
        """Delete the folders of draws that a crash ended."""
        self.files.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in self.files.glob(f"{_FOLDER}*"):
            _remove(folder)


def draw_engine(address: str, certificates: Certificates | None, files: Path | None, step_seconds: float) -> DrawEngine:
    """The engine of the settings DRAW_ENGINE, ENGINE_TLS_*, DRAW_FILES and ENGINE_STEP_SECONDS."""
    if address == "process" or files is None:
        return ProcessDraws()
    return ClusterDraws(address, certificates, files.absolute(), step_seconds)


def _remove(folder: Path) -> None:
    for _ in range(100):  # a worker may be adding a file
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
    raise OSError(f"the folder {folder} of a release cannot be deleted")
