"""`python -m demo`: both parties, an outsourced optimization, a table, what to conclude from it, and a plot."""

import argparse
import os
import signal
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from demo import report, story
from demo.parties import Party, link, link_address, start_services, status_of, wait_for

TUNING, MANY = "--tuning", "--many"


def main() -> int:
    """Run the demo; return 0 if the table was printed."""
    if sys.argv[1:2] == [TUNING]:  # another demo, with its own options
        from demo import tuning

        return tuning.main(sys.argv[2:])
    if sys.argv[1:2] == [MANY]:
        from demo import many

        return many.main(sys.argv[2:])
    options = _options()
    console = report.console()

    def play_all() -> None:
        folder = options.out or Path(tempfile.mkdtemp(prefix="blindopt-demo-"))
        folder.mkdir(parents=True, exist_ok=True)
        if options.json:
            options.json.touch()  # a path that cannot be written is an error now, not at the end
        with ExitStack() as stack:
            if options.curator:
                if options.link:
                    options.curator_seen_by_modeler = link_address(options.link)
                curator = wait_for("curator", options.curator, options.curator_token_file)
                modeler = wait_for("modeler", options.modeler, options.modeler_token_file)
            else:
                console.print(f"Starting curator and modeler in {folder} ...")
                curator, modeler = stack.enter_context(start_services(folder, options.engine, options.database))
                if options.outbound:
                    options.curator_seen_by_modeler = link(folder, curator, modeler)
                    console.print(f"The curator opens all connections between them: {options.curator_seen_by_modeler}")
            played = _play(console, curator, modeler, options)
            console.print(report.table(played))
            for number, sentence in enumerate(report.conclusions(played), start=1):
                console.print(f"{number}. {sentence}", highlight=False)
            report.plot(played, folder / "regret.svg")
            console.print(f"plot       {folder / 'regret.svg'}", soft_wrap=True)
            if options.json:
                report.write_json(played, options.json)
                console.print(f"table      {options.json}", soft_wrap=True)
            for party in (curator, modeler):
                console.print(f"audit log  {_log_of(party, options)}", soft_wrap=True)
            for name, url, file in options.login or []:
                line = f"log in     {url}  as {name}, password {Path(file).read_text(encoding='utf-8').strip()}"
                console.print(line, soft_wrap=True, markup=False, highlight=False)
            if options.keep:
                _keep(console, curator, modeler)

    return status_of(play_all)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument(
        TUNING,
        action="store_true",
        help="as the first option: run private hyper-parameter tuning instead, see --tuning -h",
    )
    parser.add_argument(
        MANY, action="store_true", help="as the first option: find many good records instead, see --many -h"
    )
    parser.add_argument("--keep", action="store_true", help="keep the services running; print addresses and tokens")
    parser.add_argument(
        "--outbound", action="store_true", help="the curator opens all connections to the modeler, and no port to it"
    )
    parser.add_argument(
        "--engine", choices=("process", "threads"), default="process", help="what the modeler's runs compute with"
    )
    parser.add_argument(
        "--database", metavar="postgresql://...", help="a database of PostgreSQL: both services put their tables there"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table to FILE")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for all files; default: a temporary one")
    parser.add_argument(
        "--login",
        nargs=3,
        action="append",
        metavar=("NAME", "URL", "FILE"),
        help="a console's user, its address and the file with the first password: printed at the end",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the first run (default 0)")
    parser.add_argument("--runs", type=int, default=12, help="runs per method, each with its own seed (default 12)")
    services = parser.add_argument_group("running services (as in docker-compose)")
    services.add_argument("--curator", metavar="URL", default=os.environ.get("DEMO_CURATOR"))
    services.add_argument("--modeler", metavar="URL", default=os.environ.get("DEMO_MODELER"))
    services.add_argument("--curator-token-file", type=Path, default=os.environ.get("DEMO_CURATOR_TOKEN_FILE"))
    services.add_argument("--modeler-token-file", type=Path, default=os.environ.get("DEMO_MODELER_TOKEN_FILE"))
    services.add_argument("--curator-seen-by-modeler", metavar="URL", help="default: the same as --curator")
    services.add_argument("--link", type=Path, metavar="FILE", help="link.json, over which the modeler is served")
    options = parser.parse_args()
    for name in (TUNING, MANY):
        if getattr(options, name.removeprefix("--")):
            parser.error(f"{name} is another demo with its own options: it must be the first argument")
    if options.outbound and options.curator:
        parser.error("--outbound starts services of its own")
    if options.runs < 1:
        parser.error("--runs must be at least 1")
    needed = (options.modeler, options.curator_token_file, options.modeler_token_file)
    if options.curator and not all(needed):
        parser.error("--curator needs --modeler, --curator-token-file and --modeler-token-file")
    for name in ("curator_token_file", "modeler_token_file"):
        if getattr(options, name):
            setattr(options, name, Path(getattr(options, name)))
    return options


def _log_of(party: Party, options: argparse.Namespace) -> str:
    if options.curator:
        return f"docker-compose exec {party.name} python -m {party.name}_service audit export"
    return f"schema {party.name}" if options.database else f"{party.folder}/{party.name}.sqlite"


def _play(console: report.Console, curator: Party, modeler: Party, options: argparse.Namespace) -> story.Played:
    columns = TextColumn("{task.description:28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=not console.is_terminal) as progress:
        preparing = progress.add_task("owner: releasing", total=1)
        tasks = {}

        def watch(name: str, answered: int) -> None:
            if name not in tasks:
                progress.update(preparing, completed=1)
                tasks[name] = progress.add_task(name, total=story.QUERIES * options.runs)
            progress.update(tasks[name], completed=answered)

        curator_url = options.curator_seen_by_modeler or curator.url
        seeds = range(options.seed, options.seed + options.runs)
        return story.play(curator, modeler, curator_url, seeds, watch)


def _keep(console: report.Console, curator: Party, modeler: Party) -> None:
    for party, person in ((curator, "owner"), (modeler, "vendor")):
        console.print(f"{party.name:8} {party.url}  ({person}'s token {party.token})", soft_wrap=True)
    console.print("The services run until Ctrl-C.")
    ended = threading.Event()
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, lambda *_: ended.set())
    ended.wait()


if __name__ == "__main__":
    sys.exit(main())
