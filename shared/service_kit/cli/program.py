"""A service as its command line sees it, and how its commands open its data and report errors."""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import typer
from pydantic import BaseModel, ValidationError

from blindopt import bodies, faults
from blindopt.errors import (
    BY_CODE,
    BlindoptError,
    Invalid,
    LogBroken,
    ProtocolViolated,
    RecordChanged,
    Remote,
    StateConflict,
    Unreachable,
    sentence,
)
from blindopt.formats.text_files import read_text_file
from service_kit.identity.tokens import Role
from service_kit.settings import ServiceSettings
from service_kit.store import StoreFault
from service_kit.store.folder_lock import only_process

if TYPE_CHECKING:
    from fastapi import FastAPI

    from service_kit.context.context import ServiceContext
    from service_kit.store.database import Connection
    from service_kit.verification import Findings

S = TypeVar("S", bound=ServiceSettings)
M = TypeVar("M", bound=BaseModel)
_SETTING = re.compile(r"\b(?!BLINDOPT_)[A-Z]+(?:_[A-Z]+)+\b")


@contextmanager
def private_file(path: Path) -> Iterator[Callable[[str], object]]:
    """Yield a function that writes a secret. The file appears whole at the end; only this user can read it (0600)."""
    partial = path.with_suffix(".part")
    partial.unlink(missing_ok=True)
    os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    yield lambda text: partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def one_thread_for_products() -> None:
    """Let BLAS start no threads in this process, unless the environment says how many. Before numpy is imported.

    Products are cut so small that it would share none (``blindopt.gp.single_thread_blas``), and each thread of OpenBLAS
    spins for 30 ms when it begins.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


CHECK_FAILED = 3
"""The exit status of a command that found something changed, or a promise that does not hold."""
WRONG = 2
"""The exit status for a command line, a setting, or a file of one's own that cannot be right."""
_OTHER, _REFUSED, _NOT_FOUND, _UNREACHABLE = 1, 4, 5, 6
_FOUND_CHANGED = {kind.code for kind in (LogBroken, ProtocolViolated, RecordChanged)}


def exit_status(error: Exception) -> int:
    """The exit status of every command that ends with an error: 1 for one that has no other."""
    if isinstance(error, Remote):
        return _status_of(error.remote_code, error.remote_status)
    if isinstance(error, Invalid):
        return WRONG
    if isinstance(error, BlindoptError):
        return status_of_code(error.code)
    return _NOT_FOUND if isinstance(error, FileNotFoundError) else _OTHER


def status_of_code(code: str) -> int:
    """The exit status for an error with this code that happened here, or in a run."""
    return _status_of(code, min(BY_CODE.get(code, BlindoptError).status, 500))


def _status_of(code: str, status: int) -> int:
    if code in _FOUND_CHANGED:
        return CHECK_FAILED
    if code == Unreachable.code or 502 <= status <= 504:
        return _UNREACHABLE
    if status in (404, 410):
        return _NOT_FOUND
    return _REFUSED if 400 <= status < 500 else _OTHER


@contextmanager
def plain_errors() -> Iterator[None]:
    """Report errors in words on standard error, and exit with their status."""
    try:
        yield
    except OSError as error:
        has_file = error.filename is not None and error.strerror is not None
        typer.echo(f"error: {f'{error.filename}: {str(error.strerror).lower()}' if has_file else error}", err=True)
        raise typer.Exit(exit_status(error)) from None
    except StoreFault as error:
        typer.echo(f"error: the database is damaged, or refused a statement ({error}): keep its files", err=True)
        raise typer.Exit(1) from None
    except UnicodeError:
        typer.echo("error: a file or a word of the command is not text in UTF-8", err=True)
        raise typer.Exit(1) from None
    except BlindoptError as error:
        typer.echo(f"error: {error}", err=True)
        others = error.other_faults if isinstance(error, Remote) else map(sentence, getattr(error, "errors", [])[1:])
        for line in others:
            typer.echo(f"  {line}", err=True)
        raise typer.Exit(exit_status(error)) from None


def read_json(path: Path, model: type[M], description: str) -> M:
    """Read a file of JSON as a wire model. Raises Invalid, in which the file's content is not quoted."""
    try:
        content: M = bodies.parse(read_text_file(path).encode(), model)
    except Invalid as error:
        raise Invalid(f"{path} is not {description}: {error}") from None
    return content


@dataclass(frozen=True, slots=True, kw_only=True)
class Program(Generic[S]):
    """A service with its command line; ``settings`` reads them from the environment.

    ``findings`` verifies its tables against its log, ``erased`` returns in words what was erased, ``files`` returns the
    names of the files that its database needs, and ``restored`` updates its database after a restore, and erases the
    datasets with the given ids. ``import_segment`` adds what a file of the other party's archive has to the log.
    ``after_restore`` states what the operator must do then.
    """

    service: str
    about: str
    main_role: Role
    roles: tuple[Role, ...]
    settings: Callable[..., S]
    open_context: Callable[[S], "ServiceContext"]
    app: Callable[[S], "FastAPI"]
    findings: "Findings"
    files: "Callable[[Connection], Iterable[str]]"
    restored: "Callable[[Connection, ServiceContext, Iterable[str]], None]"
    erased: "Callable[[Connection], str]" = lambda db: ""
    after_restore: str = ""
    import_segment: "Callable[[ServiceContext, Path], int] | None" = None

    def checked_settings(self, **overrides: object) -> S:
        """The settings; ``overrides`` override the environment. Raises Invalid for a variable that is none."""
        options = {name: value for name, value in overrides.items() if value is not None}

        def name_of(setting: str) -> str:
            return f"--{setting.replace('_', '-')}" if setting in options else setting and self.client_variable(setting)

        try:
            settings = self.settings(**options)
        except ValidationError as error:
            reported = faults.invalid(faults.first_errors(error), rename=name_of).errors
            whole = self.client_variable("")
            raise Invalid.of(
                [fault | {"message": _SETTING.sub(f"{whole}\\g<0>", str(fault["message"]))} for fault in reported]
            ) from None
        for name in settings.unknown(os.environ):
            near = faults.nearest(name, map(settings.variable, type(settings).model_fields))
            raise Invalid(f"there is no setting {name}{near or f': `{self.service} config show` lists all'}")
        return settings

    def client_variable(self, name: str) -> str:
        """The environment variable of an option of the commands that ask a running service: url or token_file."""
        return f"{self.service}_{name}".replace("-", "_").upper()

    def in_environment(self, name: str) -> str | None:
        return os.environ.get(self.client_variable(name)) or None

    def existing(self) -> S:
        """The settings, if their folder holds the data of a service. Raises StateConflict otherwise."""
        settings = self.checked_settings()
        tables = "*.sqlite" if settings.database_address is None else "*"  # keys and files stay there
        if not any(settings.data_dir.glob(tables)):
            where, variable = settings.data_dir.absolute(), settings.variable("data_dir")
            raise StateConflict(f"no data in {where}: run where you ran serve, or set {variable}")
        return settings

    def check_folder(self, settings: S) -> None:
        """Raise StateConflict if the folder holds the data of another service and none of this one.

        The file of SQLite tells whose it is, or the saved checkpoint: with PostgreSQL there is no file.
        """
        from service_kit.context.audit_trail import read_note

        database, there = self.database_file(settings), {path.name for path in settings.data_dir.glob("*.sqlite")}
        other = "modeler" if database.stem == "curator" else "curator"
        is_of_other = (read_note(settings.data_dir / "checkpoint") or "").startswith(f"{other}.")
        if database.name not in there and (is_of_other or f"{other}.sqlite" in there):
            where, variable = settings.data_dir.absolute(), settings.variable("data_dir")
            raise StateConflict(f"{where} holds the data of blindopt-{other}: set {variable} to another folder")

    def database_file(self, settings: S) -> Path:
        """The file of SQLite; with PostgreSQL its name, without the suffix, is the schema's."""
        return settings.data_dir / f"{self.service.removeprefix('blindopt-')}.sqlite"

    @contextmanager
    def alone(self, settings: S) -> Iterator[None]:
        """No process serves these data, and none begins to. Raises StateConflict where one does, or a standby leads."""
        with only_process(settings.data_dir):
            from service_kit.store.database import lead

            url = settings.database_address
            if url is not None and not lead(self.database_file(settings), url):
                raise StateConflict("another process serves this database: stop each process of the service first")
            yield

    @contextmanager
    def opened(self, *, new: bool = False, writes: bool = False, advice: str = "") -> "Iterator[ServiceContext]":
        """Open the data of the service, with ``plain_errors``; with ``new``, also where there is none yet.

        With either, say how long the charges of a running service wait for what is written here, if that is a second,
        and the ``advice``.
        """
        with plain_errors():
            settings = self.checked_settings() if new else self.existing()
            self.check_folder(settings)
            with self.open_context(settings) as context:
                if new or writes:
                    _tell_of_verification(context, advice)
                yield context

    def check_role(self, role: str) -> None:
        if role not in self.roles:
            raise typer.BadParameter(f"{self.service} knows {', '.join(self.roles)}", param_hint="--role")


def _tell_of_verification(context: "ServiceContext", advice: str) -> None:
    from service_kit.store import audit_log
    from service_kit.verification import SECONDS_A_RECORD

    with context.database.read() as db:
        seconds = round(audit_log.live(db) * SECONDS_A_RECORD)
    if seconds:
        typer.echo(
            f"a running service verifies its tables now: its charges wait for about {seconds} s{advice}", err=True
        )
