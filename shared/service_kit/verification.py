"""Verification of the log and of the tables against it: at start, after foreign writes, daily, on request.

It has two parts. The first is all but the exchanges between the parties. Until one that began after the start, or after
the last foreign write, has ended, nothing takes effect (``ForeignWrites``). The whole runs in a process of its own at
low priority, so that requests wait neither for its work nor for its memory; so does the first part of a long log, at
normal priority.
"""

import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from blindopt import wire
from blindopt.audit.merkle_log import Json
from blindopt.audit.verification import Verification
from blindopt.errors import Busy, LogBroken, StateConflict
from service_kit.background import Background
from service_kit.context.context import ServiceContext
from service_kit.context.exclusive import exclusive
from service_kit.context.log_summaries import Part
from service_kit.store import audit_log
from service_kit.store.database import Connection

log = logging.getLogger("blindopt.verification")
_POLL_S, _LEAST_S = 10.0, 0.05
LOOK_S = 1.0
"""How often an idle service looks for foreign writes, and after which pause a first part that failed is tried again."""
SMALL = 5_000
"""Records of a log whose first part takes less than the start of a process."""
SECONDS_A_RECORD = 1e-5
"""What the first part takes, about, until it has been measured."""
Findings = Callable[[Connection, Iterable[Json], Part | None, Path | None], Iterator[LogBroken]]

_START = (
    "import runpy, sys; sys.path[:0] = sys.argv[1].split(':'); sys.argv[:3] = [sys.argv[2]]; "
    "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


class LogVerification:
    """Verifies the logs and tables of a service, one verification of everything at a time.

    A restart begins anew: while the service was stopped, any record may have been changed.
    """

    def __init__(
        self,
        context: ServiceContext,
        findings: Findings,
        *,
        hours: float = 0.0,
        first_after_s: float = 3.0,
        again_s: float = 60.0,
    ) -> None:
        """``findings`` compares the tables with the log.

        ``hours`` between verifications of everything in the background; 0: none. After one that failed: ``again_s``.
        """
        self._context, self._findings = context, findings
        self._writes = context.database.foreign_writes
        if context.database.url is not None:  # the owner of the tables may write without a signal
            hours = min(hours, 1.0)
        self._every_s, self._first_after_s, self._again_s = hours * 3_600, first_after_s, again_s
        self._started_at = context.clock()
        self._sound_at_start = context.audit_trail.is_sound
        self._running, self._settling = threading.Lock(), threading.Lock()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._verified = 0
        self._last: wire.Verification | None = None
        self._due, self._seen = 0.0, (0, 0)
        self._closing = threading.Event()
        self._looks = [
            Background("foreign writes", self._look_first, every_s=LOOK_S),
            Background("verification", self._look, first_s=min(_POLL_S, first_after_s)),
        ]

    def state(self) -> wire.VerificationState:
        """The state of the log when the service started, the last verification since, and the one under way."""
        return wire.VerificationState(
            sound_at_start=self._sound_at_start,
            started_at=self._started_at,
            last=self._last,
            running=self._running.locked(),
            verified=self._verified,
            findings=self._context.audit_trail.findings,
        )

    def progress(self) -> wire.VerificationState:
        """The same without words about what differs, for monitors."""
        state, last = self.state(), self._last
        shown = None if last is None else last.model_copy(update={"problem": None})
        return state.model_copy(update={"last": shown, "findings": []})

    def verify(self) -> wire.Verification:
        """Verify everything now. Raises Busy while another verification is running."""
        with exclusive(self._running, 0, Busy("the log is being verified: look again in a few seconds", seconds=5)):
            self._last = self._verify()
            return self._last

    def start(self) -> None:
        """Verify in the background from now on; before this returns, the first part of a log that is not long."""
        self._writes.verified = -1
        self._context.database.on_foreign_write = self._looks[0].wake
        try:
            self._writes.seconds = self._live() * SECONDS_A_RECORD
            if self._is_small():
                self._verify_first(self._writes.count)
        except Exception as error:  # it is tried again
            self._log_failure(error)
        self._due, self._seen = time.monotonic() + self._first_after_s, self._now_seen()
        for look in self._looks:
            look.start()

    def close(self) -> None:
        """End the verifications under way, and begin no other."""
        self._closing.set()
        for process in list(self._processes):
            process.kill()
        for look in self._looks:
            look.close()

    # --- the first part -------------------------------------------------------------------------------

    def _look_first(self) -> None:
        try:
            count = self._foreign_writes()
            if not self._writes.are_verified:
                self._verify_first(count)
        except Exception as error:  # its process may have been killed, or the database cannot be read
            self._log_failure(error)

    def _log_failure(self, error: Exception) -> None:
        if not self._closing.is_set():
            log.error("a verification of the log failed", extra={"fields": {"kind": type(error).__name__}})

    def _foreign_writes(self) -> int:
        """How often another program than this one was seen to write to the database."""
        self._context.database.look()
        return self._writes.count

    def _is_small(self) -> bool:
        return self._live() <= SMALL

    def _live(self) -> int:
        """The number of records that are not archived."""
        with self._context.database.read() as db:
            return audit_log.live(db)

    def _verify_first(self, count: int) -> None:
        """Verify the first part as it is after ``count`` foreign writes."""
        began = time.monotonic()
        if self._is_small():
            with self._context.database.read() as db:
                try:
                    verification = Verification(self._context.audit_trail.export(db), only_own=True)
                    folder = self._context.database.path.parent
                    findings = list(self._findings(db, verification.records(), "first", folder))
                except LogBroken as finding:
                    findings = [finding]
        else:
            findings = self._run("first")[0]["first"]
        self._writes.seconds = time.monotonic() - began
        self._settle_first(count, findings)

    def _settle_first(self, count: int, findings: list[LogBroken]) -> None:
        """Take the findings of the first part, unless a later one has ended, and let the service go on."""
        with self._settling:
            if self._writes.verified is None or self._writes.verified <= count:
                self._context.audit_trail.replace_findings("first", findings)
                if self._writes.verified is not None:
                    self._writes.verified = count

    # --- everything -----------------------------------------------------------------------------------

    def _now_seen(self) -> tuple[int, int]:
        """How many foreign writes, if anything is verified regularly, and how much damage was noticed until now."""
        return self._writes.count if self._every_s else 0, self._context.database.damages

    def _look(self) -> float:
        """Verify everything if that is due; the seconds until the next look."""
        seen, is_due = self._now_seen(), bool(self._every_s) and time.monotonic() >= self._due
        if (is_due or seen != self._seen) and self._writes.are_verified:
            try:
                self.verify()
                self._seen, self._due = seen, time.monotonic() + self._every_s
            except Busy:
                pass
            except Exception as error:  # its process may have been killed: it is tried again
                self._log_failure(error)
                self._due = time.monotonic() + min(self._again_s, self._every_s)
        return max(_LEAST_S, min(_POLL_S, self._due - time.monotonic())) if self._every_s else _POLL_S

    def _verify(self) -> wire.Verification:
        at, began, count = self._context.clock(), time.monotonic(), self._foreign_writes()
        self._verified, database, damages = 0, self._context.database, self._context.database.damages
        if damages:
            database.check_pages()
        by_part, end = self._run(None)
        self._settle_first(count, by_part["first"])
        self._context.audit_trail.replace_findings("second", [each for each in by_part["second"] if each.about])
        findings = [*by_part["first"], *by_part["second"]]
        if not findings:
            database.forget_damages(damages)
        return wire.Verification(
            sound=not findings,
            problem=str(findings[0]) if findings else None,
            size=end["size"],
            root=None if findings else end["root"],
            shared_logs=end["shared_logs"],
            unread=end["unread"],
            at=at,
            seconds=round(time.monotonic() - began, 3),
        )

    def _run(self, part: Part | None) -> tuple[dict[Part, list[LogBroken]], dict[str, Any]]:
        """Run a process for one part, or for both, to its end; the findings and its last message."""
        by_part: dict[Part, list[LogBroken]] = {"first": [], "second": []}
        end: dict[str, Any] = {}
        process = self._begun(part)
        self._processes.add(process)
        try:
            if self._closing.is_set():
                process.kill()
            with process:
                assert process.stdin is not None
                assert process.stdout is not None
                with suppress(OSError), process.stdin:  # not an argument: others list these
                    process.stdin.write((self._context.database.url or "").encode())
                for line in process.stdout:
                    message = json.loads(line)
                    if "finding" in message:
                        finding = LogBroken(message["finding"], about=message["about"], others=message["others"])
                        by_part[message["part"]].append(finding)
                    elif "verified" in message:
                        self._verified = message["verified"]
                    else:
                        end = message
        finally:
            self._processes.discard(process)
        if not end:
            self._context.database.check_pages()
            raise StateConflict("the verification was ended before it had read everything")
        return by_part, end

    def _begun(self, part: Part | None) -> subprocess.Popen[bytes]:
        """The process that verifies a part, or both."""
        module, folder = f"{self._context.service}_service", self._context.database.path.parent
        folders = ":".join(_folders_of("service_kit", "blindopt", module))
        words = ["audit", "findings", str(folder), part or "both", str(self._context.archive)]
        return subprocess.Popen(  # noqa: S603  this interpreter, a module of ours
            [sys.executable, "-P", "-c", _START, folders, module, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a traceback may quote a value
            start_new_session=True,
        )


def _folders_of(*packages: str) -> list[str]:
    """The folders from which packages were loaded: they need not be installed, as in a container."""
    files = [sys.modules[package].__file__ for package in packages]
    return list(dict.fromkeys(str(Path(file).parents[1]) for file in files if file is not None))
