"""Sessions: who is logged in, from a cookie that holds a sealed random id whose hash is in a table.

The cookie says nothing and opens nothing by itself: the table decides, so that a logout, a disabled user and an
idle half hour end a session at once. The API takes no cookie, and pages take no token.
"""

import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from anyio import CapacityLimiter, to_thread

from blindopt.errors import AuditUnavailable, RateLimited, StateConflict, Unauthenticated
from service_kit.context.context import ServiceContext
from service_kit.identity import passwords
from service_kit.identity.tokens import Principal
from service_kit.store import audit_log, sessions, users
from service_kit.store.database import Connection
from service_kit.store.sessions import NewSession
from service_kit.store.users import User
from service_kit.web.rate_limit import RateLimit

log = logging.getLogger("blindopt.logins")
COOKIE = "__Host-blindopt-{}"
"""With the service's name: browsers send cookies of a host to all of its ports, and two services may share one."""
_LABEL = b"session:"  # what else is sealed under the same key opens no session
_SEEN_SECONDS = 60.0
_TOLD_SECONDS = 60.0
_CHECKS_AT_ONCE = 2
_WRONG = "the name or the password is wrong"


@dataclass(frozen=True, slots=True)
class Session:
    """A live session. ``secret`` is its id; the repr leaves it out."""

    principal: Principal
    secret: bytes

    def __repr__(self) -> str:
        return f"Session({self.principal.actor})"

    @property
    def id_sha256(self) -> bytes:
        """How the table knows it."""
        return hashlib.sha256(self.secret).digest()

    @property
    def csrf(self) -> str:
        """The token that every form of this session carries; tells nothing of the secret."""
        return hmac.new(self.secret, b"csrf", hashlib.sha256).hexdigest()

    def is_csrf(self, token: str) -> bool:
        """Constant-time comparison."""
        return hmac.compare_digest(self.csrf.encode(), token.encode())


class Sessions:
    """Opens, finds and ends sessions. ``idle`` and ``life`` bound them."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        idle: timedelta,
        life: timedelta,
        logins_per_minute: int,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        self.cookie = COOKIE.format(context.service)
        """Its name."""
        self._context = context
        self._idle = idle
        self._life = life
        self._seen: dict[bytes, float] = {}
        self._by_address = RateLimit(logins_per_minute / 20, 3 * logins_per_minute)
        self._by_name = RateLimit(logins_per_minute / 60, logins_per_minute)
        self._checks: CapacityLimiter | None = None
        self._failed = failed
        self._told: dict[str, float] = {}

    def of_cookie(self, header: str, *, is_use: bool = True) -> Session | None:
        """The session of a Cookie header, or None: without a cookie, with another's, with one that has ended.

        ``is_use``: whether a person does something; what a page fetches by itself keeps no session alive.
        """
        value = cookie(header, self.cookie)
        if not value:
            return None
        try:
            clear = self._context.seal.open(value.encode())
        except StateConflict:
            return None
        if not clear.startswith(_LABEL):
            return None
        secret = clear.removeprefix(_LABEL)
        row = self._context.database.read_row(sessions.FIND, id_sha256=hashlib.sha256(secret).digest())
        if not self._is_good(row):
            return None
        found = Session(Principal(id=row.user_id, kid=row.user_id, role=row.role, name=row.name), secret)
        if is_use:
            self._note_use(found)
        return found

    def is_live(self, session: Session) -> bool:
        """Whether it still is, for what goes on for long."""
        return self._is_good(self._context.database.read_row(sessions.FIND, id_sha256=session.id_sha256))

    def _is_good(self, row: Any) -> bool:
        now = self._context.clock()
        return row is not None and sessions.is_live(row, now, now - self._idle)

    def _note_use(self, session: Session) -> None:
        """Store when a session was used, to the minute; nobody waits for it."""
        key, now = session.id_sha256, time.monotonic()
        if now - self._seen.get(key, -_SEEN_SECONDS) < _SEEN_SECONDS:
            return
        self._seen = {k: then for k, then in self._seen.items() if now - then < _SEEN_SECONDS} | {key: now}
        at = self._context.clock()
        with suppress(AuditUnavailable):
            self._context.database.submit(lambda db: sessions.record_use(db, key, at))

    async def open(self, name: str, password: str, address: str) -> str:
        """Check a password; the value of a cookie for a new session.

        Raises Unauthenticated (wrong, unknown or disabled: not told apart, and the same work), RateLimited.
        """
        try:
            return await self._opened(name, password, address)
        except (Unauthenticated, RateLimited):
            self._failed()
            raise

    async def _opened(self, name: str, password: str, address: str) -> str:
        # Right ones count as well: checking is what costs.
        self._take(self._by_address, address, "address")
        self._take(self._by_name, hashlib.sha256(name.encode()).hexdigest(), "name")  # of one length
        user = await to_thread.run_sync(self._known, name)
        if self._checks is None:
            self._checks = CapacityLimiter(_CHECKS_AT_ONCE)
        stored = user.password_hash if user is not None else None
        right = await to_thread.run_sync(passwords.matches, password, stored, limiter=self._checks)
        if not right or user is None or user.disabled_at is not None:
            raise Unauthenticated(_WRONG)
        secret = secrets.token_bytes(32)
        again = None
        if passwords.is_dated(user.password_hash):
            again = await to_thread.run_sync(passwords.hash_of, password, limiter=self._checks)
        await self._context.database.write_soon(lambda db: self._begin(db, user, secret, again))
        return self._context.seal.close(_LABEL + secret).decode()

    def _take(self, buckets: RateLimit, name: str, kind: str) -> None:
        """Count a try; where there were too many, say so in the log, once a minute and without a name."""
        try:
            buckets.take(name)
        except RateLimited:
            now = time.monotonic()
            if now - self._told.get(kind, -_TOLD_SECONDS) >= _TOLD_SECONDS:
                self._told[kind] = now
                log.warning("logins throttled", extra={"fields": {"by": kind}})
            raise

    def _known(self, name: str) -> User | None:
        with self._context.database.read() as db:
            return users.by_name(db, name)

    def _begin(self, db: Connection, user: User, secret: bytes, again: str | None) -> None:
        known = users.by_name(db, user.name)  # the check took a while: what was checked may hold no more
        if known is None or known.disabled_at is not None or known.password_hash != user.password_hash:
            raise Unauthenticated(_WRONG)
        now = self._context.clock()
        sessions.add(db, NewSession(hashlib.sha256(secret).digest(), user.id, now, now + self._life))
        if again is not None:
            users.set_hash(db, user.id, again)
        audit_log.append(db, "session.opened", actor=user.principal.actor, now=now, details={})

    async def end(self, session: Session) -> None:
        """Log out."""

        def work(db: Connection) -> None:
            now = self._context.clock()
            sessions.end(db, session.id_sha256, now)
            audit_log.append(db, "session.ended", actor=session.principal.actor, now=now, details={})

        await self._context.database.write_soon(work)


def cookie(header: str, name: str) -> str | None:
    """The value of one cookie of a Cookie header; others, whatever they hold, are none of our business."""
    for part in header.split(";"):
        key, _, value = part.strip().partition("=")
        if key == name:
            return value.strip('"')
    return None
