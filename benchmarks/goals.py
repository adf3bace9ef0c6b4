"""The goals, each beside what was measured: figures of processor time, and ratios to what ran beside it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.table import Cell, Table

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal, and the cell that shows it: by the part, and how the title of its table and its row begin."""

    what: str
    part: str
    table: str
    row: str
    column: str
    least: float | None = None
    most: float | None = None
    floor: tuple[str, str] | None = None
    """Row and column, of the same table, of the parts that the promises need (``benchmarks.floor``)."""
    checked: tuple[str, str] | None = None
    """The same with an exchange's checks (``benchmarks.straight_line``)."""

    def value(self, parts: dict[str, Json]) -> float | None:
        """The measured value, or None if the part was not run."""
        return self._cell(parts, self.row, self.column)

    def least_possible(self, parts: dict[str, Json]) -> list[Cell]:
        """The value of the parts alone, and with their checks."""
        return [None if cell is None else self._cell(parts, *cell) for cell in (self.floor, self.checked)]

    def _cell(self, parts: dict[str, Json], beginning: str, column: str) -> float | None:
        for table in parts.get(self.part, {}).get("tables", []):
            if table["title"].startswith(self.table):
                for row in table["rows"]:
                    name, *_ = row.values()
                    if str(name).startswith(beginning) and row.get(column) is not None:
                        return float(row[column])
        return None


_LOOP, _RATE, _REFIT = (
    "to plain numpy",
    "Durable exchanges",
    "30 choices with a fit by marginal likelihood before each, {} in both, {}",
)
_MILLION, _TEN = "50 choices, n = 1,000,000", "20 choices, n = 10,000,000"
_OF_CPU, _OF_RATE = ("floor", "server CPU us"), ("floor", "ratio")
_CHECKED_CPU, _CHECKED_RATE = ("straight line", "server CPU us"), ("straight line", "ratio")
_SINGLE, _MANY = "Exchanges one", "Exchanges of 32"
_SOCKET, _LATE = "PostgreSQL on a socket", "PostgreSQL, 1 ms"
GOALS = (
    Goal(
        "a whole run, A: scikit-learn alone / both services",
        "both",
        "A whole run",
        "scikit-learn",
        "to both services",
        1,
        floor=("scikit-learn", "to the floor"),
    ),
    Goal(
        "a round with private answers, ms of both",
        "both",
        "A round",
        "1 in",
        "CPU ms of both",
        most=2.5,
        floor=("floor", "CPU ms of both"),
    ),
    Goal("... 8 rounds in a query", "both", "A round", "8 in", "CPU ms of both", most=2.5),
    Goal(
        "exact answer, us of the curator",
        "exchange",
        f"{_RATE}, one",
        "curator",
        "server CPU us",
        most=600,
        floor=_OF_CPU,
        checked=_CHECKED_CPU,
    ),
    Goal(
        "private answer, us",
        "exchange",
        f"{_RATE}, one",
        "curator, private",
        "server CPU us",
        most=1_200,
        floor=_OF_CPU,
        checked=_CHECKED_CPU,
    ),
    Goal(
        "exchanges one after another / bare route, FULL",
        "exchange",
        f"{_RATE}, one",
        "curator",
        "ratio",
        0.7,
        floor=_OF_RATE,
        checked=_CHECKED_RATE,
    ),
    Goal(
        "32 clients / bare route, OFF",
        "exchange",
        f"{_RATE}, 32",
        "curator",
        "ratio",
        0.5,
        floor=_OF_RATE,
        checked=_CHECKED_RATE,
    ),
    Goal("PostgreSQL, round trips an exchange", "postgres", _SINGLE, _SOCKET, "round trips", most=4),
    Goal("... processor time / SQLite, one after another", "postgres", _SINGLE, _SOCKET, "CPU to SQLite", most=1.5),
    Goal("... processor time / SQLite, 32 clients", "postgres", _MANY, _SOCKET, "CPU to SQLite", most=1.5),
    Goal("... one after another / SQLite", "postgres", _SINGLE, _SOCKET, "ratio", 0.5),
    Goal("... 32 clients / SQLite", "postgres", _MANY, _SOCKET, "ratio", 0.7),
    Goal("... 1 ms more each way, a second", "postgres", _SINGLE, _LATE, "a second (median)", 60),
    Goal("... 1 ms more each way, 32 clients, a second", "postgres", _MANY, _LATE, "a second (median)", 400),
    Goal("a choice late in M / the byte bound", "choosing", "The last 25", "blindopt", "to the byte bound", most=2),
    *(
        Goal(
            f"a choice for {way} in M / for the best", "choosing", "Late choices by goal", way, "to the best", most=1.3
        )
        for way in ("many, stated", "many, by share")
    ),
    Goal("a choice of D after 400 / plain numpy", "choosing", "A choice after t", "400", _LOOP, most=2),
    Goal("a choice of D after 2,000 / plain numpy", "choosing", "A choice after t", "2000", _LOOP, most=2),
    *(
        Goal(
            f"a fit of {scales} before each choice, {problem}: scikit-learn / blindopt",
            "refitting",
            _REFIT.format(scales, problem),
            "blindopt",
            "in all times faster",
            2.5,
        )
        for scales in ("one length-scale", "a length-scale for each column")
        for problem in ("A", "B")
    ),
    Goal("a hostile frame refused / a query", "refusals", "Refusals", "the head of a frame", "queries", most=10),
    Goal("a hostile grant file refused / a query", "refusals", "Refusals", "a file grant.json", "queries", most=10),
    *(
        Goal(f"/healthz, ms at p99: {name}", "refusals", "/healthz", name, "p99 ms", most=50)
        for name in (
            "curator, hostile queries",
            "curator, hostile countersignatures",
            "curator, hostile modelers",
            "modeler, hostile pulls",
            "modeler, hostile replies",
        )
    ),
    Goal("verify 100,000 records, s", "log", "A log of", "python -m curator_service audit verify", "seconds", most=4),
    Goal("release of 1,000,000 x 20, s", "release", "Gaussian release of 1000000", "draw and publish", "s", most=75),
    Goal("choices of parts, in both precisions, equal of 8", "engines", "Rows, ties", "batch", "equal", 8),
    Goal("two parts in turn, 1e6: CPU / process", "engines", _MILLION, "two parts", "CPU to process", most=1.15),
    Goal("two threads, 1e6: time / process", "engines", _MILLION, "two threads", "time to process", most=0.75),
    Goal("... 1e7", "engines", _TEN, "two threads", "time to process", most=0.65),
    Goal("cluster, 1e7: driver CPU ms a choice", "engines", _TEN, "Dask", "driver CPU ms a choice", most=6),
    Goal("... workers' CPU / process", "engines", _TEN, "Dask", "workers' CPU to process", most=1.2),
    Goal("... time / process", "engines", _TEN, "Dask", "time to process", most=0.8),
    Goal("... memory of the largest / process", "engines", _TEN, "Dask", "MiB to process", most=0.6),
    Goal("start of the curator, CPU s", "start", "A start", "curator", "CPU s", most=1.0),
    Goal("start of the modeler, CPU s", "start", "A start", "modeler", "CPU s", most=1.0),
    Goal("a command to a running service, s", "start", "A command", "study list", "s (median)", most=1.5),
)


def table(parts: dict[str, Json]) -> Table:
    """Each goal with its value, if its part was run."""
    rows = list(_rows(parts))
    met = sum(row[3] == "yes" for row in rows)
    return Table(
        f"Goals: {met} of {len(rows)} met",
        ["what", "measured", "goal", "met", "its parts alone", "with their checks"],
        rows,
    )


def _rows(parts: dict[str, Json]) -> Iterator[list[Cell]]:
    for goal in GOALS:
        if (value := goal.value(parts)) is not None:
            text = f"at least {goal.least:g}" if goal.least is not None else f"at most {goal.most:g}"
            is_met = value >= goal.least if goal.least is not None else goal.most is not None and value <= goal.most
            yield [goal.what, value, text, "yes" if is_met else "no", *goal.least_possible(parts)]
