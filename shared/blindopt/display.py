"""How objects look in a notebook and a terminal: tables in HTML, data frames, progress bars."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

from blindopt.errors import ExtraMissing

Report = Callable[[int, int, str], None]
"""Reports progress: how much is done, how much is planned, and a few words."""


def table(headings: Sequence[str], rows: Sequence[Sequence[object]], *, caption: str = "") -> str:
    """Return an HTML table; every cell is escaped, and None is an empty cell."""
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    body = "".join(f"<tr>{''.join(f'<td>{escape(_text(cell))}</td>' for cell in row)}</tr>" for row in rows)
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def facts(values: Mapping[str, object], *, caption: str = "") -> str:
    """Return an HTML table of names and values, one a line."""
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    rows = (f'<tr><th scope="row">{escape(n)}</th><td>{escape(_text(v))}</td></tr>' for n, v in values.items())
    return f"<table>{title}<tbody>{''.join(rows)}</tbody></table>"


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else str(value)


def frame(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Any:
    """Return a pandas DataFrame with these columns, also if there are no rows. Raises ExtraMissing without pandas."""
    try:
        import pandas as pd
    except ImportError:
        raise ExtraMissing("pandas", "pandas") from None
    return pd.DataFrame(list(rows), columns=list(columns))


@contextmanager
def progress(label: str, *, show: bool = True) -> Iterator[Report]:
    """Show how far a job is: a bar of rich where that is installed, else a line on standard error for each change."""
    if not show:
        yield lambda done, total, note: None
        return
    try:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        yield _lines(label)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as bar:
        task = bar.add_task(label, total=None)

        def report(done: int, total: int, note: str) -> None:
            bar.update(task, completed=done, total=total, description=f"{label}: {note}" if note else label)

        yield report


def _lines(label: str) -> Report:
    last = ""

    def report(done: int, total: int, note: str) -> None:
        nonlocal last
        line = f"{label}: {done} of {total}{f', {note}' if note else ''}\n"
        if line != last:
            sys.stderr.write(line)
            last = line

    return report
