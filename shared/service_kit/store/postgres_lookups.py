"""Rows of PostgreSQL for the event loop, which serves others while the server is waited for."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.pq import ConnStatus, ExecStatus

from service_kit.store.postgres_session import Session, is_of_prepare
from service_kit.store.prepared_statement import PreparedStatement


class Lookups:
    """A session that reads single rows. Statements are sent as they come, and none waits for another's rows."""

    def __init__(self, open_session: Callable[[], Session]) -> None:
        self._open = open_session
        self._opening = asyncio.Lock()
        self._session: Session | None = None
        self._socket = -1
        self._waiting: deque[asyncio.Future[Any]] = deque()

    async def row(self, statement: PreparedStatement, values: dict[str, Any]) -> Any:
        """The only row, or None."""
        async with self._opening:
            if self._session is None:
                session = await asyncio.to_thread(self._open)
                session.pgconn.enter_pipeline_mode()
                self._socket = session.pgconn.socket  # a lost connection does not know it any more
                asyncio.get_running_loop().add_reader(self._socket, self._arrived)
                self._session = session
            session = self._session
        message = session.message(*session.of(statement, values))
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            session.send(*message)
            session.pgconn.pipeline_sync()
            self._flush()
        except psycopg.Error as error:
            self._lost(error)
        fields = await future
        return statement.made(fields)

    def _flush(self) -> None:
        loop, session = asyncio.get_running_loop(), self._session
        if session is not None and session.pgconn.flush():
            loop.add_writer(self._socket, self._flush)
        elif session is not None:
            loop.remove_writer(self._socket)

    def _arrived(self) -> None:
        session = self._session
        assert session is not None
        connection = session.pgconn
        try:
            connection.consume_input()
            while self._waiting and not connection.is_busy():
                result = connection.get_result()
                if connection.status == ConnStatus.BAD:
                    raise psycopg.OperationalError("the connection is lost")
                if result is None or is_of_prepare(result) or result.status == ExecStatus.PIPELINE_SYNC:
                    continue
                self._settle(session, result)
        except psycopg.Error as error:
            self._lost(error)

    def _settle(self, session: Session, result: Any) -> None:
        if result.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
            raise psycopg.errors.error_from_result(result)
        future = self._waiting.popleft()
        if not future.done():
            future.set_result(session.rows_of(result).fetchone())

    def close(self) -> None:
        """Close the session, on the event loop's thread or after its end."""
        self._lost(psycopg.OperationalError("the session is closed"))

    def _lost(self, error: Exception) -> None:
        """End the session after an error; the next lookup opens another."""
        waiting, self._waiting = self._waiting, deque()
        session, self._session = self._session, None
        with suppress(RuntimeError):  # the loop has ended
            loop = asyncio.get_running_loop()
            for future in waiting:
                if not future.done():
                    future.set_exception(error)
            if session is not None:
                loop.remove_reader(self._socket)
                loop.remove_writer(self._socket)
        if session is not None:
            session.close()
