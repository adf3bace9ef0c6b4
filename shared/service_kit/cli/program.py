"""A service as its command line sees it, and how its commands open its data and report errors."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import typer
from pydantic import ValidationError

from blindopt.errors import BlindoptError, StateConflict
from service_kit.context.context import ServiceContext
from service_kit.identity.tokens import Role
from service_kit.settings import ServiceSettings
from service_kit.store.database import Connection

if TYPE_CHECKING:
    from fastapi import FastAPI

S = TypeVar("S", bound=ServiceSettings)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Program(Generic[S]):
    """A service with its command line; ``settings`` reads them from the environment.

    ``check`` verifies its tables against its log, ``files`` returns the names of the files that its database needs,
    and ``restored`` updates its database after a restore. ``after_restore`` states what the operator must do then.
    """

    service: str
    about: str
    main_role: Role
    roles: tuple[Role, ...]
    settings: Callable[[], S]
    open_context: Callable[[S], ServiceContext]
    app: Callable[[S], "FastAPI"]
    check: Callable[[Connection, Iterable[dict[str, Any]]], None]
    files: Callable[[Connection], Iterable[str]]
    restored: Callable[[Connection, ServiceContext], None]
    after_restore: str = ""

    def checked_settings(self) -> S:
        """The settings. Raises StateConflict if the environment has one that does not exist."""
        chosen = self.settings()
        for name in chosen.unknown(os.environ):
            raise StateConflict(f"there is no setting {name}: see docs/operations.md")
        return chosen

    def existing(self) -> S:
        """The settings, if their folder holds the data of a service. Raises StateConflict otherwise."""
        chosen = self.checked_settings()
        if not any(chosen.data_dir.glob("*.sqlite")):
            raise StateConflict(f"{chosen.data_dir.absolute()} holds no data of a service: set DATA_DIR as for serve")
        return chosen

    @contextmanager
    def opened(self, *, new: bool = False) -> Iterator[ServiceContext]:
        """Open the data of the service, with ``plain_errors``; with ``new``, also where there is none yet."""
        with plain_errors(), self.open_context(self.checked_settings() if new else self.existing()) as context:
            yield context

    def check_role(self, role: str) -> None:
        """Raise BadParameter for a role that the service does not have."""
        if role not in self.roles:
            raise typer.BadParameter(f"{self.service} knows {', '.join(self.roles)}", param_hint="--role")
