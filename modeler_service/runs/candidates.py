"""The releases that the modeler stores: one file for each digest, downloaded once."""

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

from blindopt import wire
from blindopt.arrays import Matrix
from blindopt.client import StudyClient
from blindopt.client.downloads import delete_unused
from blindopt.errors import NumericalFailure
from blindopt.formats import npy_files, release_files

Parts = Sequence[wire.ReleasePart]
_OF_RELEASE = re.compile(r"[0-9a-f]{64}\.npy(\.([0-9a-f]{8}\.)?part)?")


def path_of(folder: Path, release_sha256: str) -> Path:
    return folder / f"{release_sha256}.npy"


def keep_candidates(folder: Path, release_sha256s: set[str]) -> None:
    """Delete the files of all releases but these, and what interrupted fetches left that no fetch goes on with.

    The folder may have other files, which stay.
    """
    names = {f"{digest}.npy{suffix}" for digest in release_sha256s for suffix in ("", ".part")}
    for path in folder.glob("*.npy*"):
        if _OF_RELEASE.fullmatch(path.name) is None or path.name in names:
            continue
        if path.suffix == ".part":
            delete_unused(path)
        else:
            path.unlink(missing_ok=True)


class DigestCache:
    """Digests of the releases in the ``size`` files that were read last, by inode, size, times and parts.

    A release may have gigabytes, and is checked often. Safe to call from several threads.
    """

    def __init__(self, digest: Callable[[Path, Parts], str] = release_files.digest, size: int = 256) -> None:
        self._digest, self._size = digest, size
        self._lock = threading.Lock()
        self._digests: OrderedDict[tuple[int, ...], str] = OrderedDict()

    def of(self, path: Path, parts: Parts = (), *, reread: bool = False) -> str:
        """Return the digest of a file; it is read if it was not read before, has changed, or for ``reread``."""
        status = path.stat()
        of_file = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        key = (*of_file, *(part.bytes for part in parts))
        with self._lock:
            digest = None if reread else self._digests.get(key)
        if digest is None:
            digest = self._digest(path, parts)
            with self._lock:
                self._digests[key] = digest
                while len(self._digests) > self._size:
                    self._digests.popitem(last=False)
        return digest


_DIGESTS = DigestCache()


def is_stored(path: Path, release_sha256: str, parts: Parts = (), *, reread: bool = False) -> bool:
    """Whether the file of a release exists and has the right digest; ``reread`` does without the cached digest."""
    return path.exists() and _DIGESTS.of(path, parts, reread=reread) == release_sha256


def fetch_candidates(
    curator: StudyClient,
    study: wire.StudyView,
    folder: Path,
    most_bytes: int,
    attempt: Callable[[Callable[[], None]], None] = lambda call: call(),
    *,
    reread: bool = False,
) -> Matrix:
    """Return the candidates of a study, memory-mapped, from their file or their curator; ``attempt`` may retry.

    ``reread`` reads the whole file even if its digest is cached.

    Raises NumericalFailure for a release of more than ``most_bytes``, or of another shape than its study says.
    """
    size = 8 * study.n * study.r + wire.NPY_HEADER_MAX
    if size > most_bytes:
        raise NumericalFailure(f"the release has {study.n} x {study.r} numbers: more than CANDIDATES_MAX_BYTES allows")
    path = path_of(folder, study.release_sha256)
    if not is_stored(path, study.release_sha256, study.parts, reread=reread):
        attempt(lambda: curator.download(path, study.release_sha256, max_bytes=size, parts=study.parts))
    return open_candidates(path, study)


def open_candidates(path: Path, study: wire.StudyView) -> Matrix:
    """Map the candidates in a file. Raises NumericalFailure if their shape is not that of their study."""
    candidates = npy_files.load(path)
    if candidates.shape != (study.n, study.r):
        raise NumericalFailure(f"the candidates are {candidates.shape}, the study says {(study.n, study.r)}")
    return candidates
