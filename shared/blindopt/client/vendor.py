"""A vendor's client of the modeler."""

import time
from typing import Any

from blindopt import wire
from blindopt.client.connection import ServiceClient, new_key, wait_until_ended

HELD_S = 20.0
"""How long one request waits for the end of a run: less than what proxies allow."""


class VendorClient(ServiceClient):
    """A vendor's view of a modeler."""

    def start(self, run: wire.RunCreate, *, key: str | None = None) -> wire.RunView:
        """Queue a run."""
        return self._post("/v1/runs", wire.RunView, run, key)

    def run(self, run_id: str, *, wait_s: float = 0.0) -> wire.RunView:
        """A run and its progress; with ``wait_s`` (up to 60), as soon as it has ended or is paused, or after so long.

        A modeler of an earlier version does not wait.
        """
        params = {"wait": wait_s} if wait_s else None
        return self._send("GET", f"/v1/runs/{run_id}", params=params, longer_s=wait_s).check().read(wire.RunView)

    def runs(self) -> list[wire.RunView]:
        """All runs, oldest first."""
        return [run for page in self._pages("/v1/runs", wire.RunPage) for run in page.runs]

    def stop(self, run_id: str) -> wire.RunView:
        """End a run after its current query."""
        return self._post(f"/v1/runs/{run_id}:stop", wire.RunView)

    def pause(self, run_id: str) -> wire.RunView:
        """Halt a run after its current query, until it is resumed."""
        return self._post(f"/v1/runs/{run_id}:pause", wire.RunView)

    def resume(self, run_id: str) -> wire.RunView:
        """Continue a paused run; a waiting run retries at once."""
        return self._post(f"/v1/runs/{run_id}:resume", wire.RunView)

    def replace_token(self, run_id: str, token: str) -> wire.RunView:
        """Continue a run with another token of its grant."""
        return self._post(f"/v1/runs/{run_id}:replace_token", wire.RunView, wire.TokenReplacement(token=token))

    def wait(self, run_id: str, *, timeout_s: float, poll_s: float = 0.05) -> wire.RunView:
        """Wait until the run has ended; Unreachable after ``timeout_s``. ``poll_s``: for a modeler that cannot wait."""
        until = time.monotonic() + timeout_s

        def look() -> wire.RunView:
            return self.run(run_id, wait_s=min(HELD_S, max(0.0, until - time.monotonic())))

        return wait_until_ended(look, f"run {run_id}", timeout_s=timeout_s, poll_s=poll_s)

    def recommendation(self, run_id: str, over: str = "asked") -> wire.Recommendation:
        """The run's recommendation after the answers so far: the best of the queried candidates, or of all."""
        return self._get(f"/v1/runs/{run_id}/recommendation", wire.Recommendation, over=over)

    def send_message(
        self, run_id: str, wish: wire.RecommendationWish | wire.BudgetMessage, *, key: str | None = None
    ) -> wire.RunMessage:
        """Hand over a run's recommendation to the owner of its study, or request more budget."""
        return self._post(f"/v1/runs/{run_id}/messages", wire.RunMessage, wish, key)

    def update_message(self, run_id: str, number: int) -> wire.RunMessage:
        """Send a message that has not arrived, or read the owner's decision."""
        return self._post(f"/v1/runs/{run_id}/messages/{number}:update", wire.RunMessage)

    def messages(self, run_id: str) -> list[wire.RunMessage]:
        """Messages of a run."""
        pages = self._pages(f"/v1/runs/{run_id}/messages", wire.RunMessagePage)
        return [message for page in pages for message in page.messages]

    def posterior(self, run_id: str, **params: Any) -> wire.PosteriorPage:
        """Posterior moments of f by row; ``params`` are ``page_token`` and ``page_size``, or ``top``."""
        return self._get(f"/v1/runs/{run_id}/posterior", wire.PosteriorPage, **params)

    def import_observations(
        self, run_id: str, observations: wire.ObservationImport, *, dry_run: bool = False, key: str | None = None
    ) -> wire.ImportReport:
        """Import past measurements into a run that was created with ``hold``."""
        params = {"dry_run": "true" if dry_run else "false"}
        body, path = observations.model_dump_json().encode(), f"/v1/runs/{run_id}/observations"
        reply = self._send("POST", path, params=params, body=body, key=key or new_key())
        return reply.check().read(wire.ImportReport)

    def export(self, run_id: str) -> wire.RunExport:
        """Everything needed to redo a run."""
        return self._get(f"/v1/runs/{run_id}/export", wire.RunExport, format="json")

    def export_csv(self, run_id: str) -> str:
        """The trials as CSV."""
        return self._send("GET", f"/v1/runs/{run_id}/export", params={"format": "csv"}).check().body.decode()
