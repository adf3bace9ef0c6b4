"""`link add|remove|list`: the modelers to which this curator connects. They change a file, beside a running service."""

import json
from pathlib import Path
from typing import Annotated

import typer

from blindopt import wire
from blindopt.addresses import is_plain_abroad
from blindopt.errors import StateConflict
from curator_service import link_file
from curator_service.cli.program import PROGRAM
from service_kit.cli.program import plain_errors, read_json
from service_kit.cli.remote import AsJson, table

cli = typer.Typer(no_args_is_help=True, help="Links to modelers, for a curator that opens no port.")


@cli.command()
def add(
    link: Annotated[Path, typer.Argument(help="The file link.json that the vendor sent.")],
    ca: Annotated[Path | None, typer.Option(help="CA of the modeler's certificate, in PEM.")] = None,
    cert: Annotated[Path | None, typer.Option(help="Certificate to show to the modeler, in PEM.")] = None,
    key: Annotated[Path | None, typer.Option(help="Its private key, in PEM.")] = None,
) -> None:
    """Take requests from a modeler: this curator connects to it, and grants get the address of the link.

    A running service connects within seconds. Example: blindopt-curator link add link.json
    """
    with plain_errors():
        sent = read_json(link, wire.LinkFile, "a link file")
        settings = PROGRAM.checked_settings()
        if is_plain_abroad(sent.url) and not settings.allow_plain_http:
            raise StateConflict(
                f"{sent.url}: answers are not sent over plain http to another machine: its address must be https"
            )
        path = settings.links_path
        others = [link for link in link_file.read(path) if link.id != sent.id]
        files = {"ca": ca, "cert": cert, "key": key}
        named = {name: None if file is None else str(file.resolve(strict=True)) for name, file in files.items()}
        link_file.write(path, [*others, sent.model_copy(update=named)])
    typer.echo(f"{sent.name}: {sent.url}; grants over this link have the address {link_file.address_of(sent)}")


@cli.command()
def remove(link: Annotated[str, typer.Argument(help="usr_..., as in `link list`.")]) -> None:
    """Take no more requests over a link.

    Example: blindopt-curator link remove usr_0123456789abcdef
    """
    with plain_errors():
        path = PROGRAM.checked_settings().links_path
        links = link_file.read(path)
        if link not in [each.id for each in links]:
            raise StateConflict(f"there is no link {link}: `link list` shows them")
        link_file.write(path, [each for each in links if each.id != link])
    typer.echo(f"removed {link}")


@cli.command("list")
def listed(as_json: AsJson = False) -> None:
    """List links, without their tokens.

    Example: blindopt-curator link list
    """
    with plain_errors():
        links = link_file.read(PROGRAM.checked_settings().links_path)
        rows = [{"id": each.id, "name": each.name, "url": each.url} for each in links]
    typer.echo(
        json.dumps(rows, indent=2) if as_json else table(["link", "name", "modeler"], [[*r.values()] for r in rows])
    )
