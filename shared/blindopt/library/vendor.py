"""A vendor's runs at a modeler: start, wait, look, compare, hand over."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from blindopt import wire
from blindopt.client import VendorClient, new_key
from blindopt.errors import StillRunning
from blindopt.library import display, plots
from blindopt.library.checks import checked
from blindopt.library.service import Service
from blindopt.library.study import read_grant

POLL_S = 0.5
TRIAL_COLUMNS = ("number", "phase", "row", "y", "mean", "sd", "acquisition", "declined", "answered_at")


class Vendor(Service[VendorClient]):
    """A modeler, with a vendor's token. ``Service`` describes the parameters."""

    client_type = VendorClient

    def start(
        self,
        grant: str | Path | wire.GrantFile,
        *,
        iterations: int = 50,
        algorithm: str | wire.AlgorithmChoice = "auto",
        seed: int | None = None,
        name: str = "run",
        curator_url: str | None = None,
        **settings: Any,
    ) -> "Run":
        """Start a run under a grant file. ``settings`` are further ones of ``POST /v1/runs``, such as ``stop``.

        ``iterations`` is the number of queries after the initial ones; ``curator_url`` reaches the curator at another
        address than the grant's. Raises Invalid for settings that no run has, Remote, and Unreachable.
        """
        given = read_grant(grant)
        named = {"name": algorithm} if isinstance(algorithm, str) else algorithm
        chosen = {"algorithm": named, "iterations": iterations, "seed": seed, "name": name} | settings
        chosen = {key: _plain(value) for key, value in chosen.items()}
        access = {"curator_url": curator_url or given.curator_url, "study_id": given.study_id, "token": given.token}
        with checked():
            spec = wire.RunCreate.model_validate(access | {"log_key": given.log_key} | chosen)
        return Run(self, self.client.start(spec, key=new_key()))

    def run(self, identity: str) -> "Run":
        """Return a run by its id, such as one that was started earlier."""
        return Run(self, self.client.run(identity))

    def runs(self) -> list["Run"]:
        """Return all runs, oldest first."""
        return [Run(self, view) for view in self.client.runs()]

    def compare(self, *runs: "Run") -> "Comparison":
        """Return several runs beside each other."""
        return Comparison(runs)


class Run:
    """A run at a modeler. ``view`` is what the modeler last said of it; ``refresh`` reads it again."""

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
        self.view = self._vendor.client.run(self.id, wait_s=wait_s)
        return self

    def wait(self, *, progress: bool = False, timeout_s: float | None = None) -> "Run":
        """Wait until the run has ended; show how far it is with ``progress``. Raises StillRunning after ``timeout_s``.

        A run that is paused, or whose records people measure, has not ended.
        """
        begin = time.monotonic()
        with display.progress(self.view.name, show=progress) as report:
            sent_at = begin
            while self.refresh(wait_s=POLL_S).view.ended_at is None:
                report(self.view.trials + self.view.declined, self._trials_max(), self._words())
                now = time.monotonic()
                if timeout_s is not None and now - begin > timeout_s:
                    raise StillRunning(f"run {self.id} is {self.state} after {timeout_s} s")
                time.sleep(max(0.0, min(max(0.05, (now - begin) / 10), POLL_S) - (now - sent_at)))
                sent_at = time.monotonic()
            report(self.view.trials + self.view.declined, self._trials_max(), self._words())
        return self

    def _trials_max(self) -> int:
        """How many it plans: before it knows the study, without the initial candidates that its plan may add."""
        plan = self.view.plan
        return self.view.iterations + (plan.initial_rows if plan is not None else self.view.initial_rows or 0)

    def _words(self) -> str:
        best = self.view.best
        return self.state if best is None else f"{self.state}, best {best.y:.6g}"

    def stop(self) -> "Run":
        """End the run after its current query."""
        return self._act(self._vendor.client.stop)

    def pause(self) -> "Run":
        """Halt the run after its current query."""
        return self._act(self._vendor.client.pause)

    def resume(self) -> "Run":
        """Continue the run; one that waits looks again at once."""
        return self._act(self._vendor.client.resume)

    def _act(self, act: Callable[[str], wire.RunView]) -> "Run":
        self.view = act(self.id)
        return self

    @property
    def recommendation(self) -> wire.Recommendation:
        """The best of the queried candidates after the answers so far, with its interval. Raises Remote before one."""
        return self._vendor.client.recommendation(self.id)

    @property
    def export(self) -> wire.RunExport:
        """All that is needed to redo the run: settings, study, trials, answer versions."""
        return self._vendor.client.export(self.id)

    @property
    def trials(self) -> Any:
        """The trials as a pandas DataFrame, by number. Raises ExtraMissing without pandas."""
        rows = [trial.model_dump() for trial in self.export.trials]
        columns = [*TRIAL_COLUMNS, "noise_variance"]
        for row in rows:
            passport = row["passport"]
            row["noise_variance"] = passport and passport["measurement_variance"] + (
                passport["privacy"]["variance"] or 0
            )
        table = display.frame([{name: row[name] for name in columns} for row in rows], columns)
        return table.set_index("number")

    def plot(self, axes: Any = None) -> Any:
        """Plot outcomes, the best so far, and what was expected; return the matplotlib Axes. Needs ``plots``."""
        return plots.course({self.view.name: self.export}, axes)

    def hand_over(self, note: str | None = None) -> wire.RunMessage:
        """Send the recommendation to the owner of the study."""
        with checked():
            wish = wire.RecommendationWish(kind="recommendation", note=note)
        return self._vendor.client.send_message(self.id, wish, key=new_key())

    def __repr__(self) -> str:
        return f"Run({self.id}, {self.state}, {self.view.trials} trials)"

    def _repr_html_(self) -> str:
        return Comparison([self])._repr_html_()


class Comparison:
    """Runs beside each other."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = list(runs)

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
    def frame(self) -> Any:
        """The rows as a pandas DataFrame. Raises ExtraMissing without pandas."""
        return display.frame(self.rows, list(self.rows[0]) if self.rows else [])

    def plot(self, axes: Any = None) -> Any:
        """Plot the best outcome so far of every run; return the matplotlib Axes. Needs ``plots``."""
        return plots.course({f"{run.view.name} {run.id[-4:]}": run.export for run in self.runs}, axes)

    def _repr_html_(self) -> str:
        rows = self.rows
        return display.table(list(rows[0]) if rows else [], [list(row.values()) for row in rows])


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump()
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
