"""`blindopt-modeler`: serve, token, audit, backup, restore, run, recommendation, replay.

A command imports what it needs when it runs: `token` does without the web framework and the numerics.
"""

import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from blindopt import wire
from blindopt.audit.merkle_log import Json
from modeler_service.context import open_context
from modeler_service.settings import Settings
from service_kit.cli.main import build
from service_kit.cli.program import Program, plain_errors, read_json
from service_kit.context.context import ServiceContext
from service_kit.store.database import Connection

if TYPE_CHECKING:
    from fastapi import FastAPI


def _build(settings: Settings) -> "FastAPI":
    from modeler_service.app import build

    return build(settings)


def _check(db: Connection, records: Iterable[Json]) -> None:
    from modeler_service.integrity import log_checks

    log_checks.check(db, records)


def _restored(db: Connection, context: ServiceContext) -> None:
    from modeler_service.runs.witness import record_restore

    record_restore(db, context)


PROGRAM = Program(
    service="blindopt-modeler",
    about="Optimize over a curator's records without seeing them.",
    main_role="vendor",
    roles=("vendor", "viewer", "monitor"),
    settings=Settings,
    open_context=open_context,
    app=_build,
    check=_check,
    files=lambda db: [],  # candidates are fetched again, and checked against their digest
    restored=_restored,  # runs ask again under the same keys: nothing is lost
)
app = build(PROGRAM)
_RUN_DAYS = 30


@app.command("run")
def start_run(
    grant: Annotated[Path, typer.Option(help="The file grant.json that the data owner sent.")],
    queries: Annotated[int, typer.Option(min=1, max=100_000, help="Queries after the first candidates.")] = 50,
    name: Annotated[str, typer.Option(help="Name of the run.")] = "run",
    token_file: Annotated[
        Path | None, typer.Option(help="File with a vendor's token; default: one that ends with this command.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="Where the modeler serves; default: as in its settings.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the recommendation as JSON.")] = False,
) -> None:
    """Start a run at the running modeler, show its progress, and print the recommended candidate.

    The run goes on if you stop this command.
    """
    from blindopt.client import VendorClient
    from blindopt.client.connection import wait_until_ended
    from modeler_service.use_cases.addresses import check_address

    shown = ""

    def progress() -> wire.RunView:
        nonlocal shown
        run = client.run(run_id)
        waits = f" for {run.waiting_for}" if run.waiting_for else ""
        if (line := f"{run.state}{waits}, {run.trials} answers") != shown:
            typer.echo(line, err=True)
            shown = line
        return run

    with plain_errors():
        access = read_json(grant, wire.GrantFile, "a grant file").access
        body = wire.RunCreate(**access.model_dump(), name=name, iterations=queries)
        address = url or PROGRAM.existing().console_url.rstrip("/")
        check_address(address, "url", plain_http=Settings().allow_plain_http)
        with _vendor_token(token_file) as token, VendorClient(address, token) as client:
            run_id = client.start(body).id
            typer.echo(f"{run_id}: {address}/console/runs/{run_id}", err=True)
            ended = wait_until_ended(progress, run_id, timeout_s=_RUN_DAYS * 86_400, poll_s=0.2)
    if (best := ended.recommendation) is None:
        why = ended.problem.detail if ended.problem is not None else "there is no recommendation"
        typer.echo(f"error: the run has {ended.state}: {why}", err=True)
        raise typer.Exit(1)
    typer.echo(best.model_dump_json(indent=2) if as_json else _in_words(best))


def _in_words(best: wire.Recommendation) -> str:
    interval = f", 95 % interval {best.interval[0]:.6g} to {best.interval[1]:.6g}" if best.interval else ""
    return f"Recommended: candidate {best.row} (mean {best.mean:.6g}{interval}), from {best.outcomes} answers"


@contextmanager
def _vendor_token(file: Path | None) -> Iterator[str]:
    """The token in a file; without one, a token of the service's data folder that is revoked in the end."""
    if file is not None:
        yield file.read_text().strip()
        return
    with PROGRAM.opened() as context:
        token, _ = context.authentication.issue("vendor", "blindopt-modeler run", days=_RUN_DAYS)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # so that what follows happens
    try:
        yield token.text
    finally:
        with PROGRAM.opened() as context:
            context.database.write(lambda db: context.authentication.revoke(db, token.kid, actor="cli"))


@app.command()
def recommendation(
    run: Annotated[str, typer.Argument(help="run_...")],
    over: Annotated[
        Literal["asked", "all"], typer.Option(help="asked: the best of the rows asked; all: the best of all rows.")
    ] = "asked",
) -> None:
    """Print the row to take by the answers of a run, with its mean and a 95 % interval, as JSON."""
    from modeler_service.runs.posterior_views import PosteriorViews

    with plain_errors():
        settings = PROGRAM.existing()
        with open_context(settings) as context:
            views = PosteriorViews(context.database, settings.data_dir / "candidates", settings.look_memory_max_bytes)
            best = views.recommendation(run, over)
    typer.echo(best.model_dump_json(indent=2))


@app.command()
def replay(
    run: Annotated[str, typer.Argument(help="run_...")],
    export: Annotated[Path | None, typer.Option(help="The run's export in JSON, in place of the database.")] = None,
    log: Annotated[Path | None, typer.Option(help="An export of the log (`audit export`); goes with --export.")] = None,
    candidates: Annotated[
        Path | None, typer.Option(help="The npy file of the candidates; default: that in DATA_DIR.")
    ] = None,
) -> None:
    """Derive every choice of a run again; exit 1 and name the first that differs from its record.

    It changes nothing and sends no request, and may run beside the service. With --export, --log and --candidates it
    needs no data of a service.
    """
    from blindopt.audit import reconciliation
    from blindopt.errors import LogBroken, StateConflict
    from modeler_service.integrity import replay as replays
    from modeler_service.runs.candidates import path_of

    with plain_errors():
        if (export is None) != (log is None):
            raise StateConflict("--export and --log belong together: the one is held against the other")
        if export is not None and log is not None:
            record, log_export = replays.read_export(export), reconciliation.read(log)
        else:
            with PROGRAM.opened() as context, context.database.read() as db:
                log_export = context.audit_trail.export(db)
                record = replays.read_stored(db, run)
        if record.identity != run:
            raise StateConflict(f"the export is of {record.identity}, not of {run}")
        reconciliation.verify_export(log_export)
        if log_export.service != "blindopt-modeler":
            raise LogBroken(f"the log is of {log_export.service}, not of the modeler")
        if candidates is None:
            folder = PROGRAM.existing().data_dir / "candidates"
            candidates = path_of(folder, record.study.release_sha256)
        matrix = replays.candidates_of(record, candidates)
        summary = replays.summarize_log((entry.record for entry in log_export.own), record)
        difference = replays.replay(record, summary, matrix)
    if difference is not None:
        typer.echo(f"{run}: {difference}")
        raise typer.Exit(1)
    answered = sum(trial.y is not None for trial in record.trials)
    typer.echo(
        f"{run}: {len(record.trials)} choices derived again, each as it is recorded; "
        f"{answered} answers, each as the log records"
    )


def main() -> None:
    """The console script."""
    app()
