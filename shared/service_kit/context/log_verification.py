"""Verifies the whole log when somebody asks, and remembers what came of it."""

import threading
import time

from blindopt import wire
from blindopt.errors import Busy, LogBroken
from service_kit.context.context import ServiceContext


class Verifier:
    """One walk at a time."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._started_at = context.clock()
        self._turn = threading.Lock()
        self._last: wire.Verification | None = None

    def state(self) -> wire.VerificationState:
        """What is known without a walk."""
        return wire.VerificationState(
            sound_at_start=self._context.audit_trail.is_sound, started_at=self._started_at, last=self._last
        )

    def walk(self) -> wire.Verification:
        """Verify now. Raises Busy while another walk is under way."""
        if not self._turn.acquire(blocking=False):
            raise Busy("the log is being verified: look again in a few seconds", seconds=5)
        try:
            self._last = self._walked()
            return self._last
        finally:
            self._turn.release()

    def _walked(self) -> wire.Verification:
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
