"""Verification of the whole log on request, and the result of the last one."""

import threading
import time

from blindopt import wire
from blindopt.errors import Busy, LogBroken
from service_kit.context.context import ServiceContext
from service_kit.context.exclusive import exclusive


class LogVerification:
    """Verifies the logs of a service, one verification at a time."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._started_at = context.clock()
        self._running = threading.Lock()
        self._last: wire.Verification | None = None

    def state(self) -> wire.VerificationState:
        """The state of the log when the service started, and the last verification since."""
        return wire.VerificationState(
            sound_at_start=self._context.audit_trail.is_sound, started_at=self._started_at, last=self._last
        )

    def verify(self) -> wire.Verification:
        """Verify every record now. Raises Busy while another verification is running."""
        with exclusive(self._running, 0, Busy("the log is being verified: look again in a few seconds", seconds=5)):
            self._last = self._verify()
            return self._last

    def _verify(self) -> wire.Verification:
        at, began = self._context.clock(), time.monotonic()
        problem: str | None = None
        root: str | None = None
        grants, size = 0, self._context.audit_trail.head().size
        try:
            head, grants = self._context.audit_trail.verify()
        except LogBroken as error:
            problem = str(error)
        else:
            root, size = head.root, head.size
        return wire.Verification(
            sound=problem is None,
            problem=problem,
            size=size,
            root=root,
            shared_logs=grants,
            at=at,
            seconds=round(time.monotonic() - began, 3),
        )
