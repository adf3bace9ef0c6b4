"""Listening for the answers of people, so that a waiting run goes on when one comes, without a worker until then."""

import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from modeler_service import store
from modeler_service.runs.curator_session import connect
from modeler_service.runs.query_keys import is_run_query
from modeler_service.runs.witness import Witness
from modeler_service.settings import Settings
from service_kit.background import Background
from service_kit.context.context import ServiceContext

log = logging.getLogger("blindopt.runs")
LISTENERS_MAX = 32
"""Runs that are listened for at once; others look now and then."""
LISTEN_SECONDS = 25.0
AT_ONCE_SECONDS = 1.0
"""A curator that has no news and replies within this time does not wait: it is of an earlier version."""


class AnswerListener:
    """One thread for each run that waits for people. It only asks for news: ``wake`` lets the run fetch its answers."""

    def __init__(self, context: ServiceContext, settings: Settings, wake: Callable[[str], None]) -> None:
        self._context, self._settings, self._wake = context, settings, wake
        self._lock = threading.Lock()
        self._listening: set[str] = set()
        self._seen: dict[str, int] = {}
        """The last revision that was seen, by run."""
        self._without_waits: set[str] = set()
        """Runs whose curator does not wait."""
        self._closing = threading.Event()

    def close(self) -> None:
        self._closing.set()

    def listen(self, run_id: str) -> None:
        """Listen for answers to a run that waits for people, unless it is listened for already or too many are."""
        with self._lock:
            if run_id in self._listening or run_id in self._without_waits or len(self._listening) >= LISTENERS_MAX:
                return
            self._listening.add(run_id)
        Background("listen", partial(self._serve, run_id)).start()

    def _serve(self, run_id: str) -> None:
        is_news = is_over = False
        try:
            is_news = self._follow(run_id)
            is_over = not is_news
        except Exception as error:  # the run looks by itself later, and reports what is wrong
            log.info("listening for answers failed", extra={"fields": {"run": run_id, "kind": type(error).__name__}})
        finally:
            with self._lock:
                self._listening.discard(run_id)
        if self._closing.is_set():
            return
        if is_news:
            self._wake(run_id)
        elif is_over and self._waits(run_id):  # it began to wait again just before this listener ended
            self.listen(run_id)

    def _waits(self, run_id: str) -> bool:
        with self._context.database.read() as db:
            row = store.find_run(db, run_id)
        return (row.state, row.waiting_for) == ("waiting", "people")

    def _follow(self, run_id: str) -> bool:
        """Wait until an answer to the run is published; False if it waits for people no longer."""
        with self._context.database.read() as db:
            row = store.find_run(db, run_id)
        spec, token = row.settings, self._context.seal.open(row.sealed_token).decode()
        witness = Witness(self._context, spec.study_id, run_id, is_run_query)
        seen = max(row.revision, self._seen.get(run_id, 0))
        with connect(self._settings, spec, token, witness, cancelled=self._closing.is_set) as curator:
            while not self._closing.is_set():
                with self._context.database.read() as db:
                    pending = store.pending_queries(db, run_id)
                if not self._waits(run_id):
                    return False
                began = time.monotonic()
                page = curator.news(seen, wait_s=LISTEN_SECONDS)
                if page is not None:
                    if not page.revisions and time.monotonic() - began < AT_ONCE_SECONDS:
                        self._without_waits.add(run_id)
                        return False
                    seen = self._seen[run_id] = max([seen, *(revision.seq for revision in page.revisions)])
                    if any(revision.query_id in pending for revision in page.revisions):
                        return True
                self._closing.wait(max(0.0, began + AT_ONCE_SECONDS - time.monotonic()))
        return False
