"""Metrics for Prometheus: the number of requests, their durations, and the gauges of the service.

Labels are route templates, methods, classes of statuses, kinds and states: a fixed, short list of each. No id, key,
token, name or value is a label, and no metric depends on what was measured, drawn or scored. Durations are those of
the access log: where replies keep a deadline, they end at it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from starlette.responses import Response

from blindopt.errors import StateConflict
from service_kit.identity.tokens import Role
from service_kit.web.dependencies import api_router
from service_kit.web.gauges import Gauges, Histogram

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

PATH = "/metrics"
MISSING = "METRICS needs the package prometheus-client: install blindopt-services[metrics]"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
CLASSES = frozenset({1, 2, 3, 4, 5})
SECONDS = (0.001, 0.0025, 0.01, 0.05, 0.25, 1.0, 5.0, 30.0)
"""Upper ends of the buckets."""


class Metrics:
    """The metrics of one process. Raises StateConflict where prometheus-client is not installed."""

    def __init__(self, gauges: Gauges) -> None:
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
        self._registry.register(_Collected(gauges))
        self._prometheus = prometheus

    def count_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request. ``route`` is a template, never a path; status 0 means that it was cut before its reply."""
        method = method if method in METHODS else "other"
        status_class = f"{status // 100}xx" if status // 100 in CLASSES else "none"
        self._requests.labels(method, route, status_class).inc()
        # In milliseconds: the microseconds that a draw took would depend on what was drawn.
        self._seconds.labels(method, route).observe(round(seconds, 3))

    def count_failed_login(self) -> None:
        """Count a login that was refused."""
        self._login_failed.inc()

    def exposition(self) -> Response:
        """All metrics, in the text format of Prometheus."""
        return Response(self._prometheus.generate_latest(self._registry), media_type=_MEDIA_TYPE)


_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _Collected:
    """Gauges that are read when they are collected."""

    def __init__(self, gauges: Gauges) -> None:
        self._gauges = gauges

    def describe(self) -> list[Any]:
        """Return no metrics, so that nothing is counted when this collector is registered."""
        return []

    def collect(self) -> Iterator["Metric"]:
        from prometheus_client.metrics_core import GaugeMetricFamily, HistogramMetricFamily

        for gauge in self._gauges():
            if isinstance(gauge, Histogram):
                counted = gauge.durations
                yield HistogramMetricFamily(gauge.name, gauge.help, buckets=counted.buckets, sum_value=counted.total_s)
                continue
            family = GaugeMetricFamily(gauge.name, gauge.help, labels=gauge.labels)
            for values, amount in gauge.samples.items():
                family.add_metric(values, amount)
            yield family


def router(metrics: Metrics, readers: tuple[Role, ...]) -> APIRouter:
    """/metrics, for ``readers``."""
    routes = api_router("health", *readers)

    @routes.get(
        PATH,
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}, "description": "Prometheus text format."}},
        operation_id="metrics",
    )
    def get_metrics() -> Response:
        """Counts of requests and jobs of this process, for Prometheus. Nothing in them is private."""
        return metrics.exposition()

    return routes
