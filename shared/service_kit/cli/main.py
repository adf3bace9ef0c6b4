"""The command line that both services have: serve, backup, restore, token, user, audit.

A command imports what only it needs, such as the web server, when it runs, so that `token create` is fast.
"""

import ctypes
import errno
import gc
import inspect
import os
import resource
import shlex
import signal
import socket
import sys
import threading
import webbrowser
from collections import deque
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer.core import TyperCommand

from blindopt.audit import merkle_log, reconciliation, segments
from blindopt.audit.verification import Verification
from blindopt.errors import Invalid, LogBroken, StateConflict, Unreachable
from blindopt.formats.text_files import read_text_file
from blindopt.version import VERSION
from service_kit.certificates import Certificates
from service_kit.cli import configuration, database, keys, log_format, streams, tls, users
from service_kit.cli.program import CHECK_FAILED, Program, S, one_thread_for_products, plain_errors, private_file
from service_kit.identity.tokens import Role
from service_kit.store.folder_lock import only_process

if TYPE_CHECKING:
    from service_kit.context.context import ServiceContext

_PR_SET_DUMPABLE = 4


def build(program: Program[S]) -> typer.Typer:
    """The command line of one service."""
    cli = typer.Typer(help=program.about, no_args_is_help=True, pretty_exceptions_enable=False)
    cli.add_typer(_tokens(program), name="token")
    cli.add_typer(_audit(program), name="audit")
    cli.add_typer(users.build(program), name="user")
    cli.add_typer(keys.build(program), name="key")
    cli.add_typer(configuration.build(program), name="config")
    cli.add_typer(database.build(program), name="database")
    cli.add_typer(tls.build(program), name="tls")

    @cli.callback(invoke_without_command=True)
    def start(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
        os.umask(0o077)  # files are readable by this user only
        one_thread_for_products()
        if version:
            typer.echo(f"{program.service} {VERSION}")
            raise typer.Exit

    @cli.command()
    def backup(target: Annotated[Path, typer.Argument(help="A new folder for the copy.")]) -> None:
        """Copy the database and its files, consistent while the service runs. The keys are not in it.

        Example: blindopt-curator backup backups/2026-11-28
        """
        from service_kit.cli import backup

        with plain_errors():
            settings = program.existing()
            with program.open_context(settings) as opened:
                count = backup.backup(opened, settings.data_dir, target, program.files)
        typer.echo(f"{count} files in {target}; copy {settings.data_dir.absolute() / 'secrets'} by another way")

    @cli.command()
    def restore(
        source: Annotated[Path | None, typer.Argument(help="A folder that backup made.")] = None,
        secrets: Annotated[Path | None, typer.Option(help="The folder with the keys of this service.")] = None,
        erased: Annotated[
            Path | None,
            typer.Option(help="The file `erased` of the curator's data folder: what it names is erased again."),
        ] = None,
        from_database: Annotated[
            bool,
            typer.Option("--from-database", help="Go on with the database, which was put back to an earlier state."),
        ] = False,
    ) -> None:
        """Put a backup into an empty DATA_DIR, verify it, and record that what came after it is lost.

        A file `erased` may be in DATA_DIR: what it and --erased name is erased again. With --from-database nothing is
        copied: the server, or a snapshot of the disk, brought an earlier state of the database back.

        Example: blindopt-curator restore backups/2026-11-21 --secrets elsewhere/secrets
        """
        from service_kit.cli import backup

        with plain_errors():
            settings = program.checked_settings()
            if from_database and not (source or secrets or erased):
                head, lost = backup.restore_database(program, settings)
                typer.echo(f"the log goes on after {head.size} records, root {head.root}; {lost} are lost")
            elif source and secrets and not from_database:
                head, words = backup.restore_backup(program, settings, source, secrets, erased)
                typer.echo("\n".join(filter(None, (f"restored {head.size} records, root {head.root}", words))))
            else:
                raise typer.BadParameter("give a folder and --secrets, or --from-database alone", param_hint="SOURCE")
        if program.after_restore:
            typer.echo(program.after_restore, err=True)

    @cli.command()
    def serve(
        host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
        port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
        data_dir: Annotated[Path | None, typer.Option(help="Folder of the database and all files.")] = None,
        open_browser: Annotated[bool, typer.Option("--open", help="Open the console in the browser.")] = False,
    ) -> None:
        """Serve REST API and console until Ctrl-C or SIGTERM.

        Settings come from the environment; options override them.

        Example: blindopt-curator serve --port 8410 --data-dir data
        """
        # No crash writes this process's memory, which has the keys, to a file, nor may its user's programs read it.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if sys.platform == "linux":  # a handler of core dumps takes no notice of the limit
            ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
        gc.disable()  # what is imported and built now stays, too
        from service_kit.listener.server import server
        from service_kit.store import users

        with plain_errors():
            settings = program.checked_settings(host=host, port=port, data_dir=data_dir)
            program.check_folder(settings)
        # Plain lines for people; at a terminal nobody wants a line a request.
        is_quiet = sys.stderr.isatty() and "log_level" not in settings.model_fields_set
        log_format.configure("warning" if is_quiet else settings.log_level, terminal=sys.stderr.isatty())
        # uvicorn drains, then raises the signal again: an orderly end is exit code 0.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the server reads certificates again at it
        # With PostgreSQL the lock is there, and a standby has the same folder.
        alone = only_process(settings.data_dir) if settings.database_address is None else nullcontext()
        with plain_errors(), alone:
            listening = _listen(settings.host, settings.port)
            settings = settings.model_copy(update={"port": listening.getsockname()[1]})
            application = _application(program, settings)
            listener = server(application, settings)
            signal.signal(signal.SIGHUP, listener.hang_up)
            if sys.stdout.isatty():
                has_users = True  # where it may be a standby
                if settings.database_address is None:
                    with application.state.context.database.read() as db:
                        has_users = bool(users.list_all(db))
                streams.say(_banner(program, settings, has_users=has_users, moved=data_dir is not None))
            if open_browser:  # in a thread: a browser of the terminal would hold the service up
                threading.Thread(target=webbrowser.open, args=[settings.console_url], daemon=True).start()
            gc.freeze()
            gc.enable()
            listener.run(sockets=[listening])

    @cli.command()
    def healthy() -> None:
        """Ask the service of these settings on this machine whether it is ready; exit 6 if it is not.

        No proxy is asked, whatever the environment says.

        Example: blindopt-curator healthy
        """
        from blindopt.client import is_ready

        with plain_errors():
            settings = program.checked_settings()
            if not is_ready(settings.console_url, verify=False):  # this machine, and nothing is sent
                raise Unreachable(f"{settings.console_url} is not ready")

    finish(cli, program.service)
    return cli


class _Command(TyperCommand):
    """A command whose usage has the names of its arguments in capitals, without braces."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.replace("{", "").replace("}", "").upper() for piece in super().collect_usage_pieces(ctx)]


def finish(cli: typer.Typer, service: str) -> None:
    """Give all commands their usage lines, and examples of this service."""
    for command in cli.registered_commands:
        own = f"{service.replace('-', '_').upper()}_"
        text = inspect.cleandoc((command.callback and command.callback.__doc__) or "")
        command.help = text.replace("blindopt-curator", service).replace("BLINDOPT_CURATOR_", own)
        command.cls = _Command
    for group in cli.registered_groups:
        if group.typer_instance is not None:
            finish(group.typer_instance, service)


def _application(program: Program[S], settings: S) -> Any:
    """The application; where the database is PostgreSQL, one that serves while this process leads."""

    def build() -> Any:
        application = program.app(settings)
        if settings.first_token_file is not None:
            first_token(application.state.context, program.main_role, settings.first_token_file)
        if settings.first_password_file is not None:
            users.first_user(application.state.context, program.main_role, settings)
        return application

    url = settings.database_address
    if url is None:
        return build()
    from service_kit.listener.standby import StandbyApp
    from service_kit.store.base import utc_now
    from service_kit.store.database import lead

    certificates = Certificates(settings, utc_now)
    return StandbyApp(lambda: lead(program.database_file(settings), url), build, certificates, metrics=settings.metrics)


def _banner(program: Program[S], settings: S, *, has_users: bool, moved: bool) -> str:
    """What a person at a terminal must know. ``moved``: an option named the folder, which other commands do not see."""
    lines = [
        f"{program.service} {VERSION}",
        f"  Console  {settings.console_url}",
        f"  Address  {settings.address or 'set ' + settings.variable('public_url') + ' for other machines'}",
        f"  Data     {settings.data_dir.absolute()}",
    ]
    if not has_users:
        where = f"{settings.variable('data_dir')}={shlex.quote(str(settings.data_dir.absolute()))} " if moved else ""
        lines.append(f"  No user yet: {where}{program.service} user add NAME")
    return "\n".join([*lines, "Stop with Ctrl-C."])


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        why = os.strerror(error.errno).lower() if error.errno and error.errno > 0 else "no such address"
        other = ": choose another with --port" if error.errno == errno.EADDRINUSE else ""
        raise StateConflict(f"cannot listen on {host} port {port}: {why}{other}") from None


def first_token(context: "ServiceContext", role: Role, path: Path) -> None:
    """Write a token for the first start to a file that only this user can read, unless the role has a token already.

    So a person who deletes the file does not get another token.
    """
    if any(row.role == role for row in context.authentication.tokens()):
        return
    with private_file(path) as write:
        token, _ = context.authentication.issue(role, "first start", days=365)
        write(token.text)


def _tokens(program: Program[S]) -> typer.Typer:
    cli = typer.Typer(no_args_is_help=True, help="Credentials of people and programs.")

    @cli.command()
    def create(
        name: Annotated[str, typer.Option(help="For whom: shown in listings.")],
        role: Annotated[str, typer.Option(help=f"One of {', '.join(program.roles)}.")] = program.main_role,
        days: Annotated[int, typer.Option(min=1, max=3_660, help="Days until it expires.")] = 90,
    ) -> None:
        """Print a new token, once.

        Example: blindopt-curator token create --name ann --days 30
        """
        program.check_role(role)
        with plain_errors():
            users.check_name(name)
        with program.opened(new=True) as opened:
            token, _ = opened.authentication.issue(cast(Role, role), name, days=days)
        typer.echo(token.text)

    @cli.command()
    def rotate(
        principal: Annotated[str, typer.Argument(help="usr_..., as in `token list`.")],
        days: Annotated[int, typer.Option(min=1, max=3_660, help="Days until the new token expires.")] = 90,
    ) -> None:
        """Print a further token of a person or program; the older one stays until it is revoked.

        Example: blindopt-curator token rotate usr_0123456789abcdef
        """
        with program.opened(writes=True) as opened:
            token, _ = opened.database.write(
                lambda db: opened.authentication.rotate(db, principal, days=days, actor="cli")
            )
        typer.echo(token.text)

    @cli.command()
    def revoke(kid: Annotated[str, typer.Argument(help="Key id: the 16 hex digits after blindopt_.")]) -> None:
        """Refuse a token from now on.

        Example: blindopt-curator token revoke 0123456789abcdef
        """
        with program.opened(writes=True) as opened:
            opened.database.write(lambda db: opened.authentication.revoke(db, kid, actor="cli"))
        typer.echo(f"revoked {kid}")

    @cli.command("list")
    def listed() -> None:
        """Key ids, principals, roles, expiry, last use, names; never a secret.

        Example: blindopt-curator token list
        """
        from service_kit.store.tokens import is_live

        with program.opened() as opened:
            for row in opened.authentication.tokens():
                state = "revoked" if row.revoked_at else "live" if is_live(row, datetime.now(UTC)) else "expired"
                used = f"used {row.last_used_at[:16]}" if row.last_used_at else "never used"
                until = row.expires_at[:10]
                typer.echo(f"{row.kid}  {row.principal}  {row.role:8}  {state:7}  until {until}  {used:21}  {row.name}")

    return cli


def _audit(program: Program[S]) -> typer.Typer:
    cli = typer.Typer(no_args_is_help=True, help="The audit log. Everything here works offline.")

    @cli.command("verify")
    def verify_log(
        export: Annotated[
            Path | None, typer.Argument(help="An export or an archived segment; default: the service's own database.")
        ] = None,
        key: Annotated[str | None, typer.Option(help="The party's verifier key, learnt another way.")] = None,
        since: Annotated[
            Path | None, typer.Option(help="A signed checkpoint in a file: verify the log's records after it alone.")
        ] = None,
    ) -> None:
        """Verify every log, signature and ledger line; exit 3 and name the first thing that is wrong.

        Example: blindopt-curator audit verify
        """
        words = ""
        with plain_errors():
            note = None if since is None else read_text_file(since)
            if export is not None and segments.is_segment(export):
                typer.echo(segments.verified(export, key))
                return
            if export is not None:
                file = reconciliation.ExportFile(export)
                verification, vkey = Verification(file, key=key, since=note), file.key
                deque(verification.records(), maxlen=0)
            else:
                from service_kit.cli.findings import verified

                with program.opened() as opened:
                    vkey = opened.signer.verifier.vkey
                    try:
                        verification, words = verified(program, opened, key, note)
                    except LogBroken as error:
                        opened.audit_trail.notify_broken(str(error))
                        raise
        head, before = verification.head, verification.since
        typer.echo(f"valid: {head.size} records, root {head.root}, signed by {vkey}")
        if export is not None and key is None:
            typer.echo("the key is the one in the file: compare it with the party's (--key, `audit key`)", err=True)
        if pending := verification.pending:
            typer.echo(f"{pending} exchange{'s are' * (pending > 1) or ' is'} not in the copy of a shared log yet")
        if note is not None:
            typer.echo(f"verified from the checkpoint of {before} records: not those before it, and no table")
        if words:
            typer.echo(words)

    @cli.command()
    def export() -> None:
        """Write logs and signatures to standard output, one JSON object a line.

        Example: blindopt-curator audit export > curator.jsonl
        """
        with program.opened() as opened, opened.database.read() as db:
            sys.stdout.writelines(reconciliation.write(opened.audit_trail.export(db)))

    @cli.command()
    def prove(
        first: Annotated[int, typer.Argument(min=1, help="Records of the older checkpoint.")],
        second: Annotated[int, typer.Argument(min=1, help="Records of the newer one.")],
        archive: Annotated[
            Path | None, typer.Option("--segments", help="Folder of archived segments; default: LOG_ARCHIVE_DIR.")
        ] = None,
        grant: Annotated[str | None, typer.Option(help="The log shared with this grant; default: the own log.")] = None,
    ) -> None:
        """Print the proof that a log of the newer checkpoint begins with the older one, if that one is archived.

        Example: blindopt-curator audit prove 1000 200000 --segments archive
        """
        from service_kit.context.log_archive import ArchiveFiles

        with program.opened() as opened, opened.database.read() as db:
            files = ArchiveFiles(db, archive or opened.archive, opened.signer.first.vkey)
            leaves = files.leaves(db, grant)
            if not first <= second <= len(leaves):
                raise Invalid(f"the second size must be between the first and that of the log, {len(leaves)}")
            for node in merkle_log.consistency(leaves[:second], first):
                typer.echo(node.hex())

    if (import_segment := program.import_segment) is not None:

        @cli.command("import-segment")
        def import_archived(segment: Annotated[Path, typer.Argument(help="A file of the curator's archive.")]) -> None:
            """Add the exchanges in an archived segment of a curator's log to this side's copies of it.

            For a run that ended with `archived`, because its curator no longer serves them.

            Example: blindopt-modeler audit import-segment log-000003.jsonl.gz
            """
            with program.opened() as opened:
                typer.echo(f"{import_segment(opened, segment)} exchanges added")

    @cli.command("reconcile")
    def reconcile_logs(
        study: Annotated[str, typer.Argument(help="Study id.")],
        curator: Annotated[Path, typer.Argument(help="The curator's export.")],
        modeler: Annotated[Path, typer.Argument(help="The modeler's export.")],
    ) -> None:
        """Verify two exports and compare their exchanges of a study; exit 3 on any difference.

        Example: blindopt-curator audit reconcile std_0123456789abcdef curator.jsonl modeler.jsonl
        """
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
            raise typer.Exit(CHECK_FAILED)

    @cli.command("findings", hidden=True)
    def print_findings(
        folder: Path, parts: str = typer.Argument("both"), archive: Path | None = typer.Argument(None)
    ) -> None:
        """Verify the data in a folder for its running service."""
        from service_kit.cli import findings

        kind = program.service.removeprefix("blindopt-")
        url = sys.stdin.read() or None
        if not (only_first := parts == "first"):  # for which requests wait
            os.nice(findings.NICENESS)
        findings.print_findings(folder, kind, program.findings, typer.echo, url, archive, only_first=only_first)

    @cli.command()
    def key() -> None:
        """Print the service's verifier key. Send it to the other party over another channel.

        Example: blindopt-curator audit key
        """
        with program.opened() as opened:
            typer.echo(opened.signer.verifier.vkey)

    return cli
