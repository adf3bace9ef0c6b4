"""Measurements by the owner's own system, which is called by webhook inside the owner's network.

Open measurements and the times of their next calls are in the database, so a restart continues with them. A retry
carries the same idempotency key, so that work is not done twice. Each call goes to the address in the settings, which
is resolved anew, and to no other. What the system does not measure for days stays in the inbox, for people to measure.
"""

import json
import logging
import threading
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

from blindopt import wire
from blindopt.errors import BlindoptError, ProtocolViolated, StateConflict, Unreachable
from curator_service.queries import measurement_entries
from curator_service.queries import table as inbox_store
from curator_service.queries.inbox.inbox import Inbox
from curator_service.queries.measurement_entries import NewEntry
from curator_service.queries.table import InboxRow, Measurement
from curator_service.settings import Settings
from curator_service.studies.studies import NO_MEASURER
from service_kit.background import Background
from service_kit.context.context import ServiceContext
from service_kit.context.request import Effect, RequestContext
from service_kit.notices import webhooks
from service_kit.notices.webhooks import ATTEMPTS_MIN, RESPECTED_SECONDS, Circuit, Retries
from service_kit.store import audit_log
from service_kit.store.base import moment, stamp
from service_kit.store.database import Connection, StoreFault
from service_kit.store.stored_replies import StoredReply
from service_kit.web.wakeups import INBOX, Wakeups

if TYPE_CHECKING:
    from blindopt.client import WebhookClient
    from blindopt.client.webhook import WebhookReply

log = logging.getLogger("blindopt.measurers")
AT_ONCE = 4
REPLY_MAX_BYTES = 64 << 10
CLOSE_SECONDS = 1.0
AGAIN_SECONDS = 1.0
LOOK_SECONDS = 60.0
_OF_BODY = (400, 409, 413, 415, 422)
"""Statuses that concern one measurement. Any other that is no success is a failure of the system."""
_REASONS = get_args(wire.DeclineReason)


class WebhookMeasurer:
    """A few threads that call the owner's system for open measurements. Logs hold ids, never a value."""

    def __init__(self, context: ServiceContext, inbox: Inbox, wakeups: Wakeups, settings: Settings) -> None:
        self._context = context
        self._inbox = inbox
        self._settings = settings
        self._retries = Retries(0.5, 600.0, timedelta(hours=settings.measurer_hours))
        self._look_seconds = min(LOOK_SECONDS, max(1.0, settings.measurer_hours * 360))
        self._changed = threading.Condition()  # held to read or change what follows
        self._under_way: set[str] = set()
        self._circuit = Circuit()
        self._old_at = datetime.min.replace(tzinfo=UTC)
        self._closing = False
        self._threads = [Background(f"measurer-{k}", self._serve, close_s=CLOSE_SECONDS) for k in range(AT_ONCE)]
        wakeups.on(INBOX, self._look_again)

    def start(self) -> None:
        if self._settings.measurer_url is not None:
            for thread in self._threads:
                thread.start()

    def close(self) -> None:
        """Stop the threads. Calls under way are repeated after the next start, under the same key."""
        self._closing = True
        self._look_again()
        for thread in self._threads:
            thread.close()

    def _look_again(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # --- status and retry ---------------------------------------------------------------------------

    def system(self) -> wire.MeasuringSystem:
        """The state of the owner's system, and how many measurements wait for it."""
        with self._context.database.read() as db:
            counts = inbox_store.count_calls(db)
        with self._changed:
            failures, problem, at = self._circuit.failures, self._circuit.problem, self._circuit.opens_at
        state: Literal["none", "asked", "held"] = "asked" if at is None else "held"
        state = "none" if self._settings.measurer_url is None else state
        return wire.MeasuringSystem(state=state, failures=failures, problem=problem, next_at=at, **counts)

    def try_again(self, request: RequestContext, measurement_id: str | None) -> StoredReply:
        """Call the system now for one measurement, or for all that wait for it or were given up.

        Raises StateConflict if there is no system, or it does not measure this one.
        """
        self._context.idempotency.key_of(request)
        if self._settings.measurer_url is None:
            raise StateConflict(NO_MEASURER)

        def effect(db: Connection) -> Effect:
            if measurement_id is not None:
                _check_retriable(inbox_store.view(db, measurement_id).measurement)
            now = stamp(self._context.clock())
            count = inbox_store.call_again(db, now, measurement_id, limit=wire.MEASUREMENTS_MAX)
            details = {"measurements": count} | ({"measurement_id": measurement_id} if measurement_id else {})
            return Effect(wire.TriedAgain(measurements=count), "measurement.tried_again", details, 200)

        with self._changed:  # first, so that no measurement is given up again before its call
            self._circuit.allow_call(self._context.clock())
        reply = self._context.idempotency.once(request, effect)
        self._look_again()
        return reply

    # --- the work ---------------------------------------------------------------------------------

    def _serve(self) -> None:
        client: WebhookClient | None = None
        while not self._closing:
            measurement_id = None
            try:
                client = client or webhooks.open_client(self._settings, "measurer", REPLY_MAX_BYTES)
                assert client is not None, "no thread runs without a system in the settings"
                if (measurement_id := self._next()) is not None:
                    self._call(client, measurement_id)
            except Exception as error:  # called again, under the same key
                # A database that cannot be written says so to requests. The text of any other fault may quote a value.
                if not self._closing and not isinstance(error, BlindoptError | StoreFault):
                    log.error(
                        "fault",
                        extra={"fields": {"measurement_id": measurement_id or "", "kind": type(error).__name__}},
                    )
                time.sleep(AGAIN_SECONDS)
            finally:
                with self._changed:
                    self._under_way -= {measurement_id}

    def _next(self) -> str | None:
        """Wait for the next measurement that is due; None once the service is closing."""
        while True:
            self._give_up_old()
            with self._changed:
                if self._closing:
                    return None
                measurement_id, seconds = self._due()
                if measurement_id is not None:
                    return measurement_id
                self._changed.wait(seconds)

    def _due(self) -> tuple[str | None, float]:
        """A measurement that the system is called for now, or else the seconds until the next look."""
        now, wake_at = self._context.clock(), self._circuit.opens_at
        if self._circuit.may_call(now, len(self._under_way)):
            with self._context.database.read() as db:
                calls = inbox_store.next_calls(db, limit=AT_ONCE)
            measurement_id, next_at = next((call for call in calls if call[0] not in self._under_way), ("", ""))
            if measurement_id and next_at <= stamp(now):
                self._under_way.add(measurement_id)
                return measurement_id, 0.0
            wake_at = moment(next_at) if next_at else None
        if wake_at is None or wake_at <= now:  # the end of a call under way wakes this thread
            return None, self._look_seconds
        return None, min((wake_at - now).total_seconds(), self._look_seconds)

    def _give_up_old(self) -> None:
        """While the system is down, leave to people the measurements that wait for too long."""
        now = self._context.clock()
        with self._changed:
            problem = self._circuit.problem
            if problem is None or not self._circuit.is_down(now) or now < self._old_at:
                return
            self._old_at = now + timedelta(seconds=self._look_seconds)
        give_up = partial(
            inbox_store.give_up_old, before=stamp(now - self._retries.tried_for), problem=problem, limit=1_000
        )
        while not self._closing and (count := self._context.database.write(give_up)):  # a few: others write, too
            log.warning("given up", extra={"fields": {"measurements": count}})
            self._inbox.publish([])

    def _call(self, client: "WebhookClient", measurement_id: str) -> None:
        with self._context.database.read() as db:
            row = inbox_store.view(db, measurement_id)
        if row.measurement.state != "open":
            return
        retry_after_s = 0.0
        try:
            reply = client.post(body_of(self._inbox.view(measurement_id)), key=measurement_id)
            retry_after_s = reply.retry_after_s
            entry = self._read(row, reply)
        except (Unreachable, ProtocolViolated) as error:
            self._record_failure(row, error, retry_after_s)
            return
        self._record_success()
        if entry is None or not self._enter(row.query.query_id, entry):
            self._record_attempt(row.measurement, None, None)

    def _read(self, row: InboxRow, reply: "WebhookReply") -> NewEntry | None:
        """The entry that a reply makes; None if the system answers later.

        Raises Unreachable for a failure of the system, ProtocolViolated for a reply that concerns this measurement
        alone. Neither quotes the reply.
        """
        if reply.status == 202:
            return None
        if reply.status != 200:
            failure = ProtocolViolated if reply.status in _OF_BODY else Unreachable
            raise failure(f"the other party answered {reply.status}")
        entry = read_reply(row.measurement.id, reply.body)
        if entry.value is not None and (fault := self._inbox.fault_of(row.query.study_id, entry.value)) is not None:
            raise ProtocolViolated(f'"value" {fault}')
        return entry

    def _enter(self, query_id: str, entry: NewEntry) -> bool:
        """Store an entry; False if somebody was quicker, or the query gets no more versions."""
        act: measurement_entries.Act = "decline" if entry.value is None else "answer"
        kind = "measurement.declined" if entry.value is None else "measurement.answered"

        def enter(db: Connection) -> None:
            _, details = self._inbox.enter(db, query_id, act, [entry], measurement_entries.SYSTEM)
            now = self._context.clock()
            audit_log.append(db, kind, actor=measurement_entries.SYSTEM.actor, now=now, details=details)

        try:
            self._context.database.write(enter)
        except StateConflict:
            return False
        self._inbox.publish([query_id])
        return True

    def _record_success(self) -> None:
        with self._changed:
            was_down = self._circuit.opens_at is not None
            self._circuit.record_success()
        if was_down:
            log.info("the measurer is back")
            self._look_again()

    def _record_failure(self, row: InboxRow, error: BlindoptError, retry_after_s: float) -> None:
        """Record a failed call and the time of the next; Unreachable: any measurement would have failed."""
        now, attempts = self._context.clock(), row.measurement.attempts + 1
        if not isinstance(error, Unreachable):
            self._record_success()
        with self._changed:
            if isinstance(error, Unreachable):
                self._circuit.record_failure(now, str(error), retry_after_s)
            enough = 1 if self._circuit.is_down(now) else ATTEMPTS_MIN
        gives_up = self._retries.are_over(attempts, moment(row.query.created_at), now, enough)
        seconds = max(self._retries.wait_s(attempts, webhooks.chance()), min(retry_after_s, RESPECTED_SECONDS))
        next_at = None if gives_up else stamp(now + timedelta(seconds=seconds))
        log.log(
            logging.WARNING if gives_up else logging.INFO,
            "given up" if gives_up else "not measured",
            extra={"fields": {"measurement_id": row.measurement.id, "attempts": attempts}},
        )
        self._record_attempt(row.measurement, next_at, str(error))
        if gives_up:
            self._inbox.publish([])

    def _record_attempt(self, measurement: Measurement, next_at: str | None, problem: str | None) -> None:
        attempt = measurement.id, measurement.attempts + 1, next_at, problem
        self._context.database.write(lambda db: inbox_store.record_attempt(db, *attempt))


def body_of(item: wire.InboxItem) -> bytes:
    """The body of a call: the measurement, and the shown columns of its record."""
    body = {
        "measurement_id": item.id,
        "query_id": item.query_id,
        "study_id": item.study_id,
        "study": item.study,
        "record": item.record,
        "file_row": item.file_row,
        "labels": {label.column: label.text for label in item.labels},
        "play": item.play,
        "shown": {cell.column: cell.value for cell in item.shown},
        "unit": item.unit,
    }
    return json.dumps(body, allow_nan=False).encode()


def read_reply(measurement_id: str, body: bytes) -> NewEntry:
    """The entry that a reply makes about a measurement. Raises ProtocolViolated, which does not quote the reply."""
    members = webhooks.json_object(body)
    if ("value" in members) == ("declined" in members):
        raise ProtocolViolated('the reply must be a JSON object with either "value" or "declined"')
    if "value" in members:
        return NewEntry(measurement_id, value=webhooks.json_number(members["value"], '"value"'))
    if members["declined"] not in _REASONS:
        raise ProtocolViolated(f'"declined" must be one of {", ".join(_REASONS)}')
    return NewEntry(measurement_id, reason=members["declined"])


def _check_retriable(measurement: Measurement) -> None:
    """Raise StateConflict if there is nothing to call the owner's system for."""
    if measurement.state != "open":
        raise StateConflict(f"the measurement is {measurement.state}: there is nothing to ask")
    if measurement_entries.system_of(measurement) is None:
        raise StateConflict("no system measures this one: answer or decline it")
