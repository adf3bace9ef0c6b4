"""One part of a draw at another process, which reads records from a shared folder and writes noisy rows into it.

Nothing of a record, of the noise or of the row order is in what the process is sent or in what it replies.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Matrix
from blindopt.errors import NumericalFailure
from blindopt.formats import npy_files
from blindopt.wire import Feature
from curator_service.privacy import noise
from curator_service.privacy.noise import ignore_progress
from curator_service.release.row_noise import RowNoise
from curator_service.scaling import ScaledRows

VALUES, ORDER, ROTATION = "values.npy", "order.npy", "rotation.npy"
"""The files of a draw's folder that its parts are drawn from."""


@dataclass(frozen=True, slots=True)
class DrawPart:
    """Rows ``first`` .. ``last - 1`` of a draw in a shared ``folder``, with its public parameters."""

    folder: str
    number: int
    first: int
    last: int
    columns: tuple[int, ...]
    features: tuple[Feature, ...]
    """What rows are scaled by."""
    noise: RowNoise


def drawn_file(folder: Path, number: int) -> Path:
    """The file of the noisy rows of a part."""
    return folder / f"drawn-{number}.npy"


def draw_part(part: DrawPart) -> str:
    """Draw a part into its file, at a worker: an empty text, or the kind of the error that ended it.

    A part is begun once, and its file is written once: a worker that is given a part for a second time, because the
    first one ended, refuses it.
    """
    try:
        _draw(part, Path(part.folder))
    except Exception as error:  # its text might quote a value or a path
        return type(error).__name__
    return ""


def _draw(part: DrawPart, folder: Path) -> None:
    (folder / f"begun-{part.number}").touch(0o600, exist_ok=False)
    order = mapped(folder / ORDER)[part.first : part.last]
    rows = ScaledRows(npy_files.load(folder / VALUES), list(part.columns), list(part.features), order)
    finish = part.noise.finish(np.load(folder / ROTATION, allow_pickle=False) if part.noise.rotate else None)
    out = np.empty((rows.n, rows.d))
    noise.apply(part.noise.law, rows.blocks(), out, ignore_progress, rows.n, finish=finish, workers=0)
    partial = folder / f"partial-{part.number}"
    partial.touch(0o600, exist_ok=False)
    with partial.open("wb") as file:
        npy_files.write(file, [out])
        file.flush()
        os.fsync(file.fileno())
    os.link(partial, drawn_file(folder, part.number))  # unlike a rename it replaces nothing
    partial.unlink()


def mapped(path: Path) -> NDArray[np.int64]:
    """The integers of a file, memory-mapped."""
    values: NDArray[np.int64] = np.load(path, mmap_mode="r", allow_pickle=False)
    return values


def take_part(part: DrawPart, out: Matrix) -> None:
    """Copy the noisy rows of a part into ``out`` (n, r). Raises NumericalFailure for a file that is none of a part."""
    path, rows = drawn_file(Path(part.folder), part.number), out[part.first : part.last]
    try:
        drawn = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError):
        raise NumericalFailure(VOID) from None
    if drawn.shape != rows.shape or drawn.dtype != rows.dtype:
        raise NumericalFailure(VOID)
    rows[:] = drawn
    if not np.isfinite(rows).all():
        raise NumericalFailure(VOID)
    npy_files.forget_pages(out)


VOID = "a worker that draws noise ended before its time, or failed: nothing of this draw may be used"
