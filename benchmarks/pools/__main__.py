"""`make pools`: play a tool on half of the pools and print its figures by number of columns.

    make pools ARGS="choose --runs 20 --to out/today.json"       the default as it is
    make pools ARGS="choose --runs 20 --to out/variant.json --beside out/today.json"
    make pools ARGS="report --runs 20"                           once, after the last change of a default
    make pools ARGS="private --runs 40 --tool epsilon1"          the default as a vendor has it, through releases

Runs are stored as they end, and the same command plays those that are missing, so a file is of one version of the code.
"""

import argparse
import json
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from benchmarks import botorch_loop
from benchmarks.papers import sources
from benchmarks.pools.play import BOTORCH, DEFAULT, EPSILONS, QUERIES, TOOLS, play
from benchmarks.pools.report import tables
from benchmarks.pools.suite import HALVES, PRIVATE, WHEELS, few, halves, pool

RESULTS = Path(__file__).parents[1] / "results" / "pools"
PRIVATE_HALF = "private"
HEADS = {
    half: f"""# The half of the pools that {does}

Written by `make pools ARGS={half}` from the runs beside this page: of the product's default, of BoTorch (SingleTaskGP
and LogEI after ten random candidates, columns in the unit cube), and of random candidates, whose figures are exact.
Nothing is set. In brackets: the standard error of the mean. A run of BoTorch stops after 20 queries once it has found
the top 1 %: its regret at 50 is shown if all runs went on.

"""
    for half, does in zip(HALVES, ("chooses", "is reported"), strict=True)
} | {
    PRIVATE_HALF: """# Pools through a private release

Written by `make pools ARGS="private --tool epsilon1"` from the runs beside this page. A run sees the candidates, 2,000
of a pool at most, through a new release: planar Laplace noise that hides a twentieth of each range, at epsilon 1 or 3.
With refined3 the release is at epsilon 1, and each queried candidate leaves again at 3. Outcomes are exact, and nothing
is set. In brackets: the standard error of the mean.

"""
}
Stored = dict[str, list[dict[str, Any]]]


def main() -> None:
    """Play the runs that are not stored yet, and print the tables."""
    parser = argparse.ArgumentParser(prog="make pools", description=main.__doc__)
    parser.add_argument("half", choices=HEADS)
    parser.add_argument("--tool", choices=TOOLS, default=DEFAULT, help="BoTorch needs the extra `peers`")
    parser.add_argument("--runs", type=int, default=20, help="of each pool (20)")
    parser.add_argument("--queries", type=int, default=QUERIES, help=f"of each run ({QUERIES})")
    parser.add_argument("--pool", action="append", help="only this one; may be repeated")
    parser.add_argument("--to", type=Path, help="where the runs are stored (benchmarks/results/pools)")
    parser.add_argument("--beside", action="append", type=Path, default=[], help="stored runs of another version")
    options = parser.parse_args()
    if not sources.have(*WHEELS):
        parser.error("the tables are not here: `make data` fetches them")
    if options.tool == BOTORCH and not botorch_loop.INSTALLED:
        parser.error(botorch_loop.ABSENT)
    is_private = options.half == PRIVATE_HALF
    if is_private != (options.tool in EPSILONS):
        parser.error(f"the tools of {PRIVATE_HALF} are {', '.join(EPSILONS)}")
    members = PRIVATE if is_private else halves()[options.half]
    if unknown := set(options.pool or ()) - set(members):
        parser.error(f"no pool {', '.join(sorted(unknown))}; those of this half are {', '.join(members)}")
    pools = {name: pool(name) for name in members if name in (options.pool or members)}
    if is_private:
        pools = {name: few(candidates) for name, candidates in pools.items()}
    file = options.to or file_of(options.tool, options.half)
    runs = stored(file)
    with threadpool_limits(1):
        for run in range(options.runs):
            for name, candidates in pools.items():
                if len(runs.setdefault(name, [])) == run:
                    runs[name].append(asdict(play(candidates, options.tool, run, options.queries)))
                    keep(file, options.tool, runs)
    beside = [file_of(tool, options.half) for tool in (EPSILONS if is_private else [BOTORCH])]
    others = {path.stem: stored(path) for path in [*options.beside, *beside] if path != file}
    shown = {file.stem: runs, **{name: other for name, other in others.items() if other}}
    page = "\n".join(line for table in tables(pools, shown, options.queries) for line in [*table.lines(), ""])
    print(page)
    if not options.to:
        (RESULTS / f"{options.half}.md").write_text(HEADS[options.half] + page, encoding="utf-8")


def file_of(tool: str, half: str) -> Path:
    """Where the runs of a tool on a half are stored."""
    return RESULTS / f"{tool.lower()}_{half}.json"


def stored(file: Path) -> Stored:
    """Read the runs of each pool; none if there is no file."""
    runs: Stored = json.loads(file.read_text(encoding="utf-8"))["runs"] if file.exists() else {}
    return runs


def keep(file: Path, tool: str, runs: Stored) -> None:
    """Store the runs of each pool, a line each."""
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = [f"{json.dumps(name)}: {json.dumps(runs[name], separators=(',', ':'))}" for name in runs]
    about = {"tool": tool, "version": version(TOOLS[tool])}
    body = json.dumps(about)[:-1] + ', "runs": {\n' + ",\n".join(rows) + "\n}}\n"
    new = file.with_suffix(".new")
    new.write_text(body, encoding="utf-8")
    new.replace(file)


if __name__ == "__main__":
    main()
