"""What the log says about tables, followed record by record and then compared with the rows.

Of archived records it begins with the last segment's summary: the states of the tables that rest on them, the number
and one digest of those that stay in the database, and the end of each shared log.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Literal, Protocol, cast

from blindopt.audit.merkle_log import Entry, Json, exchange_leaf, grow, sha256
from blindopt.audit.segments import name_of
from blindopt.errors import LogBroken
from service_kit.store import audit_log, segments, tokens, users
from service_kit.store.base import ARCHIVED_KINDS, MacOf
from service_kit.store.database import Connection

OTHER = "other"
"""What a finding is about that names no study, grant or run. What else was changed is not known: all are refused."""
Part = Literal["first", "second"]
"""Of a verification: all but the exchanges between the parties, which ends before a service goes on; the exchanges."""


@dataclass
class RowDigest:
    """The first rows of a table: their number, and one digest of all, in their order."""

    count: int = 0
    digest: str = ""

    def add(self, content: bytes) -> None:
        self.count += 1
        self.digest = sha256(self.digest.encode() + content)


class LogSummary(Protocol):
    """What the log says about some tables."""

    @property
    def kinds(self) -> Collection[str] | None:
        """Kinds of the records that it follows, which are never archived; None: all (a ``StatefulSummary``)."""

    def follow(self, record: Json) -> None:
        """Take the next record of the log. Raises LogBroken if it contradicts an earlier one."""

    def check(self, db: Connection) -> Iterator[LogBroken]:
        """Yield what differs in the tables from the log, about each study, grant or run.

        Raises LogBroken where nothing after it can be compared: it is about ``OTHER`` too.
        """


class StatefulSummary(LogSummary, Protocol):
    """A summary of records that may be archived."""

    @property
    def staying_kinds(self) -> Collection[str]:
        """Kinds of records that its state leaves out, because they stay in the database."""

    def state(self) -> Json:
        """All that ``load`` needs to go on; equal after equal records."""

    def load(self, state: Json) -> None:
        """Go on after the records with this state."""


def archived_summary(db: Connection, entries: Iterable[Entry], summaries: Sequence[StatefulSummary]) -> str:
    """The summary, as JSON, of the archived records with these ``entries``, which follow them.

    Raises LogBroken for records that contradict each other.
    """
    staying, shared = RowDigest(), {}
    if (last := segments.LAST.row(db)) is not None:
        for record in _staying(db, last):
            for summary in summaries:
                if record["kind"] in summary.staying_kinds:
                    summary.follow(record)
        _load(last, summaries)
        before = json.loads(last.summary)
        staying, shared = RowDigest(**before["staying"]), before["shared"]
    for entry in entries:
        exchange = entry.record.get("exchange") or {}
        if (position := exchange.get("position")) is not None:
            leaf, peaks = exchange_leaf(entry.body), shared.get(exchange["grant_id"], ("", "", ""))[2]
            shared[exchange["grant_id"]] = position, leaf.hex(), grow(bytes.fromhex(peaks), position, leaf).hex()
        if entry.record["kind"] not in ARCHIVED_KINDS:
            staying.add(entry.body)
        for summary in summaries:
            summary.follow(entry.record)
    states = {type(summary).__name__: summary.state() for summary in summaries}
    return json.dumps({"shared": shared, "staying": asdict(staying), "states": states}, sort_keys=True)


def _load(segment: Any, summaries: Iterable[LogSummary]) -> None:
    for summary in (cast(StatefulSummary, each) for each in summaries if each.kinds is None):
        summary.load(json.loads(segment.summary)["states"][type(summary).__name__])


def _staying(db: Connection, segment: Any) -> Iterator[Json]:
    """Check the rows of all segments until the last, then yield the records that stayed.

    Raises LogBroken if one was changed.
    """
    logged = {record["details"]["segment"]: record["details"] for record in audit_log.of_kind(db, "log.archived")}
    for row in segments.every(db):
        stored, name = segments.details(row), name_of(row.number)
        if row.number < segment.number:  # its summary is not needed any more
            stored["summary_sha256"] = logged.get(name, {}).get("summary_sha256")
        if logged.get(name) != stored:
            raise LogBroken(f"the digest, place or summary of {name} is not what the log says: it was changed")
    staying = RowDigest()
    for entry in audit_log.staying(db, segment.size):
        staying.add(entry.body)
        yield entry.record
    if asdict(staying) != json.loads(segment.summary)["staying"]:
        raise LogBroken(
            f"of the first {segment.size} records, one that stays in the database was changed or is missing"
        )


def summarize(db: Connection, records: Iterable[Json], summaries: list[LogSummary]) -> Iterator[LogBroken]:
    """Follow the log, then check the tables; yield the first finding of each summary about each thing.

    What ``records`` raises is yielded too. Where the own log itself is broken, no table can be compared with it.
    ``records`` are all, or those that are not archived.
    """
    findings: dict[tuple[int, str], LogBroken] = {}
    by_kind: dict[str, list[tuple[int, LogSummary]]] = {}

    def note(index: int, finding: LogBroken) -> None:
        finding.about = finding.about or OTHER
        findings.setdefault((index, finding.about), finding)

    def follow(record: Json, *, stateful: bool = True) -> None:
        kind = str(record["kind"])
        if (followers := by_kind.get(kind)) is None:
            followers = [each for each in enumerate(summaries) if each[1].kinds is None or kind in each[1].kinds]
            by_kind[kind] = followers
        for index, summary in followers:
            if summary.kinds is None and not stateful and kind not in cast(StatefulSummary, summary).staying_kinds:
                continue
            try:
                summary.follow(record)
            except LogBroken as finding:
                note(index, finding)
            except (ValueError, LookupError, TypeError, AttributeError) as error:  # whoever wrote it can chain it
                note(index, LogBroken(f"a record of {kind} cannot be read ({type(error).__name__})"))

    records, segment = iter(records), segments.LAST.row(db)
    try:
        first = next(records, None)
        lacks_archived = segment is not None and (first is None or first["seq"] >= segment.size)
        for record in () if segment is None else _staying(db, segment):
            if lacks_archived:
                follow(record, stateful=False)
        if lacks_archived:
            _load(segment, summaries)
        for record in records if first is None else chain([first], records):
            follow(record)
    except LogBroken as finding:
        yield finding
        if finding.about is None:
            return
    for index, summary in enumerate(summaries):
        try:
            for each in summary.check(db):
                note(index, each)
        except LogBroken as error:
            error.others = (*error.others, OTHER)
            note(index, error)
        except (ValueError, LookupError, TypeError, AttributeError) as error:  # a changed row may hold anything
            note(index, LogBroken(f"a stored row cannot be read ({type(error).__name__}): it was changed"))
    yield from findings.values()


class PrincipalLogSummary:
    """Tokens and users: who they are, their role and study, and whether they were revoked."""

    kinds = ("token.issued", "token.revoked", "user.added", "user.disabled")

    def __init__(self) -> None:
        self.tokens: dict[str, Json] = {}
        """Details of ``token.issued`` by key id."""
        self.revoked: set[str] = set()
        self.users: dict[str, str] = {}
        """Roles by id."""
        self.disabled: set[str] = set()

    def follow(self, record: Json) -> None:
        kind, details = record["kind"], record.get("details", {})
        if kind == "token.issued":
            self.tokens[details["kid"]] = details
        elif kind == "token.revoked":
            self.revoked.add(details["kid"])
        elif kind == "user.added":
            self.users[details["user"]] = details["role"]
        elif kind == "user.disabled":
            self.disabled.add(details["user"])

    def token_fault(self, row: Any) -> str | None:
        """What differs in the row of a token; None if nothing does."""
        issued = self.tokens.get(row.kid)
        if issued is None:
            return f"token {row.kid} is not in the log"
        logged = issued["principal"], issued["role"], issued["study_id"], row.kid in self.revoked
        if (row.principal, row.role, row.study_id, row.revoked_at is not None) != logged:
            return f"token {row.kid} was changed: its bearer, role, study or revocation is not what the log says"
        digest = secret_digest(row)
        if (issued.get("expires_at", row.expires_at), issued.get("secret_sha256", digest)) != (row.expires_at, digest):
            return f"token {row.kid} was changed: its secret or its expiry is not what the log says"
        return None

    def user_fault(self, user: users.User) -> str | None:
        """What differs in the row of a user; None if nothing does."""
        if self.users.get(user.id) != user.role:
            return f"user {user.id} was changed: the log has another role"
        if (user.id in self.disabled) != (user.disabled_at is not None):
            return f"user {user.id} was changed: the log says otherwise whether it is disabled"
        return None

    def check(self, db: Connection) -> Iterator[LogBroken]:
        """Yield what differs in the rows of tokens and users from the log."""
        missing = dict(self.tokens)
        for row in tokens.list_all(db):
            issued = missing.pop(row.kid, None)
            if (fault := self.token_fault(row)) is not None:
                others = () if issued is None else (issued["principal"],)
                yield LogBroken(fault, about=row.principal, others=others)
        for kid, issued in missing.items():
            yield LogBroken(f"token {kid} is missing", about=issued["principal"])
        for user in users.list_all(db):
            if (fault := self.user_fault(user)) is not None:
                yield LogBroken(fault, about=user.id)


def secret_digest(row: Any) -> str:
    """The digest of a token's stored hash, as the log has it: the log reveals nothing that opens the service."""
    return sha256(row.secret_sha256)


def seal_principals(db: Connection, mac_of: MacOf, before: MacOf | None = None) -> None:
    """Store the MAC of each token and user: of those that are what the log says, and had the MAC ``before``.

    Any other row gets none, and opens nothing.
    """
    summary = PrincipalLogSummary()
    for record in audit_log.of_kind(db, *summary.kinds):
        summary.follow(record)
    for token in tokens.list_all(db):
        if summary.token_fault(token) is None and (before is None or tokens.is_sealed(token, before)):
            tokens.seal(db, token, mac_of)
    for user in users.list_all(db):
        if summary.user_fault(user) is None and (before is None or users.is_sealed(user, before)):
            users.seal(db, user, mac_of)
