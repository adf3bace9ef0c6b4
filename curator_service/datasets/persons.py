"""Persons with several rows: keyed digests of a file's person column, and at most k rows of each person."""

import hmac
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindopt.wire import PersonIds
from curator_service.privacy import entropy
from curator_service.salted_digests import DIGEST_BYTES

_PERSONS_SHOWN = 5
_NUMBER = re.compile(r"[+-]?[0-9]{1,40}(?:[.,][0-9]{1,40})?(?:e[+-]?[0-9]{1,2})?")
_GROUPED = re.compile(r"[+-]?[1-9][0-9]{0,2}(?P<mark>[., '])[0-9]{3}(?:(?P=mark)[0-9]{3})*")
_MAY_GROUP = re.compile("[1-9][0-9]{0,2}(?:[.]000|(?:[\u2018\u2019\u02bc`][0-9]{3})+)")
"""Ids that group digits to a clerk, and not to ``folded_1``."""
_GROUPED_MAX = 1_000
_SIGNS = re.compile("[^0-9a-z]+")
_DIGITS_OR_LETTERS = re.compile("[0-9]+|[^0-9 ]+")


def as_written(cell: str) -> str:
    """An id as it is written, but for blanks around it and for how Unicode composes its letters (NFC)."""
    return unicodedata.normalize("NFC", cell.strip())


def folded_1(cell: str) -> str:
    """What ids have in common that a clerk would read as one. It never changes: another form would be folded_2.

    A number is its exact value, whatever groups its digits: 1.017 is 1017, and 1.000 is 1. Of any other id letters and
    numbers count: not case, zeros before a number, or the blanks, dashes and other signs between them.

    >>> [folded_1(cell) for cell in ("1017", "1017.0", " 01017", "1.017e+03", "1,017", "1017.5")]
    ['1017', '1017', '1017', '1017', '1017', '1017.5']
    >>> [folded_1(cell) for cell in ("P-0412", "p 412", "P0412", "P-04-12", "§")]
    ['p-412', 'p-412', 'p-412', 'p-4-12', '§']
    """
    if cell.isascii() and cell.isdecimal() and cell[0] != "0":
        return cell
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", cell).casefold()).strip()
    is_grouped = _GROUPED.fullmatch(folded) and not (folded.endswith(".000") and folded.count(".") == 1)
    number = re.sub("[., ']", "", folded) if is_grouped else folded
    if _NUMBER.fullmatch(number):
        digits = format(Decimal(number.replace(",", ".")), "f")
        return digits.rstrip("0").rstrip(".") if "." in digits else digits
    plain = _SIGNS.sub(" ", folded) if folded.isascii() else "".join(map(_letter, folded))
    runs = _DIGITS_OR_LETTERS.findall(plain)
    return "-".join(run.lstrip("0") or "0" if run.isdecimal() else run for run in runs) or folded


def _letter(sign: str) -> str:
    """A letter, a mark on one, or a digit; a blank for any other sign."""
    if sign.isdecimal():
        return str(unicodedata.digit(sign))
    return sign if unicodedata.category(sign)[0] in "LMN" else " "


class PersonColumn:
    """The column of a file that names the person behind each row. Digests alone are collected, never a name.

    A digest is the first 16 bytes of HMAC-SHA256 of the cell's folded form under ``key``, so that nobody without the
    key can find a name by trying. Beside it is the digest of the cell as it is written, by which datasets of earlier
    versions know their persons. ``ids`` as_written: both are that one.
    """

    def __init__(self, name: str, key: bytes, ids: PersonIds = "folded_1") -> None:
        self.name, self._key = name, key
        self._fold = folded_1 if ids == "folded_1" else as_written
        self._digests = bytearray()
        self._rows = 0
        self.grouped: list[tuple[int, str]] = []
        """The first rows, from 0, whose id may group digits, each with the digest of the id without marks."""

    def add(self, cells: Iterable[str]) -> None:
        for cell in cells:
            folded, written = self._fold(cell), as_written(cell)
            digest = self._digest(folded)
            self._digests += digest + (digest if folded == written else self._digest(written))
            if folded != written and _MAY_GROUP.fullmatch(written) and len(self.grouped) < _GROUPED_MAX:
                self.grouped.append((self._rows, self._digest(re.sub("[^0-9]", "", written)).hex()))
            self._rows += 1

    def _digest(self, text: str) -> bytes:
        return hmac.digest(self._key, text.encode(), "sha256")[:DIGEST_BYTES]

    def taken(self) -> bytes:
        """Both digests of each row since the last call, in the order of the file."""
        taken, self._digests = bytes(self._digests), bytearray()
        return taken

    @property
    def digests(self) -> NDArray[np.uint8]:
        """The digests since then (n, 16), in the order of the file."""
        return two_digests(np.frombuffer(bytes(self._digests), dtype=np.uint8))[0]


def two_digests(taken: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The digest of each row's person (n, 16), and that of the id as it is written (n, 16)."""
    both = taken.view(np.uint8).reshape(-1, 2 * DIGEST_BYTES)
    return both[:, :DIGEST_BYTES], both[:, DIGEST_BYTES:]


def spelled_apart(taken: NDArray[Any]) -> list[tuple[int, int]]:
    """The first rows, from 0, of up to five persons whose id is written in two ways."""
    digests = two_digests(taken)
    if np.array_equal(*digests):
        return []
    folded, written = map(numbers_of, digests)
    _, first = np.unique(folded, return_index=True)
    others = np.flatnonzero(written != written[first[folded]])
    _, of_person = np.unique(folded[others], return_index=True)
    return sorted((int(first[folded[row]]), int(row)) for row in others[of_person])[:_PERSONS_SHOWN]


def grouped_apart(taken: NDArray[Any], grouped: list[tuple[int, str]]) -> list[tuple[int, int]]:
    """The rows of up to five ids that may group digits, each with the first row of the person it would be then."""
    if not grouped:
        return []
    folded = np.ascontiguousarray(two_digests(taken)[0]).view(f"S{DIGEST_BYTES}").reshape(-1)
    others: dict[bytes, int] = {}
    for row, digest in grouped:
        others.setdefault(np.frombuffer(bytes.fromhex(digest), dtype=folded.dtype)[0], row)
    first = [int(row) for row in np.flatnonzero(np.isin(folded, list(others)))]
    return sorted({others[folded[row]]: row for row in reversed(first)}.items())[:_PERSONS_SHOWN]


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
