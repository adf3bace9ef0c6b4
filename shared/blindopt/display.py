"""How objects look in a notebook and a terminal: tables in HTML and as text, data frames, progress bars."""

import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from itertools import zip_longest
from typing import Any, NamedTuple

from blindopt.errors import ExtraMissing

Report = Callable[[int, int, str], None]
"""Reports progress: how much is done, how much is planned, and a few words."""


LINES_MAX, ROWS_MAX, WIDTH = 30, 20, 100
"""The most lines of text of an object, the most rows of a table in it, and the most signs of a line."""
_NARROWEST = 12


def counted(count: int, noun: str) -> str:
    """How many of something, in words.

    >>> counted(1, "record"), counted(1161, "record")
    ('1 record', '1,161 records')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


class Table(NamedTuple):
    """Rows under their headings, or names and values where there are none. A cell may be a list of sentences."""

    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    caption: str = ""


def facts(values: Mapping[str, object], *, caption: str = "") -> Table:
    """Names and values, one a line."""
    return Table((), list(values.items()), caption)


class Shown:
    """Shows itself as tables: in HTML in a notebook, and as text of at most ``LINES_MAX`` lines where it is printed."""

    def _tables(self) -> Iterable[Table]:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return "".join(map(_html, self._tables()))

    def __str__(self) -> str:
        tables, lines = list(self._tables()), []
        for most in (LINES_MAX, 12, 8, 6, 4, 3, 2, 1):  # lines of one sentence
            lines = [line for table in tables for line in _lines(table, most)]
            if len(lines) <= LINES_MAX:
                return "\n".join(lines)
        return "\n".join([*lines[: LINES_MAX - 1], f"... and {len(lines) - LINES_MAX + 1} more lines"])


def _html(table: Table) -> str:
    """A table in HTML; every cell is escaped, and None is an empty cell."""

    def cell(value: object) -> str:
        return "<br>".join(map(escape, _sentences(value)))

    title = f"<caption>{escape(table.caption)}</caption>" if table.caption else ""
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in table.head)
    if not table.head:
        body = "".join(f'<tr><th scope="row">{cell(n)}</th><td>{cell(v)}</td></tr>' for n, v in table.rows)
        return f"<table>{title}<tbody>{body}</tbody></table>"
    body = "".join(f"<tr>{''.join(f'<td>{cell(value)}</td>' for value in row)}</tr>" for row in table.rows)
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _lines(table: Table, most: int) -> Iterator[str]:
    """A table as aligned lines, each sentence of which has at most ``most``."""
    yield from _wrapped(_sentences(table.caption)[0], WIDTH, most)
    rows = [[_sentences(cell) for cell in row] for row in ([table.head] if table.head else []) + list(table.rows)]
    shown = rows[: ROWS_MAX + 1]
    widths = [
        max((len(sentence) for cell in column for sentence in cell), default=0) for column in zip(*shown, strict=True)
    ]
    while widths and (excess := sum(widths) + 2 * (len(widths) - 1) - WIDTH) > 0 and max(widths) > _NARROWEST:
        widest = widths.index(max(widths))
        widths[widest] = max(_NARROWEST, widths[widest] - excess, sorted(widths)[-2:][0] - 1)
    for row in shown:
        cells = [
            [line for sentence in cell for line in _wrapped(sentence, max(width, 1), most)]
            for cell, width in zip(row, widths, strict=True)
        ]
        for line in zip_longest(*cells, fillvalue=""):
            yield "  ".join(f"{part:{width}}" for part, width in zip(line, widths, strict=True)).rstrip()
    if len(rows) > len(shown):
        yield f"... and {len(rows) - len(shown):,} more"


def _wrapped(sentence: str, width: int, most: int) -> list[str]:
    return textwrap.wrap(sentence, width, max_lines=most, placeholder=" ..."[-width:])


def _sentences(value: object) -> list[str]:
    """The sentences of a cell, in signs that can be printed."""
    if isinstance(value, list | tuple):
        return [sentence for item in value for sentence in _sentences(item)]
    text = f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)
    return ["".join(sign if sign.isprintable() else " " for sign in text)]


def pandas() -> Any:
    """The module. Raises ExtraMissing without it."""
    try:
        import pandas as pd
    except ImportError:
        raise ExtraMissing("pandas", "pandas") from None
    return pd


def frame(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Any:
    """Return a pandas DataFrame with these columns, also if there are no rows. Raises ExtraMissing without pandas."""
    return pandas().DataFrame(list(rows), columns=list(columns))


@contextmanager
def progress(label: str, *, show: bool = True) -> Iterator[Report]:
    """Show how far a job is: a bar of rich where that is installed, else a line on standard error for each change."""
    if not show:
        yield lambda done, total, note: None
        return
    try:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        yield _progress_lines(label)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as bar:
        task = bar.add_task(label, total=None)

        def report(done: int, total: int, note: str) -> None:
            bar.update(task, completed=done, total=total, description=f"{label}: {note}" if note else label)

        yield report


def _progress_lines(label: str) -> Report:
    last = ""

    def report(done: int, total: int, note: str) -> None:
        nonlocal last
        line = f"{label}: {done} of {total}{f', {note}' if note else ''}\n"
        if line != last:
            sys.stderr.write(line)
            last = line

    return report
