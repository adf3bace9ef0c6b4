"""A vendor's client of the modeler."""

import time
from collections.abc import Iterator
from typing import Any

from blindopt import wire
from blindopt.client.connection import Client, new_key
from blindopt.client.pages import audit_entries, notices_of, paged
from blindopt.errors import Unreachable


class VendorClient(Client):
    """A vendor's view of a modeler."""

    def start(self, run: wire.RunCreate, *, key: str | None = None) -> wire.RunView:
        """Queue a run."""
        return self._post("/v1/runs", wire.RunView, run, key)

    def run(self, run_id: str) -> wire.RunView:
        """How far a run is."""
        return self._get(f"/v1/runs/{run_id}", wire.RunView)

    def runs(self) -> list[wire.RunView]:
        """All runs, oldest first."""
        pages = paged(lambda token: self._get("/v1/runs", wire.RunPage, page_token=token, page_size=1_000))
        return [run for page in pages for run in page.runs]

    def stop(self, run_id: str) -> wire.RunView:
        """End a run after the query under way."""
        return self._post(f"/v1/runs/{run_id}:stop", wire.RunView)

    def pause(self, run_id: str) -> wire.RunView:
        """Halt a run after the query under way, until it is resumed."""
        return self._post(f"/v1/runs/{run_id}:pause", wire.RunView)

    def resume(self, run_id: str) -> wire.RunView:
        """Let a paused run go on, and one that waits try at once."""
        return self._post(f"/v1/runs/{run_id}:resume", wire.RunView)

    def replace_token(self, run_id: str, token: str) -> wire.RunView:
        """Let a run go on under another token of its grant."""
        return self._post(f"/v1/runs/{run_id}:replace_token", wire.RunView, wire.TokenReplacement(token=token))

    def wait(self, run_id: str, *, timeout_s: float, poll_s: float = 0.05) -> wire.RunView:
        """Ask until the run has ended; Unreachable after ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while (run := self.run(run_id)).ended_at is None:
            if time.monotonic() > deadline:
                raise Unreachable(f"run {run_id} has not ended within {timeout_s} s")
            time.sleep(poll_s)
        return run

    def recommendation(self, run_id: str, over: str = "asked") -> wire.Recommendation:
        """The row to take by the answers so far."""
        return self._get(f"/v1/runs/{run_id}/recommendation", wire.Recommendation, over=over)

    def posterior(self, run_id: str, **chosen: Any) -> wire.PosteriorPage:
        """What is believed of f: ``page_token`` and ``page_size``, or ``top``."""
        return self._get(f"/v1/runs/{run_id}/posterior", wire.PosteriorPage, **chosen)

    def import_observations(
        self, run_id: str, told: wire.ObservationImport, *, dry_run: bool = False, key: str | None = None
    ) -> wire.ImportReport:
        """Give a run that was created with ``hold`` what was measured before."""
        params = {"dry_run": "true" if dry_run else "false"}
        body, path = told.model_dump_json().encode(), f"/v1/runs/{run_id}/observations"
        reply = self._send("POST", path, params=params, body=body, key=key or new_key())
        return reply.check().read(wire.ImportReport)

    def export(self, run_id: str) -> wire.RunExport:
        """Everything needed to redo a run."""
        return self._get(f"/v1/runs/{run_id}/export", wire.RunExport, format="json")

    def export_csv(self, run_id: str) -> str:
        """The trials as CSV."""
        return self._send("GET", f"/v1/runs/{run_id}/export", params={"format": "csv"}).check().body.decode()

    def suggest(self, asked: wire.SuggestionRequest) -> wire.SuggestionReply:
        """Rows to ask next, without a run."""
        body = asked.model_dump_json().encode()
        return self._send("POST", "/v1/suggestions", body=body).check().read(wire.SuggestionReply)

    def notices(self) -> list[wire.NoticeView]:
        """Every notice that is kept, oldest first."""
        return notices_of(self._get)

    def test_notices(self) -> wire.NoticeTest:
        """Send a test notice to the modeler's receiver."""
        return self._post("/v1/notices:test", wire.NoticeTest)

    def audit(self, grant_id: str | None = None) -> Iterator[wire.AuditEntry]:
        """The whole log, or the modeler's copy of the shared one of a grant."""
        yield from audit_entries(self._get, grant_id)
