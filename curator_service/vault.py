"""The curator's files: datasets, releases and their secret row orders, as npy in a private folder."""

import fcntl
import io
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Matrix
from blindopt.errors import Erased, NumericalFailure, StorageUnavailable
from blindopt.formats import npy_files, release_files
from blindopt.wire import DatasetPicture, ReleasePart, digest_of_parts
from curator_service.salted_digests import salted_file_digest

_CHUNK = 1 << 20


def _save(path: Path, values: NDArray[Any]) -> None:
    with path.open("wb") as file:
        # If numpy writes to the file itself, the OSError of a full disk has no errno.
        np.lib.format.write_array(SimpleNamespace(write=file.write), values, allow_pickle=False)


@contextmanager
def _readable() -> Iterator[None]:
    """Convert what a file raises that somebody took away, damaged or may alone read: put back, it is read again."""
    try:
        yield
    except (FileNotFoundError, PermissionError, ValueError, EOFError, NumericalFailure) as error:
        temporary = StorageUnavailable.of(error.__cause__)
        raise temporary or StorageUnavailable("a file of the data folder is missing, damaged or not readable") from None


class Vault:
    """Stores files atomically: each is written in the scratch folder, made durable, then renamed.

    The folder has mode 0700. Files never change afterwards, so other processes may read them meanwhile.
    """

    def __init__(self, folder: Path, part_bytes: int = 1 << 30) -> None:
        """``part_bytes``: the candidates of a larger release are published in parts of so many."""
        self._folder, self._part_bytes = folder, part_bytes
        self.scratch = folder / "tmp"
        for path in (folder, self.scratch):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.pending = PendingFiles(folder / "pending")
        self._erased: set[str] = set()
        self.pictures: dict[str, DatasetPicture] = {}
        """What the values of datasets are like, by id, once their owner has seen it."""

    def keep_dataset(self, dataset_id: str, blocks: Iterable[Matrix]) -> None:
        """Store the values (n, columns) of a dataset, block by block. An error of ``blocks`` leaves a scratch file."""
        with self.new_dataset(dataset_id) as file:
            npy_files.write(file, blocks)

    @contextmanager
    def new_dataset(self, dataset_id: str) -> Iterator[BinaryIO]:
        """An empty file for the values of a dataset, as npy, which are stored at the end unless an error is raised."""
        partial = self.scratch / f"{dataset_id}.npy"
        with partial.open("wb") as file:
            yield file
        self._settle(partial, dataset_id)

    def dataset(self, dataset_id: str) -> Matrix:
        """The values of a dataset, memory-mapped and read-only. Raises StorageUnavailable, as all that read files."""
        with _readable():
            return npy_files.load(self._path(dataset_id))

    def keep_persons(
        self, dataset_id: str, digests: NDArray[np.uint8], as_written: NDArray[np.uint8] | None = None
    ) -> None:
        """Store the keyed digest of each record's person (n, 16), for a dataset with a person column.

        ``as_written``: that of the id as it is written, if the other one is of a folded form.
        """
        self._keep(f"{dataset_id}.persons", digests)
        if as_written is not None:
            self._keep(f"{dataset_id}.spellings", as_written)

    def persons(self, dataset_id: str) -> NDArray[np.uint8]:
        """The keyed digest of each record's person (n, 16), memory-mapped."""
        return self._mapped(f"{dataset_id}.persons")

    def spellings(self, dataset_id: str) -> NDArray[np.uint8] | None:
        """The keyed digest of each record's id as it is written (n, 16); None if its persons have no other digest."""
        return self._mapped(f"{dataset_id}.spellings") if self._path(f"{dataset_id}.spellings").exists() else None

    def keep_numbers(self, dataset_id: str, numbers: NDArray[np.int64]) -> None:
        """Store the number in its file, from 1, of each record (n,), for a dataset with a person column."""
        self._keep(f"{dataset_id}.numbers", numbers)

    def numbers(self, dataset_id: str) -> NDArray[np.int64]:
        """The number in its file, from 1, of each record (n,), memory-mapped."""
        return self._mapped(f"{dataset_id}.numbers")

    def records(self, dataset_id: str) -> Path:
        return self._path(dataset_id)

    def begin_release(self, release_id: str, n: int, r: int) -> Matrix:
        """Create an empty Z to fill, in the scratch folder."""
        return npy_files.create(self.scratch / f"{release_id}.npy", n, r)

    def keep_release(self, release_id: str, order: NDArray[np.int64]) -> tuple[str, list[ReleasePart]]:
        """Store the filled Z and its row order, and return the digest of Z, with the parts of a large one."""
        self._keep(f"{release_id}.order", order)
        filled = self.scratch / f"{release_id}.npy"
        release_parts = release_files.parts_of(filled, self._part_bytes)
        digest = digest_of_parts(release_parts) if release_parts else npy_files.digest(filled)
        self._settle(filled, release_id)
        return digest, release_parts

    def candidates(self, release_id: str) -> Path:
        return self._path(release_id)

    def order_file(self, release_id: str) -> Path:
        """The npy file of a release's row order, for a child process."""
        return self._path(f"{release_id}.order")

    def order(self, release_id: str) -> NDArray[np.int64]:
        """The row of the dataset of each candidate, memory-mapped. It never leaves the curator."""
        return self._mapped(f"{release_id}.order")

    def order_digest(self, release_id: str, salt: str) -> str:
        with _readable():
            return salted_file_digest(self.order_file(release_id), salt)

    def keep_only(self, recorded: set[str]) -> None:
        """Delete what a crash left: scratch files, and files of datasets and releases that are not ``recorded``.

        Folders stay, because the vault makes none.
        """
        for leftover in self.scratch.iterdir():
            if not leftover.is_dir() or leftover.is_symlink():
                leftover.unlink()
        for path in self._folder.glob("*.npy"):
            if path.name.partition(".")[0] not in recorded:
                path.unlink()

    def drop(self, file_id: str) -> None:
        """Delete the files of a dataset or release that was not recorded."""
        for path in self._files(file_id):
            path.unlink(missing_ok=True)

    def forget(self, identities: Iterable[str]) -> None:
        """Read no file of these datasets and releases from now on: every use of one raises Erased."""
        self._erased |= set(identities)
        for dataset_id in self._erased & self.pictures.keys():
            del self.pictures[dataset_id]

    def erase(self, file_id: str) -> None:
        """Delete the files of a dataset or release, and overwrite what they held: another may have them mapped."""
        for path in self._files(file_id):
            _erase(path)
        _make_durable(self._folder)

    def _files(self, file_id: str) -> list[Path]:
        names = (file_id, f"{file_id}.order", f"{file_id}.persons", f"{file_id}.spellings", f"{file_id}.numbers")
        return [folder / f"{name}.npy" for name in names for folder in (self._folder, self.scratch)]

    def _keep(self, name: str, values: NDArray[Any]) -> None:
        partial = self.scratch / f"{name}.npy"
        _save(partial, values)
        self._settle(partial, name)

    def _mapped(self, name: str) -> NDArray[Any]:
        with _readable():
            values: NDArray[Any] = np.load(self._path(name), mmap_mode="r", allow_pickle=False)
            return values

    def _path(self, file_id: str) -> Path:
        if file_id.partition(".")[0] in self._erased:
            raise Erased("the dataset was erased by its owner, with the candidates and answers of its studies")
        return self._folder / f"{file_id}.npy"

    def _settle(self, partial: Path, file_id: str) -> None:
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.chmod(0o600)
        partial.replace(self._path(file_id))
        _make_durable(self._folder)


class PendingFiles:
    """Uploaded files that are no datasets yet, each with a note beside it. The folder has mode 0700."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def keep(self, upload_id: str, content: BinaryIO, note: str) -> None:
        """Store a file, then its note: a file without one is unfinished."""
        _write(self.path(upload_id), content)
        self.note(upload_id, note)

    def note(self, upload_id: str, note: str) -> None:
        """Store the note of a file, in place of the one that it has."""
        partial, path = self._folder / f"{upload_id}.partial", self._folder / f"{upload_id}.json"
        _write(partial, io.BytesIO(note.encode()))
        _erase(path, partial)
        _make_durable(self._folder)

    def notes(self) -> dict[str, bytes]:
        notes = {}
        for path in self._folder.glob("*.json"):
            with suppress(FileNotFoundError):  # it is dropped meanwhile
                notes[path.stem] = path.read_bytes()
        return notes

    def size(self) -> int:
        total = 0
        for path in self._folder.glob("*.data"):
            with suppress(FileNotFoundError):
                total += path.stat().st_size
        return total

    def path(self, upload_id: str) -> Path:
        return self._folder / f"{upload_id}.data"

    @contextmanager
    def opened(self, upload_id: str) -> Iterator[BinaryIO]:
        """A file to read; whoever drops it meanwhile overwrites nothing of it. Raises FileNotFoundError."""
        with self.path(upload_id).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            yield file

    def drop(self, file_id: str) -> None:
        """Delete a file with its note, and overwrite what they held."""
        for kind in ("json", "partial", "data"):
            _erase(self._folder / f"{file_id}.{kind}")

    def drop_unfinished(self) -> None:
        """Delete what a crash left. Folders stay, because none is made here."""
        whole = self.notes()
        for path in self._folder.iterdir():
            if (path.stem not in whole or path.suffix == ".partial") and (not path.is_dir() or path.is_symlink()):
                path.unlink()


def _write(path: Path, content: BinaryIO) -> None:
    with path.open("wb") as file:
        os.fchmod(file.fileno(), 0o600)
        shutil.copyfileobj(content, file, _CHUNK)
        file.flush()
        os.fsync(file.fileno())


def _erase(path: Path, by: Path | None = None) -> None:
    """Delete a file, or replace it ``by`` another, and overwrite what it held, unless it is read at this moment."""
    if by is not None and not path.exists():
        by.replace(path)
        return
    with suppress(FileNotFoundError, BlockingIOError), path.open("rb+") as file:
        path.unlink() if by is None else by.replace(path)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for _ in range(-(-os.fstat(file.fileno()).st_size // _CHUNK)):
            file.write(bytes(_CHUNK))
        os.fsync(file.fileno())


def _make_durable(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
