"""What outgoing webhooks share: their client, how their JSON is read, and when a receiver that failed is called again.

A receiver gets notices, measures, or scores. ``blindopt.client.webhook`` signs and sends what it gets.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blindopt import bodies
from blindopt.errors import Invalid, ProtocolViolated
from service_kit.context.keys import webhook_key
from service_kit.settings import ServiceSettings

if TYPE_CHECKING:
    from blindopt.client import WebhookClient

ATTEMPTS_MIN = 3  # also of what is old when it is first sent
RESPECTED_SECONDS = 86_400.0
"""The longest wait that a receiver may request: if it requests more by mistake, it is called again the next day."""
Chance = Callable[[], float]


def open_client(settings: ServiceSettings, name: str, reply_max_bytes: int) -> "WebhookClient | None":
    """A client of the receiver in the settings ``<name>_url``, ``<name>_secret_file`` and so on, or None without them.

    Raises StateConflict for a key that is too short.
    """
    url: str | None = getattr(settings, f"{name}_url")
    secret_file: Path | None = getattr(settings, f"{name}_secret_file")
    if url is None or secret_file is None:
        return None
    key = webhook_key(secret_file, f"{name.upper()}_SECRET_FILE")
    from blindopt.client import WebhookClient  # late: most services call nobody, and start faster

    authority: Path | None = getattr(settings, f"{name}_ca")
    timeout_s: float = getattr(settings, f"{name}_timeout_seconds")
    verify = True if authority is None else str(authority)
    return WebhookClient(url, key, timeout_s=timeout_s, verify=verify, reply_max_bytes=reply_max_bytes)


def json_object(body: bytes) -> dict[str, Any]:
    """The members of a JSON object, whose numbers may be NaN or infinite; none of any other text."""
    try:
        document = bodies.parse(body, Any)
    except Invalid:
        return {}
    return document if isinstance(document, dict) else {}


def json_number(value: object, name: str) -> float:
    """A number of a reply; a larger one than any double is infinite. Raises ProtocolViolated, which quotes no value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ProtocolViolated(f"{name} must be a number")
    try:
        return float(value)
    except OverflowError:
        return inf


def chance() -> float:
    """A random number from 0 to 1, so that calls that failed together are not retried together."""
    return secrets.randbelow(1_000_001) / 1_000_000


@dataclass(frozen=True, slots=True)
class Retries:
    """The waits between attempts, which double from ``first_s`` to ``longest_s``, and for how long they go on."""

    first_s: float
    longest_s: float
    tried_for: timedelta = timedelta.max

    def wait_s(self, failures: int, share: float = 1.0) -> float:
        """Seconds until the next attempt after so many failures in a row: between half and all of the doubled wait.

        ``share`` is 1, or a random number from 0 to 1.

        >>> waits = Retries(0.5, 600.0)
        >>> waits.wait_s(1), waits.wait_s(3), waits.wait_s(3, share=0.0), waits.wait_s(99)
        (0.5, 2.0, 1.0, 600.0)
        """
        return min(self.first_s * 2.0 ** min(failures - 1, 30), self.longest_s) * (1 + share) / 2

    def are_over(self, failures: int, since: datetime, now: datetime, enough: int = ATTEMPTS_MIN) -> bool:
        """Whether what is sent ``since`` then is given up after so many failures."""
        return failures >= enough and now - since >= self.tried_for


_PROBES = Retries(0.5, 600.0)


class Circuit:
    """Open once a system failed several times in a row: it is called at ``opens_at``, and by one call at a time.

    Each wait is longer than the one before, or what the system said (Retry-After). The first success closes the
    circuit. Its state is not stored: after a restart a few calls fail before it opens again. Not thread-safe.
    """

    def __init__(self, chance: Chance = chance) -> None:
        self._chance = chance
        self.record_success()

    def record_success(self) -> None:
        self.failures = 0  # in a row
        self.problem: str | None = None
        self.opens_at: datetime | None = None

    def record_failure(self, now: datetime, problem: str, retry_after_s: float = 0.0) -> None:
        """Count a failure of the system; ``retry_after_s``: the wait that it requested."""
        self.failures += 1
        self.problem = problem
        seconds = min(retry_after_s, RESPECTED_SECONDS)
        if self.failures >= ATTEMPTS_MIN:
            seconds = max(seconds, _PROBES.wait_s(self.failures - ATTEMPTS_MIN + 1, self._chance()))
        if seconds > 0:
            later = now + timedelta(seconds=seconds)
            self.opens_at = later if self.opens_at is None else max(self.opens_at, later)

    def is_down(self, now: datetime) -> bool:
        return self.opens_at is not None and now < self.opens_at

    def may_call(self, now: datetime, calls: int) -> bool:
        """Whether a call may be made now, beside so many others."""
        return self.opens_at is None or (now >= self.opens_at and not calls)

    def allow_call(self, now: datetime) -> None:
        """Allow a call now, because a person says that the system is back."""
        if self.opens_at is not None:
            self.opens_at = min(self.opens_at, now)
