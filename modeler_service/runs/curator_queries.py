"""What a run asks its curator, and what is stored of the answers: at once, or when people have measured."""

import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from blindopt import wire
from blindopt.client import Reply, StudyClient
from blindopt.errors import ProtocolViolated, Remote
from modeler_service import store
from modeler_service.runs.answers import answers_of, values_of
from modeler_service.runs.interrupts import Pending
from modeler_service.runs.lease import Hold
from modeler_service.runs.witness import Witness
from service_kit.store.base import stamp
from service_kit.store.database import Connection

LOOK_SECONDS = 2.0
"""How long one request waits for people: who stops a run does not wait longer."""
LEAST_SECONDS = 0.2
"""Between two of them, also where a curator does not wait."""


def query_of(rows: Iterable[int]) -> wire.QueryRequest:
    """How a run asks for one measurement of each of ``rows``."""
    return wire.QueryRequest(rows=[wire.RowPlays(row=row, plays=1) for row in rows])


class Asking:
    """The questions of one run. ``trials`` are those that were stored when they were last read.

    ``crowded`` tells whether other runs want its worker: it then waits without one sooner.
    """

    def __init__(self, hold: Hold, witness: Witness, crowded: Callable[[], bool]) -> None:
        self._hold, self._witness, self._crowded = hold, witness, crowded
        self.takes_time = False
        """Whether people measure in its study."""
        row = hold.read(lambda db: store.run(db, hold.identity))
        self._waited, self._revision = row.waits > 0, row.revision
        self.trials: list[Any] = []
        self.reload()

    def reload(self) -> None:
        """Read the trials again."""
        self.trials = self._hold.read(lambda db: store.trial_page(db, self._hold.identity))

    @property
    def settled(self) -> int:
        """How many trials have an answer, or a decline, before the first that has neither."""
        return next((at for at, trial in enumerate(self.trials) if trial.answered_at is None), len(self.trials))

    def chosen(self, first: int) -> list[int]:
        """The rows of the query that begins with this trial, if it was chosen before the run was taken up."""
        end = first - 1
        while end < len(self.trials) and self.trials[end].query == first:
            end += 1
        return [int(trial.row) for trial in self.trials[first - 1 : end]]

    def ask(self, curator: StudyClient, first: int, rows: list[int]) -> list[wire.Answer | None]:
        """Ask for one measurement of each row; what the reply says of each.

        Raises Pending where people measure, and take longer than a worker is held for them.
        """
        if (query_id := self._asked(first)) is None:
            reply, told = self._hold.retry(lambda: curator.ask(query_of(rows), key=f"{self._hold.identity}:{first}"))
            if isinstance(reply, wire.QueryReply):
                return self._store(reply, told, first, rows)
            query_id = self._store_pending(reply, told, first)
        return self._await(curator, query_id, first, rows)

    def _asked(self, first: int) -> str | None:
        """The query of this trial at the curator, which took it before the run was taken up."""
        return self.trials[first - 1].query_id if first <= len(self.trials) else None

    def _await(self, curator: StudyClient, query_id: str, first: int, rows: list[int]) -> list[wire.Answer | None]:
        """Wait for people, for a little while."""
        deadline = time.monotonic() + self._hold.settings.people_hold_seconds
        while (left := deadline - time.monotonic()) > 0 and not self._crowded():
            began, wait_s = time.monotonic(), min(left, LOOK_SECONDS)
            if (found := self._fetched(curator, query_id, first, rows, wait_s)) is not None:
                return found
            self._hold.signal.check()
            self._hold.signal.wait(max(0.0, began + min(wait_s, LEAST_SECONDS) - time.monotonic()))
        if (found := self._fetched(curator, query_id, first, rows, 0.0)) is not None:
            return found
        raise Pending

    def look(self, curator: StudyClient) -> None:
        """Where people were asked and had not answered: whether they have. Before anything that costs more."""
        first = self.settled + 1
        if (query_id := self._asked(first)) is None:
            return
        try:
            if self._fetched(curator, query_id, first, self.chosen(first), 0.0) is None:
                raise Pending
        except Remote as error:
            if error.remote_code != "not_found":
                raise
            return  # the token is of another grant: the study will say so
        self.reload()

    def _fetched(
        self, curator: StudyClient, query_id: str, first: int, rows: list[int], wait_s: float
    ) -> list[wire.Answer | None] | None:
        """What was measured of a query, stored; None while it is pending."""
        reply, told = self._hold.retry(lambda: curator.query(query_id, wait_s=wait_s))
        if isinstance(reply, wire.QueryPending):
            return None
        return self._store(reply, told, first, rows, query_id=query_id)

    def revise(self, curator: StudyClient) -> bool:
        """Read what was corrected since the last time, or answered late; whether anything was."""
        queries: dict[str, list[Any]] = {}
        for trial in self._hold.read(lambda db: store.trial_page(db, self._hold.identity)):
            queries.setdefault(trial.query_id, []).append(trial)
        changed, more, known = False, True, self._revision
        while more:
            page = self._hold.retry(lambda: curator.revisions(self._revision))
            places = [self._revision, *(revision.seq for revision in page.revisions)]
            if any(later <= earlier for earlier, later in pairwise(places)):
                raise ProtocolViolated("the curator's revisions are not in order")
            for revision in page.revisions:
                trials = queries.get(revision.query_id)  # else another run's
                if trials and revision.version > (trials[0].version or 0):
                    changed |= self._corrected(curator, trials, revision.version)
            self._revision, more = places[-1], page.next_page_token is not None and len(places) > 1
        if self._revision > known:
            self._hold.write(lambda db: store.change_run(db, self._hold.identity, revision=self._revision))
        if changed:
            self.reload()
        return changed

    def _corrected(self, curator: StudyClient, trials: list[Any], version: int) -> bool:
        """Take another version of a query's answer."""
        query_id, first = trials[0].query_id, trials[0].number
        known = self._hold.read(lambda db: store.trial(db, self._hold.identity, first))
        if known is None or (known.version or 0) >= version:
            return False
        reply, told = self._hold.retry(lambda: curator.query(query_id, version=version))
        if isinstance(reply, wire.QueryPending):
            raise ProtocolViolated("the curator told of an answer that it does not give")
        rows = [int(trial.row) for trial in trials]
        self._store(reply, told, first, rows, query_id=query_id, least=version)
        return True

    def _store_pending(self, reply: wire.QueryPending, told: Reply, first: int) -> str:
        """Keep that a query was taken, in one transaction with its exchange; its id."""
        self._need_receipt(told)
        now = stamp(self._hold.now)

        def work(db: Connection) -> None:
            self._hold.check(db)
            store.ask_trials(db, self._hold.identity, first, asked_at=now, query_id=reply.id)
            store.add_version(db, self._hold.identity, first, 0, at=now, reply=told.body)
            self._begin_wait(db, looked_at=now)
            self._witness.keep(db, told.exchange, told.receipt)

        self._hold.context.database.write(work)
        self._waited = False
        return reply.id

    def _store(
        self,
        reply: wire.QueryReply,
        told: Reply,
        first: int,
        rows: list[int],
        *,
        query_id: str | None = None,
        least: int = 1,
    ) -> list[wire.Answer | None]:
        """Keep what a query's reply says, in one transaction with its exchange; the answers.

        ``query_id``: of a query that was pending; ``least``: the version that was asked for.
        """
        try:
            answers = answers_of(reply, rows)
            if query_id not in (None, reply.id) or reply.version < least:
                raise ProtocolViolated("the curator answered another query than was asked, or an older version")
        except ProtocolViolated:
            self._witness.tell(told.exchange, told.receipt)
            raise
        self._need_receipt(told)
        now, is_kept = stamp(self._hold.now), query_id is not None or self.takes_time or None in answers

        def work(db: Connection) -> None:
            self._hold.check(db)
            if is_kept:
                store.add_version(db, self._hold.identity, first, reply.version, at=now, reply=told.body)
            for number, answer in enumerate(answers, start=first):
                values = values_of(answer, reply) | {"query_id": reply.id}
                # The log has the reply's digest: so nobody can change y afterwards.
                values["reply"] = told.body if number == first else None
                store.answer_trial(db, self._hold.identity, number, answered_at=now, **values)
            if self._waited or query_id is not None:
                self._begin_wait(db, looked_at=None)
            self._witness.keep(db, told.exchange, told.receipt)

        self._hold.context.database.write(work)
        self._waited = False
        return answers

    def _need_receipt(self, told: Reply) -> None:
        if told.receipt is None:
            self._witness.tell(told.exchange, None)
            raise ProtocolViolated("the curator's answer came without a receipt of its log")

    def _begin_wait(self, db: Connection, looked_at: str | None) -> None:
        """The curator has answered: the next wait is a new one."""
        values = {"waits": 0, "waiting_since": None, "waiting_for": None, "looked_at": looked_at}
        store.change_run(db, self._hold.identity, **values)
