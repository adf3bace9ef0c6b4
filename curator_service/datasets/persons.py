"""Persons with several rows: keyed digests of a file's person column, and at most k rows of each person."""

import hmac
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from curator_service.budget.people import DIGEST_BYTES
from curator_service.privacy import entropy


class PersonColumn:
    """The column of a file that names the person behind each row. Digests alone are collected, never a name.

    A digest is the first 16 bytes of HMAC-SHA256 of the cell's text under ``key``, so that nobody without the key can
    find a name by trying. Blanks around a name do not count, nor does how Unicode composes its letters (NFC).
    """

    def __init__(self, name: str, key: bytes) -> None:
        self.name = name
        self._key = key
        self._digests = bytearray()

    def add(self, cells: Iterable[str]) -> None:
        """Collect the digests of the next rows."""
        for cell in cells:
            canonical = unicodedata.normalize("NFC", cell.strip()).encode()
            self._digests += hmac.digest(self._key, canonical, "sha256")[:DIGEST_BYTES]

    def taken(self) -> bytes:
        """The digests since the last call, in the order of the file."""
        taken, self._digests = bytes(self._digests), bytearray()
        return taken

    @property
    def digests(self) -> NDArray[np.uint8]:
        """The digests since then (n, 16), in the order of the file."""
        return np.frombuffer(bytes(self._digests), dtype=np.uint8).reshape(-1, DIGEST_BYTES)


def numbers_of(digests: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The number of each row's person (n,), from 0, for digests (n, 16)."""
    _, numbers = np.unique(digests, axis=0, return_inverse=True)
    persons: NDArray[np.int64] = numbers.reshape(-1).astype(np.int64)
    return persons


def kept_rows(persons: NDArray[np.int64], k: int) -> NDArray[np.int64]:
    """Choose at most ``k`` rows of each person, ascending; ``persons`` (n,) has the person of each row.

    Every set of k rows of a person with more is equally likely: the first k of hers in a uniform random order of all.
    """
    order = entropy.permutation(len(persons))
    order = order[np.argsort(persons[order], kind="stable")]
    starts = _starts(persons[order])
    position = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    return np.sort(order[position < k])


def pieces(rows: NDArray[np.int64], size: int = 10_000) -> Iterator[NDArray[np.int64]]:
    """``rows`` in pieces of ``size`` at most, so that a large file is never in memory."""
    for begin in range(0, len(rows), size):
        yield rows[begin : begin + size]


@dataclass(frozen=True, slots=True, repr=False)
class RowsOfPersons:
    """Which rows of a release are the same person's. ``persons`` (n,): the person of each row, from 0, without gaps."""

    persons: NDArray[np.int64]
    _by_person: NDArray[np.int64]
    _starts: NDArray[np.int64]

    @classmethod
    def of(cls, persons: NDArray[np.int64]) -> "RowsOfPersons":
        """Group rows by their persons (n,), of which some numbers may be nobody's: a person's who was withheld."""
        persons = np.unique(persons, return_inverse=True)[1].reshape(-1).astype(np.int64)
        by_person = np.argsort(persons, kind="stable")
        return cls(persons, by_person, np.append(_starts(persons[by_person]), len(persons)))

    def of_row(self, row: int) -> list[int]:
        """Every row of the person behind ``row``, itself included, ascending."""
        person = int(self.persons[row])
        rows: list[int] = self._by_person[self._starts[person] : self._starts[person + 1]].tolist()
        return rows


def _starts(ordered: NDArray[np.int64]) -> NDArray[np.int64]:
    """The first position of each run of equal numbers."""
    return np.flatnonzero(np.diff(ordered, prepend=-1))
