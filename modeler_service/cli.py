"""`blindopt-modeler`: serve, token, audit, backup, restore, recommendation.

A command imports what it needs when it runs: `token` does without the web framework and the numerics.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from modeler_service.desk import open_desk
from modeler_service.settings import Settings
from shared.audit import Json
from shared.serving import cli
from shared.serving.desk import Desk
from shared.serving.settings import ServiceSettings
from shared.serving.store.database import Connection

if TYPE_CHECKING:
    from fastapi import FastAPI


def _build(settings: ServiceSettings) -> "FastAPI":
    from modeler_service.app import build

    return build(cast(Settings, settings))


def _check(db: Connection, records: Iterable[Json]) -> None:
    from modeler_service import invariants

    invariants.check(db, records)


def _restored(db: Connection, desk: Desk) -> None:
    from modeler_service.witness import restored

    restored(db, desk)


app = cli.build(
    service="blindopt-modeler",
    about="Optimize over a curator's records without seeing them.",
    main_role="vendor",
    roles=("vendor", "viewer"),
    settings=Settings,
    desk=lambda settings: open_desk(cast(Settings, settings)),
    app=_build,
    check=_check,
    files=lambda db: [],  # candidates are fetched again, and checked against their digest
    restored=_restored,  # runs ask again under the same keys: nothing is lost
)


@app.command()
def recommendation(
    run: Annotated[str, typer.Argument(help="run_...")],
    over: Annotated[
        Literal["asked", "all"], typer.Option(help="asked: the best of the rows asked; all: the best of all rows.")
    ] = "asked",
) -> None:
    """Print the row to take by the answers of a run, with its mean and a 95 % interval, as JSON."""
    from modeler_service.beliefs import Beliefs

    with cli.plain_errors():
        settings = cast(Settings, cli.existing(Settings))
        with open_desk(settings) as desk:
            beliefs = Beliefs(desk.database, settings.data_dir / "candidates", settings.look_memory_max_bytes)
            told = beliefs.recommendation(run, over)
    typer.echo(told.model_dump_json(indent=2))


def main() -> None:
    """The console script."""
    app()
