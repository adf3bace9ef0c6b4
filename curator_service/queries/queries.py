"""The use cases of a modeler: read a study, download its candidates, query measurements."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from blindopt import wire
from blindopt.audit.merkle_log import sha256
from blindopt.errors import (
    BudgetExhausted,
    Erased,
    Invalid,
    NotFound,
    RateLimited,
    StateConflict,
    StillRunning,
    StudyNotOpen,
    UnknownRow,
)
from blindopt.formats import npy_files
from blindopt.formats.release_files import Section, sections_of
from curator_service import notices, store
from curator_service.budget import ledger_lines
from curator_service.budget.budgets import Budgets
from curator_service.privacy.answers import is_exact, measure, reply_salt
from curator_service.privacy.guarantees import not_protected
from curator_service.queries import measurement_entries, refinements
from curator_service.queries import table as inbox_store
from curator_service.queries.refinements import NOTHING as NO_DRAWS
from curator_service.queries.table import SecondDraws
from curator_service.releases import groups
from curator_service.releases.mechanisms.registry import mechanism_of, refinement_of
from curator_service.releases.report import release_status
from curator_service.studies.grants import download_of
from curator_service.studies.release_cache import Released, ReleasedStudies, withheld_from, withheld_rows
from curator_service.studies.study_caps import changes_by_study
from curator_service.vault import Vault
from service_kit.context.context import ServiceContext
from service_kit.context.request import Effect, RequestContext
from service_kit.identity.tokens import Principal, new_id
from service_kit.store import stored_replies
from service_kit.store.base import moment
from service_kit.store.database import Connection, is_open, savepoint
from service_kit.store.stored_replies import StoredReply
from service_kit.web.reply_pacing import ReplyPacing
from service_kit.web.wakeups import INBOX, Wakeups

AT_ONCE = 64
"""The most measurements of a query whose noise is drawn within its transaction; more are drawn in a thread."""
RECORDS_BYTES = 4 << 10
"""The most bytes of the records of an exchange or a charge, and of a reply without its answers."""
MEASUREMENT_BYTES = 1 << 10
"""The most bytes of an answer in a reply, or of a measurement with its entry and its answer if people or a system
measure; and of a second draw in a reply."""
ALL = "answers"
"""The key of the query of all groups, under the id of its study in place of a grant's."""
T = TypeVar("T")
WAITS_MAX = 256
"""The number of waiting requests that one grant may have at once."""


@dataclass(frozen=True, slots=True)
class QueryCharge:
    """A query that is recorded as begun, and the rows that it was charged for: no others are answered."""

    id: str
    rows: set[int]
    reserved: int
    """The bytes of its grant's log quota that were counted for its answer."""


class Queries:
    """The modeler's requests. No reply depends on the data, but for n, Z and the answers."""

    def __init__(
        self,
        context: ServiceContext,
        vault: Vault,
        limits: wire.Limits,
        studies: ReleasedStudies,
        budgets: Budgets,
        decline_withheld: Callable[[Connection, str], None],
        wakeups: Wakeups,
    ) -> None:
        self._context = context
        self._vault = vault
        self._limits = limits
        self._studies = studies
        self._budgets = budgets
        self._decline_withheld = decline_withheld
        self._wakeups = wakeups
        self._periods: dict[tuple[str, int], float | None] = {}
        self._under_way: set[tuple[str, str]] = set()
        self._waits: Counter[str] = Counter()

    def study(self, principal: Principal, study_id: str) -> wire.StudyView:
        """The study as a modeler may see it. Raises StudyNotOpen before the release."""
        with self._context.database.read() as db:
            return view_of(db, self._context, self._studies, self._limits, principal.id, study_id)

    def candidates(self, principal: Principal, study_id: str, number: int | None) -> tuple[Path, Section]:
        """The file of Z, and where in it a part is for this grant, or Z itself (None).

        Raises StateConflict for Z itself where it is published in parts, NotFound for a part that there is not.
        """
        with self._context.database.read() as db:
            released = self._studies.of(db, study_id)
            download = download_of(db, released, principal.id)
        release_parts, path = download.parts, self._vault.candidates(released.id)
        if number is None and release_parts:
            last = len(release_parts) - 1
            where = f"the candidates are published in parts: get candidates/parts/0 to parts/{last}"
            raise StateConflict(f"{where}, as modelers since 0.3.0 do")
        if number is not None and number >= len(release_parts):
            raise NotFound("there is no such part" if release_parts else "the candidates are published as one file")
        zeros = npy_files.bytes_of(path, download.left_out) if download.left_out else ()
        return path, sections_of(released.n, download.sha256, release_parts, zeros)[number or 0]

    async def period_s(self, study_id: str) -> float | None:
        """The study's ``reply_after_ms`` in seconds; None where it has none, or is not there."""
        name = study_id, self._context.database.foreign_writes.count
        if name not in self._periods:
            try:
                spec = await self._context.database.read_soon(lambda db: store.spec_of(db, study_id))
            except NotFound:
                return None
            self._periods[name] = None if spec.reply_after_ms is None else spec.reply_after_ms / 1000
        return self._periods[name]

    async def ask(
        self, caller: RequestContext, study_id: str, query: wire.QueryRequest, pacing: ReplyPacing | None = None
    ) -> StoredReply:
        """Measure rows: charge, draw, store the answer and its log record in one transaction, then reply.

        A crash before the commit leaves nothing, and what was drawn has not left; later a retry gets the same bytes:
        one charge, one answer. With a ``pacing``, or many draws, the charge is committed first, then noise is drawn in
        a thread; with a ``pacing`` the answer is stored half way to the next deadline, so that neither the time of the
        reply nor the log reveals how long the draw took. Where people or a system measure, the charge and a pending
        reply are one transaction. Raises BudgetExhausted; a refusal is recorded and costs nothing.
        """
        self._context.idempotency.key_of(caller)
        released = await self._released(study_id)
        self._check(released, query)
        return await self._ask(caller, study_id, released, query, pacing)

    async def answer_all(self, caller: RequestContext, study_id: str) -> StoredReply:
        """Answer a query of every group, once a study: whoever asks again, under any key, gets the same bytes.

        As ``ask``: one charge for each group in one transaction, before the first draw. Raises StateConflict for a
        study of records, BudgetExhausted.
        """
        self._context.idempotency.key_of(caller)
        released = await self._released(study_id)
        if released.groups is None:
            raise StateConflict("the candidates of this study are records: only groups are answered at once")
        rows = [wire.RowPlays(row=row) for row in range(released.n)]
        query = wire.QueryRequest.model_construct(rows=rows)  # the public limits are those of a vendor's query
        period_s = await self.period_s(study_id)
        pacing = None if period_s is None else ReplyPacing(period_s)
        try:
            return await self._ask(_of_study(caller, study_id), study_id, released, query, pacing)
        finally:
            if pacing is not None:
                pacing.stop()

    def answers(self, study_id: str) -> bytes:
        """The reply of ``answer_all``, as it was stored. Raises StateConflict before there is one, and Erased."""
        with self._context.database.read() as db:
            store.state_of(db, study_id)
            if (body := answers_of_all(db, self._context, study_id)) is None:
                raise StateConflict("the owner has not had every group of this study answered at once")
        return body

    async def _ask(
        self,
        caller: RequestContext,
        study_id: str,
        released: Released,
        query: wire.QueryRequest,
        pacing: ReplyPacing | None,
    ) -> StoredReply:
        name = caller.principal.id, self._context.idempotency.key_of(caller)[0]
        if name in self._under_way:
            stored = await asyncio.to_thread(self._context.idempotency.earlier, caller)
            if stored is not None:  # the request under way is a retry, too
                return stored
            raise StillRunning("the same request is being answered")
        self._under_way.add(name)
        try:
            touched = partial(released.rows_of_persons, [item.row for item in query.rows])
            ahead = partial(ledger_lines.ahead_of_query, *name, study_id, touched)
            write = partial(self._context.database.write_soon, ahead=ahead)
            if not isinstance(released.spec.measurement, wire.ColumnMeasurement):
                later = await write(lambda db: self._answer_later(db, caller, study_id, released, query))
                self._wakeups.notify(INBOX)
                return _or_raise(later)
            if _is_exact(released) or (pacing is None and sum(item.plays for item in query.rows) <= AT_ONCE):
                return _or_raise(await write(lambda db: self._answer_at_once(db, caller, study_id, released, query)))
            outcome = await write(lambda db: self.begin(db, caller, study_id, released, query))
            if not isinstance(outcome, QueryCharge):
                return _or_raise(outcome)
            # A draw may take long: in a thread, so that other requests are served meanwhile.
            sample = await asyncio.to_thread(self._sample, released, query)
            if pacing is not None:
                await pacing.half_period()
            return await write(lambda db: self._answer_begun(db, caller, study_id, outcome, released, query, *sample))
        finally:
            self._under_way.discard(name)

    def begin(
        self, db: Connection, caller: RequestContext, study_id: str, released: Released, query: wire.QueryRequest
    ) -> StoredReply | BudgetExhausted | QueryCharge:
        """Charge a query and record it as begun; or the stored reply, or the refusal.

        A candidate whose record is withheld is declined for good, so it is charged nothing.
        """
        if (stored := self._context.idempotency.stored(db, caller)) is not None:
            return stored
        self._context.audit_trail.check_sound()
        self._context.authentication.check_live(db, caller.principal)
        self._context.audit_trail.check_unchanged(study_id)
        released.check_current(db)
        _check_open(store.state_of(db, study_id))
        second = 0 if released.spec.refine is None else len(query.rows)
        reserved = RECORDS_BYTES + MEASUREMENT_BYTES * (second + sum(item.plays for item in query.rows))
        (key, digest), requested = self._context.idempotency.key_of(caller), [item.row for item in query.rows]
        if (earlier := store.begun(db, caller.principal.id, key)) is not None:  # after a crash before the answer
            stored_replies.check_same_request(earlier.request_sha256, digest)
            self._context.audit_trail.check_unanswered(db, caller.principal, key, earlier.id)
            rows_charged = ledger_lines.charged_rows(db, study_id, earlier.id, requested)
            return QueryCharge(earlier.id, rows_charged, reserved)
        self._context.audit_trail.quotas.check_room(db, caller.principal.id, RECORDS_BYTES + reserved)
        withheld = withheld_rows(db, self._vault, released, requested)
        query_id, rows = new_id("qry"), [(item.row, item.plays) for item in query.rows if item.row not in withheld]
        charge = {"query_id": query_id, **_all(caller)}
        charged = self._budgets.charge_answers(db, caller.principal, released, rows, charge, reserved)
        if isinstance(charged, BudgetExhausted):
            return charged
        store.begin_query(
            db,
            id=query_id,
            study_id=study_id,
            grant_id=caller.principal.id,
            idempotency_key=key,
            request_sha256=digest,
            request=query.__pydantic_serializer__.to_json(query, exclude_none=True).decode(),
            created_at=charged,
        )
        return QueryCharge(query_id, {row for row, _ in rows}, reserved)

    def _answer_at_once(
        self, db: Connection, caller: RequestContext, study_id: str, released: Released, query: wire.QueryRequest
    ) -> StoredReply | Exception:
        outcome = self.begin(db, caller, study_id, released, query)
        if not isinstance(outcome, QueryCharge):
            return outcome
        if _is_exact(released):
            return self._settle(db, caller, study_id, outcome, released, self._measured(released, query))
        try:
            with savepoint(db):
                answers = self._measured(released, query, withheld_from(db, self._vault, released))
                return self._settle(db, caller, study_id, outcome, released, answers)
        except Exception as error:  # nothing is drawn twice for free: the charge stays, and a retry gets the answer
            if not is_open(db):
                raise
            return error

    def _answer_begun(
        self,
        db: Connection,
        caller: RequestContext,
        study_id: str,
        charged: QueryCharge,
        released: Released,
        query: wire.QueryRequest,
        answers: list[wire.Answer],
        without: list[int],
        second_draws: SecondDraws,
    ) -> StoredReply:
        self._context.audit_trail.check_unchanged(study_id)
        released.check_current(db)
        _check_open(store.state_of(db, study_id))  # it may have been closed since the charge
        if (withheld := withheld_from(db, self._vault, released)) != without:  # what was drawn has not left
            answers = self._measured(released, query, withheld)
        return self._settle(db, caller, study_id, charged, released, answers, second_draws)

    def _answer_later(
        self, db: Connection, caller: RequestContext, study_id: str, released: Released, query: wire.QueryRequest
    ) -> StoredReply | BudgetExhausted:
        """Charge a query and request its measurements, in one transaction."""
        outcome = self.begin(db, caller, study_id, released, query)
        if not isinstance(outcome, QueryCharge):
            return outcome
        query_id, now = outcome.id, self._context.clock()
        due_at = measurement_entries.ask(db, released.spec, query_id, study_id, caller.principal.id, query.rows, now)
        self._decline_withheld(db, query_id)
        measurements = sum(item.plays for item in query.rows)
        notices.pending(db, self._context.outbox, study_id, query_id, measurements)
        reply = wire.QueryPending(id=query_id, study_id=study_id, state="pending", created_at=now, due_at=due_at)
        effect = Effect(reply, "exchange", {"query_id": query_id}, 202, reserved=RECORDS_BYTES)
        return self._context.idempotency.settle(db, caller, effect)

    def _sample(self, released: Released, query: wire.QueryRequest) -> tuple[list[wire.Answer], list[int], SecondDraws]:
        """Answers, of groups the records that their sums are without, and second draws of records that have none."""
        without: list[int] = []
        second_draws = NO_DRAWS
        if released.groups is not None:
            with self._context.database.read() as db:
                without = withheld_from(db, self._vault, released)
        elif released.spec.refine is not None:
            with self._context.database.read() as db:
                second_draws = refinements.draw(db, released, [item.row for item in query.rows])
        return self._measured(released, query, without), without, second_draws

    def _measured(self, released: Released, query: wire.QueryRequest, without: Sequence[int] = ()) -> list[wire.Answer]:
        if released.groups is not None:
            return groups.answers(released, query.rows, without)
        return measure(released.outcomes([item.row for item in query.rows]), query.rows, released.spec)

    def _settle(
        self,
        db: Connection,
        caller: RequestContext,
        study_id: str,
        charged: QueryCharge,
        released: Released,
        answers: list[wire.Answer],
        second_draws: SecondDraws = NO_DRAWS,
    ) -> StoredReply:
        """Store the answer and its log record. A record that is withheld is declined, also if it was charged before.

        So is a row that was not charged, whatever the list of withheld records says by now. ``second_draws`` were drawn
        ahead, and leave if their record has none by now.
        """
        answered = dict.fromkeys(answer.row for answer in answers)
        declined = withheld_rows(db, self._vault, released, answered) | (answered.keys() - charged.rows)
        sent = [answer for answer in answers if answer.row not in declined] if declined else answers
        refined = []
        if released.spec.refine is not None:
            refined = refinements.of_reply(db, released, [answer.row for answer in sent], second_draws)
        reply = wire.QueryReply(
            id=charged.id,
            study_id=study_id,
            state="answered",
            created_at=self._context.clock(),
            answers=sent,
            declined=[row for row in answered if row in declined],
            refined=refined,
            salt=reply_salt(refinements.numbers(sent, refined) if refined else (answer.y for answer in sent)),
        )
        of_all = _all(caller)  # everybody reads this reply at any time, so that its record is not archived
        kind = "query.all_answered" if of_all else "exchange"
        effect = Effect(reply, kind, {"query_id": reply.id, **of_all}, reserved=charged.reserved)
        return self._context.idempotency.settle(db, caller, effect)

    async def query(
        self, principal: Principal, study_id: str, query_id: str, *, wait_s: float = 0.0, version: int = 1
    ) -> StoredReply:
        """The latest version of a query, once there is ``version`` or a later one; 202 until then.

        Waits up to ``wait_s``, without holding a thread or a connection meanwhile. Raises NotFound for a query of
        another grant, StillRunning for one that a crash interrupted before its answer.
        """
        look = partial(self._look, principal, study_id, query_id, version)
        return await self._waited(principal, query_id, wait_s, look, lambda reply: reply.status == 200)

    def _look(self, principal: Principal, study_id: str, query_id: str, version: int) -> StoredReply:
        with self._context.database.read() as db:
            self._context.authentication.check_live(db, principal)  # it may have been revoked while it waited
            row = store.find(db, store.queries, query_id)
            if (row.study_id, row.grant_id) != (study_id, principal.id):
                raise NotFound("there is no such query")
            measured = inbox_store.find_query(db, query_id)
            latest = None if measured is None else inbox_store.latest(db, query_id)
            key = row.idempotency_key
            if (stored := stored_replies.find(db, row.grant_id, key, None) if measured is None else None) is not None:
                self._context.audit_trail.check_reply(db, principal.id, key, stored.log_seq, stored.reply)
        if measured is None and stored is None:
            raise StillRunning("the query was charged and not answered: send it again under its key")
        if stored is not None and version <= 1:
            return StoredReply(200, stored.reply.body)
        if measured is not None and measured.lost == inbox_store.GONE:
            raise Erased("the study was erased by its owner, with its answers")
        if latest is not None and latest.version >= version:
            return StoredReply(200, latest.body)
        if measured is not None and measured.lost:
            raise StudyNotOpen("the curator was restored from a backup after this query: it gets no answer any more")
        due_at = None if measured is None or measured.due_at is None else moment(measured.due_at)
        reply = wire.QueryPending(
            id=query_id, study_id=study_id, state="pending", created_at=moment(row.created_at), due_at=due_at
        )
        return StoredReply(202, reply.model_dump_json().encode())

    async def _waited(
        self, principal: Principal, wakeup: str, wait_s: float, look: Callable[[], T], is_there: Callable[[T], bool]
    ) -> T:
        """What ``look`` returns, in a thread, once it ``is_there`` or ``wait_s`` are over; again at each wakeup."""
        deadline = time.monotonic() + wait_s
        with self._waiting(principal), self._wakeups.listening(wakeup) as event:
            while True:
                event.clear()
                reply = await asyncio.to_thread(look)
                if is_there(reply) or not await self._wakeups.wait(event, deadline - time.monotonic()):
                    return reply

    @contextmanager
    def _waiting(self, principal: Principal) -> Iterator[None]:
        """Count a waiting request. Raises RateLimited if the principal has too many."""
        if self._waits[principal.id] >= WAITS_MAX:
            raise RateLimited(1)
        self._waits[principal.id] += 1
        try:
            yield
        finally:
            self._waits[principal.id] -= 1
            if not self._waits[principal.id]:
                del self._waits[principal.id]

    async def revisions(
        self, principal: Principal, after: int, limit: int, *, wait_s: float = 0.0
    ) -> list[wire.Revision]:
        """The published versions of a grant's queries, in order. Waits up to ``wait_s`` for the first, as ``query``."""
        return await self._waited(
            principal, principal.id, wait_s, partial(self._revisions, principal, after, limit), bool
        )

    def _revisions(self, principal: Principal, after: int, limit: int) -> list[wire.Revision]:
        with self._context.database.read() as db:
            self._context.authentication.check_live(db, principal)  # it may have been revoked while it waited
            return inbox_store.versions_after(db, principal.id, after, limit=limit)

    async def _released(self, study_id: str) -> Released:
        database = self._context.database
        if (released := self._studies.cached(study_id, database.foreign_writes.count)) is None:
            released = await database.read_soon(lambda db: self._studies.of(db, study_id))  # groups are added up
        return released

    def _check(self, released: Released, query: wire.QueryRequest) -> None:
        """Raise Invalid or UnknownRow for a request beyond the public limits of a study."""
        most_rows, most_plays = self._limits.rows_per_query, self._limits.plays_per_row
        if len(query.rows) > most_rows:
            raise Invalid.at("rows", f"must be at most {most_rows} candidates")
        for index, item in enumerate(query.rows):
            if item.plays > most_plays:
                raise Invalid.at(f"rows.{index}.plays", f"must be at most {most_plays}")
            if item.row >= released.n:
                raise UnknownRow(f"rows.{index}.row: the release has rows 0 to {released.n - 1}")


def _is_exact(released: Released) -> bool:
    """Whether nothing is drawn for an answer."""
    return is_exact(released.spec) and released.spec.refine is None


def _of_study(caller: RequestContext, study_id: str) -> RequestContext:
    """The request of an owner for all groups, under a principal and a key of the study: so it takes effect once."""
    principal = replace(caller.principal, id=study_id, study_id=study_id)
    return replace(caller, principal=principal, key=ALL, body_sha256=sha256(b""))


def answers_of_all(db: Connection, context: ServiceContext, study_id: str) -> bytes | None:
    """The stored answers about every group of a study; None without any. Raises Erased, and RecordChanged."""
    if (stored := stored_replies.find(db, study_id, ALL, None)) is None:
        return None
    context.audit_trail.check_reply(db, study_id, ALL, stored.log_seq, stored.reply)
    return stored.reply.body


def _all(caller: RequestContext) -> dict[str, object]:
    """What the log says of a query beside its id: that it is of all groups of a study, if it is an owner's."""
    return {"all": True, "study_id": caller.principal.id} if caller.principal.role == "owner" else {}


def _or_raise(outcome: StoredReply | Exception) -> StoredReply:
    if isinstance(outcome, Exception):
        raise outcome  # its record, or its charge, is committed by now
    return outcome


def _check_open(state: str) -> None:
    if state != "open":
        raise StudyNotOpen("the study is closed: it answers no more queries")


def _refine_view(spec: wire.StudyCreate, refine: wire.Refine) -> wire.RefineView:
    return wire.RefineView(epsilon=refine.epsilon, sd=refinement_of(spec).law(len(spec.features)).sd)


def view_of(
    db: Connection, context: ServiceContext, studies: ReleasedStudies, limits: wire.Limits, grant_id: str, study_id: str
) -> wire.StudyView:
    """The study as the modeler of a grant may see it. Raises StudyNotOpen before the release, and Erased."""
    released, state = studies.of(db, study_id), store.state_of(db, study_id)
    download = download_of(db, released, grant_id)
    current = release_status(db, released.spec, released.report)
    changes = changes_by_study(db, [study_id])[study_id]
    spec, mechanism = released.spec, mechanism_of(released.spec, current.release)
    claims = current.claimed if isinstance(current.claimed, wire.SoundRelease) else None
    return wire.StudyView(
        id=study_id,
        state="closed" if state == "closed" else "open",
        n=released.n,
        r=released.r,
        parts=download.parts,
        left_out=download.left_out,
        release_id=released.id,
        release_sha256=download.sha256,
        mechanism=mechanism.name,
        status=current.status,
        epsilon=claims.epsilon if claims else None,
        delta=getattr(claims, "delta", None),
        sensitivity=getattr(claims, "sensitivity", None),
        noise=mechanism.noise(len(spec.features)),
        answers=wire.concrete_answers(spec.answers),
        refine=None if spec.refine is None else _refine_view(spec, spec.refine),
        privacy_unit=spec.privacy_unit,
        budget=spec.budget,
        budget_changes=changes,
        grant_id=grant_id,
        log_key=context.signer.verifier.vkey,
        direction=spec.measurement.direction,
        goal=spec.goal,
        measurement_source=spec.measurement.source,
        measurement_noise_variance=spec.measurement.noise_variance,
        kernel=spec.kernel,
        limits=limits,
        reply_after_ms=spec.reply_after_ms,
        guarantee=current.promise(spec),
        not_protected=not_protected(spec, current.claimed),
        sandbox=current.sandbox,
    )
