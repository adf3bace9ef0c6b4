"""`config show`: the settings that `serve` would start with, and what would keep it from starting."""

import json
import os
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit, urlunsplit

import typer
from pydantic import SecretStr

from blindopt.certificates import file_problem
from blindopt.errors import StateConflict
from service_kit.certificates import Certificates
from service_kit.cli.program import WRONG, Program, S, plain_errors
from service_kit.context.keys import webhook_key
from service_kit.settings import ServiceSettings

MASK = "***"


def build(program: Program[S]) -> typer.Typer:
    cli = typer.Typer(no_args_is_help=True, help="Settings, which come from the environment.")

    @cli.callback()
    def about() -> None:
        pass

    @cli.command()
    def show(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
        """Print every setting and where it comes from, with secrets masked; exit 2 if `serve` would not start.

        Example: BLINDOPT_CURATOR_PORT=8410 blindopt-curator config show
        """
        with plain_errors():
            settings = program.checked_settings()
            rows = [
                (settings.variable(name), masked(value), name in settings.model_fields_set) for name, value in settings
            ]
            if as_json:
                typer.echo(json.dumps({name: value for name, value, _ in rows}, indent=1))
            else:
                width = max(len(name) for name, _, _ in rows)
                for name, value, is_set in rows:
                    typer.echo(
                        f"{name:{width}}  {'set    ' if is_set else 'default'}  {'' if value is None else value}"
                    )
            faults = list(obstacles(settings))
            for fault in faults:
                typer.echo(f"error: {fault}", err=True)
        if faults:
            raise typer.Exit(WRONG)

    return cli


def masked(value: object) -> object:
    """A setting as it may be printed: the password and the query of an address are masked; files keep their names.

    >>> masked("https://ann:secret@example.org/hook?key=1"), masked(8410), masked(None)
    ('https://***@example.org/hook?***', 8410, None)
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
    if "://" not in text:
        return text
    parts = urlsplit(text)
    host = parts.netloc.rpartition("@")[2]
    netloc = f"{MASK}@{host}" if "@" in parts.netloc else host
    return urlunsplit((parts.scheme, netloc, parts.path, MASK if parts.query else "", MASK if parts.fragment else ""))


_WRITTEN = ("first_token_file", "first_password_file")
_AUTHORITIES = ("notify_ca", "scorer_ca", "measurer_ca")
"""Of receivers of webhooks; others are among the certificates of the service."""


def obstacles(settings: ServiceSettings) -> Iterator[str]:
    """What would keep a service with valid settings from starting: folders, certificates, packages."""
    folder = settings.data_dir.absolute()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        yield f"{settings.variable('data_dir')}: {nearest} is no folder that this user can write to"
    try:
        Certificates(settings, lambda: datetime.now(UTC))
    except StateConflict as error:
        yield str(error)
    for name in _AUTHORITIES:
        authority: Path | None = getattr(settings, name, None)
        if authority is not None:
            try:
                ssl.create_default_context(cafile=authority)
            except (OSError, ValueError) as error:
                yield f"{settings.variable(name)}: {file_problem(error)}"
    for name in _WRITTEN:
        path: Path | None = getattr(settings, name)
        if path is not None and not path.exists() and not os.access(path.absolute().parent, os.W_OK):
            yield f"{settings.variable(name)}: {path.absolute().parent} is no folder that this user can write to"
    for name, file in settings:
        if name.endswith("_secret_file") and file is not None:
            try:
                webhook_key(file, settings.variable(name))
            except (StateConflict, OSError) as error:
                yield str(error)
    if settings.metrics:
        from service_kit.web.metrics import Metrics

        try:
            Metrics(tuple)
        except StateConflict as error:
            yield str(error)
