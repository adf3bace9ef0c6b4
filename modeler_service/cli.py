"""`blindopt-modeler`: serve, token, audit, backup, restore, recommendation."""

from typing import Annotated, cast

import typer

from modeler_service import invariants
from modeler_service.app import build, open_desk
from modeler_service.beliefs import Beliefs, Over
from modeler_service.settings import Settings
from modeler_service.witness import restored
from shared.serving import cli

app = cli.build(
    service="blindopt-modeler",
    about="Optimize over a curator's records without seeing them.",
    main_role="vendor",
    roles=("vendor", "viewer"),
    settings=Settings,
    desk=lambda settings: open_desk(cast(Settings, settings)),
    app=lambda settings: build(cast(Settings, settings)),
    check=invariants.check,
    files=lambda db: [],  # candidates are fetched again, and checked against their digest
    restored=restored,  # runs ask again under the same keys: nothing is lost
)


@app.command()
def recommendation(
    run: Annotated[str, typer.Argument(help="run_...")],
    over: Annotated[Over, typer.Option(help="asked: the best of the rows asked; all: the best of all rows.")] = "asked",
) -> None:
    """Print the row to take by the answers of a run, with its mean and a 95 % interval, as JSON."""
    with cli.plain_errors():
        settings = cast(Settings, cli.existing(Settings))
        with open_desk(settings) as desk:
            beliefs = Beliefs(desk.database, settings.data_dir / "candidates", settings.look_memory_max_bytes)
            told = beliefs.recommendation(run, over)
    typer.echo(told.model_dump_json(indent=2))


def main() -> None:
    """The console script."""
    app()
