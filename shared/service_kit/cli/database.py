"""`database`: what PostgreSQL's administrators need."""

import re
from typing import Annotated

import typer

from service_kit.cli.program import Program, S


def build(program: Program[S]) -> typer.Typer:
    """The commands about the database."""
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

    return cli
