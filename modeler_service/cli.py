"""`blindopt-modeler`: serve, token, audit, backup, restore, run, runs, offer, recommendation, replay.

A command imports what it needs when it runs: `token` does without the web framework and the numerics.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from blindopt import wire
from blindopt.audit.merkle_log import Json
from blindopt.errors import Invalid, LogBroken, StateConflict
from blindopt.formats.text_files import save_secret
from modeler_service.settings import Settings
from service_kit.cli import streams
from service_kit.cli.main import build, finish
from service_kit.cli.program import CHECK_FAILED, Program, plain_errors, read_json, status_of_code
from service_kit.cli.remote import (
    AsJson,
    TokenFile,
    Url,
    access_token,
    address_of,
    client_options,
    connected,
    show,
    table,
)

if TYPE_CHECKING:
    from fastapi import FastAPI

    from blindopt.client import Vendor
    from service_kit.context.context import ServiceContext
    from service_kit.context.log_summaries import Part
    from service_kit.store.database import Connection


def _build(settings: Settings) -> "FastAPI":
    from modeler_service.app import build

    return build(settings)


def _open_context(settings: Settings) -> "ServiceContext":
    from modeler_service.context import open_context

    return open_context(settings)


def _findings(
    db: "Connection", records: Iterable[Json], part: "Part | None", folder: Path | None
) -> Iterator[LogBroken]:
    from modeler_service.integrity import log_checks

    return log_checks.findings(db, records, part, folder)


def _restored(db: "Connection", context: "ServiceContext", erased: Iterable[str]) -> None:
    from modeler_service.runs.witness import record_restore

    record_restore(db, context)


def _import_segment(context: "ServiceContext", path: Path) -> int:
    from modeler_service.runs.witness import import_segment

    return import_segment(context, path)


PROGRAM = Program(
    service="blindopt-modeler",
    about="Optimize over a curator's records without seeing them.",
    main_role="vendor",
    roles=("vendor", "viewer", "monitor", "link"),
    settings=Settings,
    open_context=_open_context,
    app=_build,
    findings=_findings,
    files=lambda db: [],  # candidates are fetched again, and checked against their digest
    restored=_restored,  # runs ask again under the same keys: nothing is lost
    import_segment=_import_segment,
)
app = build(PROGRAM)
_RUN_DAYS = 30


@app.command("run")
def start_run(
    grant: Annotated[Path, typer.Option(help="The file grant.json that the data owner sent.")],
    queries: Annotated[
        int | None,
        typer.Option(min=1, max=100_000, help="Queries, the initial ones among them. Default: as the owner allows."),
    ] = None,
    iterations: Annotated[
        int | None,
        typer.Option(min=1, max=100_000, hidden=True, help="Queries after the initial ones: take --queries."),
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the run.")] = "run",
    token_file: TokenFile = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Start a run at the running modeler, show its progress, and print the recommended candidate.

    The run goes on if you stop this command.

    Example: blindopt-modeler run --grant grant.json --queries 30
    """
    from blindopt.client import Vendor
    from blindopt.client.connection import wait_until_ended
    from modeler_service.runs.addresses import check_address

    shown = ""

    def progress() -> wire.RunView:
        nonlocal shown
        run = started.refresh(wait_s=0.2).view
        waits = f" for {run.waiting_for}" if run.waiting_for else ""
        if (line := f"{run.state}{waits}, {run.trials} answers") != shown:
            typer.echo(line, err=True)
            shown = line
        return run

    with plain_errors():
        grant_file = read_json(grant, wire.GrantFile, "a grant file")
        after_first: dict[str, Any] = {} if iterations is None else {"iterations": iterations}
        address = address_of(PROGRAM, url)
        check_address(address, "url", plain_http=PROGRAM.checked_settings().allow_plain_http)
        with (
            access_token(PROGRAM, token_file, "run", days=_RUN_DAYS) as token,
            Vendor(address, token, **client_options(PROGRAM)) as client,
        ):
            started = client.start(grant_file, name=name, queries=queries, **after_first)
            run_id = started.id
            typer.echo(f"{run_id}: {address}/console/runs/{run_id}", err=True)
            ended = wait_until_ended(progress, run_id, timeout_s=_RUN_DAYS * 86_400, poll_s=0.2)
    if (best := ended.recommendation) is None:
        why = ended.problem.detail if ended.problem is not None else "there is no recommendation"
        typer.echo(f"error: the run has {ended.state}: {why}", err=True)
        raise typer.Exit(1 if ended.problem is None else status_of_code(ended.problem.code))
    show(best, str(best), as_json)


links = typer.Typer(no_args_is_help=True, help="Links to curators that open no port.")
app.add_typer(links, name="link")


@links.callback()
def about_links() -> None:
    """Links to curators that open no port: they connect to this modeler, and take its requests."""


@links.command("create")
def create_link(
    name: Annotated[str, typer.Argument(help="For which data owner: shown in listings.")],
    save: Annotated[Path, typer.Option(help="A new file for the link, mode 0600: send it over a private channel.")],
    url: Annotated[str, typer.Option(help="Address of this modeler, as the curator reaches it.")] = "",
    days: Annotated[int, typer.Option(min=1, max=3_660, help="Days until its token expires.")] = 365,
) -> None:
    """Make a link and write the file that its curator needs.

    Example: blindopt-modeler link create hospital --url https://modeler.example --save link.json
    """
    with plain_errors():
        address = url or PROGRAM.checked_settings().address
        if address is None:
            raise StateConflict("no address is known: give --url, or set BLINDOPT_MODELER_PUBLIC_URL")
        with PROGRAM.opened(new=True) as opened:
            token, principal = opened.authentication.issue("link", name, days=days)
        file = {"format": "blindopt-link-1", "id": principal.id, "name": name, "url": address, "token": token.text}
        save_secret(save, wire.LinkFile.model_validate(file).model_dump_json(indent=1))
    typer.echo(f"{save}: give it to {name}, who runs `blindopt-curator link add {save.name}`")
    typer.echo(f"grants then have the address link://{principal.id}; revoke it by `token revoke {token.kid}`")


@app.command("runs")
def list_runs(url: Url = None, token_file: TokenFile = None, as_json: AsJson = False) -> None:
    """List the runs of the running modeler, oldest first.

    Example: blindopt-modeler runs --json
    """
    with _vendor(url, token_file) as client:
        runs = [run.view for run in client.runs()]
    rows = [[run.id, run.state, run.trials, f"{run.created_at:%Y-%m-%d %H:%M}", run.name] for run in runs]
    show(runs, table(["run", "state", "answers", "made", "name"], rows), as_json)


@app.command()
def offer(
    grant: Annotated[Path, typer.Option(help="The file grant.json that the data owner sent.")],
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Print what the owner of a grant offers, and what your runs have used. It charges nothing.

    Example: blindopt-modeler offer --grant grant.json
    """
    with _vendor(url, token_file) as client:
        typer.echo(client.offer(grant))


@app.command()
def recommendation(
    run: Annotated[str, typer.Argument(help="run_...")],
    over: Annotated[
        Literal["asked", "all"], typer.Option(help="asked: the best of the queried candidates; all: the best of all.")
    ] = "asked",
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Print the candidate to take by the answers of a run, with its mean outcome and an interval of this mean.

    Example: blindopt-modeler recommendation run_0123456789abcdef --over all
    """
    with _vendor(url, token_file) as client:
        best = client.recommendation(run, over)
    show(best, str(best), as_json)


def _vendor(url: str | None, token_file: Path | None) -> AbstractContextManager["Vendor"]:
    from blindopt.client import Vendor

    return connected(PROGRAM, Vendor, url, token_file)


@app.command()
def replay(
    run: Annotated[str, typer.Argument(help="run_...")],
    export: Annotated[Path | None, typer.Option(help="The run's export in JSON, in place of the database.")] = None,
    log: Annotated[Path | None, typer.Option(help="An export of the log (`audit export`); goes with --export.")] = None,
    candidates: Annotated[
        Path | None, typer.Option(help="The npy file of the candidates; default: that in DATA_DIR.")
    ] = None,
) -> None:
    """Derive every choice of a run again; exit 3 and name the first that differs from its record.

    It changes nothing and sends no request, and may run beside the service. With --export, --log and --candidates it
    needs no data of a service.

    Example: blindopt-modeler replay run_0123456789abcdef
    """
    from blindopt.audit import reconciliation
    from modeler_service.integrity import replay as replays
    from modeler_service.runs.candidates import path_of

    with plain_errors():
        if (export is None) != (log is None):
            raise Invalid("--export and --log belong together: the one is held against the other")
        if export is not None and log is not None:
            record = replays.read_export(export)
            summary = replays.verified_summary(reconciliation.ExportFile(log), record, run)
        else:
            with PROGRAM.opened() as context, context.database.read() as db:
                log_export = context.audit_trail.export(db)
                record = replays.read_stored(db, run)
                summary = replays.verified_summary(log_export, record, run)
        if candidates is None:
            folder = PROGRAM.existing().candidates_folder
            candidates = path_of(folder, record.study.release_sha256)
        matrix = replays.candidates_of(record, candidates)
        difference = replays.replay(record, summary, matrix)
    if difference is not None:
        typer.echo(f"{run}: {difference}")
        raise typer.Exit(CHECK_FAILED)
    answered = sum(trial.y is not None for trial in record.trials)
    typer.echo(
        f"{run}: {len(record.trials)} choices derived again, each as it is recorded; "
        f"{answered} answers, each as the log records"
    )


finish(app, PROGRAM.service)


def main() -> None:
    streams.run(app)
