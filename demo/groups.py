"""`make demo ARGS=--groups`: in which place do houses sell best? Whole records are protected, and a search still works.

Both services run the search without privacy, over groups of houses at epsilon 1 and 0.5, at random over the same
groups, and over houses with planar Laplace noise for the diameter of the box, which promises the same as the groups.
"""

import argparse
import csv
import io
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.table import Table

from blindopt import wire
from blindopt.arrays import Vector
from blindopt.client import Owner, Vendor
from demo import report
from demo.parties import start_services, status_of
from demo.property_data import FEATURES, OUTCOME, csv_bytes

PARTS, QUERIES, FIRST, SECONDS = 20, 50, 5, 900.0
LEAST = 20
"""Sales of a group that counts: a mean of fewer says little of a place."""
CENTRE, BOUND = 5.75, 0.75
"""Prices are clipped to 100,000 and 3.2 million US dollars, public bounds: 5.0 to 6.5 in log10."""
BOX = [feature.model_copy(update={"scale": None}) for feature in FEATURES[:2]]
DIAMETER = 2.0**0.5
"""Of the box, whose sides are 1 each in scaled units."""
MIN_COUNTS = {"1": 24, "0.5": 48}
"""At these an empty group passes seldom: scale of the noise times log(400)."""
PLANAR, OPEN = "planar_laplace, whole records", "non-private, means of groups"
RANDOM, GROUPS = "groups, random", "groups"


@dataclass(frozen=True, slots=True)
class Method:
    """A line of the table: what a study of it releases, and the vendor's algorithm."""

    name: str
    promise: str
    release: wire.ReleaseSpec
    epsilon: str | None = None
    """Of a record, in all."""
    is_random: bool = False

    def study(self, dataset_id: str) -> wire.StudyCreate:
        """A study of this kind."""
        answers: wire.Answers = wire.NONE
        budget = wire.Budget(queries=QUERIES)
        if self.epsilon is not None:
            half = _half(self.epsilon)
            answers = wire.LaplaceAnswers(mechanism="laplace", epsilon=half, value_bound=BOUND, centre=CENTRE)
            budget = wire.Budget(queries=QUERIES, epsilon_per_row=self.epsilon)
        return wire.StudyCreate(
            name=self.name,
            dataset_id=dataset_id,
            features=BOX,
            measurement=wire.ColumnMeasurement(column=OUTCOME, direction="maximize"),
            release=self.release,
            answers=answers,
            budget=budget,
        )


def _half(epsilon: str) -> str:
    return repr(float(epsilon) / 2)


def methods() -> list[Method]:
    """The lines of the table."""

    def of(epsilon: str) -> wire.GroupsRelease:
        cells = wire.GridCells(kind="grid", parts=[PARTS, PARTS])
        return wire.GroupsRelease(
            mechanism="groups", epsilon=_half(epsilon), cells=cells, min_count=MIN_COUNTS[epsilon]
        )

    planar = wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon=_half("1"), sensitivity=DIAMETER)
    lines = [Method(OPEN, "nothing", wire.IdentityRelease(mechanism="identity"))]
    lines += [Method(GROUPS, f"{e}-DP of whole records", of(e), e) for e in MIN_COUNTS]
    lines.append(Method(RANDOM, "1-DP of whole records", of("1"), "1", is_random=True))
    return [*lines, Method(PLANAR, "1-DP of whole records", planar, "1")]


class Sales:
    """The sales by group, which the demo knows because they are public."""

    def __init__(self) -> None:
        rows = list(csv.DictReader(io.StringIO(csv_bytes().decode())))
        y = np.array([float(row[OUTCOME]) for row in rows])
        group = self.group(*(np.array([float(row[feature.column]) for row in rows]) for feature in BOX))
        self.size = np.bincount(group, minlength=PARTS**2)
        self.mean = np.bincount(group, y, minlength=PARTS**2) / np.maximum(self.size, 1)

    @staticmethod
    def group(*values: Vector) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        """The group of each place."""
        shares = [(at - f.lower) / (f.upper - f.lower) for at, f in zip(values, BOX, strict=True)]
        parts = [np.clip((share * PARTS).astype(np.int64), 0, PARTS - 1) for share in shares]
        return np.ravel_multi_index((parts[0], parts[1]), (PARTS, PARTS)).astype(np.int64)

    def regret(self, point: list[float]) -> float:
        """The best true mean of a group that counts, minus that of a place's; of an empty one, that of the worst."""
        (group,) = self.group(*(np.array([at]) for at in point))
        mean = self.mean[group] if self.size[group] else self.mean[self.size > 0].min()
        return float(self.mean[self.size >= LEAST].max() - mean)

    def centres_csv(self) -> bytes:
        """The groups that count, as a table: for the search without privacy."""
        lines = [",".join([*(feature.column for feature in BOX), OUTCOME])]
        for group in np.flatnonzero(self.size >= LEAST):
            sides = zip(BOX, np.unravel_index(group, (PARTS, PARTS)), strict=True)
            centre = [f.lower + (k + 0.5) / PARTS * (f.upper - f.lower) for f, k in sides]
            lines.append(",".join(repr(float(value)) for value in (*centre, self.mean[group])))
        return "\n".join(lines).encode()


def play(
    owner: Owner, vendor: Vendor, curator_url: str, seeds: range, watch: Callable[[str], None]
) -> Iterator[tuple[Method, list[float]]]:
    """The regret of each method's recommendation, by seed. Every run has a study, and so a draw, of its own."""
    sales, columns = Sales(), [*(feature.column for feature in BOX), OUTCOME]
    private = owner.register("King County house sales", csv_bytes(), columns=columns).id
    public = owner.register("their groups", sales.centres_csv(), public=True).id
    for method in methods():
        regrets = []
        for seed in seeds:
            watch(f"{method.name}, {method.epsilon or 'no privacy'}: run {seed - seeds.start + 1} of {len(seeds)}")
            study = owner.create_study(method.study(public if method.epsilon is None else private)).id
            owner.release(study)
            token = owner.grant(study, wire.GrantCreate(name="vendor")).token
            regrets.append(sales.regret(_chosen(owner, vendor, study, _run(method, curator_url, study, token, seed))))
        yield method, regrets


def _run(method: Method, curator_url: str, study_id: str, token: str, seed: int) -> wire.RunCreate:
    algorithm: wire.AlgorithmChoice = wire.RandomRows(name="random") if method.is_random else wire.Auto(name="auto")
    return wire.RunCreate(
        name=method.name,
        curator_url=curator_url,
        study_id=study_id,
        token=token,
        algorithm=algorithm,
        initial_rows=0 if method.is_random else FIRST,
        iterations=QUERIES if method.is_random else QUERIES - FIRST,
        seed=seed,
    )


def _chosen(owner: Owner, vendor: Vendor, study_id: str, spec: wire.RunCreate) -> list[float]:
    """The place that a run recommends: a group's centre, or a record's."""
    run = vendor.wait(vendor.start(spec).id, timeout_s=SECONDS)
    if run.state != "completed" or run.recommendation is None:
        raise RuntimeError(f"run {run.id} ({run.name}) is {run.state}: {run.problem}")
    row = run.recommendation.row
    study = owner.study(study_id)
    if study.view.spec.release.mechanism == GROUPS:
        return study.open_group(row).centre
    record = study.open_record(row)
    return [float(record[feature.column]) for feature in BOX]


def main(arguments: list[str] | None = None) -> int:
    """Run the methods; return 0 if the table was printed. ``arguments`` replace those of the command line."""
    options = argparse.ArgumentParser(prog="python -m demo --groups", description=__doc__)
    options.add_argument("--runs", type=int, default=5, help="runs of each method, each with its own draws (default 5)")
    options.add_argument("--seed", type=int, default=0, help="seed of the first run (default 0)")
    options.add_argument("--json", type=Path, metavar="FILE", help="write the regrets to FILE")
    chosen = options.parse_args(arguments)
    if chosen.runs < 1:
        options.error("--runs must be at least 1")
    console = report.console()

    def play_all() -> None:
        with (
            tempfile.TemporaryDirectory(prefix="blindopt-groups-") as folder,
            start_services(Path(folder)) as (curator, modeler),
            Owner(curator.url, curator.token, timeout_s=300, plain_http=True) as owner,
            Vendor(modeler.url, modeler.token, plain_http=True) as vendor,
            console.status("starting ...") as status,
        ):
            seeds = range(chosen.seed, chosen.seed + chosen.runs)
            regrets = list(play(owner, vendor, curator.url, seeds, status.update))
        console.print(table(regrets))
        if chosen.json:
            lines = [{"method": m.name, "epsilon": m.epsilon, "regrets": values} for m, values in regrets]
            chosen.json.write_text(json.dumps(lines, indent=2) + "\n")

    return status_of(play_all)


def table(regrets: list[tuple[Method, list[float]]]) -> Table:
    """The table of the demo."""
    runs = max(len(values) for _, values in regrets)
    result = Table(
        title="The place where houses sell best: 21,613 sales, 20 x 20 groups",
        caption="\n".join(
            [
                f"{QUERIES} queries of groups or houses. Regret: the best true mean of log10(price) of a place",
                f"with {LEAST} sales or more, minus that of the recommended place; mean of {runs} runs"
                + (", +- its standard error." if runs > 1 else "."),
                "Half of epsilon is for the numbers of sales (planar_laplace: the places), half for the one answer.",
            ]
        ),
    )
    for name in ("method", "promise", "regret", "of prices"):
        result.add_column(name, justify="right" if name in ("regret", "of prices") else "left", no_wrap=True)
    for method, values in regrets:
        mean = sum(values) / len(values)
        name = f"{method.name}, epsilon = {method.epsilon}" if method.epsilon else method.name
        result.add_row(name, method.promise, report.mean_and_error(values), f"{100 * (1 - 10**-mean):.0f} % lower")
    return result


if __name__ == "__main__":
    sys.exit(main())
