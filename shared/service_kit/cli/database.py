"""`database`: what PostgreSQL's administrators need."""

import re
from typing import Annotated

import typer

from blindopt.errors import StateConflict
from service_kit.cli.program import Program, S, plain_errors
from service_kit.store.folder_lock import only_process


def build(program: Program[S]) -> typer.Typer:
    cli = typer.Typer(no_args_is_help=True, help="PostgreSQL, where DATABASE_URL says so.")

    @cli.callback()
    def about() -> None:
        pass

    @cli.command()
    def roles(role: Annotated[str, typer.Argument(help="A role of PostgreSQL that exists.")]) -> None:
        """Print the SQL that lets a role serve, and change no table that only grows and no table's form.

        For the owner of the tables to run, after a start under his name and after each update. Such a role can add
        records; an erasure, a new key and the deletion of a run need the owner's.

        Example: blindopt-curator database roles clerk | psql DATABASE
        """
        if not re.fullmatch("[a-z_][a-z0-9_]*", role):
            raise typer.BadParameter("lower-case letters, digits and underscores", param_hint="ROLE")
        with program.opened() as opened:
            typer.echo(opened.database.rights_of(role), nl=False)

    @cli.command()
    def move() -> None:
        """Copy the database from SQLite in DATA_DIR to the empty one at DATABASE_URL. Stop the service first.

        Nothing is lost or closed: the service goes on from there. The file of SQLite is kept under another name.

        Example: BLINDOPT_CURATOR_DATABASE_URL=postgresql://HOST/DATABASE blindopt-curator database move
        """
        with plain_errors():
            settings = program.checked_settings()
            file = program.database_file(settings)
            if (url := settings.database_address) is None or not file.exists():
                raise StateConflict(f"set {settings.variable('database_url')}, with a database of SQLite in DATA_DIR")
            as_file = {"database_url": None, "database_url_file": None}
            with only_process(settings.data_dir), program.open_context(settings.model_copy(update=as_file)) as opened:
                opened.database.copy_to(url)
                size = opened.audit_trail.head().size
            moved = file.rename(file.with_suffix(".moved"))
        typer.echo(f"{size} records are in PostgreSQL; the earlier database is {moved}")

    return cli
