"""The answer of a trial as it is stored."""

from typing import Any

from blindopt import wire


def values_of(answer: wire.Answer | None, reply: wire.QueryReply) -> dict[str, Any]:
    """Return the columns of a trial that hold its answer."""
    values = {"declined": int(answer is None), "version": reply.version}
    if answer is None:
        return values | {"y": None, "plays": None, "passport": None}
    return values | {"y": answer.y, "plays": answer.plays, "passport": answer.passport.model_dump_json()}
