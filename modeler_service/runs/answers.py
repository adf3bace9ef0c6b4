"""What the reply to a query says of each of its trials."""

from collections import defaultdict, deque
from typing import Any

from blindopt import wire
from blindopt.errors import ProtocolViolated


def answers_of(reply: wire.QueryReply, rows: list[int]) -> list[wire.Answer | None]:
    """The answer of each row asked, in order; None for one that was declined. Each row was asked for one measurement.

    Where a row was asked several times and not all of them were measured, the first ones have the answers.
    ProtocolViolated for a reply about other rows, or one that leaves a row out.
    """
    of_row: dict[int, deque[wire.Answer]] = defaultdict(deque)
    for answer in reply.answers:
        of_row[answer.row].append(answer)
    found = [of_row[row].popleft() if of_row[row] else None for row in rows]
    # What is told, row by row: in the order of the request, nothing else, and nothing silently left out.
    missing = {row for row, answer in zip(rows, found, strict=True) if answer is None}
    measured = {answer.row for answer in reply.answers}
    declined = set(reply.declined)
    if [answer for answer in found if answer is not None] != reply.answers or not declined <= missing - measured:
        raise ProtocolViolated("the curator answered other rows than were asked")
    if not missing <= declined | measured:
        raise ProtocolViolated("the curator left out a row without saying that it is declined")
    return found


def values_of(answer: wire.Answer | None, reply: wire.QueryReply) -> dict[str, Any]:
    """What is stored of a trial's answer."""
    told = {"declined": int(answer is None), "version": reply.version}
    if answer is None:
        return told | {"y": None, "plays": None, "passport": None}
    return told | {"y": answer.y, "plays": answer.plays, "passport": answer.passport.model_dump_json()}
