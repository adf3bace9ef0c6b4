"""Messages that the next page tells once: in a sealed cookie, bound to the session."""

import json

from starlette.requests import Request
from starlette.responses import Response

from blindopt.errors import StateConflict
from service_kit.console.sessions import Session, cookie
from service_kit.context.context import ServiceContext

COOKIE = "__Host-blindopt-{}-flash"
_LABEL = b"flash:"
_SECONDS = 60


class Flashes:
    """Puts, takes and clears them."""

    def __init__(self, context: ServiceContext) -> None:
        self.cookie = COOKIE.format(context.service)
        """Its name."""
        self._context = context

    def put(self, response: Response, session: Session, message: str, mood: str) -> None:
        """Let the next page tell ``message``."""
        told = [session.id_sha256.hex(), mood, message[:500]]
        value = self._context.seal.close(_LABEL + json.dumps(told).encode()).decode()
        response.set_cookie(
            self.cookie, value, max_age=_SECONDS, path="/", secure=True, httponly=True, samesite="strict"
        )

    def take(self, request: Request, session: Session) -> list[tuple[str, str]]:
        """Mood and text of what waits."""
        value = cookie(request.headers.get("cookie", ""), self.cookie)
        if not value:
            return []
        try:
            clear = self._context.seal.open(value.encode())
        except StateConflict:
            return []
        if not clear.startswith(_LABEL):
            return []
        whose, mood, message = json.loads(clear.removeprefix(_LABEL))
        return [(mood, message)] if whose == session.id_sha256.hex() else []

    def clear(self, response: Response) -> None:
        """They were told."""
        response.delete_cookie(self.cookie, path="/", secure=True, httponly=True, samesite="strict")
