"""Metrics for Prometheus: requests and their durations, jobs, notices, the log's checkpoint, the disk.

Labels are route templates, methods, classes of statuses, kinds and states: a fixed, short list of each. No id, key,
token, name or value is a label, and no metric depends on what was measured, drawn or scored. Durations are those of
the access log: where replies keep a deadline, they end at it.
"""

import logging
import shutil
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blindopt.errors import StateConflict
from service_kit.certificates import Certificates
from service_kit.context.context import ServiceContext
from service_kit.identity.tokens import Role
from service_kit.store import notices
from service_kit.web.peers import PeerErrors

if TYPE_CHECKING:
    from fastapi import APIRouter
    from prometheus_client.metrics_core import Metric
    from starlette.responses import Response

log = logging.getLogger("blindopt.metrics")
PATH = "/metrics"
MISSING = "METRICS needs the package prometheus-client: in a checkout of blindopt, pip install ./shared '.[metrics]'"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
CLASSES = frozenset({1, 2, 3, 4, 5})
SECONDS = (0.001, 0.0025, 0.01, 0.05, 0.25, 1.0, 5.0, 30.0)
"""Upper ends of the buckets."""
_LEADER = "blindopt_leader"
NOT_LEADING = f"# TYPE {_LEADER} gauge\n{_LEADER} 0\n"
"""The metrics of a standby."""
_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[str, ...]
Jobs = Callable[[], Mapping[str, Mapping[str, int]]]
"""Returns how many jobs of each kind are in each state now."""


Figures = Iterable[Callable[[], "Metric | None"]]
"""Figures of a service, each read when it is called; None: it is left out now."""


def gauge(
    name: str,
    about: str,
    read: Callable[[], Mapping[Labels, float] | float],
    labels: Labels = (),
    *,
    rises: bool = False,
) -> Callable[[], "Metric"]:
    """A figure, one for each combination of its labels, as ``read`` returns it; ``about`` is one sentence.

    One that only ``rises`` is a counter.
    """
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

    def family() -> "Metric":
        metric, samples = (CounterMetricFamily if rises else GaugeMetricFamily)(name, about, labels=labels), read()
        for values, amount in samples.items() if isinstance(samples, Mapping) else [((), samples)]:
            metric.add_metric(values, amount)
        return metric

    return family


def of_service(context: ServiceContext, data_dir: Path, jobs: Jobs, check_ready: Callable[[], None]) -> Figures:
    database, trail = context.database, context.audit_trail

    def is_ready() -> bool:
        try:
            check_ready()
        except Exception:  # each is a reason not to be ready
            return False
        return True

    def by_state() -> dict[Labels, float]:
        return {(kind, state): n for kind, states in jobs().items() for state, n in states.items()}

    def behind_bytes() -> list[int | None]:
        return [] if database.server is None else list(database.server.replicas_behind())

    def written() -> dict[Labels, float]:
        with database.read() as db:
            return {(state,): count for state, count in notices.states(db).items()}

    yield gauge("blindopt_ready", "1 if /readyz answers 200, else 0.", is_ready)
    yield gauge(_LEADER, "1: this process serves; 0: it is a standby, which waits to lead (PostgreSQL).", lambda: 1)
    about = "Replicas of PostgreSQL that are connected to its server."
    yield gauge("blindopt_replicas", about, lambda: len(behind_bytes()))
    about = "What the replica that is behind most has not replayed."
    yield gauge("blindopt_replication_lag_bytes", about, lambda: max((n for n in behind_bytes() if n), default=0))
    yield gauge("blindopt_jobs", "Jobs by kind and state.", by_state, ("kind", "state"))
    yield gauge("blindopt_notices", "Notices by state; failed ones were given up.", written, ("state",))
    yield gauge("blindopt_log_sound", "1 if the audit log verifies, else 0.", lambda: trail.is_sound)
    about = "How much older the checkpoint outside the database is than the log's last record."
    yield gauge("blindopt_log_checkpoint_age_seconds", about, trail.checkpoint_age)
    yield gauge("blindopt_database_bytes", "Size of the database.", database.size_bytes)
    about = "Size of the disk with the data folder."
    yield gauge("blindopt_disk_bytes", about, lambda: shutil.disk_usage(data_dir).total)
    about = "Free bytes on the disk with the data folder."
    yield gauge("blindopt_disk_free_bytes", about, lambda: shutil.disk_usage(data_dir).free)


def of_commits(context: ServiceContext) -> "Metric":
    from prometheus_client.metrics_core import HistogramMetricFamily

    commits, about = context.database.commits, "How long a commit took until it was durable."
    ends = [*map(str, commits.BOUNDS), "+Inf"]
    buckets = list(zip(ends, accumulate(commits.counts), strict=True))
    return HistogramMetricFamily("blindopt_commit_seconds", about, buckets=buckets, sum_value=commits.total_s)


def of_peers(peers: PeerErrors) -> Callable[[], "Metric"]:
    def counts() -> dict[Labels, float]:
        return {(kind,): count for kind, count in peers.counts.items()}

    return gauge("blindopt_peer_errors", "Errors of peers by kind.", counts, ("kind",), rises=True)


def of_certificates(certificates: Certificates) -> Callable[[], "Metric"]:
    def ends() -> dict[Labels, float]:
        return {(setting,): round(seconds) for setting, seconds in certificates.remaining_seconds().items()}

    about = "Seconds until the certificate of a setting expires; negative once it has."
    return gauge("blindopt_certificate_expires_seconds", about, ends, ("setting",))


class Metrics:
    """The metrics of one process. Raises StateConflict where prometheus-client is not installed."""

    def __init__(self, gauges: Callable[[], Figures]) -> None:
        try:
            import prometheus_client as prometheus
        except ImportError:
            raise StateConflict(MISSING) from None
        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]  # they would show when each label was first seen
        self.gauges = gauges
        # A registry of our own: the default one also has metrics of the machine and the process.
        self._registry = prometheus.CollectorRegistry()
        labels = ("method", "route", "status")
        self._requests = prometheus.Counter(
            "blindopt_requests", "Requests that were answered or refused.", labels, registry=self._registry
        )
        self._seconds = prometheus.Histogram(
            "blindopt_request_seconds",
            "From a request's head to the end of its reply.",
            labels[:2],
            buckets=SECONDS,
            registry=self._registry,
        )
        self._login_failed = prometheus.Counter(
            "blindopt_login_failed", "Logins that were refused: wrong, or throttled.", registry=self._registry
        )
        self._registry.register(self)
        self._unread = prometheus.Counter(
            "blindopt_figures_unread", "Figures that could not be read and were left out.", registry=self._registry
        )
        self._prometheus = prometheus

    def count_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request. ``route`` is a template, never a path; status 0 means that it was cut before its reply."""
        method = method if method in METHODS else "other"
        status_class = f"{status // 100}xx" if status // 100 in CLASSES else "none"
        self._requests.labels(method, route, status_class).inc()
        # In milliseconds: the microseconds that a draw took would depend on what was drawn.
        self._seconds.labels(method, route).observe(round(seconds, 3))

    def count_failed_login(self) -> None:
        self._login_failed.inc()

    def describe(self) -> list[Any]:
        """Return no metrics, so that no gauge is read when this collector is registered."""
        return []

    def collect(self) -> Iterable["Metric"]:
        for figure in self.gauges():
            try:
                metric = figure()
            except Exception as error:  # the others are there all the same, above all whether the service is ready
                log.warning("a figure cannot be read: %s", type(error).__name__)
                self._unread.inc()
                continue
            if metric is not None:
                yield metric

    def exposition(self) -> "Response":
        from starlette.responses import Response

        return Response(self._prometheus.generate_latest(self._registry), media_type=_MEDIA_TYPE)


def router(metrics: Metrics, readers: tuple[Role, ...]) -> "APIRouter":
    from starlette.responses import Response

    from service_kit.web.dependencies import api_router  # late: commands do not serve, and start faster

    routes = api_router("health", *readers)

    @routes.get(
        PATH,
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}, "description": "Prometheus text format."}},
        operation_id="metrics",
    )
    def get_metrics() -> Response:
        """Get counts of requests and jobs of this process, for Prometheus. Nothing in them is private."""
        return metrics.exposition()

    return routes
