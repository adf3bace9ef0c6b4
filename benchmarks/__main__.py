"""`make bench`: print the tables and write them to benchmarks/results/latest.md and latest.json.

Parts can be measured one by one (`--keep`); the date of each is in the results.
"""

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import (
    both,
    choosing,
    console,
    draws,
    exchange,
    ldp,
    link,
    lists,
    log,
    refitting,
    release,
    start,
    tuning,
)
from benchmarks.table import Table

Json = dict[str, Any]
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Run every benchmark, or only the named parts, whose results are stored with --keep."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=main.__doc__)
    parser.add_argument(
        "parts",
        nargs="*",
        metavar="part",
        help="both, choosing, console, draws, exchange, ldp, link, lists, log, refitting, release, start, tuning (all)",
    )
    parser.add_argument(
        "--keep", action="store_true", help="store the results of the named parts in benchmarks/results"
    )
    parser.add_argument(
        "--grants", type=int, default=exchange.CLIENTS, help="grants that the clients of exchange share"
    )
    parser.add_argument("--rows", type=int, default=release.ROWS, help="rows of the release; a million take minutes")
    parser.add_argument(
        "--large", action="store_true", help="run choosing and both with a million rows too: takes minutes and 3 GiB"
    )
    chosen = parser.parse_args()
    if not 1 <= chosen.grants <= exchange.CLIENTS:
        parser.error(f"--grants: 1 to {exchange.CLIENTS}")
    if chosen.rows < 1:
        parser.error("--rows: at least 1")
    parts: dict[str, Callable[[], list[Table]]] = {
        "both": lambda: both.tables(chosen.large),
        "choosing": lambda: choosing.tables(chosen.large),
        "console": console.tables,
        "draws": draws.tables,
        "exchange": lambda: exchange.tables(chosen.grants),
        "ldp": ldp.tables,
        "link": link.tables,
        "lists": lists.tables,
        "log": log.tables,
        "refitting": refitting.tables,
        "release": lambda: release.tables(chosen.rows),
        "start": start.tables,
        "tuning": tuning.tables,
    }
    if unknown := set(chosen.parts) - set(parts):
        parser.error(f"no part {', '.join(sorted(unknown))}")
    results = {}
    for name, tables in parts.items():
        if name in chosen.parts or not chosen.parts:
            results[name] = Part(f"{datetime.now(UTC):%Y-%m-%d}", os.cpu_count() or 0, tables())
            print(markdown({name: results[name].as_json()}), flush=True)
    if chosen.keep or not chosen.parts:
        keep({name: part.as_json() for name, part in results.items()}, list(parts))


@dataclass(frozen=True, slots=True)
class Part:
    """The tables of one part, with the date and the machine's processors."""

    date: str
    processors: int
    tables: list[Table]

    def as_json(self) -> Json:
        """Return the part as JSON, with all digits."""
        tables = [table.as_json() for table in self.tables]
        return {"date": self.date, "processors": self.processors, "tables": tables}


def keep(results: dict[str, Json], order: list[str]) -> None:
    """Replace older results of these parts in benchmarks/results."""
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / "latest.json"
    parts: dict[str, Json] = json.loads(file.read_text())["parts"] if file.exists() else {}
    parts |= results
    kept = {name: parts[name] for name in order if name in parts}
    file.write_text(json.dumps({"parts": kept}, indent=2) + "\n")
    (RESULTS / "latest.md").write_text(markdown(kept))


def markdown(results: dict[str, Json]) -> str:
    """Write all tables as Markdown."""
    lines = ["# Benchmarks", "", "Written by `make bench`. Ratios are of one run, side by side.", ""]
    for name, part in results.items():
        lines += [f"## {name}", "", f"{part['date']}, {part['processors']} processors.", ""]
        for table in part["tables"]:
            lines += [*Table.of(table).lines(), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
