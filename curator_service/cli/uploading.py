"""`dataset upload`: a file becomes a dataset, with the questions of the console asked at the terminal."""

import csv
import sys
from contextlib import suppress
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blindopt import wire
from blindopt.display import counted
from blindopt.errors import BlindoptError, Invalid, Remote
from blindopt.formats.column_ways import DATES, DROP, LISTED, SEPARATORS, categories, contents, is_problem, key_of, ways
from blindopt.formats.numbers import readings
from blindopt.wire.base import parsed
from curator_service.cli.program import as_owner
from service_kit.cli.program import plain_errors, read_json
from service_kit.cli.remote import AsJson, TokenFile, Url, Yes, show

if TYPE_CHECKING:
    from blindopt.client.owner import UploadedFile

_SEPARATORS: dict[str, str] = {words: sign for sign, words in SEPARATORS.items()}
_DECIMALS = {"comma": ",", "point": "."}


def upload(
    file: Annotated[Path, typer.Argument(help="CSV or Parquet file, also packed with gzip.")],
    name: Annotated[str | None, typer.Option(help="Name of the dataset. Default: the file's.")] = None,
    reading: Annotated[Path | None, typer.Option(help="JSON file with how the file is read, as of --propose.")] = None,
    propose: Annotated[
        bool, typer.Option("--propose", help="Print as JSON how it would be read; store nothing.")
    ] = False,
    separator: Annotated[str | None, typer.Option(help=f"What separates cells: {', '.join(_SEPARATORS)}.")] = None,
    decimal: Annotated[str | None, typer.Option(help=f"Decimal sign of numbers: {' or '.join(_DECIMALS)}.")] = None,
    encoding: Annotated[str | None, typer.Option(help="Encoding of the text: utf-8 or windows-1252.")] = None,
    missing: Annotated[
        list[str] | None, typer.Option(help="A cell that counts as missing, such as ?; repeat it.")
    ] = None,
    person: Annotated[str | None, typer.Option(help="Column that says whose each record is.")] = None,
    records_per_person: Annotated[
        int | None, typer.Option(help="Records of one person that are kept, at random.")
    ] = None,
    person_ids: Annotated[
        str | None, typer.Option(help="Ids written in two ways: one person's (folded_1), or not (as_written).")
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="Nobody in it needs protection.")] = False,
    yes: Yes = False,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Register a file, and ask at the terminal how its columns are read. Nothing is stored before the last answer.

    Elsewhere --reading or --yes answers: --yes takes what is proposed.

    Example: blindopt-curator dataset upload clinic.csv --propose > reading.json
    """
    if (person is None) != (records_per_person is None):
        raise typer.BadParameter("--person and --records-per-person belong together", param_hint="--person")
    options = {
        "separator": _sign("--separator", separator, _SEPARATORS),
        "decimal": _sign("--decimal", decimal, _DECIMALS),
        "encoding": encoding,
        "missing_values": missing,
        "person": person,
        "rows_per_person": records_per_person,
        "person_ids": person_ids,
    }
    changes: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    with plain_errors():
        decided = None if reading is None else read_json(reading, wire.ReadingChoice, "how a file is read")
    with as_owner(url, token_file) as owner:
        waiting = owner.read(file)
        try:
            if decided is not None:
                changes = decided.model_dump(exclude_defaults=True) | changes
            is_asked = decided is None and not yes and _is_terminal()
            if changes:
                _correct(waiting, changes, is_asked=is_asked)
            if propose:
                typer.echo(waiting, err=True)
                typer.echo(_as_json(waiting))
                return
            if waiting.view.unsure:
                waiting.correct(decimal=_decimal(waiting, is_asked=is_asked))
            if decided is None and not yes and _is_open(waiting.view):
                _ask(waiting)
            if waiting.view.samples and "encoding" not in changes and not is_asked:
                raise Invalid(
                    f"{file} is not UTF-8: say --encoding windows-1252 if these words are right: {_words(waiting)}"
                )
            if yes:  # the decisions that nobody was asked for
                typer.echo(waiting, err=True)
            dataset = waiting.store(name=name or file.name.partition(".")[0], public=public)
        finally:
            with suppress(BlindoptError):  # it is registered, or the service is gone
                waiting.discard()
    view = dataset.view
    summary = f"{view.id}: {counted(view.rows, 'record')}, {counted(len(view.columns), 'column')}"
    left_out = f", {view.rows_left_out:,} left out" if view.rows_left_out else ""
    show(view, summary + left_out, as_json)
    for overlap in view.overlaps:
        if overlap.decision == "undecided":
            typer.echo(f"{overlap.sentence} Decide on its page whose account it continues.", err=True)


def _as_json(waiting: "UploadedFile") -> str:
    if waiting.reading is not None:
        return waiting.reading.model_dump_json(indent=2, exclude_defaults=True)
    return wire.ReadingChoice.model_construct(columns=[]).model_dump_json(indent=2, exclude_none=True)


def _words(waiting: "UploadedFile") -> str:
    return ", ".join(waiting.view.samples)


def _is_open(view: wire.PendingUpload) -> bool:
    """Whether anything has to be decided."""
    person = view.reading and view.reading.person
    return bool(view.samples) or any(is_problem(column) for column in view.columns if column.name != person)


def _sign(option: str, typed: str | None, signs: dict[str, str]) -> str | None:
    """The sign that a word of an option names, or that was typed itself."""
    if typed is None or typed in signs.values():
        return typed
    if (word := next((word for word in (typed, f"{typed}s") if word in signs), None)) is None:
        raise typer.BadParameter(f"must be {', '.join(signs)}, or the sign itself", param_hint=option)
    return signs[word]


def _is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _correct(waiting: "UploadedFile", changes: dict[str, Any], *, is_asked: bool) -> None:
    """Read the file as the options say, with the decimal sign that this leaves open."""
    try:
        waiting.correct(**changes)
    except Remote as error:
        if "decimal" in changes or not any(fault.startswith("decimal") for fault in error.faults):
            raise
        if not waiting.view.unsure:  # found with another separator: these are the cells
            typer.echo(error.faults[0], err=True)
        waiting.correct(**changes, decimal=_decimal(waiting, is_asked=is_asked))


def _decimal(waiting: "UploadedFile", *, is_asked: bool) -> str:
    """The decimal sign of a file in which no cell shows it. Raises Invalid where nobody can be asked."""
    by_sign = {
        sign: ", ".join(f"{reading.cell} is {getattr(reading, name):.15g}" for reading in waiting.view.unsure)
        for sign, name in ((",", "comma"), (".", "point"))
    }
    if not is_asked:
        options = "; ".join(
            f"--decimal {word}{f' if {by_sign[sign]}' if by_sign[sign] else ''}" for word, sign in _DECIMALS.items()
        )
        raise Invalid(f"which sign is decimal? {options}")
    typer.echo("Which sign is decimal?", err=True)
    for number, (sign, cells) in enumerate(by_sign.items(), start=1):
        typer.echo(f"  {number}  {sign}  {cells}", err=True)
    index: int = typer.prompt("Decimal sign", value_proc=partial(_index_typed, most=2), err=True)
    return list(by_sign)[index]


def _ask(waiting: "UploadedFile") -> None:
    """Ask for each open question, and count again. Raises Invalid where nobody can be asked."""
    view, typed = waiting.view, waiting.reading or wire.ReadingChoice()
    typer.echo(waiting, err=True)
    if not _is_terminal():
        raise Invalid(
            "how are these columns read? Answer at a terminal, take what is proposed with --yes, or edit what "
            "--propose prints and name it with --reading"
        )
    if view.samples:
        typer.confirm(f"Are these words right: {_words(waiting)}?", default=True, abort=True, err=True)
    choices = {each if isinstance(each, str) else each.column: each for each in typed.columns or []}
    is_stored = False
    while not is_stored:
        columns = [column for column in view.columns if is_problem(column) and column.name != typed.person]
        decided = {column.name: _decided(column, view.rows, choices.get(column.name)) for column in columns}
        _ask_gaps([choice for choice in decided.values() if choice and choice["kind"] != "label"])
        try:
            waiting.correct(columns=decided)
        except Remote as error:
            if error.remote_code != "dataset_invalid":
                raise
            typer.echo(f"\nThe file cannot be read so, decide again: {error}", err=True)
            continue
        remaining = waiting.view.remaining
        typer.echo(f"\n{remaining.rows if remaining else 0:,} of {counted(view.rows, 'record')} remain.", err=True)
        is_stored = typer.confirm("Store them? No: decide again.", default=True, err=True)


def _decided(column: wire.SurveyedColumn, rows: int, choice: str | wire.ColumnChoice | None) -> dict[str, Any] | None:
    possible = ways(column)
    current = "number" if isinstance(choice, str) else key_of(choice)
    typer.echo(f"\n{column.name}: {contents(column, rows)}. First: {'; '.join(column.first)}", err=True)
    for number, way in enumerate(possible, start=1):
        typer.echo(f"  {number}  {way.words}", err=True)
    default = next((number for number, way in enumerate(possible, start=1) if way.key == current), 1)
    way = possible[
        typer.prompt(column.name, default=default, value_proc=partial(_index_typed, most=len(possible)), err=True)
    ]
    if way is DROP:
        return None
    fields: dict[str, Any] = {"column": column.name, "kind": "number", **way.fields}
    if way.key in DATES:
        fields["since"] = typer.prompt("  Days since", default="1970-01-01", value_proc=_day, err=True)
    if way.key in LISTED:
        proposals = ",".join(categories(column)) or None
        question = "  Its categories, with commas between: they become public"
        fields["values"] = typer.prompt(question, default=proposals, value_proc=_categories, err=True)
    return fields


def _ask_gaps(choices: list[dict[str, Any]]) -> None:
    """Leave records with gaps out, all of them or as decided for each column."""
    if choices and typer.confirm("\nAre records with a gap in these columns left out?", default=True, err=True):
        for choice in choices:
            choice["missing"] = "leave_out"
        return
    for choice in choices:
        question = f"{choice['column']}: number for a gap, or Enter to leave the record out"
        fill = typer.prompt(question, default="", value_proc=_number, err=True)
        choice |= {"missing": "leave_out"} if fill is None else {"missing": "fill", "fill": fill}


def _index_typed(typed: object, most: int) -> int:
    """The place in a list of a number that was typed, from 1 to ``most``."""
    if not str(typed).isdecimal() or not 1 <= int(str(typed)) <= most:
        raise typer.BadParameter(f"type a number from 1 to {most}")
    return int(str(typed)) - 1


def _day(typed: str) -> str:
    try:
        return date.fromisoformat(typed.strip()).isoformat()
    except ValueError:
        raise typer.BadParameter("type a date as year-month-day, such as 2024-12-31") from None


def _categories(typed: str) -> list[str]:
    values = [value.strip() for value in next(csv.reader([typed]), [])]
    try:
        parsed(wire.ColumnChoice, {"column": "column", "kind": "one_hot", "values": values})
    except Invalid:
        raise typer.BadParameter(
            f"type up to {wire.CATEGORIES_MAX} different categories of 1 to 100 characters, with commas between"
        ) from None
    return values


def _number(typed: str) -> float | None:
    """A number that was typed; None for Enter alone."""
    if not typed.strip():
        return None
    numbers = readings(typed.strip())
    if len(numbers) != 1:
        raise typer.BadParameter("type a number, such as 0.25")
    return numbers[0]
