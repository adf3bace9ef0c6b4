"""What the columns of a file hold, for its owner alone: read once, as a whole, before anything is decided."""

import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from math import isfinite
from sys import getsizeof
from typing import Any, BinaryIO, get_args

import numpy as np

from blindopt.formats import numbers as rules
from blindopt.wire import (
    CATEGORIES_MAX,
    LABEL_CHARACTERS_MAX,
    CellReading,
    Contents,
    DateFormat,
    DecimalSign,
    Encoding,
    ReadingChoice,
    Separator,
    SurveyedColumn,
)
from curator_service.datasets.columns import DETECTED
from curator_service.datasets.reading import (
    all_numbers,
    decimal_sign,
    label_of,
    markers_in,
    missing_numbers,
    open_source,
    rounded_cells,
)
from curator_service.datasets.sources import Findings, Limits, Numbers, RawBlock

_CATEGORY_MAX = 100
_TEXT_MAX = 1_000
_TEXTS_MAX = 4 << 20
"""Bytes of the different texts of all columns: a file of thousands of columns may have more than fits in memory."""
_LINE_END_OR_CONTROL = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029]")
"""What no category has: a list of categories has one on a line."""
_HAS_DIGITS = re.compile(r"\d")
_LIMIT = re.compile(r"[<>\u2264\u2265]=?\s*[0-9.,]+")
_FIRST, _SHOWN_MAX = 5, 40
"""So many cells of a column are shown, and so many characters of each."""
_ODD_MAX = 5
"""Of so many different texts or fewer a column of numbers may have them as markers of gaps."""
_NUMBERS_MAX = 12
"""Of so many different numbers or fewer a column may hold codes of categories."""
_DISTINCT_MAX = 2_000_000
"""So many cells of all columns together are compared, to find columns in which no two are equal: 16 megabytes."""
_TO_DAYS = {date_format: rules.days_of(date_format, date(1970, 1, 1)) for date_format in get_args(DateFormat)}


@dataclass(frozen=True, slots=True, repr=False)
class Surveyed:
    """What a file holds: its rows, its columns, and how numbers and cells are written."""

    rows: int
    separator: Separator | None
    encoding: Encoding | None
    decimal: DecimalSign | None
    unsure: list[CellReading]
    columns: list[SurveyedColumn]


@dataclass(slots=True, repr=False)
class _Column:
    """What was seen of a column so far."""

    markers: frozenset[str]
    first: list[str] = field(default_factory=list)
    missing: int = 0
    rounded: int = 0
    wrong: int = 0
    wrong_row: int | None = None
    odd: set[str] = field(default_factory=set)
    texts: set[str] | None = field(default_factory=set)
    texts_bytes: int = 0
    date_formats: list[DateFormat] = field(default_factory=lambda: list(get_args(DateFormat)))
    low: float = np.inf
    high: float = -np.inf
    hashes: "array[int] | None" = field(default_factory=lambda: array("q"))
    """Of the cells that are not blank; None once two are equal, one is too long, or too many were compared."""

    def add_numbers(self, column: Numbers) -> None:
        missing = missing_numbers(column, self.markers)
        head = zip(column.values[:_FIRST].tolist(), column.missing[:_FIRST], strict=True)
        self._show(["" if is_gap else repr(value).removesuffix(".0") for value, is_gap in head])
        self.missing += int(missing.sum())
        self.rounded += column.rounded
        self._bound(column.values[~missing])
        self.hashes = None

    def _bound(self, values: Any) -> None:
        if len(values):
            self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))

    def _show(self, cells: list[str]) -> None:
        for cell in cells[: _FIRST - len(self.first)]:
            self.first.append(cell if len(cell) <= _SHOWN_MAX else f"{cell[:_SHOWN_MAX]}…")

    def _compare(self, cells: list[str]) -> None:
        """Compare the cells of a column, until a block has two that are equal."""
        if self.hashes is not None:
            filled = [text for cell in cells if (text := label_of(cell))]
            self.hashes.extend(map(hash, filled))
            if len(set(filled)) < len(filled) or max(map(len, filled), default=0) > LABEL_CHARACTERS_MAX:
                self.hashes = None

    def add_texts(self, cells: list[str], decimal: DecimalSign, block: RawBlock) -> None:
        self._show(cells)
        self._compare(cells)
        if self.texts is not None:
            self.texts |= set(map(str.strip, set(cells)))
            self.texts_bytes = sum(map(getsizeof, self.texts))
            if len(self.texts) > CATEGORIES_MAX + len(rules.MISSING) or max(map(len, self.texts)) > _TEXT_MAX:
                self.forget_texts()
        is_marked = self.markers and not self.markers.isdisjoint(map(str.strip, cells))
        if not is_marked and (values := all_numbers(cells, decimal)) is not None:
            self._bound(values)
            self.rounded += rounded_cells(cells, values, decimal)
            self.date_formats = []
            return
        for index, cell in enumerate(cells):
            if self._is_missing(cell):
                self.missing += 1
                continue
            if (number := rules.number_of(cell, decimal)) is not None and isfinite(number):
                value = np.array([number])
                self._bound(value)
                self.rounded += rounded_cells([cell], value, decimal)
            else:
                self.wrong += 1
                if len(self.odd) <= _ODD_MAX:
                    self.odd.add(cell.strip())
                self.wrong_row = self.wrong_row or block.rows[index]
            if self.date_formats:
                text = cell.strip()
                self.date_formats = [
                    date_format for date_format in self.date_formats if _TO_DAYS[date_format](text) is not None
                ]

    def forget_texts(self) -> None:
        self.texts, self.texts_bytes = None, 0

    def _is_missing(self, cell: str) -> bool:
        return rules.is_missing(cell) or (bool(self.markers) and cell.strip() in self.markers)

    def _is_mostly_numbers(self, rows: int) -> bool:
        return 2 * self.wrong < rows - self.missing

    def _markers(self, rows: int) -> list[str]:
        """The few texts among numbers that may be markers of gaps: of those with digits a limit alone, such as <5."""
        usable = all(len(text) <= _CATEGORY_MAX and not _LINE_END_OR_CONTROL.search(text) for text in self.odd)
        if not usable or len(self.odd) > _ODD_MAX or not self._is_mostly_numbers(rows):
            return []
        if any(_HAS_DIGITS.search(text) and not _LIMIT.fullmatch(text) for text in self.odd):
            return []
        return sorted(self.odd)

    def view(self, name: str, rows: int, *, unnamed: bool, usable: bool) -> SurveyedColumn:
        holds: Contents = "text" if self.wrong else "number"
        if self.wrong and self.date_formats:
            holds = "date"
        if self.missing == rows:
            holds = "empty"
        texts = None if self.texts is None else sorted(text for text in self.texts if not self._is_missing(text))
        odd = self._markers(rows) if holds == "text" else []
        is_text = (
            holds == "text" and usable and not self._is_mostly_numbers(rows)
        )  # numbers are never proposed as a public list
        longest, hashes = max(map(len, texts or ()), default=0), self.hashes
        is_short = texts is not None and len(texts) <= CATEGORIES_MAX and longest <= _CATEGORY_MAX
        is_short = is_short and not any(map(_LINE_END_OR_CONTROL.search, texts or ()))
        is_coded = holds == "number" and usable and 1 < len(texts or ()) <= _NUMBERS_MAX
        return SurveyedColumn(
            name=name,
            holds=holds if usable else "other",
            missing=self.missing,
            rounded=self.rounded,
            wrong=self.wrong,
            wrong_row=self.wrong_row,
            first=self.first,
            odd=odd,
            values=texts if (is_text and is_short) or is_coded else None,
            date_formats=self.date_formats if holds == "date" else [],
            constant=self.missing == 0 and (self.low == self.high if not self.wrong else len(texts or ()) == 1),
            unnamed=unnamed,
            distinct=is_text and hashes is not None and len(np.unique(hashes)) == len(hashes) > 1,
        )


def _bound_texts(columns: list[_Column]) -> None:
    """Forget texts of the columns that have most, until all columns have as many as may be compared."""
    excess = sum(seen.texts_bytes for seen in columns) - _TEXTS_MAX
    if excess > 0:
        for seen in sorted(columns, key=lambda seen: seen.texts_bytes, reverse=True):
            if excess > 0:
                excess -= seen.texts_bytes
                seen.forget_texts()


def survey(
    file: BinaryIO,
    limits: Limits,
    choice: ReadingChoice = DETECTED,
    *,
    parquet: bool,
    on_progress: Callable[[float], None] = lambda share: None,
) -> Surveyed:
    """What a CSV or Parquet file holds. Raises DatasetInvalid for a file that is broken, or has ragged rows."""
    with open_source(file, limits, choice, parquet=parquet) as source:
        names, findings = source.names, Findings()
        decimal, unsure = decimal_sign(source, choice, names, is_survey=True)
        usable = [source.kind(name) is None or source.is_text(name) for name in names]
        markers = {each.column: each for each in choice.columns or [] if not isinstance(each, str)}
        columns, rows = [_Column(markers_in(choice, markers.get(name))) for name in names], 0
        for block in source.blocks(names, findings):
            rows += len(block.rows)
            on_progress(source.progress)
            for seen, column in zip(columns, block.columns, strict=True):
                if isinstance(column, Numbers):
                    seen.add_numbers(column)
                else:
                    seen.add_texts(column, decimal or ".", block)
            _bound_texts(columns)
            if sum(len(seen.hashes or ()) for seen in columns) > _DISTINCT_MAX:
                for seen in columns:
                    seen.hashes = None
        findings.raise_any()
        views = [
            seen.view(name, rows, unnamed=name in source.unnamed, usable=can_be_used)
            for name, seen, can_be_used in zip(names, columns, usable, strict=True)
        ]
        return Surveyed(rows, source.separator, source.encoding, decimal, unsure, views)
