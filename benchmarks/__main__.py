"""`make bench`: print the tables and keep them in benchmarks/results/latest.md and latest.json."""

import argparse
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import both, choosing, draws, exchange, ldp, log, release
from benchmarks.table import Table

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Run every benchmark, or the parts that are named: then nothing is kept."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=main.__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="part", help="both, choosing, draws, exchange, ldp, log, release (default: all)"
    )
    parser.add_argument("--grants", type=int, default=exchange.CLIENTS, help="how many the clients of exchange share")
    parser.add_argument("--rows", type=int, default=release.ROWS, help="of the release; a million take minutes")
    parser.add_argument(
        "--large", action="store_true", help="choosing and both with a million rows too: minutes, 3 GiB"
    )
    chosen = parser.parse_args()
    if not 1 <= chosen.grants <= exchange.CLIENTS:
        parser.error(f"--grants: 1 to {exchange.CLIENTS}")
    if chosen.rows < 1:
        parser.error("--rows: at least 1")
    parts: dict[str, Callable[[], list[Table]]] = {
        "both": lambda: both.tables(chosen.large),
        "choosing": lambda: choosing.tables(chosen.large),
        "draws": draws.tables,
        "exchange": lambda: exchange.tables(chosen.grants),
        "ldp": ldp.tables,
        "log": log.tables,
        "release": lambda: release.tables(chosen.rows),
    }
    if unknown := set(chosen.parts) - set(parts):
        parser.error(f"no part {', '.join(sorted(unknown))}")
    told = {name: tables() for name, tables in parts.items() if name in chosen.parts or not chosen.parts}
    text = markdown(told)
    print(text)
    if not chosen.parts:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "latest.md").write_text(text)
        (RESULTS / "latest.json").write_text(json.dumps(as_json(told), indent=2) + "\n")


def markdown(told: dict[str, list[Table]]) -> str:
    """All tables under one heading."""
    machine = f"{os.cpu_count()} processors, {datetime.now(UTC):%Y-%m-%d}"
    lines = ["# Benchmarks", "", f"Written by `make bench` on {machine}. Ratios are of one run, side by side.", ""]
    for tables in told.values():
        for table in tables:
            lines += [*table.lines(), ""]
    return "\n".join(lines)


def as_json(told: dict[str, list[Table]]) -> dict[str, object]:
    """The same with all digits."""
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "processors": os.cpu_count(),
        "parts": {name: [table.as_json() for table in tables] for name, tables in told.items()},
    }


if __name__ == "__main__":
    main()
