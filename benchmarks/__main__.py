"""`make bench`: print the tables and write them to benchmarks/results/latest.md and latest.json.

Parts can be measured one by one (`--keep`); the date of each is in the results.
"""

import argparse
import json
import os
import time
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
    engines,
    exchange,
    goals,
    ldp,
    link,
    lists,
    log,
    refitting,
    refusals,
    release,
    start,
    tuning,
)
from benchmarks.table import Table

Json = dict[str, Any]
RESULTS = Path(__file__).parent / "results"


def _of_postgres() -> list[Table]:
    """Imported late: it needs PostgreSQL, and starts the server of the tests."""
    from benchmarks import postgres

    return postgres.tables()


def main() -> None:
    """Run every benchmark, or only the named parts, whose results are stored with --keep."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=main.__doc__)
    parser.add_argument(
        "parts",
        nargs="*",
        metavar="part",
        help=(
            "both, choosing, console, draws, engines, exchange, ldp, link, lists, log, postgres, refitting, "
            "release, start, tuning (all)"
        ),
    )
    parser.add_argument(
        "--keep", action="store_true", help="store the results of the named parts in benchmarks/results"
    )
    parser.add_argument(
        "--grants", type=int, default=exchange.CLIENTS, help="grants that the clients of exchange share"
    )
    parser.add_argument("--rows", type=int, default=release.ROWS, help="rows of the release; a million take minutes")
    parser.add_argument(
        "--small", action="store_true", help="leave out choosing and both with a million rows: minutes and 3 GiB"
    )
    parser.add_argument(
        "--records", type=int, default=start.RECORDS, help="records of the longest log of start; a million take minutes"
    )
    chosen = parser.parse_args()
    if not 1 <= chosen.grants <= exchange.CLIENTS:
        parser.error(f"--grants: 1 to {exchange.CLIENTS}")
    if chosen.rows < 1:
        parser.error("--rows: at least 1")
    if chosen.records < 1:
        parser.error("--records: at least 1")
    parts: dict[str, Callable[[], list[Table]]] = {
        "both": lambda: both.tables(not chosen.small),
        "choosing": lambda: choosing.tables(not chosen.small),
        "console": console.tables,
        "draws": draws.tables,
        "engines": lambda: engines.tables("engines" in chosen.parts and not chosen.small),  # 1e7 takes minutes
        "exchange": lambda: exchange.tables(chosen.grants),
        "ldp": ldp.tables,
        "link": link.tables,
        "lists": lists.tables,
        "log": log.tables,
        "postgres": _of_postgres,
        "refitting": refitting.tables,
        "refusals": refusals.tables,
        "release": lambda: release.tables(chosen.rows),
        "start": lambda: start.tables(chosen.records),
        "tuning": tuning.tables,
    }
    if unknown := set(chosen.parts) - set(parts):
        parser.error(f"no part {', '.join(sorted(unknown))}")
    results: dict[str, Json] = {}
    for name, tables in parts.items():
        if name in chosen.parts or not chosen.parts:
            started, load = time.monotonic(), os.getloadavg()[0]
            measured = tables()
            took = time.monotonic() - started
            results[name] = Part(f"{datetime.now(UTC):%Y-%m-%d}", os.cpu_count() or 0, load, took, measured).as_json()
            print("\n".join(lines(name, results[name])), flush=True)
    print("\n".join(goals.table(results).lines()), flush=True)
    if chosen.keep or not chosen.parts:
        keep(results, list(parts))


@dataclass(frozen=True, slots=True)
class Part:
    """The tables of one part, with the date, the machine's processors, its load before, and the time that it took."""

    date: str
    processors: int
    load: float
    seconds: float
    tables: list[Table]

    def as_json(self) -> Json:
        """Return the part as JSON, with all digits."""
        tables = [table.as_json() for table in self.tables]
        about = {"date": self.date, "processors": self.processors, "load": self.load, "seconds": self.seconds}
        return {**about, "tables": tables}


def keep(results: dict[str, Json], order: list[str]) -> None:
    """Replace older results of these parts in benchmarks/results."""
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / "latest.json"
    parts: dict[str, Json] = json.loads(file.read_text())["parts"] if file.exists() else {}
    parts |= results
    kept = {name: parts[name] for name in order if name in parts}
    file.write_text(json.dumps({"parts": kept}, indent=2) + "\n")
    (RESULTS / "latest.md").write_text(markdown(kept), encoding="utf-8")


def markdown(results: dict[str, Json]) -> str:
    """Write all tables as Markdown."""
    total = sum(part.get("seconds", 0.0) for part in results.values()) / 60
    head = f"Written by `make bench` in {total:.0f} minutes. Ratios are of one run, side by side."
    texts = ["# Benchmarks", "", head, "", *goals.table(results).lines(), ""]
    return "\n".join([*texts, *(line for name, part in results.items() for line in lines(name, part))])


def lines(name: str, part: Json) -> list[str]:
    """Write the tables of one part as Markdown."""
    texts = [f"## {name}", "", f"{part['date']}, {part['processors']} processors"]
    if "seconds" in part:
        texts[-1] += f", load {part['load']:.1f}, {part['seconds']:.0f} s"
    texts[-1] += "."
    for table in part["tables"]:
        texts += ["", *Table.of(table).lines()]
    return [*texts, ""]


if __name__ == "__main__":
    main()
