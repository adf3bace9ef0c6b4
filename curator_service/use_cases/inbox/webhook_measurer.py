"""Measurements by the owner's own system, which is called by webhook inside the owner's network.

Open measurements and the times of their next calls are in the database, so a restart continues with them. A retry
carries the same idempotency key, so that work is not done twice. Each call goes to the address in the settings, which
is resolved anew, and to no other. What the system does not measure for days stays in the inbox, for people to measure.
"""

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from blindopt import wire
from blindopt.errors import BlindoptError, ProtocolViolated, StateConflict, Unreachable
from curator_service.settings import Settings
from curator_service.store import inbox as table
from curator_service.store import webhook_calls
from curator_service.use_cases.inbox import webhook_messages
from curator_service.use_cases.inbox.circuit_breaker import RESPECTED_SECONDS, Circuit, chance, wait_after
from curator_service.use_cases.inbox.inbox import Inbox
from curator_service.use_cases.queries import measurement_entries
from curator_service.use_cases.queries.measurement_entries import MeasurementEntry
from curator_service.use_cases.studies.studies import NO_MEASURER
from service_kit.context.context import ServiceContext
from service_kit.context.keys import webhook_key
from service_kit.context.request import Effect, RequestContext
from service_kit.store import audit_log
from service_kit.store.base import moment, stamp
from service_kit.store.database import Connection, StoreFault
from service_kit.store.stored_replies import StoredReply
from service_kit.web.wakeups import INBOX, Wakeups

if TYPE_CHECKING:
    from blindopt.client import WebhookClient

log = logging.getLogger("blindopt.measurers")
AT_ONCE = 4
ATTEMPTS_MIN = 3  # of a measurement that is old already when its turn comes
_OF_BODY = (400, 409, 413, 415, 422)
"""Statuses that concern one measurement. Any other that is no success is a failure of the system."""
REPLY_MAX_BYTES = 64 << 10
CLOSE_SECONDS = 1.0
AGAIN_SECONDS = 1.0
LOOK_SECONDS = 60.0
GIVEN_UP_AT_ONCE = 1_000


def client_of(settings: Settings) -> "WebhookClient | None":
    """The owner's system that the settings name, or None. Raises StateConflict for a key that is too short."""
    if settings.measurer_url is None or settings.measurer_secret_file is None:
        return None
    key = webhook_key(settings.measurer_secret_file, "MEASURER_SECRET_FILE")
    from blindopt.client import WebhookClient  # late: most curators call nobody, and start faster

    return WebhookClient(
        settings.measurer_url,
        key,
        timeout_s=settings.measurer_timeout_seconds,
        verify=True if settings.measurer_ca is None else str(settings.measurer_ca),
        reply_max_bytes=REPLY_MAX_BYTES,
    )


class WebhookMeasurer:
    """A few threads that call the owner's system for open measurements. Logs hold ids, never a value."""

    def __init__(self, context: ServiceContext, inbox: Inbox, wakeups: Wakeups, settings: Settings) -> None:
        self._context = context
        self._inbox = inbox
        self._settings = settings
        self._clients = threading.local()  # each thread has its own
        self._tried_for = timedelta(hours=settings.measurer_hours)
        self._changed = threading.Condition()
        self._wakeup_count = 0
        self._under_way: set[str] = set()
        self._circuit = Circuit()
        self._look_seconds = min(LOOK_SECONDS, max(1.0, self._tried_for.total_seconds() / 10))
        self._old_at = datetime.min.replace(tzinfo=UTC)
        self._closing = False
        self._threads = [
            threading.Thread(target=self._serve, daemon=True, name=f"measurer-{k}") for k in range(AT_ONCE)
        ]
        wakeups.on(INBOX, self._look_again)

    def start(self) -> None:
        """Start the threads."""
        if self._settings.measurer_url is not None:
            for thread in self._threads:
                thread.start()

    def close(self) -> None:
        """Stop the threads. Calls under way are repeated after the next start, under the same key."""
        self._closing = True
        self._look_again()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(CLOSE_SECONDS)

    def _look_again(self) -> None:
        with self._changed:
            self._wakeup_count += 1
            self._changed.notify_all()

    # --- status and retry ---------------------------------------------------------------------------

    def system(self) -> wire.MeasuringSystem:
        """The state of the owner's system, and how many measurements wait for it."""
        with self._context.database.read() as db:
            counts = webhook_calls.count_states(db)
        with self._changed:
            failures, problem, at = self._circuit.failures, self._circuit.problem, self._circuit.opens_at
        state: Literal["none", "asked", "held"] = "asked" if at is None else "held"
        if self._settings.measurer_url is None:
            state = "none"
        return wire.MeasuringSystem(state=state, failures=failures, problem=problem, next_at=at, **counts)

    def try_again(self, request: RequestContext, measurement_id: str | None) -> StoredReply:
        """Call the system now for one measurement, or for all that wait for it or were given up.

        Raises StateConflict if there is no system, or it does not measure this one.
        """
        self._context.idempotency.key_of(request)
        if self._settings.measurer_url is None:
            raise StateConflict(NO_MEASURER)

        def effect(db: Connection) -> Effect:
            now = stamp(self._context.clock())
            if measurement_id is None:
                count = webhook_calls.try_again(db, now, limit=wire.MEASUREMENTS_MAX)
                details: dict[str, Any] = {"measurements": count}
            else:
                _check_retriable(table.view(db, measurement_id))
                count = webhook_calls.try_measurement_again(db, now, measurement_id)
                details = {"measurements": count, "measurement_id": measurement_id}
            return Effect(wire.TriedAgain(measurements=count), "measurement.tried_again", details, 200)

        with self._changed:  # first, so that no measurement is given up again before its call
            self._circuit.allow_probe(self._context.clock())
        reply = self._context.idempotency.once(request, effect)
        self._look_again()
        return reply

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
            except (BlindoptError, StoreFault):  # the database cannot be written: called again, under the same key
                time.sleep(AGAIN_SECONDS)
            except Exception as error:  # its text may quote a value
                self._fault(identity, error)
                time.sleep(AGAIN_SECONDS)
            finally:
                with self._changed:
                    self._under_way.discard(identity)
                    self._circuit.end_call(identity)

    def _fault(self, identity: str, error: Exception) -> None:
        if not self._closing:
            log.error("fault", extra={"fields": {"measurement_id": identity, "kind": type(error).__name__}})

    def _next(self) -> str | None:
        """Wait for the next measurement that is due; None once the service is closing."""
        while not self._closing:
            with self._changed:
                count = self._wakeup_count
                identity, seconds = self._due()
            if identity is not None:
                return identity
            self._give_up_old()
            with self._changed:
                self._changed.wait_for(partial(self._is_woken, count), seconds)
        return None

    def _is_woken(self, count: int) -> bool:
        return self._closing or self._wakeup_count != count

    def _due(self) -> tuple[str | None, float]:
        """A measurement that the system may be called for now, or else the seconds until the next look."""
        now, opens_at = self._context.clock(), self._circuit.opens_at
        if self._circuit.may_call(now):
            with self._context.database.read() as db:
                due = webhook_calls.to_post(db, stamp(now), limit=AT_ONCE + 1)
                first = webhook_calls.next_post(db, stamp(now))
            for identity in due:
                if identity not in self._under_way:
                    self._under_way.add(identity)
                    self._circuit.begin_call(identity)
                    return identity, 0.0
            later = None if first is None else moment(first)
        else:
            later = opens_at if opens_at is not None and opens_at > now else None
        most = self._look_seconds if opens_at is not None else LOOK_SECONDS
        if later is None:  # the end of a call under way wakes this thread
            return None, most
        return None, min(max((later - now).total_seconds(), 0.01), most)

    def _give_up_old(self) -> None:
        """While the system is down, leave to people the measurements that wait for too long."""
        now = self._context.clock()
        with self._changed:
            problem = self._circuit.problem
            if problem is None or not self._circuit.is_open(now) or now < self._old_at:
                return
            self._old_at = now + timedelta(seconds=self._look_seconds)
        before, old = stamp(now - self._tried_for), [0] * GIVEN_UP_AT_ONCE
        while len(old) == GIVEN_UP_AT_ONCE and not self._closing:  # in parts: others write, too
            with self._context.database.read() as db:
                old = webhook_calls.old_posts(db, before, limit=GIVEN_UP_AT_ONCE)
            if old:
                log.warning("given up", extra={"fields": {"measurements": len(old)}})
                self._context.database.write(partial(webhook_calls.give_up, seqs=old, problem=problem))
                self._inbox.publish([])

    def _client(self) -> "WebhookClient":
        if (client := getattr(self._clients, "client", None)) is None:
            client = self._clients.client = client_of(self._settings)
        assert client is not None, "no thread runs without a system in the settings"
        return client

    def _ask(self, identity: str) -> None:
        with self._context.database.read() as db:
            row = table.view(db, identity)
        if row.state != "open":
            return
        body = webhook_messages.body_of(self._inbox.view(identity))
        try:
            reply = self._client().call(body, key=identity, at=int(time.time()))
        except (Unreachable, ProtocolViolated) as error:  # no reply, or one that is too long
            self._record_failure(row, str(error), of_system=isinstance(error, Unreachable))
            return
        if reply.status not in (200, 202):
            problem, of_system = f"the other party answered {reply.status}", reply.status not in _OF_BODY
            self._record_failure(row, problem, of_system=of_system, retry_after_s=reply.retry_after_s)
            return
        try:
            entry = None if reply.status == 202 else self._read(identity, row.study_id, reply.body)
        except ProtocolViolated as error:
            self._record_failure(row, str(error), of_system=False)
            return
        self._record_success()
        if entry is None:  # the system answers later
            self._record_attempt(identity, row.attempts + 1, None, None)
            return
        try:
            self._context.database.write(partial(self._enter, query_id=row.query_id, entry=entry))
        except StateConflict:  # it was answered or declined meanwhile, or its query gets no more versions
            self._record_attempt(identity, row.attempts + 1, None, None)
            return
        self._inbox.publish([row.query_id])

    def _record_success(self) -> None:
        with self._changed:
            was_open = self._circuit.opens_at is not None
            self._circuit.record_success()
        if was_open:
            log.info("the measurer is back")
            self._look_again()

    def _enter(self, db: Connection, query_id: str, entry: MeasurementEntry) -> None:
        act: measurement_entries.Act = "decline" if entry.value is None else "answer"
        _, details = self._inbox.enter(db, query_id, act, [entry], measurement_entries.SYSTEM)
        kind = "measurement.answered" if entry.value is not None else "measurement.declined"
        audit_log.append(db, kind, actor=measurement_entries.SYSTEM.actor, now=self._context.clock(), details=details)

    def _read(self, identity: str, study_id: str, body: bytes) -> MeasurementEntry:
        """The entry that a reply makes. Raises ProtocolViolated, which does not quote the reply."""
        entry = webhook_messages.read_reply(identity, body)
        if entry.value is not None and (fault := self._inbox.fault_of(study_id, entry.value)) is not None:
            raise ProtocolViolated(f'"value" {fault}')
        return entry

    def _record_failure(self, row: Any, problem: str, *, of_system: bool, retry_after_s: float | None = None) -> None:
        """Record a failed call and the time of the next; ``of_system``: whether any measurement would have failed."""
        now, attempts = self._context.clock(), row.attempts + 1
        if not of_system:
            self._record_success()
        with self._changed:
            self._circuit.end_call(row.id)
            if of_system:
                self._circuit.record_failure(now, problem, retry_after_s)
            enough = attempts >= ATTEMPTS_MIN or self._circuit.is_open(now)
        fields = {"measurement_id": row.id, "attempts": attempts}
        if enough and now - moment(row.created_at) >= self._tried_for:
            log.warning("given up", extra={"fields": fields})
            self._record_attempt(row.id, attempts, None, problem)
            self._inbox.publish([])
            return
        log.info("not measured", extra={"fields": fields})
        seconds = max(wait_after(attempts, chance()), min(retry_after_s or 0.0, RESPECTED_SECONDS))
        self._record_attempt(row.id, attempts, stamp(now + timedelta(seconds=seconds)), problem)

    def _record_attempt(self, identity: str, attempts: int, next_at: str | None, problem: str | None) -> None:
        change: Callable[[Connection], None] = partial(
            webhook_calls.record_attempt, identity=identity, attempts=attempts, next_at=next_at, problem=problem
        )
        self._context.database.write(change)


def _check_retriable(row: Any) -> None:
    """Raise StateConflict if there is nothing to call the owner's system for."""
    if row.state != "open":
        raise StateConflict(f"the measurement is {row.state}: there is nothing to ask")
    if measurement_entries.system_of(row) is None:
        raise StateConflict("no system measures this one: answer or decline it")
