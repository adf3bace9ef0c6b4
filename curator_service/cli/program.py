"""The program `blindopt-curator` as the commands take it, and the people as whom they ask a running curator."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from blindopt.audit.merkle_log import Json
from blindopt.errors import ExtraMissing, LogBroken
from curator_service.settings import Settings
from service_kit.cli.program import Program
from service_kit.cli.remote import connected

if TYPE_CHECKING:
    from fastapi import FastAPI

    from blindopt.client import Measurer, Owner
    from service_kit.context.context import ServiceContext
    from service_kit.context.log_summaries import Part
    from service_kit.store.database import Connection

_TIMEOUT_SECONDS = 120.0


def _build(settings: Settings) -> "FastAPI":
    for package in ("opendp", "dp_accounting"):
        if find_spec(package) is None:
            raise ExtraMissing(package, "curator", "blindopt-services")
    from curator_service.app import build

    return build(settings)


def open_context(settings: Settings) -> "ServiceContext":
    from curator_service.context import open_context

    return open_context(settings)


def _files(db: "Connection") -> list[str]:
    from curator_service import store

    return [f"files/{name}" for name in store.file_names(db)]


def _restored(db: "Connection", context: "ServiceContext", erased: Iterable[str]) -> None:
    from curator_service.erasure.erasure import erase_again
    from curator_service.integrity.restore import close_after_restore

    close_after_restore(db, context)
    erase_again(db, context, erased)


def _findings(
    db: "Connection", records: Iterable[Json], part: "Part | None", folder: Path | None
) -> Iterator[LogBroken]:
    from curator_service.integrity import log_checks

    return log_checks.findings(db, records, part, folder)


def _erased(db: "Connection") -> str:
    from curator_service.integrity.log_checks import erased_in_words

    return erased_in_words(db)


_FORGOTTEN = (
    "Studies of that time, and accounts of files of that time, are closed. Files that were registered since are "
    "forgotten, with what they used: if you register one again, its account starts at 0. Lower its caps by what it "
    "had used, yourself."
)


PROGRAM = Program(
    service="blindopt-curator",
    about="Hold a data owner's records: release candidates, answer queries.",
    main_role="owner",
    roles=("owner", "measurer", "auditor", "monitor"),
    settings=Settings,
    open_context=open_context,
    app=_build,
    findings=_findings,
    erased=_erased,
    files=_files,
    restored=_restored,
    after_restore=_FORGOTTEN,
)


def as_owner(url: str | None, token_file: Path | None) -> AbstractContextManager["Owner"]:
    from blindopt.client import Owner

    return connected(PROGRAM, partial(Owner, timeout_s=_TIMEOUT_SECONDS), url, token_file)


def as_measurer(url: str | None, token_file: Path | None) -> AbstractContextManager["Measurer"]:
    from blindopt.client import Measurer

    return connected(PROGRAM, Measurer, url, token_file)
