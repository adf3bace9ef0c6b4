"""Sessions of users: a cookie holds a sealed random id, and a table holds the id's hash. Messages for their next page.

The table decides whether a session is live, so that a logout, a disabled user and an idle half hour end it at once.
The API accepts no cookie, and pages accept no token.
"""

import hashlib
import hmac
import json
import logging
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.responses import Response

from blindopt.errors import AuditUnavailable, RateLimited, Unauthenticated
from service_kit.context.context import ServiceContext
from service_kit.identity import passwords
from service_kit.identity.tokens import Principal
from service_kit.settings import ServiceSettings
from service_kit.store import audit_log, sessions, users
from service_kit.store.database import Connection
from service_kit.store.users import User
from service_kit.web.middleware import RateLimit

log = logging.getLogger("blindopt.logins")
COOKIE = "__Host-blindopt-{}"
"""Contains the service's name: browsers send the cookies of a host to all of its ports, and services may share one."""
FLASH = "__Host-blindopt-{}-flash"
_FLASH_LABEL, _FLASH_SECONDS = b"flash:", 60
_LABEL = b"session:"  # so that other texts sealed with the same key open no session
_USE_RECORDED_EVERY = timedelta(minutes=1)
_LOGGED_EVERY_S = 60.0
_CHECKS_AT_ONCE = 2
_WRONG = "the name or the password is wrong"


@dataclass(frozen=True, slots=True)
class Session:
    """A live session. ``secret`` is its id, which the repr omits."""

    principal: Principal
    secret: bytes

    def __repr__(self) -> str:
        return f"Session({self.principal.actor})"

    @property
    def id_sha256(self) -> bytes:
        return hashlib.sha256(self.secret).digest()

    @property
    def csrf(self) -> str:
        """The token that every form of this session carries. It reveals nothing about the secret."""
        return hmac.new(self.secret, b"csrf", hashlib.sha256).hexdigest()


class Sessions:
    """Opens, finds and ends sessions. Settings limit their duration, and how often somebody may try to log in."""

    def __init__(
        self, context: ServiceContext, settings: ServiceSettings, on_failed_login: Callable[[], None] = lambda: None
    ) -> None:
        self.cookie = COOKIE.format(context.service)
        """The name of the cookie."""
        self._context = context
        self._idle = timedelta(minutes=settings.session_idle_minutes)
        self._life = timedelta(hours=settings.session_hours)
        self._password_cost, logins_per_minute = settings.password_hash, settings.logins_per_minute
        self._address_rate = RateLimit(logins_per_minute / 20, 3 * logins_per_minute)
        self._name_rate = RateLimit(logins_per_minute / 60, logins_per_minute)
        self._use_recorded_at: dict[bytes, tuple[float, datetime]] = {}
        self._checks: CapacityLimiter | None = None
        self._on_failed_login = on_failed_login
        self._throttling_logged_at: dict[str, float] = {}

    async def of_cookie(self, header: str, *, is_use: bool = True) -> Session | None:
        """The live session of a Cookie header, or None.

        ``is_use`` is False for requests that a page sends without its user: they keep no session alive.
        """
        if (secret := self._context.seal.open_labelled(_LABEL, cookie(header, self.cookie))) is None:
            return None
        row = await self._context.database.read_row_soon(sessions.FIND, id_sha256=hashlib.sha256(secret).digest())
        if not self._is_good(row):
            return None
        self._context.authentication.check_user(row)
        session = Session(Principal(id=row.user_id, kid=row.user_id, role=row.role, name=row.name), secret)
        if is_use:
            self._record_use(session)
        return session

    async def idled(self, header: str) -> int | None:
        """After how many minutes the session of a Cookie header ended because nobody used it; None if it did not."""
        if (secret := self._context.seal.open_labelled(_LABEL, cookie(header, self.cookie))) is None:
            return None
        row = await self._context.database.read_row_soon(sessions.FIND, id_sha256=hashlib.sha256(secret).digest())
        now = self._context.clock()
        is_idle = row is not None and sessions.is_live(row, now, now - self._life) and not self._is_good(row)
        return int(self._idle.total_seconds() // 60) if is_idle else None

    async def is_live(self, session: Session) -> bool:
        """Whether a session is still live, for long responses."""
        return self._is_good(await self._context.database.read_row_soon(sessions.FIND, id_sha256=session.id_sha256))

    def _is_good(self, row: Any) -> bool:
        now = self._context.clock()
        return row is not None and sessions.is_live(row, now, now - self._idle)

    def _record_use(self, session: Session) -> None:
        """Store when a session was used, without waiting for the write: once a minute, or ten times an idle limit.

        A clock that jumps counts as time.
        """
        key, now, used_at = session.id_sha256, time.monotonic(), self._context.clock()
        every = min(_USE_RECORDED_EVERY, self._idle / 10)
        recent = {k: v for k, v in self._use_recorded_at.items() if now - v[0] < every.total_seconds()}
        if key in recent and abs(used_at - recent[key][1]) < every:
            return
        self._use_recorded_at = recent | {key: (now, used_at)}
        with suppress(AuditUnavailable):
            self._context.database.submit(lambda db: sessions.record_use(db, key, used_at))

    async def open(self, name: str, password: str, address: str) -> str:
        """Check a password, open a session, and return the value of its cookie.

        Raises RateLimited, and Unauthenticated: after the same work, and with the same text, for a wrong password and
        for an unknown or disabled user.
        """
        try:
            return await self._open(name, password, address)
        except (Unauthenticated, RateLimited):
            self._on_failed_login()
            raise

    async def _open(self, name: str, password: str, address: str) -> str:
        # Right passwords count as well, because checking them is what costs.
        self._take(self._address_rate, address, "address")
        self._take(self._name_rate, hashlib.sha256(name.encode()).hexdigest(), "name")  # names of one length
        user = await to_thread.run_sync(self._user, name)
        if self._checks is None:
            self._checks = CapacityLimiter(_CHECKS_AT_ONCE)
        stored = user.password_hash if user is not None else None
        is_right = await to_thread.run_sync(
            passwords.matches, password, stored, self._password_cost, limiter=self._checks
        )
        if not is_right or user is None or user.disabled_at is not None:
            raise Unauthenticated(_WRONG)
        self._context.authentication.check_user(user)
        secret = secrets.token_bytes(32)
        new_hash = None
        if passwords.is_dated(user.password_hash, self._password_cost):
            new_hash = await to_thread.run_sync(passwords.hash_of, password, self._password_cost, limiter=self._checks)
        await self._context.database.write_soon(lambda db: self._begin(db, user, secret, new_hash))
        return self._context.seal.close(_LABEL + secret).decode()

    def _take(self, rate: RateLimit, name: str, kind: str) -> None:
        """Count an attempt. Log once a minute, without a name, that there were too many."""
        try:
            rate.take(name)
        except RateLimited:
            now = time.monotonic()
            if now - self._throttling_logged_at.get(kind, -_LOGGED_EVERY_S) >= _LOGGED_EVERY_S:
                self._throttling_logged_at[kind] = now
                log.warning("logins throttled", extra={"fields": {"by": kind}})
            raise

    def _user(self, name: str) -> User | None:
        with self._context.database.read() as db:
            return users.by_name(db, name)

    def _begin(self, db: Connection, user: User, secret: bytes, new_hash: str | None) -> None:
        stored = users.by_name(db, user.name)  # it may have changed during the check
        if stored is None or stored.disabled_at is not None or stored.password_hash != user.password_hash:
            raise Unauthenticated(_WRONG)
        now = self._context.clock()
        sessions.add(db, hashlib.sha256(secret).digest(), user.id, now, now + self._life)
        if new_hash is not None:
            users.set_hash(db, user.id, new_hash, self._context.seal.mac)
        audit_log.append(db, "session.opened", actor=user.principal.actor, now=now, details={})

    async def end(self, session: Session) -> None:
        def work(db: Connection) -> None:
            now = self._context.clock()
            sessions.end(db, session.id_sha256, now)
            audit_log.append(db, "session.ended", actor=session.principal.actor, now=now, details={})

        await self._context.database.write_soon(work)


def cookie(header: str, name: str) -> str | None:
    """The value of a cookie of a Cookie header. Other cookies are ignored, whatever they contain."""
    for crumb in header.split(";"):
        key, _, value = crumb.strip().partition("=")
        if key == name:
            return value.strip('"')
    return None


def set_cookie(response: Response, name: str, value: str, *, path: str = "/", max_age: int | None = None) -> None:
    """Let the browser keep a cookie that no script reads, and that it sends to this site alone."""
    response.set_cookie(name, value, max_age=max_age, path=path, secure=True, httponly=True, samesite="strict")


def delete_cookie(response: Response, name: str) -> None:
    response.delete_cookie(name, path="/", secure=True, httponly=True, samesite="strict")


class Flashes:
    """Messages that the next page shows once, in a sealed cookie bound to the session."""

    def __init__(self, context: ServiceContext) -> None:
        self.cookie = FLASH.format(context.service)
        """The name of the cookie."""
        self._context = context

    def put(self, response: Response, session: Session, message: str, mood: str, undo: str = "") -> None:
        """Let the next page show ``message``, with a button that posts to the page ``undo`` if there is one."""
        flash = [session.id_sha256.hex(), mood, message[:500], undo]
        value = self._context.seal.close(_FLASH_LABEL + json.dumps(flash).encode()).decode()
        set_cookie(response, self.cookie, value, max_age=_FLASH_SECONDS)

    def take(self, request: Request, session: Session) -> list[tuple[str, str, str]]:
        """Mood, text and undoing page (or nothing) of the messages to show."""
        clear = self._context.seal.open_labelled(_FLASH_LABEL, cookie(request.headers.get("cookie", ""), self.cookie))
        if clear is None:
            return []
        session_id, mood, message, *undo = json.loads(clear)
        return [(mood, message, "".join(undo))] if session_id == session.id_sha256.hex() else []

    def clear(self, response: Response) -> None:
        delete_cookie(response, self.cookie)
