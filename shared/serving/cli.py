"""The command line that both services have: serve, token, audit."""

import json
import os
import signal
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, get_args

import typer
import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError

from shared.audit import Entry, exchanges, reconcile, verify
from shared.errors import BlindoptError
from shared.serving import logs
from shared.serving.desk import Desk
from shared.serving.settings import ServiceSettings
from shared.serving.store.database import only_process
from shared.serving.tokens import Role


@contextmanager
def _plain_errors() -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        for found in error.errors():
            typer.echo(f"error: setting {found['loc'][0]}: {found['msg']}", err=True)
        raise typer.Exit(1) from None
    except (BlindoptError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


def build(
    *,
    service: str,
    main_role: Role,
    roles: tuple[Role, ...],
    settings: Callable[[], ServiceSettings],
    desk: Callable[[ServiceSettings], Desk],
    app: Callable[[ServiceSettings], FastAPI],
) -> typer.Typer:
    """The command line of one service."""
    cli = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    cli.add_typer(_tokens(service, main_role, roles, settings, desk), name="token")
    cli.add_typer(_audit(settings, desk), name="audit")

    @cli.callback()
    def private() -> None:
        os.umask(0o077)  # whatever is written is for this user alone

    @cli.command()
    def serve() -> None:
        """Serve the REST API until SIGTERM. Settings come from the environment (docs/operations.md)."""
        with _plain_errors():
            chosen = settings()
        logs.configure(chosen.log_level)
        # uvicorn drains, then raises the signal again: an orderly end is exit code 0.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        with _plain_errors(), only_process(chosen.data_dir):
            application = app(chosen)
            if chosen.first_token_file is not None:
                first_token(application.state.desk, main_role, chosen.first_token_file)
            uvicorn.run(
                application,
                host=chosen.host,
                port=chosen.port,
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=chosen.drain_seconds,
                ssl_certfile=chosen.tls_cert,
                ssl_keyfile=chosen.tls_key,
                ssl_ca_certs=str(chosen.tls_client_ca) if chosen.tls_client_ca else None,
                ssl_cert_reqs=ssl.CERT_REQUIRED if chosen.tls_client_ca else ssl.CERT_NONE,
            )

    return cli


def first_token(desk: Desk, role: Role, path: Path) -> None:
    """A token for the first start, in a file that only this user can read; kept if it is there."""
    if path.exists():
        return
    token, _ = desk.issue(role, "first start", days=365)
    partial = path.with_suffix(".part")
    partial.touch(mode=0o600)
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
            token, _ = desk(settings()).issue(role, name, days=days)
        typer.echo(token.text)

    @cli.command()
    def revoke(kid: Annotated[str, typer.Argument(help="Key id: the 16 hex digits after blindopt_.")]) -> None:
        """Refuse a token from now on."""
        with _plain_errors():
            desk(settings()).withdraw(kid)
        typer.echo(f"revoked {kid}")

    @cli.command("list")
    def listed() -> None:
        """Key ids, roles, names, expiry; never a secret."""
        with _plain_errors():
            for row in desk(settings()).tokens():
                state = "revoked" if row.revoked_at else "live"
                typer.echo(f"{row.kid}  {row.role:8}  {state:7}  until {row.expires_at[:10]}  {row.name}")

    return cli


def _audit(settings: Callable[[], ServiceSettings], desk: Callable[[ServiceSettings], Desk]) -> typer.Typer:
    cli = typer.Typer(no_args_is_help=True, help="The audit log.")

    @cli.command("verify")
    def verify_log() -> None:
        """Walk the whole log; exit 1 and name the first record that is wrong."""
        with _plain_errors():
            head = desk(settings()).verify()
        typer.echo(f"{head.size} records, root {head.root}")

    @cli.command()
    def export() -> None:
        """Write the log to standard output, one JSON object a line."""
        with _plain_errors():
            for entry in desk(settings()).entries(-1, -1):
                sys.stdout.write(entry.model_dump_json() + "\n")

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
    for line in path.read_text().splitlines():
        item = json.loads(line)
        entries.append(
            Entry(
                seq=item["seq"],
                body=item["body"].encode(),
                leaf=bytes.fromhex(item["leaf"]),
                peaks=bytes.fromhex(item["peaks"]),
            )
        )
    return entries
