"""What the log says about tables, followed record by record and then compared with the rows."""

from collections.abc import Collection, Iterable, Iterator
from typing import Any, Protocol

from blindopt.audit.merkle_log import Json, sha256
from blindopt.errors import LogBroken
from service_kit.store import tokens, users
from service_kit.store.database import Connection

OTHER = "other"
"""What a finding is about that is neither about the whole log, nor about one study, grant or run."""


class LogSummary(Protocol):
    """What the log says about some tables."""

    @property
    def kinds(self) -> Collection[str] | None:
        """Kinds of the records that it follows; None: all."""

    def follow(self, record: Json) -> None:
        """Take the next record of the log. Raises LogBroken if it contradicts an earlier one."""

    def check(self, db: Connection) -> None:
        """Raise LogBroken if a table differs from the log."""


def summarize(db: Connection, records: Iterable[Json], summaries: list[LogSummary]) -> Iterator[LogBroken]:
    """Follow the log, then check the tables; yield the first finding of each summary.

    What ``records`` raises is yielded too. Where the own log itself is broken, no table can be compared with it.
    """
    remaining, early = list(summaries), []
    by_kind: dict[str, list[LogSummary]] = {}
    try:
        for record in records:
            kind = str(record["kind"])
            if (followers := by_kind.get(kind)) is None:
                followers = [each for each in remaining if each.kinds is None or kind in each.kinds]
                by_kind[kind] = followers
            for summary in followers:
                try:
                    summary.follow(record)
                except LogBroken as finding:
                    remaining.remove(summary)
                    by_kind.clear()
                    early.append(_of_tables(finding))
    except LogBroken as finding:
        yield finding
        if finding.about is None:
            return
    yield from early
    for summary in remaining:
        try:
            summary.check(db)
        except LogBroken as finding:
            yield _of_tables(finding)
        except (ValueError, KeyError, TypeError, AttributeError) as error:  # a changed row may hold anything
            yield _of_tables(LogBroken(f"a stored row cannot be read ({type(error).__name__}): it was changed"))


def _of_tables(finding: LogBroken) -> LogBroken:
    finding.about = finding.about or OTHER
    return finding


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

    def role_fault(self, identity: str, role: str) -> str | None:
        """What differs in the role of a user; None if nothing does."""
        return None if self.users.get(identity) == role else f"user {identity} was changed: the log has another role"

    def check(self, db: Connection) -> None:
        """Raise LogBroken if a row of a token or a user differs from the log."""
        missing = set(self.tokens)
        for row in tokens.list_all(db):
            missing.discard(row.kid)
            if (fault := self.token_fault(row)) is not None:
                raise LogBroken(fault, about=row.principal)
        for kid in sorted(missing):
            raise LogBroken(f"token {kid} is missing")
        for user in users.list_all(db):
            if (fault := self.role_fault(user.id, user.role)) is not None:
                raise LogBroken(fault, about=user.id)
            if (user.id in self.disabled) != (user.disabled_at is not None):
                raise LogBroken(
                    f"user {user.id} was changed: the log says otherwise whether it is disabled", about=user.id
                )


def secret_digest(row: Any) -> str:
    """The digest of a token's stored hash, as the log has it: the log reveals nothing that opens the service."""
    return sha256(row.secret_sha256)
