"""The command line that both services have: serve, backup, restore, token, user, audit.

A command imports what only it needs, such as the web server, when it runs, so that `token create` is fast.
"""

import gc
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from pydantic import ValidationError

from blindopt.audit import reconciliation
from blindopt.audit.merkle_log import Head
from blindopt.errors import BlindoptError, LogBroken, StateConflict
from service_kit.cli import log_format, users
from service_kit.context.context import ServiceContext
from service_kit.identity.tokens import Role
from service_kit.settings import ServiceSettings
from service_kit.store import sessions
from service_kit.store.database import Connection, only_process
from service_kit.store.tokens import is_live
from service_kit.version import VERSION

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

Check = Callable[[Connection, Iterable[dict[str, Any]]], None]


@contextmanager
def plain_errors() -> Iterator[None]:
    """Report errors in words on standard error, and exit with status 1."""
    try:
        yield
    except ValidationError as error:
        for fault in error.errors():
            name = str(fault["loc"][0]).upper() if fault["loc"] else "settings"
            typer.echo(f"error: {name}: {fault['msg']}", err=True)
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
    open_context: Callable[[ServiceSettings], ServiceContext],
    app: Callable[[ServiceSettings], "FastAPI"],
    check: Check,
    files: Callable[[Connection], Iterable[str]],
    restored: Callable[[Connection, ServiceContext], None],
    after_restore: str = "",
) -> typer.Typer:
    """The command line of one service.

    ``check`` verifies its tables against its log, ``files`` returns the names of the files that its database needs,
    and ``restored`` updates its database after a restore. ``after_restore`` tells the operator what remains to be done.
    """
    cli = typer.Typer(help=about, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    cli.add_typer(_tokens(service, main_role, roles, settings, open_context), name="token")
    cli.add_typer(_audit(settings, open_context, check), name="audit")
    people = users.build(
        service,
        main_role,
        roles,
        lambda: open_context(_checked(settings)),
        lambda: open_context(existing(settings)),
        lambda: _checked(settings).password_hash,
        plain_errors,
    )
    cli.add_typer(people, name="user")

    @cli.callback(invoke_without_command=True)
    def start(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
        os.umask(0o077)  # files are readable by this user only
        if version:
            typer.echo(f"{service} {VERSION}")
            raise typer.Exit

    @cli.command()
    def backup(target: Annotated[Path, typer.Argument(help="A new folder for the copy.")]) -> None:
        """Copy the database and its files, consistent while the service runs. The keys are not in it."""
        from service_kit.cli import backup

        with plain_errors():
            chosen = existing(settings)
            with open_context(chosen) as opened:
                count = backup.backup(opened, chosen.data_dir, target, files)
        typer.echo(f"{count} files in {target}; copy {chosen.data_dir.absolute() / 'secrets'} by another way")

    @cli.command()
    def restore(
        source: Annotated[Path, typer.Argument(help="A folder that backup made.")],
        secrets: Annotated[Path, typer.Option(help="The folder with the keys of this service.")],
    ) -> None:
        """Put a backup into an empty DATA_DIR, verify it, and record that what came after it is lost."""
        from service_kit.cli import backup

        with plain_errors():
            chosen = _checked(settings)
            with only_process(chosen.data_dir):
                partial = backup.unpack(source, chosen.data_dir, secrets)
                with open_context(chosen.model_copy(update={"data_dir": partial})) as opened:
                    backup.check(source, opened, files)
                    head = _verified(opened, check)
                    opened.database.write(lambda db: restored(db, opened))
                    opened.database.write(lambda db: sessions.end_all(db, opened.clock()))
                backup.settle(partial)
        typer.echo(f"restored {head.size} records, root {head.root}")
        if after_restore:
            typer.echo(after_restore, err=True)

    @cli.command()
    def serve() -> None:
        """Serve the REST API until SIGTERM. Settings come from the environment (docs/operations.md)."""
        import uvicorn

        with plain_errors():
            chosen = _checked(settings)
        log_format.configure(chosen.log_level)
        # uvicorn drains, then raises the signal again: an orderly end is exit code 0.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        with plain_errors(), only_process(chosen.data_dir):
            listening = _listen(chosen.host, chosen.port)
            application = app(chosen)
            if chosen.first_token_file is not None:
                first_token(application.state.context, main_role, chosen.first_token_file)
            config = uvicorn.Config(
                application,
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # anyone can send them: the client is the peer of the connection
                timeout_graceful_shutdown=chosen.drain_seconds,
                ssl_certfile=chosen.tls_cert,
                ssl_keyfile=chosen.tls_key,
                ssl_ca_certs=str(chosen.tls_client_ca) if chosen.tls_client_ca else None,
                ssl_cert_reqs=ssl.CERT_REQUIRED if chosen.tls_client_ca else ssl.CERT_NONE,
            )
            _server(config).run(sockets=[listening])

    return cli


def _server(config: "uvicorn.Config") -> "uvicorn.Server":
    """A server that calls ``app.state.leave`` when it must stop, so that open streams do not delay the shutdown."""
    import uvicorn

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            leave: Callable[[], None] | None = getattr(self.config.app.state, "leave", None)  # type: ignore[union-attr]
            if leave is not None:
                leave()
            super().handle_exit(sig, frame)

    return Server(config)


def _verified(opened: ServiceContext, check: Check, key: str | None = None) -> Head:
    """Verify a service's own data: logs, signatures, and its tables against its log."""
    gc.disable()  # millions of parsed values without cycles: collecting garbage would take longer than the work
    with opened.database.read() as db:
        export = opened.audit_trail.export(db)
        head = reconciliation.verify_export(export, key=key)
        check(db, (entry.record for entry in export.own))
    return head


def _checked(settings: Callable[[], ServiceSettings]) -> ServiceSettings:
    chosen = settings()
    for name in chosen.unknown(os.environ):
        raise StateConflict(f"there is no setting {name}: see docs/operations.md")
    return chosen


def existing(settings: Callable[[], ServiceSettings]) -> ServiceSettings:
    """The settings, if their folder holds the data of a service. Raises StateConflict otherwise."""
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


def first_token(context: ServiceContext, role: Role, path: Path) -> None:
    """Write a token for the first start to a file that only this user can read, unless the role has a token already.

    So a person who deletes the file does not get another token.
    """
    if any(row.role == role for row in context.authentication.tokens()):
        return
    partial = path.with_suffix(".part")
    partial.unlink(missing_ok=True)
    os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    token, _ = context.authentication.issue(role, "first start", days=365)
    partial.write_text(token.text)
    partial.replace(path)


def _tokens(
    service: str,
    main_role: Role,
    roles: tuple[Role, ...],
    settings: Callable[[], ServiceSettings],
    open_context: Callable[[ServiceSettings], ServiceContext],
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
        with plain_errors(), open_context(_checked(settings)) as opened:
            token, _ = opened.authentication.issue(role, name, days=days)
        typer.echo(token.text)

    @cli.command()
    def rotate(
        principal: Annotated[str, typer.Argument(help="usr_..., as in `token list`.")],
        days: Annotated[int, typer.Option(min=1, max=3_660, help="Days until the new token expires.")] = 90,
    ) -> None:
        """Print a further token of a person or program; the older one stays until it is revoked."""
        with plain_errors(), open_context(existing(settings)) as opened:
            token, _ = opened.database.write(
                lambda db: opened.authentication.rotate(db, principal, days=days, actor="cli")
            )
        typer.echo(token.text)

    @cli.command()
    def revoke(kid: Annotated[str, typer.Argument(help="Key id: the 16 hex digits after blindopt_.")]) -> None:
        """Refuse a token from now on."""
        with plain_errors(), open_context(existing(settings)) as opened:
            opened.database.write(lambda db: opened.authentication.revoke(db, kid, actor="cli"))
        typer.echo(f"revoked {kid}")

    @cli.command("list")
    def listed() -> None:
        """Key ids, principals, roles, expiry, last use, names; never a secret."""
        with plain_errors(), open_context(existing(settings)) as opened:
            for row in opened.authentication.tokens():
                state = "revoked" if row.revoked_at else "live" if is_live(row, datetime.now(UTC)) else "expired"
                used = f"used {row.last_used_at[:16]}" if row.last_used_at else "never used"
                until = row.expires_at[:10]
                typer.echo(f"{row.kid}  {row.principal}  {row.role:8}  {state:7}  until {until}  {used:21}  {row.name}")

    return cli


def _audit(
    settings: Callable[[], ServiceSettings],
    open_context: Callable[[ServiceSettings], ServiceContext],
    check: Check,
) -> typer.Typer:
    cli = typer.Typer(no_args_is_help=True, help="The audit log. Everything here works offline.")

    @cli.command("verify")
    def verify_log(
        export: Annotated[Path | None, typer.Argument(help="An export; default: the service's own database.")] = None,
        key: Annotated[str | None, typer.Option(help="The party's verifier key, learnt another way.")] = None,
    ) -> None:
        """Verify every log, signature and ledger line; exit 1 and name the first thing that is wrong."""
        with plain_errors():
            if export is not None:
                head = reconciliation.verify_export(reconciliation.read(export), key=key)
            else:
                with open_context(existing(settings)) as opened:
                    try:
                        head = _verified(opened, check, key)
                    except LogBroken as error:
                        opened.audit_trail.notify_broken(str(error))
                        raise
        typer.echo(f"{head.size} records, root {head.root}")

    @cli.command()
    def export() -> None:
        """Write logs and signatures to standard output, one JSON object a line."""
        with plain_errors(), open_context(existing(settings)) as opened, opened.database.read() as db:
            sys.stdout.writelines(reconciliation.write(opened.audit_trail.export(db)))

    @cli.command("reconcile")
    def reconcile_logs(
        study: Annotated[str, typer.Argument(help="Study id.")],
        curator: Annotated[Path, typer.Argument(help="The curator's export.")],
        modeler: Annotated[Path, typer.Argument(help="The modeler's export.")],
    ) -> None:
        """Verify two exports and compare their exchanges of a study; exit 1 on any difference."""
        with plain_errors():
            sides = []
            for name, path in (("curator", curator), ("modeler", modeler)):
                try:
                    sides.append(reconciliation.read(path))
                    reconciliation.verify_export(sides[-1])
                except LogBroken as error:
                    raise LogBroken(f"the {name}'s export: {error}") from None
                if sides[-1].service != f"blindopt-{name}":
                    raise LogBroken(f"{path} is an export of {sides[-1].service}, not of the {name}")
            compared, differences = reconciliation.reconcile(sides[0], sides[1], study)
        for difference in differences:
            typer.echo(f"{difference.where}: {difference.what}")
        typer.echo(f"{compared} exchanges compared, {len(differences)} differences")
        if differences:
            raise typer.Exit(1)

    @cli.command()
    def key() -> None:
        """Print the service's verifier key. Send it to the other party over another channel."""
        with plain_errors(), open_context(existing(settings)) as opened:
            typer.echo(opened.signer.verifier.vkey)

    return cli
