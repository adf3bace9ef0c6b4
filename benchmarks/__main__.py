"""`make bench`: print the tables and keep them in benchmarks/results/latest.md."""

import os
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import choosing, exchange


def main() -> None:
    """Run every benchmark."""
    machine = f"{os.cpu_count()} processors, {datetime.now(UTC):%Y-%m-%d}"
    told = ["# Benchmarks", "", f"Written by `make bench` on {machine}. Ratios are of one run, side by side.", ""]
    for part in (choosing, exchange):
        told += [*part.lines(), ""]
    text = "\n".join(told)
    print(text)
    (Path(__file__).parent / "results" / "latest.md").write_text(text)


if __name__ == "__main__":
    main()
