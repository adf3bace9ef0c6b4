"""A loop of one's own over a curator's study: candidates, queries, receipts, and the log shared with the curator."""

import secrets
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self, SupportsIndex

import numpy as np

from blindopt import bodies, display, wire
from blindopt.arguments import checked_methods
from blindopt.arrays import Matrix
from blindopt.audit import reconciliation
from blindopt.client.connection import PATIENCE_S, Reply, Watch
from blindopt.client.log_copy import LogCopy, StoredQuery, StudyLog
from blindopt.client.study_client import StudyClient, answers_of, check_same_study, query_body
from blindopt.client.vendor import read_grant
from blindopt.client.witness import Witness
from blindopt.errors import (
    Declined,
    NumericalFailure,
    ProtocolViolated,
    Remote,
    StateConflict,
    StillMeasured,
    Unreachable,
)
from blindopt.formats import npy_files, release_files
from blindopt.formats.text_files import file_errors
from blindopt.optimizer.optimizer import Optimizer, Outcome, candidate_number
from blindopt.wire.base import parsed

COUNTERSIGN_EVERY = 50
"""Answers between two countersignatures; another one when the study is closed."""
ENDS = ("study_not_open", "privacy_budget_exhausted")
"""Codes of a query after which no query is answered."""
REFUSALS = ("study_not_open", "privacy_budget_exhausted", "unknown_row", "erased")
"""Codes of a query that was not made, and will not be."""
LOOK_SECONDS, LEAST_SECONDS = 20.0, 0.2
"""The longest wait of one request for people who measure, and the shortest time between two."""


@checked_methods
class Study(display.Shown):
    """A study under a grant, with a loop of one's own. ``from_grant`` opens it; use it in a ``with`` block.

    Every answer is checked as the modeler checks it: its receipt against the curator's key and this side's copy of the
    shared log, which is countersigned. A query is stored before it is sent, and its answer before it is returned. A
    query that was cut off is repeated under its key, so that it is charged once. Start no run of a modeler under the
    same grant: it would dispute queries that it did not make. Threads may query at the same time.

    >>> with bo.Study.from_grant("own-loop.json", log="own-loop.sqlite") as loop:  # doctest: +SKIP
    ...     answer = loop.query(3)
    """

    def __init__(self, grant: wire.GrantFile, log: StudyLog, url: str, **options: Any) -> None:
        self.grant, self._log = grant, log
        self._witness = Witness(log, grant.study_id, log.signer, lambda: datetime.now(UTC))
        watch = Watch(self._witness.record, id_of=self._witness.id_of)
        self._client = StudyClient(url, grant.token, grant.study_id, watch=watch, **options)
        self._settling = threading.Lock()
        self._unsettled = 0
        self._recommendation: wire.Recommendation | None = None
        with self._disputing():
            self.view = self._open()
            for query in self._queries("sent"):  # one that was cut off and is refused now was never made
                try:
                    self._send(query)
                except Remote as error:
                    if error.code not in REFUSALS:
                        raise

    @classmethod
    def from_grant(
        cls,
        grant: str | Path | wire.GrantFile,
        *,
        log: str | Path | None = None,
        url: str | None = None,
        patience_s: float = PATIENCE_S,
        plain_http: bool = False,
        **options: Any,
    ) -> Self:
        """Open the study of a ``grant`` file. ``url`` reaches the curator at another address than the grant's.

        ``log`` is the SQLite file that keeps queries, answers and logs. None keeps them in memory, with a warning: a
        later session cannot prove these queries, and needs another grant. A request is repeated for ``patience_s``
        seconds while that may help. ``plain_http`` allows http to another machine. ``options`` are ``verify``,
        ``client_cert``, ``timeout_s`` and ``proxy`` of ``Client``. Queries that were cut off are repeated. Raises
        Invalid, StateConflict, Unreachable, Remote, ProtocolViolated.
        """
        file = read_grant(grant)
        if log is None:
            warnings.warn(
                "log=None keeps queries and logs in memory: after this session they are lost, and a later one needs "
                "another grant",
                stacklevel=2,
            )
        study_log = StudyLog(None if log is None else Path(log))
        options |= {"patience_s": patience_s, "plain_http": plain_http}
        return cls(file, study_log, url or file.curator_url, **options)

    def _open(self) -> wire.StudyView:
        with self._log.read() as copy:
            fact = copy.fact("study")
        first = None if fact is None else wire.StudyView.model_validate_json(fact)
        if first is not None and first.id != self.grant.study_id:
            raise StateConflict(f"{self._log.path} is the log of another study: name another file")

        def trust(study: wire.StudyView, note: str | None) -> None:
            if first is not None:
                check_same_study(first, study)
            self._witness.trust(study, self.grant.log_key, note)

        study = self._client.study(trust)
        if first is None:
            self._log.write(lambda copy: copy.remember("study", study.model_dump_json().encode()))
        return study

    # --- what there is ----------------------------------------------------------------------------

    @property
    def noise(self) -> wire.NoiseLaw:
        """The law of the noise in the candidates."""
        return self.view.noise

    @cached_property
    def candidates(self) -> Matrix:
        """Z (n, r), checked by the digest of its release; kept in a file beside the log.

        Zeros stand for the candidates that ``view.left_out`` names: queries of them are declined.
        """
        view, path = self.view, self._log.path
        size = 8 * view.n * view.r + wire.NPY_HEADER_MAX
        with tempfile.TemporaryDirectory() as folder, self._disputing():
            target = Path(folder) / "z.npy" if path is None else path.with_name(f"{path.name}.npy")
            if not (target.exists() and release_files.digest(target, view.parts) == view.release_sha256):
                self._client.download(target, view.release_sha256, max_bytes=size, parts=view.parts)
            z = np.array(npy_files.load(target)) if path is None else npy_files.load(target)
        if z.shape != (view.n, view.r):
            raise NumericalFailure(f"the candidates are {z.shape}, the study says {(view.n, view.r)}")
        return z

    @property
    def history(self) -> list[tuple[int, wire.Answer | None]]:
        """Each queried candidate with its latest answer, in order; None if it was declined."""
        return [(query.candidate, query.answer) for query in self._queries("answered")]

    @property
    def answers(self) -> list[wire.Answer]:
        """The latest answers, in the order of the queries."""
        return [answer for _, answer in self.history if answer is not None]

    def all_answers(self) -> list[wire.Answer]:
        """The answers about every group that the owner of a groups study requested at once: no query of yours.

        Raises Remote ``state_conflict`` before there are any.
        """
        with self._disputing():
            return self._client.answers(self.view.n).answers

    def _queries(self, *states: str) -> list[StoredQuery]:
        with self._log.read() as copy:
            return copy.queries(*states)

    def optimizer(self, **settings: Any) -> Optimizer:
        """Return an Optimizer for the study, with all answers so far; ``settings`` are its own.

        The log keeps the seed: without one in ``settings``, the optimizer of an opened log has that of the last. If the
        first query was the one that it asks for, an interrupted loop goes on: queries that it asks for again are
        its own. All others are past outcomes.
        """
        with self._log.read() as copy:
            seed = copy.fact("seed")
        settings = ({} if seed is None else {"seed": int(seed)}) | settings
        optimizer, history = Optimizer(self.candidates, study=self.view, **settings), self.history
        self._log.write(lambda copy: copy.remember("seed", str(optimizer.seed).encode()))
        settings["seed"] = optimizer.seed
        first = optimizer.propose() if history else None
        goes_on = first is not None and first.row == history[0][0]
        if first is not None and not goes_on:
            optimizer = Optimizer(self.candidates, study=self.view, **settings)
        for candidate, answer in history:
            if goes_on:
                optimizer.propose()
            if answer is None:
                optimizer.decline(candidate)
            else:
                optimizer.tell(candidate, answer.y, passport=answer.passport)
        return optimizer

    def optimize(
        self,
        queries: int,
        callback: Callable[[Outcome], object] | None = None,
        *,
        wait_s: float = 3600.0,
        **settings: Any,
    ) -> wire.Recommendation | None:
        """Make ``queries`` queries, those of earlier sessions among them, and return the best candidate.

        ``callback`` is called with each trial: the ``Outcome`` with row and y. ``settings`` are those of ``Optimizer``,
        ``wait_s`` is that of ``query``. An opened log goes on with its seed. The search ends early where the study's
        budget ends or the owner closes it. Returns None if no candidate has an answer; raises as ``query``.
        """
        optimizer = self.optimizer(queries=queries, **settings)
        while len(optimizer.history) < queries and (proposal := optimizer.propose()) is not None:
            try:
                answer = self.query(proposal.row, wait_s=wait_s)
                optimizer.tell(proposal.row, answer.y, passport=answer.passport)
            except Declined:
                optimizer.decline(proposal.row)
            except Remote as error:
                if error.code not in ENDS or not optimizer.history:
                    raise
                break
            if callback is not None:
                callback(optimizer.history[-1])
        self._recommendation = optimizer.recommendation()
        return self._recommendation

    # --- messages to the owner --------------------------------------------------------------------

    def hand_over(
        self, note: str | None = None, *, recommendation: wire.Recommendation | None = None
    ) -> wire.MessageView:
        """Send a ``recommendation`` to the owner, with a ``note``: None sends that of ``optimize``, or of all answers.

        Where the goal is many, it is the list of good candidates.

        Raises StateConflict before the first answer, and Remote if earlier messages wait for the owner.
        """
        best = recommendation or self._recommendation or self.optimizer().recommendation()
        if best is None:
            raise StateConflict("there is no answer yet to recommend a candidate by")
        parsed(wire.RecommendationMessage, {"row": best.row, "note": note})  # a note that is too long is refused here
        return self._send_message(best.as_message(note, secrets.token_hex(16)))

    def request_budget(
        self,
        queries: int | None = None,
        *,
        epsilon_per_row: float | str | None = None,
        epsilon_total: float | str | None = None,
        note: str | None = None,
    ) -> wire.MessageView:
        """Ask the owner to add to the caps of the study, with a ``note`` that says why.

        ``queries``, ``epsilon_per_row`` and ``epsilon_total`` are what is to be added to each cap.

        Raises Invalid if nothing is requested, and Remote if the study has no such cap.
        """
        more = {"queries": queries, "epsilon_per_row": epsilon_per_row, "epsilon_total": epsilon_total}
        fields = {"more": more, "note": note, "salt": secrets.token_hex(16)}
        return self._send_message(parsed(wire.BudgetMessage, fields))

    def message(self, message_id: str) -> wire.MessageView:
        """The message of a ``message_id``, which its view has, with what the owner decided."""
        with self._disputing():
            view: wire.MessageView = bodies.parse(self._client.message(message_id), wire.MessageView)
            return view

    def _send_message(self, message: wire.MessageCreate) -> wire.MessageView:
        key = f"study:{secrets.token_hex(16)}"
        self._log.write(lambda copy: copy.remember(f"message {key}", message.model_dump_json().encode()))
        with self._disputing():
            view: wire.MessageView = bodies.parse(self._client.send_message(message, key=key), wire.MessageView)
            return view

    # --- queries ----------------------------------------------------------------------------------

    def query(self, candidate: SupportsIndex, *, wait_s: float = 3600.0) -> wire.Answer:
        """Query one measurement of a ``candidate``, and return its answer when that is stored.

        A query of the candidate that has no answer yet is continued; an answered candidate is queried again, and
        charged again. Raises StillMeasured if people have not measured it within ``wait_s``, Declined if they will not,
        Remote for a refusal, such as a used-up budget, ProtocolViolated, and Unreachable.
        """
        number = candidate_number(candidate, self.view.n)
        body = query_body(wire.QueryRequest(rows=[wire.RowPlays(row=number, plays=1)]))
        with self._disputing():
            query = self._send(self._log.write(lambda copy: copy.open_query(number, body)))
            query = self._await(query, time.monotonic() + wait_s)
        if self._unsettled >= COUNTERSIGN_EVERY:
            with suppress(Remote, Unreachable):  # the next countersignature covers it
                self.settle()
        if (answer := query.answer) is None:
            raise Declined(number)
        return answer

    def refresh(self) -> int:
        """Read corrected and late answers; return how many. They take the place of the earlier ones in ``history``."""
        with self._disputing():
            queries = {query.query_id: query for query in self._queries("answered", "pending")}
            newest: dict[str, int] = {}
            after, more = 0, True
            while more:
                page = self._client.revisions(after)
                for revision in page.revisions:
                    query = queries.get(revision.query_id)
                    if query is not None and revision.version > (query.version or 0):
                        newest[revision.query_id] = max(revision.version, newest.get(revision.query_id, 0))
                    if revision.seq <= after:
                        raise ProtocolViolated("the curator's revisions are not in order")
                    after = revision.seq
                more = page.next_page_token is not None and bool(page.revisions)
            for query_id, version in newest.items():
                parsed, reply = self._client.query(query_id, version=version, answers=1)
                self._store(queries[query_id], parsed, reply, least=version)
        return len(newest)

    def _send(self, query: StoredQuery) -> StoredQuery:
        if query.state != "sent":
            return query
        request = wire.QueryRequest.model_validate_json(query.body)
        try:
            parsed, reply = self._client.ask(request, key=query.key)
        except Remote as error:
            if error.code in REFUSALS or error.remote_status == 422:
                self._log.write(lambda copy: copy.change_query(query.number, "refused"))
            raise
        return self._store(query, parsed, reply)

    def _await(self, query: StoredQuery, until: float) -> StoredQuery:
        while query.state == "pending":
            assert query.query_id is not None
            began = time.monotonic()
            parsed, reply = self._client.query(
                query.query_id, wait_s=max(0.0, min(until - began, LOOK_SECONDS)), answers=1
            )
            if isinstance(parsed, wire.QueryReply):
                return self._store(query, parsed, reply)
            if time.monotonic() >= until:
                raise StillMeasured(query.candidate)
            time.sleep(max(0.0, began + LEAST_SECONDS - time.monotonic()))
        return query

    def _store(
        self, query: StoredQuery, parsed: wire.QueryReply | wire.QueryPending, reply: Reply, *, least: int = 1
    ) -> StoredQuery:
        """Store a reply in one transaction with its exchange, after checks. Raises ProtocolViolated."""
        fault = None
        if query.query_id not in (None, parsed.id):
            fault = "the curator answered another query than was sent"
        elif isinstance(parsed, wire.QueryReply):
            try:
                answers_of(parsed, [query.candidate])
            except ProtocolViolated as error:
                fault = str(error)
            if parsed.version < least:
                fault = "the curator sent an older version than it announced"
        if fault is not None:
            self._witness.record(reply.exchange, reply.receipt)
            raise ProtocolViolated(fault)
        version = parsed.version if isinstance(parsed, wire.QueryReply) else None

        def work(copy: LogCopy) -> StoredQuery:
            self._witness.record_in(copy, reply.exchange, reply.receipt)
            state = "pending" if version is None else "answered"
            return copy.change_query(query.number, state, query_id=parsed.id, version=version, reply=reply.body)

        self._unsettled += 1
        return self._log.write(work)

    # --- the shared log ---------------------------------------------------------------------------

    def settle(self) -> None:
        """Bring the copy of the shared log up to the curator's, check it, and countersign it."""
        with self._settling, self._disputing():
            self._witness.settle(self._client, self.view.grant_id)
            self._unsettled = 0

    def export(self, path: str | Path) -> None:
        """Write this side's logs and signatures to a file ``path``, for ``bo.verify_log`` and ``bo.reconcile``."""
        with file_errors(path, "written"), Path(path).open("w", encoding="utf-8") as file:
            file.writelines(reconciliation.write(self._log.export()))

    @contextmanager
    def _disputing(self) -> Iterator[None]:
        try:
            yield
        except ProtocolViolated as error:
            self._witness.dispute(str(error))
            raise

    def close(self) -> None:
        """Countersign the shared log if the curator can be reached, and close connections and file."""
        try:
            with suppress(Remote, Unreachable):
                self.settle()
        finally:
            self._end()

    def _end(self) -> None:
        self._client.close()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if isinstance(error, ProtocolViolated):
            self._end()
        else:
            self.close()

    def __repr__(self) -> str:
        return f"Study({self.view.id}: {self.view.n} candidates, {len(self.history)} answers)"

    def _tables(self) -> list[display.Table]:
        view = self.view
        shown: dict[str, object] = {
            "Study": view.id,
            "Candidates": f"{view.n} x {view.r}",
            "Release": view.mechanism,
            "State": view.state,
            "Largest number of queries": view.budget.queries,
            "Answers so far": len(self.history),
            "Guarantee": view.guarantee,
        }
        return [display.facts(shown)]
