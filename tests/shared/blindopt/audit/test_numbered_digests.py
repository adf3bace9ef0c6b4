"""Digests by number: in any order of adding, what a sorted list of pairs would return."""

import random

import pytest

from blindopt.audit import numbered_digests
from blindopt.audit.merkle_log import sha256
from blindopt.audit.numbered_digests import NumberedDigests

ORDERS = {
    "none": [],
    "one": [5],
    "in order": [0, 1, 2, 3, 7, 2**53],
    "backwards": [7, 3, 2, 1, 0],
    "negative first": [-3, -1, 0, 2],
    "negative last": [2, 0, -1, -3],
    "twice in order": [1, 4, 4, 4, 6],
    "twice in disorder": [4, 1, 4, 6, 1, 4],
    "shuffled": random.Random(1).sample(range(200), 100) * 2,
}


@pytest.mark.parametrize("numbers", ORDERS.values(), ids=ORDERS)
def test_digests_are_those_of_a_sorted_list(numbers):
    """After each that is added: in order, backwards, and by number the last that was added for it."""
    pairs, digests = [], NumberedDigests()
    for count, number in enumerate(numbers):
        digest = bytes.fromhex(sha256(b"%d" % count))
        pairs.append((number, digest))
        digests.add(number, digest)
        if len(numbers) < 10 or count % 20 == 19:
            check(digests, pairs)
    check(digests, pairs)


def check(digests, pairs):
    in_order = sorted(pairs, key=lambda pair: pair[0])
    assert list(digests) == in_order
    assert list(reversed(digests)) == in_order[::-1]
    assert len(digests) == len(pairs)
    last = dict(pairs)
    for number in {n + step for n in (0, *last) for step in (-1, 0, 1)}:
        assert digests.get(number) == last.get(number)


def test_digests_of_another_length():
    digests = NumberedDigests(2)
    for number in (3, 1, 2):
        digests.add(number, b"%02d" % number)
    assert list(digests) == [(1, b"01"), (2, b"02"), (3, b"03")]


@pytest.mark.parametrize(
    ("numbers", "sorts"), [(range(9), 0), ([0, 1, 1, 1, 2], 0), ([2, 1, 0], 1), ([5, *range(9)], 1)], ids=str
)
def test_digests_are_sorted_only_after_disorder_and_then_once(numbers, sorts, monkeypatch):
    """A log of a million records is looked up a million times."""
    calls = []
    monkeypatch.setattr(numbered_digests, "sorted", lambda *a, **k: calls.append(1) or sorted(*a, **k), raising=False)
    digests = NumberedDigests()
    for number in numbers:
        digests.add(number, bytes(32))
    for number in numbers:
        assert digests.get(number) == bytes(32)
        assert len(list(digests)) == len(list(reversed(digests))) == len(numbers)
    assert len(calls) == sorts
    digests.add(9, bytes(32))
    assert digests.get(9) == bytes(32)
    assert len(calls) == sorts
