"""Messages that the next page shows once, in a sealed cookie bound to the session."""

import json

from starlette.requests import Request
from starlette.responses import Response

from service_kit.console.sessions import Session, cookie
from service_kit.context.context import ServiceContext

COOKIE = "__Host-blindopt-{}-flash"
_LABEL = b"flash:"
_SECONDS = 60


class Flashes:
    """Stores, reads and clears the messages of a session."""

    def __init__(self, context: ServiceContext) -> None:
        self.cookie = COOKIE.format(context.service)
        """The name of the cookie."""
        self._context = context

    def put(self, response: Response, session: Session, message: str, mood: str, undo: str = "") -> None:
        """Let the next page show ``message``, with a button that posts to the page ``undo`` if there is one."""
        flash = [session.id_sha256.hex(), mood, message[:500], undo]
        value = self._context.seal.close(_LABEL + json.dumps(flash).encode()).decode()
        response.set_cookie(
            self.cookie, value, max_age=_SECONDS, path="/", secure=True, httponly=True, samesite="strict"
        )

    def take(self, request: Request, session: Session) -> list[tuple[str, str, str]]:
        """Mood, text and undoing page (or nothing) of the messages to show."""
        clear = self._context.seal.open_labelled(_LABEL, cookie(request.headers.get("cookie", ""), self.cookie))
        if clear is None:
            return []
        session_id, mood, message, *undo = json.loads(clear)
        return [(mood, message, "".join(undo))] if session_id == session.id_sha256.hex() else []

    def clear(self, response: Response) -> None:
        response.delete_cookie(self.cookie, path="/", secure=True, httponly=True, samesite="strict")
