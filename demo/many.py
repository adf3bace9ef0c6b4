"""`make demo ARGS=--many`: as many of the most expensive houses as possible, where prices are measured on request.

Two thousand sales of King County. The vendor sees where each house is and how large, exactly or with noise (epsilon 1
hides a move by one kilometre, or 15 % of the living area), and may ask for fifty prices.
"""

import argparse
import csv
import io
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from blindopt import wire
from blindopt.client import Owner, Vendor
from demo.parties import start_services, status_of
from demo.property_data import FEATURES, OUTCOME, csv_bytes
from demo.report import console

SALES, QUERIES, FIRST, SHARE = 2_000, 50, 5, 0.02
RELEASES: dict[str, dict[str, Any]] = {
    "no privacy": {"mechanism": "identity"},
    "epsilon 1": {"mechanism": "auto", "epsilon": "1"},
}
WAYS = ("search for the best", "search for many, the price stated", "search for many, by share", "random houses")


def sales() -> tuple[bytes, float]:
    """Return a file of sales, and the price from which one is among the best 2 %."""
    rows = list(csv.reader(io.StringIO(csv_bytes().decode())))
    order = np.random.default_rng(0).permutation(len(rows) - 1)[:SALES]
    kept = [rows[0], *(rows[1 + index] for index in order)]
    prices = np.array([float(row[rows[0].index(OUTCOME)]) for row in kept[1:]])
    return "\n".join(map(",".join, kept)).encode(), float(np.quantile(prices, 1 - SHARE, method="higher"))


def run_of(way: str, level: float, study: str, token: str, url: str, seed: int) -> wire.RunCreate:
    """The settings of a run: what it looks for, and nothing else."""
    goals = {WAYS[1]: wire.FindMany(threshold=level), WAYS[2]: wire.FindMany(share=SHARE)}
    algorithm: wire.AlgorithmChoice = wire.RandomRows(name="random") if way == WAYS[3] else wire.AUTO
    return wire.RunCreate(
        name=way, curator_url=url, study_id=study, token=token, goal=goals.get(way, wire.BEST), algorithm=algorithm,
        iterations=QUERIES - FIRST, initial_rows=FIRST, seed=seed,
    )  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Play all ways; return 0 if the table was printed. ``arguments`` replace those of the command line."""
    parser = argparse.ArgumentParser(prog="python -m demo --many", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="runs of each way (default 5)")
    runs, out = parser.parse_args(arguments).runs, console()

    def play_all() -> None:
        file, level = sales()
        columns = [*(feature.column for feature in FEATURES), OUTCOME]
        head = Table(title=f"Of the {SHARE:.0%} most expensive of {SALES:,} houses, found with {QUERIES} prices")
        for name in ("candidates", "way", "found", "standard error"):
            head.add_column(name, justify="left" if name in ("candidates", "way") else "right")
        with (
            tempfile.TemporaryDirectory(prefix="blindopt-many-") as folder,
            start_services(Path(folder)) as (curator, modeler),
            Owner(curator.url, curator.token, timeout_s=120, plain_http=True) as owner,
            Vendor(modeler.url, modeler.token, plain_http=True) as vendor,
        ):
            dataset = owner.register("house sales", file, columns=columns, public=True).id
            for release, spec in RELEASES.items():
                body = {
                    "name": release, "dataset_id": dataset, "features": [f.model_dump() for f in FEATURES],
                    "measurement": {"source": "column", "column": OUTCOME, "direction": "maximize"},
                    "release": spec, "answers": {"mechanism": "none"},
                }  # fmt: skip
                study = owner.create_study(wire.StudyCreate.model_validate(body)).id
                owner.release(study)
                token = owner.grant(study, wire.GrantCreate(name="vendor")).token
                for way in WAYS:
                    started = [
                        vendor.start(run_of(way, level, study, token, curator.url, seed)).id for seed in range(runs)
                    ]
                    counts = [_count_good(vendor, run_id, level) for run_id in started]
                    mean, error = np.mean(counts), np.std(counts, ddof=1) / np.sqrt(runs) if runs > 1 else np.nan
                    head.add_row(release, way, f"{mean:.1f}", f"{error:.1f}")
                head.add_section()
        out.print(head)

    return status_of(play_all)


def _count_good(vendor: Vendor, run_id: str, level: float) -> int:
    vendor.wait(run_id, timeout_s=900)
    return sum(trial.y is not None and trial.y >= level for trial in vendor.export(run_id).trials)


if __name__ == "__main__":
    sys.exit(main())
