"""A table of results: Markdown for people, JSON for programs."""

from dataclasses import dataclass
from typing import Any

Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under named columns; None is an empty cell."""

    title: str
    columns: list[str]
    rows: list[list[Cell]]

    def lines(self) -> list[str]:
        """Return the table as Markdown."""
        head = [f"**{self.title}**", "", _line(self.columns), _line(["---"] * len(self.columns))]
        return head + [_line([_text(cell) for cell in row]) for row in self.rows]

    def as_json(self) -> dict[str, Any]:
        """Return the title and an object for each row."""
        return {"title": self.title, "rows": [dict(zip(self.columns, row, strict=True)) for row in self.rows]}

    @classmethod
    def of(cls, document: dict[str, Any]) -> "Table":
        """Make a table from its JSON."""
        rows = document["rows"]
        return cls(document["title"], list(rows[0]) if rows else [], [list(row.values()) for row in rows])


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _text(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, str | int):
        return str(cell)
    return f"{cell:.0f}" if abs(cell) >= 100 else f"{cell:.3g}"
