"""Messages of runs to the owners of their studies: recommendations, requests for more budget, and what was decided.

A message is stored before it is sent, and sent under a key of its own: sent again, it is the same message.
"""

import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from pydantic import TypeAdapter

from blindopt import wire
from blindopt.client import StudyClient
from blindopt.errors import BlindoptError, Busy, CuratorRefused, Remote, StateConflict
from modeler_service import store
from modeler_service.runs.curator_session import open_session
from modeler_service.runs.query_keys import is_run_query, message_key
from modeler_service.settings import Settings
from modeler_service.store import MessageRow
from service_kit.context.context import ServiceContext
from service_kit.context.request import Effect, RequestContext
from service_kit.store import stored_replies
from service_kit.store.base import moment, stamp
from service_kit.store.database import Connection
from service_kit.store.stored_replies import StoredReply

_CONTENT: TypeAdapter[wire.MessageCreate] = wire.validator_of(wire.MessageCreate)
_WHY = {
    "unauthenticated": "the owner has withdrawn this grant, or it has expired: ask for another token of it",
    "not_found": "the curator does not know this study or candidate under this grant",
    "study_not_open": "the study is closed: it takes no more measurements",
    "erased": "the study was erased by its owner: it takes no more messages",
    "state_conflict": "earlier messages wait for the owner's decision, or the study has no such cap",
}


class RunMessages:
    """Sends messages, and reads decisions. ``recommend`` computes the recommendation of a run.

    ``session`` opens a connection to its curator.
    """

    def __init__(
        self,
        context: ServiceContext,
        settings: Settings,
        recommend: Callable[[str, Any], wire.Recommendation],
        session: Callable[..., AbstractContextManager[tuple[StudyClient, Any]]] = open_session,
    ) -> None:
        self._context = context
        self._settings = settings
        self._recommend, self._session = recommend, session
        self._sending: dict[str, object] = {}
        """By run whose message is being sent, who sends it."""

    def page(self, run_id: str, after: int, limit: int) -> list[wire.RunMessage]:
        """Messages of a run after a number. Raises NotFound."""
        with self._context.database.read() as db:
            store.find_run(db, run_id)
            return [_view(row) for row in store.message_page(db, run_id, after, limit)]

    def send(self, request: RequestContext, run_id: str, wish: wire.RunMessageCreate) -> StoredReply:
        """Store a message and send it. A retry under the key sends the same.

        Raises Unreachable, CuratorRefused, Busy, and StateConflict, also where nothing is recommended yet.
        """
        if (earlier := self._context.idempotency.earlier(request)) is not None:
            return earlier
        number = self._written(request, run_id, wish)
        view = self._deliver(request, run_id, number)
        details = {"run_id": run_id, "number": number}
        return self._context.idempotency.once(request, lambda db: Effect(view, "message.sent", details))

    def _written(self, request: RequestContext, run_id: str, wish: wire.RunMessageCreate) -> int:
        """Store the message, unless an earlier request under the same key did; return its number."""
        key, digest = self._context.idempotency.key_of(request)
        author = f"{request.principal.id} {key}"

        def earlier(db: Connection) -> int | None:
            store.find_run(db, run_id)
            if (row := store.written_message(db, run_id, author)) is None:
                return None
            stored_replies.check_same_request(row.request_sha256, digest)
            return row.number

        with self._context.database.read() as db:
            if (number := earlier(db)) is not None:
                return number
        message = self._message(run_id, wish)

        def work(db: Connection) -> int:
            if (number := earlier(db)) is not None:
                return number
            body, at = message.model_dump_json(), stamp(self._context.clock())
            return store.add_message(db, run_id, author_key=author, request_sha256=digest, body=body, created_at=at)

        return self._context.database.write(work)

    def _message(self, run_id: str, wish: wire.RunMessageCreate) -> wire.MessageCreate:
        salt = secrets.token_hex(16)  # so that nobody confirms a guess of the note by its digest, in both logs
        if isinstance(wish, wire.BudgetMessage):
            return wish.model_copy(update={"salt": salt})
        return self._recommend(run_id, wish.over).as_message(wish.note, salt)

    def update(self, request: RequestContext, run_id: str, number: int) -> StoredReply:
        """Send a message that has not arrived, or read the owner's decision. Raises as ``send``."""
        if (earlier := self._context.idempotency.earlier(request)) is not None:
            return earlier
        view = self._deliver(request, run_id, number)
        details = {"run_id": run_id, "number": number}
        return self._context.idempotency.once(request, lambda db: Effect(view, "message.updated", details, 200))

    def _deliver(self, request: RequestContext, run_id: str, number: int) -> wire.RunMessage:
        """Send the message, or read its decision, and store the reply or why there is none."""
        sender = object()
        if self._sending.setdefault(run_id, sender) is not sender:  # another run never waits
            raise Busy("another message of this run is being sent: try again in a moment", seconds=5)
        try:
            with self._context.database.read() as db:
                run, row = store.find_run(db, run_id), store.find_message(db, run_id, number)
            token, actor = self._context.seal.open(run.sealed_token).decode(), request.principal.actor
            opened = self._session(self._context, self._settings, run.settings, token, actor, is_run_query)
            try:
                with opened as (curator, _):
                    reply = _exchange(curator, row)
            except BlindoptError as error:
                refusal = _refusal(error)
                self._keep(run_id, number, problem=str(refusal))
                raise refusal from None
            return self._keep(run_id, number, reply=reply, problem=None)
        finally:
            del self._sending[run_id]

    def _keep(self, run_id: str, number: int, *, problem: str | None, **values: bytes) -> wire.RunMessage:
        def work(db: Connection) -> wire.RunMessage:
            store.change_message(db, run_id, number, problem=problem, **values)
            return _view(store.find_message(db, run_id, number))

        return self._context.database.write(work)


def _refusal(error: BlindoptError) -> BlindoptError:
    """The error that the vendor reads. A refusal that the vendor or the owner can do something about is a conflict."""
    if not isinstance(error, Remote):
        return error
    return StateConflict(_WHY[error.remote_code]) if error.remote_code in _WHY else CuratorRefused(error)


def _exchange(curator: StudyClient, row: MessageRow) -> bytes:
    if row.reply is None:
        return curator.send_message(_CONTENT.validate_json(row.body), key=message_key(row.run_id, row.number))
    return curator.message(wire.MessageView.model_validate_json(row.reply).id)


def _view(row: MessageRow) -> wire.RunMessage:
    reply = None if row.reply is None else wire.MessageView.model_validate_json(row.reply)
    return wire.RunMessage(
        run_id=row.run_id,
        number=row.number,
        message=_CONTENT.validate_json(row.body),
        state=reply.state if reply else "unsent",
        word=reply.word if reply else None,
        problem=row.problem,
        created_at=moment(row.created_at),
        decided_at=reply.decided_at if reply else None,
    )
