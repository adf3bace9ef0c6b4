"""The owner's own system measures: it is called with a record inside the owner's network, signed, and answers.

What is left to do is in the database: a restart goes on. A retry carries the same idempotency key, so that work is not
done twice. What the system does not measure stays in the inbox, where people can.
"""

import json
import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import get_args

from curator_service.service import telling
from curator_service.service.bells import INBOX, Bells
from curator_service.service.inbox import Inbox
from curator_service.service.telling import Told
from curator_service.settings import Settings
from curator_service.store import inbox as table
from shared import wire
from shared.client import WebhookClient
from shared.errors import BlindoptError, ProtocolViolated, StateConflict, Unreachable
from shared.serving.desk import Desk
from shared.serving.store import logs
from shared.serving.store.base import moment, stamp
from shared.serving.store.database import Connection, StoreFault

log = logging.getLogger("blindopt.measurers")
AT_ONCE = 4
FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 600.0
REPLY_MAX_BYTES = 64 << 10
CLOSE_SECONDS = 1.0
AGAIN_SECONDS = 1.0
LOOK_SECONDS = 60.0
SECRET_MIN = 32
NO_MEASURER = "this curator has no measurer: set MEASURER_URL and MEASURER_SECRET_FILE where it runs, or take inbox"
_REASONS = get_args(wire.DeclineReason)


def client_of(settings: Settings) -> WebhookClient | None:
    """The owner's system that the settings name, or None. Raises StateConflict for a key that is too short."""
    if settings.measurer_url is None or settings.measurer_secret_file is None:
        return None
    key = settings.measurer_secret_file.read_bytes().strip()
    if len(key) < SECRET_MIN:
        raise StateConflict(f"the key in MEASURER_SECRET_FILE must have {SECRET_MIN} characters or more")
    return WebhookClient(
        settings.measurer_url,
        key,
        timeout_s=settings.measurer_timeout_seconds,
        verify=True if settings.measurer_ca is None else str(settings.measurer_ca),
        reply_max_bytes=REPLY_MAX_BYTES,
    )


class Measurers:
    """A few threads that ask the owner's system for what is open. Logs tell ids, never a value."""

    def __init__(self, desk: Desk, inbox: Inbox, bells: Bells, settings: Settings) -> None:
        self._desk = desk
        self._inbox = inbox
        self._settings = settings
        self._clients = threading.local()  # each thread has its own
        self._attempts = settings.measurer_attempts
        self._changed = threading.Condition()
        self._under_way: set[str] = set()
        self._closing = False
        self._threads = [
            threading.Thread(target=self._serve, daemon=True, name=f"measurer-{k}") for k in range(AT_ONCE)
        ]
        bells.also(INBOX, self._look_again)

    def start(self) -> None:
        """Go on with what is open, from now on; what the system failed to measure before, it is asked anew."""
        if self._settings.measurer_url is not None:
            now = stamp(self._desk.clock())
            self._desk.database.submit(lambda db: table.post_again(db, now))
            for thread in self._threads:
                thread.start()

    def close(self) -> None:
        """Ask no more. What is under way is asked again at the next start, under the same key."""
        self._closing = True
        self._look_again()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(CLOSE_SECONDS)

    def _look_again(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # --- the work ---------------------------------------------------------------------------------

    def _serve(self) -> None:
        while not self._closing:
            try:
                identity = self._next()
            except Exception as error:  # the database is going down, or worse
                self._fault("", error)
                time.sleep(AGAIN_SECONDS)
                continue
            if identity is None:
                return
            try:
                self._ask(identity)
            except (BlindoptError, StoreFault):  # the database cannot be written: asked again, under the same key
                time.sleep(AGAIN_SECONDS)
            except Exception as error:  # its text may quote a value
                self._fault(identity, error)
                time.sleep(AGAIN_SECONDS)
            finally:
                with self._changed:
                    self._under_way.discard(identity)

    def _fault(self, identity: str, error: Exception) -> None:
        if not self._closing:
            log.error("fault", extra={"fields": {"measurement_id": identity, "kind": type(error).__name__}})

    def _next(self) -> str | None:
        """The next measurement to ask for, once it is its time; None at the end."""
        with self._changed:
            while not self._closing:
                now = self._desk.clock()
                with self._desk.database.read() as db:
                    due = table.to_post(db, stamp(now), limit=AT_ONCE + 1)
                    first = table.next_post(db)
                for identity in due:
                    if identity not in self._under_way:
                        self._under_way.add(identity)
                        return identity
                seconds = LOOK_SECONDS
                if first is not None and not due:
                    seconds = min(max((moment(first) - now).total_seconds(), 0.01), LOOK_SECONDS)
                self._changed.wait(seconds)
        return None

    def _client(self) -> WebhookClient:
        if (client := getattr(self._clients, "client", None)) is None:
            client = self._clients.client = client_of(self._settings)
        assert client is not None, "nothing is asked where no system is named"
        return client

    def _ask(self, identity: str) -> None:
        with self._desk.database.read() as db:
            row = table.one_view(db, identity)
        if row.state != "open":
            return
        body = _body(self._inbox.one(identity))
        try:
            reply = self._client().ask_or_later(body, key=identity, at=int(time.time()))
            told = None if reply is None else self._read(identity, row.study_id, reply)
        except (Unreachable, ProtocolViolated) as error:
            self._failed(identity, row.attempts + 1, str(error))
            return
        if told is None:  # it tells later
            self._note(identity, row.attempts + 1, None, None)
            return
        try:
            self._desk.database.write(partial(self._take, query_id=row.query_id, told=told))
        except StateConflict:  # somebody told it meanwhile, or it is told no more
            self._note(identity, row.attempts + 1, None, None)
            return
        self._inbox.changed([row.query_id])

    def _take(self, db: Connection, query_id: str, told: Told) -> None:
        act: telling.Act = "decline" if told.value is None else "answer"
        _, details = self._inbox.enter(db, query_id, act, [told], telling.SYSTEM)
        kind = "measurement.answered" if told.value is not None else "measurement.declined"
        logs.append(db, kind, actor=telling.SYSTEM.actor, now=self._desk.clock(), details=details)

    def _read(self, identity: str, study_id: str, reply: bytes) -> Told:
        """What a reply tells. Raises ProtocolViolated, in words that do not quote it."""
        try:
            told = json.loads(reply)
        except (ValueError, RecursionError):
            told = None
        if not isinstance(told, dict) or ("value" in told) == ("declined" in told):
            raise ProtocolViolated('the reply must be a JSON object with either "value" or "declined"')
        if "declined" in told:
            if told["declined"] not in _REASONS:
                raise ProtocolViolated(f'"declined" must be one of {", ".join(_REASONS)}')
            return Told(identity, reason=told["declined"])
        value = _number(told["value"])
        if (fault := self._inbox.fault_of(study_id, value)) is not None:
            raise ProtocolViolated(f'"value" {fault}')
        return Told(identity, value=value)

    def _failed(self, identity: str, attempts: int, why: str) -> None:
        if attempts >= self._attempts:
            problem = f"the measurer failed {attempts} times, at last: {why}"
            log.warning("given up", extra={"fields": {"measurement_id": identity, "attempts": attempts}})
            self._note(identity, attempts, None, problem)
            self._inbox.changed([])
            return
        seconds = min(FIRST_WAIT_SECONDS * 2 ** min(attempts - 1, 30), LONGEST_WAIT_SECONDS)
        self._note(identity, attempts, stamp(self._desk.clock() + timedelta(seconds=seconds)), None)

    def _note(self, identity: str, attempts: int, next_at: str | None, problem: str | None) -> None:
        change: Callable[[Connection], None] = partial(
            table.attempted, identity=identity, attempts=attempts, next_at=next_at, problem=problem
        )
        self._desk.database.write(change)


def _body(item: wire.InboxItem) -> bytes:
    said = {
        "measurement_id": item.id,
        "query_id": item.query_id,
        "study_id": item.study_id,
        "study": item.study,
        "record": item.record,
        "play": item.play,
        "shown": {one.column: one.value for one in item.shown},
        "unit": item.unit,
    }
    return json.dumps(said, allow_nan=False).encode()


def _number(told: object) -> float:
    if isinstance(told, bool) or not isinstance(told, int | float):
        raise ProtocolViolated('"value" must be a number')
    try:
        return float(told)
    except OverflowError:
        raise ProtocolViolated('"value" must be a finite number') from None
