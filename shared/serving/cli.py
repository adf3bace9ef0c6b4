"""The command line that both services have: serve, token, audit."""

import json
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, get_args

import typer
import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError

from shared.audit import Entry, exchanges, reconcile, verify
from shared.errors import BlindoptError, LogBroken, StateConflict
from shared.serving import logs
from shared.serving.app import VERSION
from shared.serving.desk import Desk
from shared.serving.settings import ServiceSettings
from shared.serving.store.database import only_process
from shared.serving.store.tables import stamp
from shared.serving.tokens import Role
from shared.wire import AuditEntry


@contextmanager
def _plain_errors() -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        for found in error.errors():
            name = str(found["loc"][0]).upper() if found["loc"] else "settings"
            typer.echo(f"error: {name}: {found['msg']}", err=True)
        raise typer.Exit(1) from None
    except (BlindoptError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


def build(
    *,
    service: str,
    about: str,
    main_role: Role,
    roles: tuple[Role, ...],
    settings: Callable[[], ServiceSettings],
    desk: Callable[[ServiceSettings], Desk],
    app: Callable[[ServiceSettings], FastAPI],
) -> typer.Typer:
    """The command line of one service."""
    cli = typer.Typer(help=about, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    cli.add_typer(_tokens(service, main_role, roles, settings, desk), name="token")
    cli.add_typer(_audit(settings, desk), name="audit")

    @cli.callback(invoke_without_command=True)
    def start(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
        os.umask(0o077)  # whatever is written is for this user alone
        if version:
            typer.echo(f"{service} {VERSION}")
            raise typer.Exit

    @cli.command()
    def serve() -> None:
        """Serve the REST API until SIGTERM. Settings come from the environment (docs/operations.md)."""
        with _plain_errors():
            chosen = _checked(settings)
        logs.configure(chosen.log_level)
        # uvicorn drains, then raises the signal again: an orderly end is exit code 0.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        with _plain_errors(), only_process(chosen.data_dir):
            listening = _listen(chosen.host, chosen.port)
            application = app(chosen)
            if chosen.first_token_file is not None:
                first_token(application.state.desk, main_role, chosen.first_token_file)
            config = uvicorn.Config(
                application,
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=chosen.drain_seconds,
                ssl_certfile=chosen.tls_cert,
                ssl_keyfile=chosen.tls_key,
                ssl_ca_certs=str(chosen.tls_client_ca) if chosen.tls_client_ca else None,
                ssl_cert_reqs=ssl.CERT_REQUIRED if chosen.tls_client_ca else ssl.CERT_NONE,
            )
            uvicorn.Server(config).run(sockets=[listening])

    return cli


def _checked(settings: Callable[[], ServiceSettings]) -> ServiceSettings:
    chosen = settings()
    for name in chosen.unknown(os.environ):
        raise StateConflict(f"there is no setting {name}: see docs/operations.md")
    return chosen


def _existing(settings: Callable[[], ServiceSettings]) -> ServiceSettings:
    chosen = _checked(settings)
    if not any(chosen.data_dir.glob("*.sqlite")):
        raise StateConflict(f"{chosen.data_dir.absolute()} holds no data of a service: set DATA_DIR as for serve")
    return chosen


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        why = os.strerror(error.errno).lower() if error.errno and error.errno > 0 else "no such address"
        raise StateConflict(f"cannot listen on {host} port {port}: {why}") from None


def first_token(desk: Desk, role: Role, path: Path) -> None:
    """A token for the first start, in a file that only this user can read.

    Nothing where any token of the role exists: a person who takes the file away does not get another.
    """
    if any(row.role == role for row in desk.tokens()):
        return
    partial = path.with_suffix(".part")
    partial.unlink(missing_ok=True)
    os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    token, _ = desk.issue(role, "first start", days=365)
    partial.write_text(token.text)
    partial.replace(path)


def _tokens(
    service: str,
    main_role: Role,
    roles: tuple[Role, ...],
    settings: Callable[[], ServiceSettings],
    desk: Callable[[ServiceSettings], Desk],
) -> typer.Typer:
    cli = typer.Typer(no_args_is_help=True, help="Credentials of people and programs.")

    @cli.command()
    def create(
        name: Annotated[str, typer.Option(help="For whom: shown in listings.")],
        role: Annotated[str, typer.Option(help=f"One of {', '.join(roles)}.")] = main_role,
        days: Annotated[int, typer.Option(min=1, max=3_660, help="Days until it expires.")] = 90,
    ) -> None:
        """Print a new token, once."""
        if role not in roles or role not in get_args(Role):
            raise typer.BadParameter(f"{service} knows {', '.join(roles)}", param_hint="--role")
        with _plain_errors():
            token, _ = desk(_checked(settings)).issue(role, name, days=days)
        typer.echo(token.text)

    @cli.command()
    def revoke(kid: Annotated[str, typer.Argument(help="Key id: the 16 hex digits after blindopt_.")]) -> None:
        """Refuse a token from now on."""
        with _plain_errors():
            desk(_existing(settings)).withdraw(kid)
        typer.echo(f"revoked {kid}")

    @cli.command("list")
    def listed() -> None:
        """Key ids, roles, names, expiry; never a secret."""
        with _plain_errors():
            for row in desk(_existing(settings)).tokens():
                expired = row.expires_at <= stamp(datetime.now(UTC))
                state = "revoked" if row.revoked_at else "expired" if expired else "live"
                typer.echo(f"{row.kid}  {row.role:8}  {state:7}  until {row.expires_at[:10]}  {row.name}")

    return cli


def _audit(settings: Callable[[], ServiceSettings], desk: Callable[[ServiceSettings], Desk]) -> typer.Typer:
    cli = typer.Typer(no_args_is_help=True, help="The audit log.")

    @cli.command("verify")
    def verify_log() -> None:
        """Walk the whole log; exit 1 and name the first record that is wrong."""
        with _plain_errors():
            head = desk(_existing(settings)).verify()
        typer.echo(f"{head.size} records, root {head.root}")

    @cli.command()
    def export() -> None:
        """Write the log to standard output, one JSON object a line."""
        with _plain_errors():
            for entry in desk(_existing(settings)).entries(-1, -1):
                # ASCII: other texts hold line ends that some readers split at
                sys.stdout.write(json.dumps(entry.model_dump()) + "\n")

    @cli.command("reconcile")
    def reconcile_logs(
        study: Annotated[str, typer.Argument(help="Study id.")],
        curator: Annotated[Path, typer.Argument(help="The curator's export.")],
        modeler: Annotated[Path, typer.Argument(help="The modeler's export.")],
    ) -> None:
        """Verify two exports and compare what they tell of a study; exit 1 on any difference."""
        with _plain_errors():
            told = [_read_export(path) for path in (curator, modeler)]
            for entries in told:
                verify(entries)
            sides = [exchanges((entry.record for entry in entries), study) for entries in told]
            if not any(sides):
                raise LogBroken(f"neither log tells an exchange of {study}: is that the study's id?")
            differences = reconcile(*sides)
        for difference in differences:
            typer.echo(f"exchange {difference.request_id}: {difference.what}")
        typer.echo(
            f"{len(sides[0])} exchanges at the curator, {len(sides[1])} at the modeler, {len(differences)} differences"
        )
        if differences:
            raise typer.Exit(1)

    return cli


def _read_export(path: Path) -> list[Entry]:
    entries = []
    for number, line in enumerate(path.read_bytes().decode(errors="replace").removesuffix("\n").split("\n"), start=1):
        try:
            told = AuditEntry.model_validate_json(line)
        except ValidationError:
            raise LogBroken(f"{path} line {number} is not an entry of an export") from None
        leaf, peaks = bytes.fromhex(told.leaf), bytes.fromhex(told.peaks)
        entries.append(Entry(seq=told.seq, body=told.body.encode(), leaf=leaf, peaks=peaks))
    return entries
