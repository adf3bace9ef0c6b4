"""Services that kill themselves at a named point.

The services know nothing of it: their functions are wrapped here, then their own command line runs. A file,
the control, says where and at which passage to die; it is read at each passage, so one process serves many
tests, and it is removed before the kill, so that the service which is started again lives.
"""

import asyncio
import contextvars
import faulthandler
import functools
import json
import os
import re
import secrets
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn

if TYPE_CHECKING:
    from tests.conftest import Service

SHOTS = "shots"
"""A file beside the control: one JSON line for each kill, written before it."""
UNNAMED = "unnamed"
"""A file beside the control: the kinds of records that commits without a point have made durable."""
OF_RECORDS = {"study.created": "drafted", "grant.created": "granted", "run.planned": "planned"}
"""The points of commits that add a record of such a kind to the log."""
NO_LOCK, IMPATIENT = "leads without the lock", "waits for the server for half a second"


@dataclass(frozen=True)
class Shot:
    """Die at the ``passage``-th time that ``point`` is passed from now on, ``delay`` seconds later."""

    point: str
    passage: int = 1
    delay: float = 0.0
    name: str = ""
    """Tells one shot from another; counting begins anew with it."""

    def aim(self, control: Path) -> None:
        """Give it to the process that reads ``control``."""
        named = replace(self, name=secrets.token_hex(8))
        partial = control.with_suffix(".part")
        partial.write_text(json.dumps(asdict(named)))
        partial.replace(control)


def shots(control: Path) -> list[dict[str, Any]]:
    """What the processes that read ``control`` died of: point, and what the work was about."""
    path = control.with_name(SHOTS)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Gun:
    """Counts passages and kills."""

    def __init__(self, control: Path) -> None:
        self._control = control
        self._lock = threading.Lock()
        self._passed: dict[str, int] = {}

    def _aimed(self) -> Shot | None:
        try:
            return Shot(**json.loads(self._control.read_text()))
        except FileNotFoundError:
            return None

    def aims_at(self, point: str) -> bool:
        """Whether a shot is aimed at ``point``."""
        shot = self._aimed()
        return shot is not None and shot.point == point

    def passes(self, point: str, about: str = "") -> None:
        """The process is at ``point``."""
        shot = self._aimed()
        if shot is None or shot.point != point:
            return
        with self._lock:
            passed = self._passed[shot.name] = self._passed.get(shot.name, 0) + 1
            if passed != shot.passage:
                return
            with self._control.with_name(SHOTS).open("a") as file:
                file.write(json.dumps({"point": point, "about": about, "delay": shot.delay}) + "\n")
            self._control.unlink(missing_ok=True)
            if shot.delay:
                threading.Timer(shot.delay, _die).start()
            else:
                _die()

    def note_unnamed(self, kinds: list[str]) -> None:
        """Note the kinds of records that a commit without a point makes durable."""
        with self._control.with_name(UNNAMED).open("a", encoding="utf-8") as file:
            file.writelines(f"{kind}\n" for kind in kinds)

    def broken(self, how: str) -> bool:
        """Whether the service is to be wrong in this way: the checks must find it."""
        path = self._control.with_name("broken")
        return path.exists() and path.read_text() == how


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _around(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(make(original)))


# --- commits ----------------------------------------------------------------------------------------


class Commits:
    """Points before and after the COMMIT of the transaction that did a certain work."""

    def __init__(self, gun: Gun) -> None:
        self.gun = gun
        self.done: list[tuple[str, str]] = []  # in the transaction that is open: there is one at a time
        self.kinds: list[str] = []
        """The kinds of records that it adds to the log."""

    def mark(self, owner: Any, name: str, point: str, about: Callable[..., str] = lambda *_, **__: "") -> None:
        """Name the commit of every transaction in which ``owner.name`` ran."""

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def marked(*args: Any, **kwargs: Any) -> Any:
                result = original(*args, **kwargs)
                self.done.append((point, about(*args, **kwargs)))
                return result

            return marked

        _around(owner, name, make)

    def watch(self) -> None:
        """Stand at every COMMIT of every connection that is opened from now on."""
        from service_kit.store import audit_log

        commits = self

        def noted(append: Callable[..., Any]) -> Callable[..., Any]:
            def appends(db: Any, kind: str, **more: Any) -> Any:
                commits.kinds.append(kind)
                if kind in OF_RECORDS:
                    commits.done.append((OF_RECORDS[kind], ""))
                return append(db, kind, **more)

            return appends

        _around(audit_log, "append", noted)

        def watched(execute: Callable[..., Any]) -> Callable[..., Any]:
            def executes(connection: Any, sql: str, *args: Any) -> Any:
                if sql != "COMMIT":
                    return execute(connection, sql, *args)
                done, commits.done = commits.done, []
                kinds, commits.kinds = commits.kinds, []
                if not done:
                    commits.gun.note_unnamed(kinds)
                for point, about in done:
                    commits.gun.passes(f"{point}.before-commit", about)
                result = execute(connection, sql, *args)
                for point, about in done:
                    commits.gun.passes(f"{point}.after-commit", about)
                return result

            return executes

        class Watched(sqlite3.Connection):
            execute = watched(sqlite3.Connection.execute)

        for module in (sqlite3, sqlite3.dbapi2):
            _around(module, "connect", lambda connect: functools.partial(connect, factory=Watched))
        if find_spec("psycopg") is not None:
            from service_kit.store.postgres_session import Session

            _around(Session, "execute", watched)


# --- calls and replies ------------------------------------------------------------------------------


def _call(gun: Gun, owner: Any, name: str, point: str, about: Callable[..., str] = lambda *_, **__: "") -> None:
    """Points before and after a call."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            text = about(*args, **kwargs)
            gun.passes(f"{point}.before", text)
            result = original(*args, **kwargs)
            gun.passes(f"{point}.after", text)
            return result

        return watched

    _around(owner, name, make)


def _replies(gun: Gun, of: dict[tuple[str, str], str]) -> None:
    """Points before a reply, when the head of it has left, and when all of it has; by method and end of the path.

    Over a link too, where nothing has left before all of it does.
    """
    from curator_service.links import Links

    def watched(app: Any) -> Any:
        async def serve(scope: Any, receive: Any, send: Any) -> None:
            path, method = scope.get("path", ""), scope.get("method")
            what = next((name for (m, end), name in of.items() if m == method and re.search(f"{end}$", path)), None)
            key = dict(scope.get("headers", ())).get(b"idempotency-key", b"").decode()

            async def sent(message: Any) -> None:
                begins = message["type"] == "http.response.start"
                ends = message["type"] == "http.response.body" and not message.get("more_body")
                if begins:
                    gun.passes(f"{what}.reply.before", key)
                await send(message)
                point = f"{what}.reply.{'half' if begins else 'after'}"
                if (begins or ends) and gun.aims_at(point):
                    await asyncio.sleep(0.02)  # uvloop writes to the socket at the end of its turn
                    gun.passes(point, key)

            await app(scope, receive, send if what is None else sent)

        return serve

    def make(original: Callable[..., None]) -> Callable[..., None]:
        return lambda config, app, **settings: original(config, watched(app), **settings)

    _around(uvicorn.Config, "__init__", make)
    _around(Links, "__init__", lambda original: lambda self, app, *rest: original(self, watched(app), *rest))


# --- the two services -------------------------------------------------------------------------------

_asking: contextvars.ContextVar[str] = contextvars.ContextVar("asking", default="")


def curator(gun: Gun) -> Callable[[], None]:
    """Wrap the curator; its command line."""
    from curator_service import cli, links, store, vault
    from curator_service.budget import overlaps
    from curator_service.budget.budgets import Budgets, FileBudget
    from curator_service.datasets import private_bounds
    from curator_service.datasets import table as bounds
    from curator_service.datasets import table as withheld
    from curator_service.datasets.datasets import Datasets
    from curator_service.datasets.readings import Reading
    from curator_service.erasure import table as erasures
    from curator_service.privacy import noise
    from curator_service.privacy.answers import is_exact
    from curator_service.queries import answer_versions, measurement_entries, queries
    from curator_service.releases import groups, releases
    from curator_service.releases.mechanisms.axes import PrivateGram
    from curator_service.studies.messages import Messages
    from curator_service.tuning.tunings import Tunings
    from service_kit.runner import Worker
    from service_kit.store import checkpoints
    from service_kit.store.database import Database

    _on_postgres(gun)
    commits = Commits(gun)
    commits.watch()
    commits.mark(store, "begin_query", "charge", lambda db, **values: str(values["idempotency_key"]))
    commits.mark(measurement_entries, "append", "entered", lambda db, query, *_, **__: str(query.query_id))
    commits.mark(answer_versions.AnswerVersions, "_publish", "told", lambda self, db, drawn: str(drawn.query_id))
    _call(gun, answer_versions, "release", "version.draw")
    commits.mark(queries.Queries, "_settle", "answer", lambda self, db, caller, *_: str(caller.key))
    countersignatures = checkpoints.COUNTERSIGNATURES
    commits.mark(countersignatures, "add", "countersigned", lambda db, grant, row, **_: f"{grant}:{row.size}")
    commits.mark(Datasets, "_add", "registered")
    _call(gun, Worker, "__init__", "reading.begun")
    _call(gun, Reading, "read", "reading")
    commits.mark(Budgets, "charge_release", "release", lambda self, db, actor, study_id, *_: study_id)
    commits.mark(releases.Releases, "_publish", "published", lambda self, db, identity, *_: identity)
    commits.mark(releases.Releases, "_abandon", "abandoned", lambda self, db, identity, actor, problem: identity)
    _call(gun, links._Link, "carry", "carried")
    _call(gun, vault.Vault, "_settle", "file", lambda self, partial, identity: identity)
    _call(gun, noise.GaussianLaw, "add", "release.draw")
    _call(gun, PrivateGram, "noisy", "axes.draw")
    _call(gun, groups, "answers", "groups.draw")
    _replies(
        gun,
        {
            ("POST", "/queries"): "answer",
            ("POST", r"/studies/\w+/messages"): "message",
            ("GET", "/candidates"): "candidates",
            ("GET", "/audit/checkpoint"): "checkpoint",
            ("POST", "/audit/countersignatures"): "countersigned",
            ("POST", ":release"): "published",
            ("POST", "/v1/tunings"): "tuning",
            ("GET", r"/v1/tunings/tun_\w+"): "told",
        },
    )
    commits.mark(Tunings, "_add", "tuning", lambda self, db, identity, *_: identity)
    commits.mark(Tunings, "_settle", "tuned", lambda self, db, identity, **_: identity)
    _call(gun, Worker, "work", "tuning.work", lambda self, job, *_: str(getattr(job, "tuning_id", "")))
    _call(gun, Tunings, "_ending", "tuning.drawn")
    commits.mark(FileBudget, "change_caps", "caps")
    commits.mark(bounds, "add_bounds", "bounds")
    _call(gun, private_bounds, "private_quantiles", "bounds.draw")
    commits.mark(bounds, "settle_bounds", "bounded")
    commits.mark(withheld, "withhold", "withheld")
    commits.mark(overlaps, "decide", "decided")
    commits.mark(erasures, "overwrite", "erased", lambda db, identity, *_: identity)
    _call(gun, vault.Vault, "erase", "erased.file", lambda self, identity: identity)
    _call(gun, Database, "forget_old_pages", "erased.wal")
    commits.mark(Messages, "_check", "message")
    _verification(gun, commits)
    _archiving(gun, commits)

    def named(ask: Callable[..., Any]) -> Callable[..., Any]:
        async def asks(self: Any, caller: Any, *rest: Any) -> Any:
            _asking.set(caller.key or "")
            return await ask(self, caller, *rest)

        return asks

    def drawn(measure: Callable[..., Any]) -> Callable[..., Any]:
        def draws(outcomes: Any, request: Any, spec: Any) -> Any:
            if is_exact(spec):  # nothing is drawn
                return measure(outcomes, request, spec)
            gun.passes("draw.before", _asking.get())
            result = measure(outcomes, request, spec)
            gun.passes("draw.after", _asking.get())
            return result

        return draws

    def named_at_once(answer: Callable[..., Any]) -> Callable[..., Any]:
        def answers(self: Any, db: Any, caller: Any, *rest: Any) -> Any:
            _asking.set(caller.key or "")
            return answer(self, db, caller, *rest)

        return answers

    _around(queries.Queries, "ask", named)
    _around(queries.Queries, "_answer_at_once", named_at_once)
    _around(queries, "measure", drawn)
    _break_curator(gun)
    return cli.main


def _on_postgres(gun: Gun) -> None:
    """A leader without the lock of leaders, or with less patience."""
    if find_spec("psycopg") is None:
        return
    from service_kit.store import postgres

    if gun.broken(NO_LOCK):
        postgres.LEADS += 16  # the next one is that of writes

    def impatient(answer: Callable[..., Any]) -> Callable[..., Any]:
        async def answers(self: Any) -> None:
            await asyncio.wait_for(answer(self), 0.5 if gun.broken(IMPATIENT) else None)

        return answers

    _around(postgres.Postgres, "answer", impatient)


def _verification(gun: Gun, commits: Commits) -> None:
    """The verification in the background, which begins at once and often, where it is on."""
    from service_kit import verification as log_verification
    from service_kit.context.audit_trail import AuditTrail
    from service_kit.context.outbox import Outbox

    log_verification._POLL_S, verification = 0.2, log_verification.LogVerification
    verification.__init__ = functools.partialmethod(verification.__init__, first_after_s=0.05, again_s=0.2)
    _call(gun, log_verification.LogVerification, "_begun", "verification.begun")
    _call(gun, log_verification.LogVerification, "_run", "verification")
    _call(gun, AuditTrail, "replace_findings", "verification.reported")
    commits.mark(Outbox, "add", "notice", lambda self, db, event, *_, **__: str(event))


def _archiving(gun: Gun, commits: Commits) -> None:
    """Where RETENTION_LOG_DAYS is set, the log is archived in segments of 16 records, as soon as they are signed."""
    from blindopt.audit import segments as files
    from service_kit.context import log_archive, retention
    from service_kit.store import segments

    log_archive.RECORDS, retention._LOOK_SECONDS = 16, 0.1

    def at_once(init: Callable[..., None]) -> Callable[..., None]:
        return lambda self, context, keep_days, summaries: init(self, context, 0, summaries)

    _around(log_archive.LogArchive, "__init__", at_once)
    _call(gun, files, "write", "segment.bytes")
    _call(gun, log_archive.LogArchive, "_write", "segment.file")
    commits.mark(segments, "add", "archived")


def modeler(gun: Gun) -> Callable[[], None]:
    """Wrap the modeler; its command line."""
    from blindopt.client import StudyClient
    from blindopt.client.mailbox import Mailbox
    from modeler_service import cli, store
    from modeler_service.runs import scheduler, worker
    from modeler_service.runs.witness import Witness
    from service_kit.store import checkpoints

    commits = Commits(gun)
    commits.watch()
    commits.mark(store, "add_run", "created", lambda db, run_id, **_: str(run_id))
    commits.mark(checkpoints, "pin", "pinned")
    commits.mark(store, "add_trial", "chosen", lambda db, trial: f"{trial.run_id}:{trial.number}")
    commits.mark(store, "answer_trial", "answered", lambda db, run_id, number, *_, **__: f"{run_id}:{number}")
    commits.mark(store, "ask_trials", "pending", lambda db, run_id, first, *_, **__: f"{run_id}:{first}")
    commits.mark(store, "add_version", "version", lambda db, run_id, first, *_, **__: f"{run_id}:{first}")
    commits.mark(Witness, "add_entries", "taken")
    countersignatures = checkpoints.COUNTERSIGNATURES
    commits.mark(countersignatures, "add", "countersigned", lambda db, grant, row, **_: f"{grant}:{row.size}")
    commits.mark(scheduler, "end", "ended", lambda db, outbox, identity, *_: identity)
    _call(gun, Mailbox, "_take", "pulled")
    _call(gun, Mailbox, "reply", "replied")
    _call(gun, StudyClient, "ask", "ask", lambda self, query, *, key: key)
    _call(gun, StudyClient, "send_message", "message", lambda self, message, *, key: key)
    _call(gun, StudyClient, "query", "look", lambda self, query_id, **_: query_id)
    _call(gun, StudyClient, "revisions", "revisions")
    _call(gun, StudyClient, "_fetch", "download")
    _call(gun, StudyClient, "checkpoint", "checkpoint")
    _call(gun, StudyClient, "countersign", "countersign", lambda self, countersigning, *, key: key)
    _break_modeler(gun, worker)
    return cli.main


# --- services that are wrong on purpose -------------------------------------------------------------


def _break_curator(gun: Gun) -> None:
    from blindopt import wire
    from curator_service import store
    from curator_service.budget import ledger, ledger_lines, table
    from curator_service.budget.budgets import FileBudget
    from curator_service.queries.queries import Queries, QueryCharge
    from curator_service.tuning.tunings import Tunings
    from service_kit.context.audit_trail import AuditTrail
    from service_kit.identity.tokens import new_id
    from service_kit.store.base import stamp

    def redrawing(ask: Callable[..., Any]) -> Callable[..., Any]:
        """A retry gets another draw instead of the stored reply."""

        async def asks(self: Any, caller: Any, identity: str, request: Any, *pace: Any) -> Any:
            reply = await ask(self, caller, identity, request, *pace)
            if not (reply.replayed and gun.broken("redrawn")):
                return reply
            answered = wire.QueryReply.model_validate_json(reply.body)
            answers = self._measured(await self._released(identity), request)
            return replace(reply, body=answered.model_copy(update={"answers": answers}).model_dump_json().encode())

        return asks

    pending: dict[str, tuple[Any, ...]] = {}

    def beginning(begin: Callable[..., Any]) -> Callable[..., Any]:
        def begins(self: Any, db: Any, caller: Any, identity: str, released: Any, request: Any) -> Any:
            earlier = store.begun(db, caller.principal.id, caller.key)
            if gun.broken("drawn first") and earlier is None:  # charged only when there is an answer to charge for
                query_id = new_id("qry")
                pending[query_id] = (begin, caller, identity, released, request)
                return QueryCharge(query_id, {item.row for item in request.rows}, 0)
            result = begin(self, db, caller, identity, released, request)
            if gun.broken("charged twice") and earlier is not None and isinstance(result, QueryCharge):
                rows = [(item.row, item.plays) for item in request.rows]
                balances = ledger_lines.row_balances(db, identity, [row for row, _ in rows])
                charges = ledger.charge_answers(released.spec, ledger_lines.balance(db, identity), rows, balances)
                table.add(db, identity, "answers", charges, query_id=result.id, at=stamp(self._context.clock()))
            return result

        return begins

    def settling(settle: Callable[..., Any]) -> Callable[..., Any]:
        def settles(self: Any, db: Any, caller: Any, identity: str, charged: Any, *rest: Any) -> Any:
            if charged.id in pending:
                begin, *what = pending.pop(charged.id)
                charged = begin(self, db, *what)
            return settle(self, db, caller, identity, charged, *rest)

        return settles

    def free(add: Callable[..., Any]) -> Callable[..., Any]:
        def adds(db: Any, study_id: str, kind: str, *rest: Any, **named: Any) -> None:
            if not (kind == "answers" and gun.broken("not charged")):
                add(db, study_id, kind, *rest, **named)

        return adds

    def forgiving(recover: Callable[..., Any]) -> Callable[..., Any]:
        """A tuning that a kill interrupted is run again, under the charge that it has."""

        def recovers(self: Any, db: Any) -> Any:
            if not gun.broken("tuned again"):
                return recover(self, db)
            for identity in store.running_jobs(db, self._table):
                self._submit(identity)
            return []

        return recovers

    def unpaid(charge: Callable[..., Any]) -> Callable[..., Any]:
        def charges(self: Any, *args: Any) -> Any:
            return self._uses.read(self._db, self._dataset) if gun.broken("tuned for nothing") else charge(self, *args)

        return charges

    def unnoticed(check: Callable[..., Any]) -> Callable[..., Any]:
        """The service itself would refuse a study whose ledger its log contradicts; the runs would not end."""

        def checks(*args: Any, **named: Any) -> Any:
            unpaid = ("charged twice", "not charged", "tuned for nothing")
            return None if any(map(gun.broken, unpaid)) else check(*args, **named)

        return checks

    _around(AuditTrail, "check_unchanged", unnoticed)
    _around(Tunings, "_recover", forgiving)
    _around(FileBudget, "charge", unpaid)
    _around(Queries, "ask", redrawing)
    _around(Queries, "begin", beginning)
    _around(Queries, "_settle", settling)
    _around(table, "add", free)


def _break_modeler(gun: Gun, run: Any) -> None:
    from modeler_service.runs.witness import Witness

    def forgetting(keep: Callable[..., Any]) -> Callable[..., Any]:
        def keeps(self: Any, db: Any, exchange: Any, note: Any) -> None:
            if not (exchange.method == "POST" and gun.broken("not recorded")):
                keep(self, db, exchange, note)

        return keeps

    def wavering(following: Callable[..., Any]) -> Callable[..., Any]:
        """What is asked depends on more than the release, the seed and the answers."""

        def follows(self: Any) -> Any:
            result = following(self)
            if not gun.broken("chosen by chance"):
                return result
            return [p if p.phase == "initial" else replace(p, row=secrets.randbelow(400)) for p in result]

        return follows

    _around(Witness, "record_in", forgetting)
    _around(run.RowChooser, "next", wavering)


SERVICES = {"curator": curator, "modeler": modeler}


def arm(service: "Service", control: Path) -> None:
    """What it starts from now on reads ``control``, and dies where that says."""
    service.module, service.arguments = __name__, (service.name, str(control))


def main() -> None:
    """`python -m ...crashing_service SERVICE CONTROL serve`: wrap a service, then run its command line."""
    service, path = sys.argv[1:3]
    del sys.argv[1:3]
    faulthandler.enable()
    SERVICES[service](Gun(Path(path)))()


if __name__ == "__main__":
    main()
