"""Digests by number in little memory: a log of a million records needs some 40 MB."""

from array import array
from bisect import bisect_right
from collections.abc import Iterator


class NumberedDigests:
    """Digests of ``length`` bytes by number. It is fastest where they are added in order."""

    def __init__(self, length: int = 32) -> None:
        self._length = length
        self._numbers = array("q")
        self._digests = bytearray()
        self._is_sorted = True

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Numbers in order with their digests; a number that was added twice comes twice."""
        self._sort()
        return ((number, self._at(index)) for index, number in enumerate(self._numbers))

    def __reversed__(self) -> Iterator[tuple[int, bytes]]:
        self._sort()
        return ((self._numbers[index], self._at(index)) for index in range(len(self) - 1, -1, -1))

    def add(self, number: int, digest: bytes) -> None:
        self._is_sorted = self._is_sorted and (not self._numbers or number >= self._numbers[-1])
        self._numbers.append(number)
        self._digests += digest

    def get(self, number: int) -> bytes | None:
        """The digest that was added last for a number, or None."""
        self._sort()
        index = bisect_right(self._numbers, number) - 1
        return self._at(index) if index >= 0 and self._numbers[index] == number else None

    def _at(self, index: int) -> bytes:
        return bytes(self._digests[index * self._length : (index + 1) * self._length])

    def _sort(self) -> None:
        if not self._is_sorted:
            order = sorted(range(len(self)), key=self._numbers.__getitem__)
            self._digests = bytearray(b"".join(map(self._at, order)))
            self._numbers = array("q", map(self._numbers.__getitem__, order))
            self._is_sorted = True
