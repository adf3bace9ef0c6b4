"""Numbers as files: CSV without formulas that a spreadsheet would run, and JSON."""

import csv
import io
import json
import re
from collections.abc import Iterable, Sequence

from starlette.responses import Response

from blindopt.formats.safe_csv import harmless
from service_kit.console.charts import Chart


def csv_file(name: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> Response:
    """A table as a CSV file (RFC 4180, UTF-8)."""
    return _file(csv_text((head, *rows)), f"{name}.csv", "text/csv; charset=utf-8")


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    file = io.StringIO(newline="")
    csv.writer(file).writerows([harmless(cell) for cell in row] for row in rows)
    return file.getvalue()


def numbers(chart: Chart, form: str) -> Response:
    """The numbers of a chart, as CSV or as a list of JSON objects."""
    if form == "json":
        objects = [dict(zip(chart.head, row, strict=True)) for row in chart.rows]
        return _file(json.dumps(objects, allow_nan=False), f"{chart.key}.json", "application/json")
    return csv_file(chart.key, chart.head, chart.rows)


def _file(content: str, name: str, media_type: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{file_name(name)}"'}
    return Response(content, 200, headers, media_type=media_type)


def file_name(name: str) -> str:
    """A file name that every system and HTTP header accepts."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:100]
