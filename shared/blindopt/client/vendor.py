"""A vendor's runs at a modeler: start, wait, look, compare, hand over."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blindopt import bodies, display, wire
from blindopt.arguments import checked, checked_methods
from blindopt.client import plots
from blindopt.client.connection import ServiceClient, new_key, wait_until_ended
from blindopt.errors import Invalid
from blindopt.formats.text_files import file_errors, read_text_file
from blindopt.offers import Offer
from blindopt.wire.base import parsed

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HELD_S = 20.0
"""How long one request waits for the end of a run: less than what proxies allow."""
SHOWN_S, POLL_S = 0.5, 0.05
"""How often the progress of a run is shown, and the least time between two reads of one that does not wait."""
TRIAL_COLUMNS = ("number", "phase", "row", "y", "mean", "sd", "acquisition", "declined", "answered_at")


@checked
def read_grant(grant: str | Path | wire.GrantFile) -> wire.GrantFile:
    """Read the file grant.json that an owner sent. Raises Invalid if it is something else."""
    if isinstance(grant, wire.GrantFile):
        return grant
    with file_errors(f"the grant file {grant}"):
        content = read_text_file(grant).encode()
    try:
        file: wire.GrantFile = bodies.parse(content, wire.GrantFile)
    except Invalid as error:
        raise Invalid(f"{grant} is no grant file: {error}") from None
    return file


@checked_methods
class Vendor(ServiceClient):
    """A modeler, by its address and a vendor's token: every request there is.

    >>> vendor = bo.Vendor("http://127.0.0.1:8420", token)  # doctest: +SKIP
    >>> run = vendor.start("grant.json", queries=7, seed=7).wait()  # doctest: +SKIP
    """

    _start = ", and that the service runs: `blindopt-modeler serve` starts it"

    def start(
        self,
        grant: str | Path | wire.GrantFile | wire.RunCreate,
        *,
        queries: int | None = None,
        algorithm: str | wire.AlgorithmChoice = "auto",
        seed: int | None = None,
        name: str = "run",
        initial_rows: int | None = None,
        batch_size: int = 1,
        stop: wire.StopRules | Mapping[str, Any] | None = None,
        continue_from: str | None = None,
        curator_url: str | None = None,
        key: str | None = None,
        **settings: Any,
    ) -> "Run":
        """Start a run under a ``grant`` file. ``settings`` are further ones of ``POST /v1/runs``, such as ``fit``.

        ``seed`` makes its choices repeatable, ``name`` is for people, ``algorithm``, ``queries``, ``initial_rows``,
        ``batch_size`` and ``stop`` as of ``Optimizer``; without ``queries`` a run asks for all that the owner allows,
        or 50 after the initial ones without a cap. ``continue_from`` is the id of an earlier run of the study,
        whose answers this one begins with. ``curator_url`` reaches the curator at another address than the grant's. A
        RunCreate in place of the grant says all of this by itself. Raises Invalid for settings that no run has, Remote,
        and Unreachable.
        """
        if isinstance(grant, wire.RunCreate):
            return Run(self, self._post("/v1/runs", wire.RunView, grant, key))
        file = read_grant(grant)
        named = {"name": algorithm} if isinstance(algorithm, str) else algorithm
        access = file.access.model_dump() | ({} if curator_url is None else {"curator_url": curator_url})
        settings |= {"algorithm": named, "queries": queries, "seed": seed, "name": name, "initial_rows": initial_rows}
        settings |= {"batch_size": batch_size, "stop": stop or {}, "continue_from": continue_from}
        body = parsed(wire.RunCreate, access | settings, {"algorithm.name": "algorithm"})
        if body.queries is None and "iterations" not in settings and (offer := self._offer(body)[0]) is not None:
            body = body.model_copy(update={"queries": offer.queries})
        return Run(self, self._post("/v1/runs", wire.RunView, body, key))

    def run(self, run_id: str) -> "Run":
        """A run, by its id, such as one that was started earlier."""
        return Run(self, self._read(run_id))

    def _read(self, run_id: str, *, wait_s: float = 0.0) -> wire.RunView:
        params = {"wait": wait_s} if wait_s else None
        return self._send("GET", f"/v1/runs/{run_id}", params=params, longer_s=wait_s).check().read(wire.RunView)

    def runs(self) -> list["Run"]:
        """All runs, oldest first."""
        return [Run(self, view) for page in self._pages("/v1/runs", wire.RunPage) for view in page.runs]

    def offer(self, grant: str | Path | wire.GrantFile) -> Offer:
        """What the owner of a ``grant`` offers: candidates, answers, caps, and what your runs used. Charges nothing.

        Raises Invalid if the study cannot be reached with it, and says why.
        """
        offer, report = self._offer(read_grant(grant).access)
        if offer is None:
            raise Invalid("; ".join(step.detail for step in report.steps if step.state == "failed"))
        return offer

    def _offer(self, access: wire.StudyAccess | wire.RunCreate) -> tuple[Offer | None, wire.ConnectionReport]:
        """The offer, or None if the study was not reached; and the test of the connection."""
        access = wire.StudyAccess(**{name: getattr(access, name) for name in wire.StudyAccess.model_fields})
        report = self._post("/v1/connections:test", wire.ConnectionReport, access)
        if report.study is None or not report.ok:
            return None, report
        used = [run.view.trials for run in self.runs() if run.view.study_id == report.study.id]
        return Offer(report.study, sum(used)), report

    def compare(self, *runs: "Run") -> "Comparison":
        """Several ``runs`` beside each other."""
        return Comparison(runs)

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
        """Continue a run with another ``token`` of its grant."""
        return self._post(
            f"/v1/runs/{run_id}:replace_token", wire.RunView, parsed(wire.TokenReplacement, {"token": token})
        )

    def wait(self, run_id: str, *, timeout_s: float) -> wire.RunView:
        """Wait until a run has ended. Raises StillRunning after ``timeout_s``."""
        return self.run(run_id).wait(timeout_s=timeout_s).view

    def recommendation(self, run_id: str, over: str = "asked") -> wire.Recommendation:
        """The run's recommendation so far; ``over``: the best of the queried candidates ("asked"), or of "all"."""
        return self._get(f"/v1/runs/{run_id}/recommendation", wire.Recommendation, over=over)

    def send_message(
        self, run_id: str, message: wire.RecommendationWish | wire.BudgetMessage, *, key: str | None = None
    ) -> wire.RunMessage:
        """Hand over a run's recommendation to the owner of its study, or request more budget."""
        return self._post(f"/v1/runs/{run_id}/messages", wire.RunMessage, message, key)

    def update_message(self, run_id: str, number: int) -> wire.RunMessage:
        """Send message ``number`` if it has not arrived, or read the owner's decision."""
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
        """Import past measurements into a run that was created with ``hold``; ``dry_run`` only checks them."""
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


@checked_methods
class Run(display.Shown):
    """A run at a modeler. ``view`` is what the modeler last said of it; ``refresh`` reads it again.

    >>> print(run.recommendation)  # doctest: +SKIP
    """

    def __init__(self, vendor: Vendor, view: wire.RunView) -> None:
        self._vendor, self.view = vendor, view

    @property
    def id(self) -> str:
        """Identifies the run: ``vendor.run(id)`` returns it again."""
        return self.view.id

    @property
    def state(self) -> str:
        """The state when the run was last read."""
        return self.view.state

    def refresh(self, *, wait_s: float = 0.0) -> "Run":
        """Read the run again; with ``wait_s``, as soon as it has ended or is paused, or after so long."""
        self.view = self._vendor._read(self.id, wait_s=wait_s)
        return self

    def wait(self, *, progress: bool = False, timeout_s: float | None = None) -> "Run":
        """Wait until the run has ended; show how far it is with ``progress``. Raises StillRunning after ``timeout_s``.

        A run that is paused, or whose records people measure, has not ended.
        """
        until = time.monotonic() + (math.inf if timeout_s is None else timeout_s)
        held_s = SHOWN_S if progress else HELD_S
        with display.progress(self.view.name, show=progress) as report:

            def look() -> wire.RunView:
                view = self.refresh(wait_s=min(held_s, max(0.0, until - time.monotonic()))).view
                report(view.trials + view.declined, view.queries_max, self._words())
                return view

            wait_until_ended(look, f"run {self.id}", timeout_s=timeout_s, poll_s=POLL_S)
        return self

    def _words(self) -> str:
        best = self.view.best
        return self.state if best is None else f"{self.state}, best {best.y:.6g}"

    def stop(self) -> "Run":
        """End the run after its current query."""
        return self._act(self._vendor.stop)

    def pause(self) -> "Run":
        """Halt the run after its current query."""
        return self._act(self._vendor.pause)

    def resume(self) -> "Run":
        """Continue the run; one that waits looks again at once."""
        return self._act(self._vendor.resume)

    def _act(self, act: Callable[[str], wire.RunView]) -> "Run":
        self.view = act(self.id)
        return self

    @property
    def recommendation(self) -> wire.Recommendation:
        """The best of the queried candidates after the answers so far, with its interval. Raises Remote before one."""
        return self._vendor.recommendation(self.id)

    def posterior(self) -> "pd.DataFrame":
        """What the model expects of each candidate, by its number: a DataFrame with mean and sd.

        Raises ExtraMissing without pandas, and Remote before the first answer.
        """
        pages = self._vendor._pages(f"/v1/runs/{self.id}/posterior", wire.PosteriorPage)
        points = [point.model_dump() for page in pages for point in page.points]
        return display.frame(points, ["row", "mean", "sd"]).set_index("row")

    @property
    def export(self) -> wire.RunExport:
        """All that is needed to redo the run: settings, study, trials, answer versions."""
        return self._vendor.export(self.id)

    @property
    def trials(self) -> "pd.DataFrame":
        """The trials as a pandas DataFrame, by number. Raises ExtraMissing without pandas."""
        rows = [trial.model_dump() for trial in self.export.trials]
        columns = [*TRIAL_COLUMNS, "noise_variance"]
        for row in rows:
            passport = row["passport"]
            row["noise_variance"] = passport and passport["measurement_variance"] + (
                passport["privacy"]["variance"] or 0
            )
        return display.frame([{name: row[name] for name in columns} for row in rows], columns).set_index("number")

    def plot(self, axes: "Axes | None" = None) -> "Axes":
        """Plot outcomes, the best so far, and what was expected on ``axes`` of matplotlib: new ones if None."""
        return plots.course({self.view.name: self.export}, axes)

    def plot_model(self, axes: "Axes | None" = None) -> "Axes":
        """Plot what the model expects of each candidate, by the first two principal axes of the release.

        ``axes`` are those of matplotlib: new ones if None.
        """
        return plots.landscape(self._vendor._get(f"/v1/runs/{self.id}/map", wire.PosteriorMap), axes)

    def plot_relevance(self, axes: "Axes | None" = None) -> "Axes":
        """Plot how much of what the model expects each column, or principal axis, of the release explains.

        ``axes`` are those of matplotlib: new ones if None.
        """
        return plots.relevance(self._slices(), axes)

    def plot_slices(self) -> "Figure":
        """Plot what the model expects along the four axes of the release that explain most, in a figure of its own."""
        return plots.slices(self._slices())

    def _slices(self) -> wire.PosteriorSlices:
        return self._vendor._get(f"/v1/runs/{self.id}/slices", wire.PosteriorSlices)

    def hand_over(self, note: str | None = None) -> wire.RunMessage:
        """Send the recommendation to the owner of the study, with a ``note``."""
        message = parsed(wire.RecommendationWish, {"kind": "recommendation", "note": note})
        return self._vendor.send_message(self.id, message)

    def __repr__(self) -> str:
        return f"Run({self.id}, {self.state}, {self.view.trials} trials)"

    def _tables(self) -> list[display.Table]:
        return Comparison([self])._tables()


@checked_methods
class Comparison(display.Shown):
    """Runs beside each other.

    >>> vendor.compare(run).rows  # doctest: +SKIP
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = list(runs)
        if not all(isinstance(run, Run) for run in self.runs):
            raise Invalid.at("runs", "must be runs of a vendor, such as vendor.runs()")

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each run: its name, state, trials, and recommendation."""
        rows = []
        for run in self.runs:
            view, best = run.view, run.view.recommendation
            rows.append(
                {
                    "id": view.id,
                    "name": view.name,
                    "algorithm": view.plan.algorithm.name if view.plan else view.algorithm.name,
                    "state": view.state,
                    "trials": view.trials,
                    "best y": view.best.y if view.best else None,
                    "recommended": best.row if best else None,
                    "mean": best.mean if best else None,
                    "sd": best.sd if best else None,
                }
            )
        return rows

    @property
    def frame(self) -> "pd.DataFrame":
        """The rows as a pandas DataFrame. Raises ExtraMissing without pandas."""
        return display.frame(self.rows, list(self.rows[0]) if self.rows else [])

    @property
    def trials(self) -> "pd.DataFrame":
        """All trials in one pandas DataFrame, by run and number. Raises ExtraMissing without pandas."""
        frames = {run.id: run.trials for run in self.runs}
        return display.pandas().concat(frames, names=["run"]) if frames else display.frame([], TRIAL_COLUMNS)

    def plot(self, axes: "Axes | None" = None) -> "Axes":
        """Plot the best outcome so far of every run on ``axes`` of matplotlib: new ones if None."""
        return plots.course({f"{run.view.name} {run.id[-4:]}": run.export for run in self.runs}, axes)

    def _tables(self) -> list[display.Table]:
        rows = self.rows
        return [display.Table(list(rows[0]) if rows else [], [list(row.values()) for row in rows])]
