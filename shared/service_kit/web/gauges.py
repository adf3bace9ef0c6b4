"""What the metrics page reads when it is collected: jobs, notices, the log's checkpoint, the disk.

Nothing here has a label with an id, a name or a value of somebody's data.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from service_kit.certificates import Certificates
from service_kit.context.context import ServiceContext
from service_kit.durations import Durations
from service_kit.store import notices

Jobs = Callable[[], Mapping[str, Mapping[str, int]]]
"""Returns how many jobs of each kind are in each state now."""

_LEADER = "blindopt_leader"
NOT_LEADING = f"# TYPE {_LEADER} gauge\n{_LEADER} 0\n"
"""The metrics of a standby."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """A figure as it is now, one for each combination of its labels; ``help`` is one sentence."""

    name: str
    help: str
    samples: Mapping[tuple[str, ...], float]
    labels: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Histogram:
    """Durations in seconds, as they were counted until now."""

    name: str
    help: str
    durations: Durations
    labels: tuple[str, ...] = ()


Gauges = Callable[[], Iterable[Gauge | Histogram]]
"""Returns the figures of a service, read now."""


def of_service(context: ServiceContext, data_dir: Path, jobs: Jobs, check_ready: Callable[[], None]) -> Iterator[Gauge]:
    """The gauges that both services have."""
    is_ready = True
    try:
        check_ready()
    except Exception:  # each is a reason not to be ready
        is_ready = False
    yield _single("blindopt_ready", "1 if /readyz answers 200, else 0.", is_ready)
    by_state: dict[tuple[str, ...], float] = {
        (kind, state): count for kind, states in jobs().items() for state, count in states.items()
    }
    yield _single(_LEADER, "1: this process serves; 0: it is a standby, which waits to lead (PostgreSQL).", 1)
    behind_bytes = context.database.server.replicas_behind()
    yield _single("blindopt_replicas", "Replicas of PostgreSQL that are connected to its server.", len(behind_bytes))
    lag = max((each for each in behind_bytes if each is not None), default=0)
    yield _single("blindopt_replication_lag_bytes", "What the replica that is behind most has not replayed.", lag)
    yield Gauge("blindopt_jobs", "Jobs by kind and state.", by_state, ("kind", "state"))
    with context.database.read() as db:
        written: dict[tuple[str, ...], float] = {(state,): count for state, count in notices.states(db).items()}
    yield Gauge("blindopt_notices", "Notices by state; failed ones were given up.", written, ("state",))
    yield _single("blindopt_log_sound", "1 if the audit log verifies, else 0.", context.audit_trail.is_sound)
    behind = context.audit_trail.checkpoint_age()
    yield _single(
        "blindopt_log_checkpoint_age_seconds",
        "How much older the checkpoint outside the database is than the log's last record.",
        behind,
    )
    yield _single("blindopt_database_bytes", "Size of the database.", context.database.size_bytes())
    disk = shutil.disk_usage(data_dir)
    yield _single("blindopt_disk_bytes", "Size of the disk with the data folder.", disk.total)
    yield _single("blindopt_disk_free_bytes", "Free bytes on the disk with the data folder.", disk.free)


def of_commits(context: ServiceContext) -> Histogram:
    """How long the commits of the database took."""
    return Histogram(
        "blindopt_commit_seconds", "How long a commit took until it was durable.", context.database.commits
    )


def of_certificates(certificates: Certificates) -> Gauge:
    """When the certificates of a service expire."""
    ends: dict[tuple[str, ...], float] = {
        (setting,): round(seconds) for setting, seconds in certificates.remaining_seconds().items()
    }
    about = "Seconds until the certificate of a setting expires; negative once it has."
    return Gauge("blindopt_certificate_expires_seconds", about, ends, ("setting",))


def _single(name: str, about: str, value: float) -> Gauge:
    return Gauge(name, about, {(): value})
