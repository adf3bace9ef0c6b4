"""`user add|list|password|disable`: the users of the console. It works beside a running service, too."""

import secrets
import warnings
from getpass import GetPassWarning
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from blindopt.errors import Invalid, NotFound, StateConflict
from blindopt.formats.text_files import read_text_file
from service_kit.cli.program import Program, S, plain_errors, private_file
from service_kit.identity.tokens import Role, new_id
from service_kit.settings import PasswordCost, ServiceSettings

if TYPE_CHECKING:
    from service_kit.context.context import ServiceContext
    from service_kit.store.database import Connection
    from service_kit.store.users import User

NAME_MAX = 100
PasswordFile = Annotated[
    Path | None, typer.Option(help="File whose first line is the password; default: asked on the terminal, twice.")
]


def build(program: Program[S]) -> typer.Typer:
    """The commands; only `add` creates the data folder if it does not exist."""
    cli = typer.Typer(no_args_is_help=True, help="People who log in at the console.")

    @cli.command()
    def add(
        name: Annotated[str, typer.Argument(help="What they log in with.")],
        role: Annotated[str, typer.Option(help=f"One of {', '.join(program.roles)}.")] = program.main_role,
        password_file: PasswordFile = None,
    ) -> None:
        """Add a user, with a password.

        Example: blindopt-curator user add ann --password-file secret
        """
        program.check_role(role)
        with plain_errors():
            password_hash = _hash_of(password_file, program.checked_settings().password_hash)
        with program.opened(new=True) as context:
            user = context.database.write(lambda db: add_user(db, context, name, cast(Role, role), password_hash))
        typer.echo(f"{user.id} {user.name} ({user.role})")
        typer.echo(f"data folder: {program.checked_settings().data_dir.absolute()}", err=True)

    @cli.command()
    def password(name: Annotated[str, typer.Argument()], password_file: PasswordFile = None) -> None:
        """Set another password. Every session of the person ends.

        Example: blindopt-curator user password ann
        """
        with program.opened(writes=True) as context:
            context.database.write(lambda db: _by_name(db, name))
            password_hash = _hash_of(password_file, program.checked_settings().password_hash)
            context.database.write(lambda db: _set_password(db, context, name, password_hash))
        typer.echo(f"a new password for {name}; open sessions have ended")

    @cli.command()
    def disable(name: Annotated[str, typer.Argument()]) -> None:
        """Disable a user. Their sessions end at once.

        Example: blindopt-curator user disable ann
        """
        with program.opened(writes=True) as context:
            context.database.write(lambda db: _disable(db, context, name))
        typer.echo(f"disabled {name}")

    @cli.command("list")
    def listed() -> None:
        """Ids, roles, states, names; never a password or its hash.

        Example: blindopt-curator user list
        """
        from service_kit.store import users

        with program.opened() as context, context.database.read() as db:
            for user in users.list_all(db):
                state = f"disabled {user.disabled_at[:10]}" if user.disabled_at else "live"
                typer.echo(f"{user.id}  {user.role:8}  {state:19}  since {user.created_at[:10]}  {user.name}")

    return cli


def _hash_of(file: Path | None, cost: PasswordCost) -> str:
    from service_kit.identity import passwords  # slow to import, and no other command needs it

    return passwords.hash_of(_password(file), cost)


def _password(file: Path | None) -> str:
    if file is not None:
        lines = read_text_file(file).splitlines()
        if not lines:
            raise Invalid(f"{file} is empty: its first line is the password")
        return lines[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error", GetPassWarning)
        try:
            return str(typer.prompt("Password", hide_input=True, confirmation_prompt="The same again"))
        except GetPassWarning:
            raise Invalid("no terminal can ask for the password: name a file with --password-file") from None


def check_name(name: str) -> None:
    """Raise Invalid for a name that would not be one line, or nothing, in a list."""
    if not 1 <= len(name) <= NAME_MAX or not name.isprintable() or name != name.strip():
        raise Invalid(f"a name has 1 to {NAME_MAX} printable characters, without spaces at its ends")


def add_user(db: "Connection", context: "ServiceContext", name: str, role: Role, password_hash: str) -> "User":
    """Add a user who may log in, and record it in the log, inside the caller's transaction."""
    from service_kit.store import audit_log, users
    from service_kit.store.base import stamp
    from service_kit.store.users import User

    check_name(name)
    now = context.clock()
    user = User(new_id("usr"), name, role, password_hash, stamp(now), None)
    users.add(db, user, context.seal.mac)
    audit_log.append(db, "user.added", actor="cli", now=now, details={"user": user.id, "role": role})
    return user


def first_user(context: "ServiceContext", role: Role, settings: ServiceSettings) -> None:
    """Add a user named after the role, with a random password in FIRST_PASSWORD_FILE, unless there is any user.

    Disabled users count, so no later start makes another one. Change the password with `user password`.
    """
    from service_kit.identity import passwords
    from service_kit.store import users

    with context.database.read() as db:
        if settings.first_password_file is None or users.list_all(db):
            return
    with private_file(settings.first_password_file) as write:
        password = secrets.token_urlsafe(18)
        write(password)
        password_hash = passwords.hash_of(password, settings.password_hash)
        context.database.write(lambda db: add_user(db, context, role, role, password_hash))


def _by_name(db: "Connection", name: str) -> "User":
    from service_kit.store import users

    if (user := users.by_name(db, name)) is None:
        raise NotFound("there is no user of this name: `user list` shows them")
    return user


def _set_password(db: "Connection", context: "ServiceContext", name: str, password_hash: str) -> None:
    from service_kit.store import audit_log, sessions, users

    user, now = _by_name(db, name), context.clock()
    if user.disabled_at is not None:
        raise StateConflict("the user is disabled: add one of another name")
    users.set_hash(db, user.id, password_hash, context.seal.mac)
    sessions.end_of_user(db, user.id, now)
    audit_log.append(db, "user.password_set", actor="cli", now=now, details={"user": user.id})


def _disable(db: "Connection", context: "ServiceContext", name: str) -> None:
    from service_kit.store import audit_log, sessions, users

    user, now = _by_name(db, name), context.clock()
    users.disable(db, user.id, now, context.seal.mac)
    sessions.end_of_user(db, user.id, now)
    audit_log.append(db, "user.disabled", actor="cli", now=now, details={"user": user.id})
