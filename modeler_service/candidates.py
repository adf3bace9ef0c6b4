"""A release as the modeler keeps it: one file by its digest, fetched once."""

from collections.abc import Callable
from pathlib import Path

from shared import matrix, wire
from shared.client import StudyClient
from shared.errors import NumericalFailure
from shared.matrix import Matrix


def path_of(folder: Path, release_sha256: str) -> Path:
    """Where the candidates of a release are kept."""
    return folder / f"{release_sha256}.npy"


def fetched(
    curator: StudyClient,
    study: wire.StudyView,
    folder: Path,
    most_bytes: int,
    attempt: Callable[[Callable[[], None]], None] = lambda call: call(),
) -> Matrix:
    """The candidates of a study, memory-mapped, from their file or their curator; ``attempt`` may call again.

    Raises NumericalFailure for a release of more than ``most_bytes``, or of another shape than its study says.
    """
    size = 8 * study.n * study.r + matrix.HEADER_MAX
    if size > most_bytes:
        raise NumericalFailure(f"the release has {study.n} x {study.r} numbers: more than CANDIDATES_MAX_BYTES allows")
    path = path_of(folder, study.release_sha256)
    if not path.exists() or matrix.digest(path) != study.release_sha256:
        attempt(lambda: curator.download(path, study.release_sha256, max_bytes=size))
    return opened(path, study)


def opened(path: Path, study: wire.StudyView) -> Matrix:
    """The candidates in a file. NumericalFailure if their shape is not the one that their study says."""
    candidates = matrix.load(path)
    if candidates.shape != (study.n, study.r):
        raise NumericalFailure(f"the candidates are {candidates.shape}, the study says {(study.n, study.r)}")
    return candidates
