"""Commands that are clients of a running service: its address, a token, and replies for people and for programs."""

import json
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic import BaseModel

from blindopt.addresses import is_plain_abroad
from blindopt.errors import StateConflict
from blindopt.formats.text_files import read_text_file
from service_kit.cli.program import Program, S, plain_errors

C = TypeVar("C")
Url = Annotated[
    str | None,
    typer.Option("--url", help="Address of the service. Default: ..._URL in the environment, or as its settings say."),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        help="File with a token. Default: ..._TOKEN_FILE in the environment; where the service's data are, a token "
        "that ends with the command.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


def address_of(program: Program[S], url: str | None) -> str:
    """The address to send requests to: as given, as in the environment, or where the settings say that it listens."""
    return (url or program.in_environment("url") or program.checked_settings().console_url).rstrip("/")


def client_options(program: Program[S]) -> dict[str, Any]:
    """Options of a client: the files of the authority and of the certificate to show, as the environment names them.

    A command reports what it is told at once, and has warned of plain http itself.
    """
    ca, cert, key = (program.in_environment(name) for name in ("ca_file", "client_cert_file", "client_key_file"))
    certificate = (cert, key) if cert and key else None
    return {"verify": ca or True, "client_cert": certificate, "patience_s": 0.0, "plain_http": True}


@contextmanager
def connected(
    program: Program[S], client: Callable[..., AbstractContextManager[C]], url: str | None, token_file: Path | None
) -> Iterator[C]:
    with plain_errors():
        address = address_of(program, url)
        if is_plain_abroad(address):
            typer.echo(f"warning: the token goes to {address} over plain http, readable on the way", err=True)
        with (
            access_token(program, token_file, "command line") as token,
            client(address, token, **client_options(program)) as opened,
        ):
            yield opened


@contextmanager
def access_token(program: Program[S], file: Path | None, purpose: str, *, days: int = 1) -> Iterator[str]:
    """The token in a file; without one, a token of the service's data folder that is revoked in the end."""
    named = file or program.in_environment("token_file")
    if named is not None:
        yield read_text_file(named).strip()
        return
    advice = f"name a file with --token-file or {program.client_variable('token_file')}"
    try:
        program.existing()
    except StateConflict as error:
        raise StateConflict(f"no token: {advice} ({error})") from None
    with program.opened(writes=True, advice=f"; so that none does, {advice}") as context:
        token, _ = context.authentication.issue(program.main_role, f"{program.service} {purpose}", days=days)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # nohup ignores a hangup
            signal.signal(number, lambda number, _: sys.exit(128 + number))  # so that what follows happens
    try:
        yield token.text
    finally:
        with program.opened() as context:
            context.database.write(lambda db: context.authentication.revoke(db, token.kid, actor="cli"))
        for number, handler in before.items():
            signal.signal(number, handler)


def show(reply: BaseModel | Sequence[BaseModel], in_words: str, as_json: bool) -> None:
    if not as_json:
        typer.echo(in_words)
    elif isinstance(reply, BaseModel):
        typer.echo(reply.model_dump_json(indent=2))
    else:
        typer.echo(json.dumps([item.model_dump(mode="json") for item in reply], indent=2))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Aligned columns under their names; None is a blank cell.

    >>> print(table(["id", "y"], [["msr_1", 2.5], ["msr_20", None]]))
    ID      Y
    msr_1   2.5
    msr_20
    """
    lines = [[name.upper() for name in head], *(["" if cell is None else str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    aligned = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(line.rstrip() for line in aligned)


def confirm(question: str, yes: bool) -> None:
    """Ask before an act that cannot be undone; exit with status 1 on no."""
    if not yes:
        typer.confirm(question, abort=True, err=True)
