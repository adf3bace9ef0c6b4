"""Verification of the whole log and of the tables against it: at start, daily, after foreign writes, on request.

It runs in a process of its own at low priority, so that requests wait neither for its work nor for its memory.
"""

import json
import logging
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from blindopt import wire
from blindopt.errors import Busy, LogBroken, StateConflict
from service_kit.context.context import ServiceContext
from service_kit.context.exclusive import exclusive

log = logging.getLogger("blindopt.verification")
_POLL_S, _CLOSE_S = 10.0, 10.0

_START = (
    "import runpy, sys; sys.path[:0] = sys.argv[1].split(':'); sys.argv[:3] = [sys.argv[2]]; "
    "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


class LogVerification:
    """Verifies the logs and tables of a service, one verification at a time.

    A restart begins anew: while the service was stopped, any record may have been changed.
    """

    def __init__(
        self, context: ServiceContext, *, hours: float = 0.0, first_after_s: float = 3.0, again_s: float = 60.0
    ) -> None:
        """``hours`` between verifications in the background; 0: none. After one that failed: ``again_s``."""
        self._context = context
        self._every_s, self._first_after_s, self._again_s = hours * 3_600, first_after_s, again_s
        self._started_at = context.clock()
        self._sound_at_start = context.audit_trail.is_sound
        self._running = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._verified = 0
        self._last: wire.Verification | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True, name="verification")

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
        """Verify in the background from now on."""
        if self._every_s:
            self._thread.start()

    def close(self) -> None:
        """End the verification under way, and begin no other."""
        self._closing.set()
        if self._process is not None:
            self._process.kill()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)

    def _serve(self) -> None:
        due, seen = time.monotonic() + self._first_after_s, self._foreign_writes()
        while not self._closing.wait(max(0.0, min(_POLL_S, due - time.monotonic()))):
            writes = self._foreign_writes()
            if time.monotonic() < due and writes == seen:
                continue
            try:
                self.verify()
            except Busy:
                continue
            except Exception as error:  # its process may have been killed: it is tried again
                if self._closing.is_set():
                    return
                log.error("a verification of the log failed", extra={"fields": {"kind": type(error).__name__}})
                due = time.monotonic() + min(self._again_s, self._every_s)
            else:
                seen, due = writes, time.monotonic() + self._every_s

    def _foreign_writes(self) -> int:
        """How often another process than this one was seen to write to the database."""
        self._context.database.submit(lambda db: None)
        return self._context.database.foreign_writes

    def _verify(self) -> wire.Verification:
        at, began = self._context.clock(), time.monotonic()
        findings, end = self._run()
        self._context.audit_trail.replace_findings(findings)
        return wire.Verification(
            sound=not findings,
            problem=str(findings[0]) if findings else None,
            size=end["size"],
            root=None if findings else end["root"],
            shared_logs=end["shared_logs"],
            at=at,
            seconds=round(time.monotonic() - began, 3),
        )

    def _run(self) -> tuple[list[LogBroken], dict[str, Any]]:
        """Run the process to its end; the findings and its last message."""
        self._verified, self._process = 0, self._begun()
        findings: list[LogBroken] = []
        end: dict[str, Any] = {}
        with self._process as process:
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(OSError), process.stdin:  # not an argument: others list these
                process.stdin.write((self._context.database.url or "").encode())
            for line in process.stdout:
                message = json.loads(line)
                if "finding" in message:
                    findings.append(LogBroken(message["finding"], about=message["about"]))
                elif "verified" in message:
                    self._verified = message["verified"]
                else:
                    end = message
        if not end:
            raise StateConflict("the verification was ended before it had read everything")
        return findings, end

    def _begun(self) -> subprocess.Popen[bytes]:
        """The process that verifies."""
        module, folder = f"{self._context.service}_service", self._context.database.path.parent
        folders = ":".join(_folders_of("service_kit", "blindopt", module))
        return subprocess.Popen(  # noqa: S603  this interpreter, a module of ours
            [sys.executable, "-P", "-c", _START, folders, module, "audit", "findings", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a traceback may quote a value
            start_new_session=True,
        )


def _folders_of(*packages: str) -> list[str]:
    """The folders from which packages were loaded: they need not be installed, as in a container."""
    files = [sys.modules[package].__file__ for package in packages]
    return list(dict.fromkeys(str(Path(file).parents[1]) for file in files if file is not None))
