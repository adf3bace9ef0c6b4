"""The answers in a query's reply, matched to the rows that were requested."""

from collections import defaultdict, deque

from blindopt import wire
from blindopt.errors import ProtocolViolated


def answers_of(reply: wire.QueryReply, rows: list[int]) -> list[wire.Answer | None]:
    """Return the answer of each requested row, in order; None for a declined row. Each row is measured once.

    If a row was requested several times and not all of its measurements were made, the first ones have the answers.
    Raises ProtocolViolated for a reply about other rows, or one that leaves a row out.
    """
    answers_by_row: dict[int, deque[wire.Answer]] = defaultdict(deque)
    for answer in reply.answers:
        answers_by_row[answer.row].append(answer)
    answers = [answers_by_row[row].popleft() if answers_by_row[row] else None for row in rows]
    # The reply must be in the order of the request, with nothing else in it and nothing silently left out.
    missing = {row for row, answer in zip(rows, answers, strict=True) if answer is None}
    measured = {answer.row for answer in reply.answers}
    declined = set(reply.declined)
    if [answer for answer in answers if answer is not None] != reply.answers or not declined <= missing - measured:
        raise ProtocolViolated("the curator answered other rows than those queried")
    if not missing <= declined | measured:
        raise ProtocolViolated("the curator left out a row without saying that it is declined")
    return answers
