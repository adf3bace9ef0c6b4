"""A modeler in the process of a test, without its API."""

import secrets
import threading
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime

from blindopt import wire
from modeler_service.context import open_context
from modeler_service.runs.worker import RunWorker
from modeler_service.settings import Settings
from modeler_service.use_cases.modeler import Modeler
from service_kit.context.request import RequestContext
from tests.given_settings import GIVEN

SPEC = wire.RunCreate(
    curator_url="http://127.0.0.1:9",
    study_id="std_0123456789abcdef",
    token="blindopt_0123456789abcdef." + "A" * 43,
    algorithm=wire.RandomRows(name="random"),
    iterations=3,
    **GIVEN,
)


class WatchedDatabase:
    """A database that calls a hook around each write of a worker: the first takes its run, the last ends it."""

    def __init__(self, database):
        self._database, self._lock = database, threading.Lock()
        self.writes = 0
        """Writes of workers that have begun."""
        self.before_write = self.after_write = lambda number: None
        """Called with the number of the write, from 1."""

    def write(self, work):
        if threading.current_thread().name != "run":
            return self._database.write(work)
        with self._lock:
            self.writes += 1
            number = self.writes
        self.before_write(number)
        result = self._database.write(work)
        self.after_write(number)
        return result

    def __getattr__(self, name):
        return getattr(self._database, name)


@contextmanager
def modeler_at_work(folder, clock=lambda: datetime.now(UTC), *, work=True, worker=RunWorker, **settings):
    """A modeler whose runs soon give up; without its workers if ``work`` is false. ``worker`` works on a run."""
    quick = {"wait_seconds_first": 0.1, "wait_seconds_max": 0.1, "retry_attempts": 1}
    settings = Settings(data_dir=folder, **quick | settings)
    with open_context(settings, clock) as context:
        modeler = Modeler(replace(context, database=WatchedDatabase(context.database)), settings, worker)
        if work:
            modeler.scheduler.start()
        try:
            yield modeler
        finally:
            modeler.close()


def request_of(modeler):
    """A request with a key of its own, by a vendor."""
    vendor = modeler.context.authentication.issue("vendor", "v", days=1)[1]
    return RequestContext(vendor, secrets.token_hex(16), "POST", "/v1/runs", secrets.token_hex(8), "0" * 64)


def start(modeler, spec=SPEC):
    """Start a run; its id."""
    return wire.RunView.model_validate_json(modeler.start(request_of(modeler), spec).body).id
