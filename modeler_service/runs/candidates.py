"""A release as the modeler keeps it: one file by its digest, fetched once."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from blindopt import wire
from blindopt.arrays import Matrix
from blindopt.client import StudyClient
from blindopt.errors import NumericalFailure
from blindopt.formats import npy_files


def path_of(folder: Path, release_sha256: str) -> Path:
    """Where the candidates of a release are kept."""
    return folder / f"{release_sha256}.npy"


class Digests:
    """Digests of files that this process has read, by what tells a file from another and from itself before a change.

    A release may be gigabytes, and is looked at many times. Safe to call from several threads.
    """

    _MOST = 256

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[int, ...], str] = OrderedDict()

    def of(self, path: Path, *, anew: bool = False) -> str:
        """The SHA-256 of a file; read to its end where it is not known yet, was changed, or is asked for ``anew``."""
        at = path.stat()
        key = (at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns)
        with self._lock:
            found = None if anew else self._known.get(key)
        if found is None:
            found = npy_files.digest(path)
            with self._lock:
                self._known[key] = found
                while len(self._known) > self._MOST:
                    self._known.popitem(last=False)
        return found


_DIGESTS = Digests()


def is_here(path: Path, release_sha256: str, *, anew: bool = False) -> bool:
    """Whether the file of a release is there and is what its digest says; ``anew``: whatever was found before."""
    return path.exists() and _DIGESTS.of(path, anew=anew) == release_sha256


def fetched(
    curator: StudyClient,
    study: wire.StudyView,
    folder: Path,
    most_bytes: int,
    attempt: Callable[[Callable[[], None]], None] = lambda call: call(),
    *,
    anew: bool = False,
) -> Matrix:
    """The candidates of a study, memory-mapped, from their file or their curator; ``attempt`` may call again.

    ``anew`` reads the whole file whatever was found of it before.

    Raises NumericalFailure for a release of more than ``most_bytes``, or of another shape than its study says.
    """
    size = 8 * study.n * study.r + npy_files.HEADER_MAX
    if size > most_bytes:
        raise NumericalFailure(f"the release has {study.n} x {study.r} numbers: more than CANDIDATES_MAX_BYTES allows")
    path = path_of(folder, study.release_sha256)
    if not is_here(path, study.release_sha256, anew=anew):
        attempt(lambda: curator.download(path, study.release_sha256, max_bytes=size))
    return opened(path, study)


def opened(path: Path, study: wire.StudyView) -> Matrix:
    """The candidates in a file. NumericalFailure if their shape is not the one that their study says."""
    candidates = npy_files.load(path)
    if candidates.shape != (study.n, study.r):
        raise NumericalFailure(f"the candidates are {candidates.shape}, the study says {(study.n, study.r)}")
    return candidates
