"""What the log says about tables, followed record by record and then compared with the rows."""

from collections.abc import Collection, Iterable, Iterator
from typing import Any, Literal, Protocol

from blindopt.audit.merkle_log import Json, sha256
from blindopt.errors import LogBroken
from service_kit.store import audit_log, tokens, users
from service_kit.store.base import MacOf
from service_kit.store.database import Connection

OTHER = "other"
"""What a finding is about that names no study, grant or run. What else was changed is not known: all are refused."""
Part = Literal["first", "second"]
"""Of a verification: all but the exchanges between the parties, which ends before a service goes on; the exchanges."""


class LogSummary(Protocol):
    """What the log says about some tables."""

    @property
    def kinds(self) -> Collection[str] | None:
        """Kinds of the records that it follows; None: all."""

    def follow(self, record: Json) -> None:
        """Take the next record of the log. Raises LogBroken if it contradicts an earlier one."""

    def check(self, db: Connection) -> Iterator[LogBroken]:
        """Yield what differs in the tables from the log, about each study, grant or run.

        Raises LogBroken where nothing after it can be compared: it is about ``OTHER`` too.
        """


def summarize(db: Connection, records: Iterable[Json], summaries: list[LogSummary]) -> Iterator[LogBroken]:
    """Follow the log, then check the tables; yield the first finding of each summary about each thing.

    What ``records`` raises is yielded too. Where the own log itself is broken, no table can be compared with it.
    """
    findings: dict[tuple[int, str], LogBroken] = {}
    by_kind: dict[str, list[tuple[int, LogSummary]]] = {}

    def note(index: int, finding: LogBroken) -> None:
        finding.about = finding.about or OTHER
        findings.setdefault((index, finding.about), finding)

    try:
        for record in records:
            kind = str(record["kind"])
            if (followers := by_kind.get(kind)) is None:
                followers = [each for each in enumerate(summaries) if each[1].kinds is None or kind in each[1].kinds]
                by_kind[kind] = followers
            for index, summary in followers:
                try:
                    summary.follow(record)
                except LogBroken as finding:
                    note(index, finding)
                except (ValueError, LookupError, TypeError, AttributeError) as error:  # whoever wrote it can chain it
                    note(index, LogBroken(f"a record of {kind} cannot be read ({type(error).__name__})"))
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
        """Take the next record of the log."""
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
