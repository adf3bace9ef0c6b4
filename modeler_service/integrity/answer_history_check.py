"""Check that stored answer versions of a query match the audit log, in order and time."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from blindopt import wire
from blindopt.audit.merkle_log import Json, sha256
from modeler_service.runs.record import Version

Stored = tuple[float | None, int | None, str | None, bool, int | None]
"""y, plays, passport, whether it was declined, and version of one trial."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A query in the log: digests, and the status of the first reply: 201 answered, 202 pending."""

    request_sha256: str
    reply_sha256: str
    status: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """An answer that was fetched later: its digest, and the first trial of the last query sent before it."""

    reply_sha256: str
    sent: int


@dataclass(slots=True)
class Exchanges:
    """The queries of one run in the modeler's own log."""

    sent: dict[int, Sent] = field(default_factory=dict)
    """By the number of the query's first trial."""
    fetched: dict[str, list[Fetched]] = field(default_factory=dict)
    """By query id, in the order of arrival."""
    refused: dict[int, str] = field(default_factory=dict)
    """Digests of queries that a cap refused, by the number of the first trial."""
    last: int = 0

    def add(self, record: Json, identity: str) -> None:
        """Take the next record of the log into account. Messages of the run, whose keys have an m, are no queries."""
        exchange = record["exchange"]
        owner, _, number = str(exchange["idempotency_key"]).rpartition(":")
        is_query = owner == identity and number.isdecimal()
        if is_query and exchange["method"] == "POST" and exchange["status"] in (201, 202):
            self.last = int(number)
            self.sent[self.last] = Sent(exchange["request_sha256"], exchange["reply_sha256"], exchange["status"])
        elif is_query and exchange["status"] == 403:
            self.refused[int(number)] = exchange["request_sha256"]
        elif record["actor"] == identity and exchange["method"] == "GET" and exchange["status"] == 200:
            parent, _, query_id = str(exchange["path"]).rpartition("/")
            if parent.endswith("/queries"):
                self.fetched.setdefault(query_id, []).append(Fetched(exchange["reply_sha256"], self.last))


def ends_of(trials: Iterable[Any]) -> dict[int, int]:
    """By the number of each trial the number of the last trial that was chosen with it."""
    queries: dict[int, int] = {}
    numbers = []
    for trial in trials:
        queries[trial.query] = max(trial.number, queries.get(trial.query, 0))
        numbers.append((trial.number, trial.query))
    return {number: queries[query] for number, query in numbers}


def faults(
    first: int,
    query_id: str | None,
    stored: Sequence[Stored],
    versions: Sequence[Version],
    exchanges: Exchanges,
    ends: Mapping[int, int],
) -> Iterator[str]:
    """Describe each fault of the query that begins with trial ``first``. ``ends``: ``ends_of`` the run.

    ``versions`` are the stored versions of its answer, in the order of arrival.
    """
    sent, fetched = exchanges.sent[first], list(exchanges.fetched.get(query_id or "", []))
    if sent.status == 201:
        fetched.insert(0, Fetched(sent.reply_sha256, first))
    else:
        yield from _pending_faults([version for version in versions if not version.version], query_id, sent)
    answered = [version for version in versions if version.version]
    for version, exchange in zip_longest(answered, fetched):
        if version is None:
            yield "the log records an answer that the record has not"
            return
        name = f"version {version.version} of its answer"
        if exchange is None:
            yield f"the log does not record {name}"
            return
        if version.reply is not None and sha256(version.reply) != exchange.reply_sha256:
            yield f"{name}: the stored reply is not the one that the log records"
        elif version.answers is None:
            yield f"{name}: the stored reply is not about it"
        if (after := ends.get(exchange.sent)) != version.after:
            yield f"{name} came after trial {after}, as the log records, and not after trial {version.after}"
    if list(stored) != (_values(answered[-1]) if answered else [(None, None, None, False, None)] * len(stored)):
        yield "the recorded answer is not what the last reply says"


def _pending_faults(pending: Sequence[Version], query_id: str | None, sent: Sent) -> Iterator[str]:
    if not pending or pending[0].reply is None:  # an export has no replies
        return
    if sha256(pending[0].reply) != sent.reply_sha256:
        yield "the stored reply, that it is pending, is not the one that the log records"
    elif wire.QueryPending.model_validate_json(pending[0].reply).id != query_id:
        yield "the recorded query is not the one that the curator named"


def _values(version: Version) -> list[Stored]:
    return [
        (None, None, None, True, version.version)
        if answer is None
        else (answer.y, answer.plays, answer.passport.model_dump_json(), False, version.version)
        for answer in version.answers or []
    ]
