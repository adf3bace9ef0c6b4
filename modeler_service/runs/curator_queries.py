"""The queries of a run to its curator, and the answers that are stored: at once, or after people have measured."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from blindopt import wire
from blindopt.client import Reply, StudyClient
from blindopt.client.study_client import answers_of
from blindopt.errors import ProtocolViolated, Remote, SentTooMuch
from modeler_service import store
from modeler_service.runs.lease import Pending, RunLease
from modeler_service.runs.query_keys import query_of
from modeler_service.runs.witness import Witness
from modeler_service.store import TrialRow
from service_kit.store.base import stamp
from service_kit.store.database import Connection

LOOK_SECONDS = 2.0
"""The longest wait of one request for people; a run that is stopped waits no longer."""
LEAST_SECONDS = 0.2
"""The shortest time between two such requests, also if the curator does not wait."""
STORED_WITHIN_SECONDS = 0.1
"""The longest time that an answer waits for the next choice, to be stored with it."""
REFUSALS = ("study_not_open", "privacy_budget_exhausted", "erased")
"""Codes of a curator that end a run as completed: it has what there is to have."""
PAGES_MAX = 100
"""The most pages of revisions that are read before a choice; the rest is read before the next."""
REVISION_MAX = 10**15
CORRECTIONS_MAX, REVISIONS_MAX = 16, 1_000
"""The most corrections of a query, and of all queries of a run."""
REFUSED_IN_A_ROW = 3
"""Refusals for spending that is not ours, one after the other, that end a run where they may be about all rows."""


@dataclass(frozen=True, slots=True)
class _Query:
    """A query of trials from ``first`` on; ``query_id`` is its id at the curator, once that has accepted it."""

    first: int
    rows: list[int]
    query_id: str | None


class CuratorQueries:
    """The queries of one run. ``trials`` are the run's trials when they were last read.

    ``crowded`` returns whether other runs wait for a worker: this one then waits without its worker sooner.
    """

    def __init__(self, lease: RunLease, witness: Witness, crowded: Callable[[], bool]) -> None:
        self._lease, self._witness, self._crowded = lease, witness, crowded
        self.takes_time = False
        """Whether people measure the records of the study."""
        self.has_common_cap = True
        """Whether a cap of the study counts answers about all rows together."""
        run = lease.read(lambda db: store.find_run(db, lease.run_id))
        self._waited, self._revision = run.waits > 0, run.revision
        self._unstored: Callable[[Connection], None] | None = None
        """Stores the last answer, which comes with the next choice."""
        self._overdue_at = 0.0
        self.trials: list[TrialRow] = []
        self.reload()

    def reload(self) -> None:
        self.trials = self._stored_trials()

    def _stored_trials(self, **options: Any) -> list[TrialRow]:
        """Trials without their replies, of which a curator decides how large they are."""
        return self._lease.read(lambda db: store.trial_page(db, self._lease.run_id, has_replies=False, **options))

    @property
    def settled(self) -> int:
        """The number of trials with an answer or a decline before the first that has neither."""
        return next((index for index, trial in enumerate(self.trials) if trial.answered_at is None), len(self.trials))

    def chosen(self, first: int) -> list[int]:
        """Return the rows that were chosen together from trial ``first`` on; none if it was not chosen yet."""
        end = first - 1
        while end < len(self.trials) and self.trials[end].query == self.trials[first - 1].query:
            end += 1
        return [int(trial.row) for trial in self.trials[first - 1 : end]]

    def store(self, work: Callable[[Connection], None] | None = None) -> None:
        """Store the last answer if it is not yet, and do ``work``, in one transaction. Raises ProtocolViolated."""
        writes = [write for write in (self._unstored, work) if write is not None]
        self._unstored = None
        if writes:
            self._lease.write(lambda db: [write(db) for write in writes])

    def store_overdue(self) -> None:
        """Store the last answer if it has waited for a choice for ``STORED_WITHIN_SECONDS``."""
        if self._unstored is not None and time.monotonic() >= self._overdue_at:
            self.store()

    def ask(self, curator: StudyClient, first: int, rows: list[int]) -> list[wire.Answer | None]:
        """Query one measurement of each row; return the answer of each, which ``store`` stores.

        Where people measure, each row is a query of its own, so that each answer comes when it is measured. So it is
        with rows that were refused together because of one of them: the others are answered. Raises Pending if that
        takes longer than a worker waits for it.
        """
        if self._is_alone(first):
            return self._ask_alone(curator, first, rows)
        query = _Query(first, rows, None)
        try:
            answered, reply = self._send(curator, query)
        except Remote as error:
            if self._is_about_some(error, rows):
                self._split(first, len(rows))
                return self._ask_alone(curator, first, rows)
            if not self._is_about_row(error, query):
                raise
            self._store_refusal(first)
            return [None]
        if isinstance(answered, wire.QueryReply):
            return self._store(answered, reply, query)
        self._store_pending(answered, reply, query)
        raise Pending

    def _is_about_some(self, error: Remote, rows: list[int]) -> bool:
        """Whether a refusal of several rows may be about some of them alone."""
        is_about_all = error.cap is not None and error.row not in rows
        return error.remote_code == "privacy_budget_exhausted" and len(rows) > 1 and not is_about_all

    def _split(self, first: int, count: int) -> None:
        """Store that each of these trials is queried alone from now on, after a kill too."""
        now = stamp(self._lease.now)
        self.store(lambda db: store.ask_trials(db, self._lease.run_id, first, count, asked_at=now, query_id=None))
        self.reload()

    def _is_alone(self, first: int) -> bool:
        is_split = first <= len(self.trials) and self.trials[first - 1].asked_at is not None
        return self.takes_time or is_split

    def _is_about_row(self, error: Remote, query: _Query) -> bool:
        """Whether a refusal is about the one row that was queried, so that others may have budget.

        Where other spending decides, the curator does not say so: it is taken to be, a few times one after the other.
        """
        if error.remote_code != "privacy_budget_exhausted" or len(query.rows) != 1:
            return False
        if error.cap is not None:
            return error.row == query.rows[0]
        last = self._stored_trials(position=query.first, newest=True, limit=REFUSED_IN_A_ROW - 1)
        all_refused = len(last) == REFUSED_IN_A_ROW - 1 and all(trial.declined for trial in last)
        return not (self.has_common_cap and all_refused)

    def _store_refusal(self, first: int) -> None:
        """Store that no answer about a row is allowed: the trial is declined, without a version."""

        def work(db: Connection) -> None:
            store.answer_trial(db, self._lease.run_id, first, None, answered_at=stamp(self._lease.now))
            if self._waited:
                self._begin_wait(db, looked_at=None)

        self._lease.write(work)
        self._waited = False

    def _ask_alone(self, curator: StudyClient, first: int, rows: list[int]) -> list[wire.Answer | None]:
        answers = {number: trial.answer for number, trial in self._settled_from(first, len(rows))}
        pending: list[_Query] = []
        is_refused = False
        for query in self._open_queries(first, rows):
            if query.query_id is None:
                try:
                    answered, reply = self._send(curator, query)
                except Remote as error:
                    if self._is_about_row(error, query):
                        self._store_refusal(query.first)
                        answers[query.first] = None
                        continue
                    if not self.takes_time or error.remote_code not in REFUSALS or not (pending or answers):
                        raise
                    is_refused = True  # what was accepted is waited for; then the next try ends the run
                    break
                if isinstance(answered, wire.QueryReply):
                    answers |= enumerate(self._store(answered, reply, query), start=query.first)
                    continue
                query = replace(query, query_id=self._store_pending(answered, reply, query))
            pending.append(query)
        self._await(curator, pending, answers)
        if is_refused:
            raise Pending
        return [answers[number] for number in range(first, first + len(rows))]

    def _send(self, curator: StudyClient, query: _Query) -> tuple[wire.QueryReply | wire.QueryPending, Reply]:
        key = f"{self._lease.run_id}:{query.first}"
        trials = self.trials[query.first - 1 :][: len(query.rows)]
        return self._lease.retry(lambda: curator.ask(query_of(trials), key=key))

    def _settled_from(self, first: int, count: int) -> list[tuple[int, TrialRow]]:
        """Those of ``count`` trials from ``first`` on that are answered or declined, with their numbers."""
        trials = self.trials[first - 1 : first - 1 + count]
        return [(trial.number, trial) for trial in trials if trial.answered_at is not None]

    def _open_queries(self, first: int, rows: list[int]) -> list[_Query]:
        """The queries of trials that are not settled: of each alone, or of several that were sent in one query."""
        queries: list[_Query] = []
        settled = dict(self._settled_from(first, len(rows)))
        for number, row in enumerate(rows, start=first):
            query_id = self.trials[number - 1].query_id if number <= len(self.trials) else None
            if number in settled:
                continue
            if queries and query_id is not None and queries[-1].query_id == query_id:
                queries[-1].rows.append(row)
            else:
                queries.append(_Query(number, [row], query_id))
        return queries

    def _await(self, curator: StudyClient, pending: list[_Query], answers: dict[int, wire.Answer | None]) -> None:
        """Wait for people to measure, for a short time, and add their answers."""
        deadline = time.monotonic() + self._lease.settings.people_hold_seconds
        while pending:
            began = time.monotonic()
            wait_s = 0.0 if self._crowded() else max(0.0, min(deadline - began, LOOK_SECONDS))
            pending = self._fetch_all(curator, pending, answers, wait_s)
            if pending and not wait_s:
                raise Pending
            self._lease.interrupt.check()
            if pending:
                self._lease.interrupt.wait(max(0.0, began + min(wait_s, LEAST_SECONDS) - time.monotonic()))

    def _fetch_all(
        self, curator: StudyClient, pending: list[_Query], answers: dict[int, wire.Answer | None], wait_s: float
    ) -> list[_Query]:
        """Add the answers that there are, after a wait for that of the first query; return what is still pending."""
        open_ones = list(pending)
        for query in pending:
            waits = wait_s if query is pending[0] else 0.0
            fetched = self._fetch(curator, query, waits, others=len(open_ones) > 1)
            if fetched is not None:
                answers |= enumerate(fetched, start=query.first)
                open_ones.remove(query)
        return open_ones

    def look(self, curator: StudyClient) -> None:
        """Fetch the answers to pending queries, before any work that costs more. Raises Pending if any has none."""
        first = self.settled + 1
        queries = self._open_queries(first, self.chosen(first)) if first <= len(self.trials) else []
        pending = [query for query in queries if query.query_id is not None]
        if not pending:
            return
        try:
            if self._fetch_all(curator, pending, {}, 0.0):
                raise Pending
        except Remote as error:
            if error.remote_code != "not_found":
                raise
            return  # the token belongs to another grant, which a check of the study finds
        self.reload()

    def _fetch(
        self, curator: StudyClient, query: _Query, wait_s: float, *, others: bool
    ) -> list[wire.Answer | None] | None:
        """Fetch and store the answers to a query; None while it is pending. ``others``: whether others are, too."""
        query_id = query.query_id
        assert query_id is not None, "it was accepted"
        count = len(query.rows)
        parsed, reply = self._lease.retry(lambda: curator.query(query_id, wait_s=wait_s, answers=count))
        if isinstance(parsed, wire.QueryPending):
            return None
        return self._store(parsed, reply, query, others=others)

    def revise(self, curator: StudyClient) -> bool:
        """Read the answers that were corrected, or came late, since the last call; return whether there were any."""
        queries: dict[str | None, list[TrialRow]] = {}
        for trial in self._stored_trials():
            queries.setdefault(trial.query_id, []).append(trial)
        newest: dict[str, int] = {}
        before = self._revision
        for _ in range(PAGES_MAX):
            self._lease.interrupt.check()
            page = self._lease.retry(lambda: curator.revisions(self._revision))
            numbers = [self._revision, *(revision.seq for revision in page.revisions)]
            if any(later <= earlier for earlier, later in pairwise(numbers)) or numbers[-1] >= REVISION_MAX:
                raise ProtocolViolated("the curator's revisions are not in order")
            for revision in page.revisions:
                trials = queries.get(revision.query_id)  # None for a query of another run
                if trials and revision.version > (trials[0].version or 0):
                    newest[revision.query_id] = max(revision.version, newest.get(revision.query_id, 0))
            self._revision = numbers[-1]
            if page.next_page_token is None or len(numbers) == 1:
                break
        fetched = [self._fetch_correction(curator, queries[query], query, version) for query, version in newest.items()]
        changed = any(fetched)
        if self._revision > before:
            self._lease.write(lambda db: store.change_run(db, self._lease.run_id, revision=self._revision))
        if changed:
            self.reload()
        return changed

    def _fetch_correction(self, curator: StudyClient, trials: list[TrialRow], query_id: str, version: int) -> bool:
        """Fetch and store a later version of a query's answer; False if it is stored already."""
        first, run_id = trials[0].number, self._lease.run_id
        row = self._lease.read(lambda db: store.find_trial(db, run_id, first))
        if row is None or (row.version or 0) >= version:
            return False
        of_run, of_query = self._lease.read(lambda db: store.count_corrections(db, run_id, first))
        if of_query >= CORRECTIONS_MAX or of_run >= REVISIONS_MAX:
            raise SentTooMuch(
                f"the curator has corrected one answer more than {CORRECTIONS_MAX} times, or all of the run together "
                f"more than {REVISIONS_MAX:,} times"
            )
        count = len(trials)
        parsed, reply = self._lease.retry(lambda: curator.query(query_id, version=version, answers=count))
        if isinstance(parsed, wire.QueryPending):
            raise ProtocolViolated("the curator announced an answer that it does not send")
        query = _Query(first, [trial.row for trial in trials], query_id)
        self._store(parsed, reply, query, least=version)
        return True

    def _store_pending(self, pending: wire.QueryPending, reply: Reply, query: _Query) -> str:
        """Store that a query was accepted, in one transaction with its exchange; return its id."""
        now = stamp(self._lease.now)

        def work(db: Connection) -> None:
            first, count = query.first, len(query.rows)
            self._lease.count(db, len(reply.body))
            store.ask_trials(db, self._lease.run_id, first, count, asked_at=now, query_id=pending.id)
            store.add_version(db, self._lease.run_id, first, 0, at=now, reply=reply.body)
            self._begin_wait(db, looked_at=now)
            self._witness.record_within(db, reply.exchange, reply.receipt)

        self._lease.write(work)
        self._waited = False
        return pending.id

    def _store(
        self, parsed: wire.QueryReply, reply: Reply, query: _Query, *, least: int = 1, others: bool = False
    ) -> list[wire.Answer | None]:
        """Store the answers of a query's reply, in one transaction with its exchange; return them.

        The query has an id if it was pending. ``least`` is the version that was requested, and ``others`` says whether
        other queries are pending.
        """
        first, query_id = query.first, query.query_id
        try:
            answers = answers_of(parsed, query.rows)
            if query_id not in (None, parsed.id) or parsed.version < least:
                raise ProtocolViolated("the curator answered another query than the one sent, or an older version")
        except ProtocolViolated:
            self._witness.record(reply.exchange, reply.receipt)
            raise
        now, has_versions = stamp(self._lease.now), query_id is not None or self._is_alone(first) or None in answers

        def work(db: Connection) -> None:
            self._lease.count(db, len(reply.body) * (1 + has_versions))
            if has_versions:
                store.add_version(db, self._lease.run_id, first, parsed.version, at=now, reply=reply.body)
            for number, answer in enumerate(answers, start=first):
                store.answer_trial(
                    db,
                    self._lease.run_id,
                    number,
                    answer,
                    answered_at=now,
                    query_id=parsed.id,
                    version=parsed.version,
                    # The log has the reply's digest, so that a later change of y is detected.
                    reply=reply.body if number == first else None,
                )
            if self._waited or query_id is not None:
                self._begin_wait(db, looked_at=now if others else None)
            self._witness.record_within(db, reply.exchange, reply.receipt)

        self._unstored, self._overdue_at = work, time.monotonic() + STORED_WITHIN_SECONDS
        if has_versions or self._waited:
            self.store()
            self._waited = False
        return answers

    def _begin_wait(self, db: Connection, looked_at: str | None) -> None:
        """Reset the wait: the curator has answered, and the next wait is a new one."""
        values = {"waits": 0, "waiting_since": None, "waiting_for": None, "looked_at": looked_at}
        store.change_run(db, self._lease.run_id, **values)
