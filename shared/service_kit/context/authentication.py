"""Authentication by bearer tokens; issuing, rotating and revoking them."""

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache
from typing import Any

from blindopt.errors import AuditUnavailable, LogBroken, RecordChanged, StateConflict, Unauthenticated
from service_kit.context.log_summaries import secret_digest
from service_kit.identity.tokens import Principal, Role, Token, mint, new_id, parse
from service_kit.store import audit_log, tokens, users
from service_kit.store.base import Clock, MacOf
from service_kit.store.database import Connection, Database

LIVE_TOKENS_MAX = 2
_USE_RECORDED_EVERY_S = 60.0
_REFUSED = (
    "the token is missing, mistyped, expired or revoked: ask the person who gave it to you for a new one, sent as "
    "Authorization: Bearer blindopt_..."
)


class Expired(Unauthenticated):
    """The token has the right secret, but has expired or was revoked. The reply is that of any other 401."""

    def __init__(self, principal: Principal) -> None:
        super().__init__(_REFUSED)
        self.principal = principal


class Authentication:
    """Checks, issues and revokes tokens."""

    def __init__(self, database: Database, clock: Clock, mac_of: MacOf) -> None:
        self._database = database
        self._clock = clock
        self._mac_of = mac_of
        self._use_recorded_at: dict[str, float] = {}
        self.on_finding: Callable[[LogBroken], None] = lambda finding: None
        """Is called with a token or user whose row was changed."""

    async def authenticate(self, authorization: str) -> Principal:
        """The principal of an Authorization header. Raises Unauthenticated; Expired if the secret is right."""
        scheme, _, token_text = authorization.partition(" ")
        if scheme.lower() != "bearer" or (token := parse(token_text)) is None:
            raise Unauthenticated(_REFUSED)
        row = await self._database.read_row_soon(tokens.FIND, kid=token.kid)
        # An unknown key id and a wrong secret get the same reply. Key ids are not secret.
        if row is None or not token.matches(row.secret_sha256):
            raise Unauthenticated(_REFUSED)
        principal = _principal_of(row.principal, row.kid, row.role, row.name, row.study_id)
        self._check_sealed(row)
        if not tokens.is_live(row, self._clock()):
            raise Expired(principal)
        self._record_use(row.kid)
        return principal

    def _check_sealed(self, row: Any) -> None:
        if not tokens.is_sealed(row, self._mac_of):
            reason = "its bearer, role, study, expiry, revocation or secret is not what was stored"
            self._refuse(f"token {row.kid} was changed: {reason}", row.principal)

    def check_user(self, row: Any) -> None:
        """Raise RecordChanged if the row of a user, or a ``User``, was changed by another program."""
        if not users.is_sealed(row, self._mac_of):
            self._refuse(f"user {row.id} was changed: its name, role, password or end is not what was stored", row.id)

    def _refuse(self, fault: str, about: str) -> None:
        self.on_finding(LogBroken(fault, about=about))
        raise RecordChanged("the stored record of this token or user was changed: nothing was done")

    def _record_use(self, kid: str) -> None:
        """Store when a token was used, to the minute, without waiting for the write."""
        now = time.monotonic()
        if now - self._use_recorded_at.get(kid, -_USE_RECORDED_EVERY_S) >= _USE_RECORDED_EVERY_S:
            self._use_recorded_at[kid] = now
            at = self._clock()
            with suppress(AuditUnavailable):
                self._database.submit(lambda db: tokens.record_use(db, kid, at))

    def check_live(self, db: Connection, principal: Principal) -> None:
        """Raise Unauthenticated if the token has been revoked or has expired, or the user was disabled."""
        if principal.is_user:
            live = users.is_live(db, principal.kid)
        else:
            row = tokens.find(db, principal.kid)
            live = row is not None and tokens.is_live(row, self._clock())
        if not live:
            raise Unauthenticated(_REFUSED)

    def issue(self, role: Role, name: str, *, days: int) -> tuple[Token, Principal]:
        """Issue a token to a new person or program, and record it in the log."""
        bearer = (new_id("usr"), role, name, None)
        return self._database.write(lambda db: self._issue(db, *bearer, days=days, actor="cli"))

    def grant(self, db: Connection, name: str, study_id: str, *, days: int, actor: str) -> tuple[Token, Principal]:
        """Issue a modeler's first token for a study, inside the caller's transaction."""
        return self._issue(db, new_id("grt"), "modeler", name, study_id, days=days, actor=actor)

    def rotate(
        self, db: Connection, principal: str, *, days: int, actor: str, study_id: str | None = None
    ) -> tuple[Token, Principal]:
        """Issue a further token to a principal; the older one stays until it is revoked. At most two are live.

        Raises NotFound, and StateConflict if there are two already or all tokens of the principal were revoked.
        """
        rows = tokens.of_principal(db, principal, study_id=study_id)
        live = [row for row in rows if tokens.is_live(row, self._clock())]
        if len(live) >= LIVE_TOKENS_MAX:
            raise StateConflict(f"two tokens are live: revoke one first ({', '.join(row.kid for row in live)})")
        if all(row.revoked_at for row in rows):
            raise StateConflict("all its tokens were revoked: make a new one instead")
        row = rows[0]
        self._check_sealed(row)
        return self._issue(db, row.principal, row.role, row.name, row.study_id, days=days, actor=actor)

    def _issue(
        self, db: Connection, principal_id: str, role: Role, name: str, study_id: str | None, *, days: int, actor: str
    ) -> tuple[Token, Principal]:
        token, now = mint(), self._clock()
        principal = Principal(id=principal_id, kid=token.kid, role=role, name=name, study_id=study_id)
        tokens.add(db, token, principal, created=now, expires=now + timedelta(days=days), mac_of=self._mac_of)
        row = tokens.find(db, token.kid)
        details = {"principal": principal_id, "kid": token.kid, "role": role, "study_id": study_id}
        details |= {"expires_at": row.expires_at, "secret_sha256": secret_digest(row)}
        audit_log.append(db, "token.issued", actor=actor, now=now, details=details)
        return token, principal

    def revoke(self, db: Connection, kid: str, *, actor: str) -> None:
        """Refuse a token from now on, and record it in the log. Raises NotFound."""
        tokens.revoke(db, kid, self._clock(), self._mac_of)
        audit_log.append(db, "token.revoked", actor=actor, now=self._clock(), details={"kid": kid})

    def tokens(self) -> list[Any]:
        with self._database.read() as db:
            return tokens.list_all(db)


_principal_of = lru_cache(maxsize=1024)(Principal)  # it cannot change, so requests share one
