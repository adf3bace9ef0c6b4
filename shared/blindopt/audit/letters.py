"""Checks of a letter to a person, offline: its total, and that the log of its checkpoint holds its records."""

from decimal import Decimal

from blindopt import wire
from blindopt.audit.merkle_log import Head, grow, is_consistent, leaf_hash, root
from blindopt.errors import LogBroken


def check(letter: wire.Letter, head: Head) -> None:
    """Raise LogBroken unless the events add up to the total, and each record is in the log with this ``head``."""
    if letter.epsilon is not None:
        listed = sum(Decimal(event.epsilon) for event in letter.events if event.epsilon is not None)
        if listed != Decimal(letter.epsilon):
            total = f"{Decimal(listed).normalize():f}, not to {letter.epsilon}"
            raise LogBroken(f"an event is missing or was changed: they add up to {total}")
    for record in (event.log for event in letter.events if event.log is not None):
        leaf, peaks = bytes.fromhex(record.leaf), bytes.fromhex(record.peaks)
        ended = Head(record.number + 1, root(grow(peaks, record.number, leaf)).hex())
        is_in = is_consistent(ended, head, [bytes.fromhex(node) for node in record.proof])
        is_whole = record.body is None or leaf_hash(record.body.encode()) == leaf
        if not is_in or not is_whole or len(peaks) != 32 * record.number.bit_count():
            raise LogBroken(f"record {record.number} is not in the log of the checkpoint: it was changed")
