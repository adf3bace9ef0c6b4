"""Lines and steps, with a band for their uncertainty if there is one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from service_kit.console import words
from service_kit.console.charts import chart
from service_kit.console.charts.chart import Chart, Level, tag
from service_kit.console.charts.scales import Scale, finite, scale_of, thinned

_DRAWN_MAX = 1_500
_HOVERS_MAX = 150


@dataclass(frozen=True, slots=True)
class Series:
    """One line. ``low`` and ``high`` are an interval about ``y``; None anywhere is a gap."""

    name: str
    x: Sequence[float | None]
    y: Sequence[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    is_step: bool = False
    """Holds its value until the next x: the best so far."""
    dots: bool = False
    """Dots without a line between them."""


def line(
    key: str,
    title: str,
    series: Sequence[Series],
    *,
    x: str,
    y: str,
    description: str = "",
    y_log: bool = False,
    x_log: bool = False,
    zero: bool = False,
    levels: Sequence[Level] = (),
) -> Chart:
    """A chart of one or several series. ``x`` and ``y`` name the axes, with their units."""
    clean = [_clean(s) for s in series]
    bottom, right = chart.HEIGHT - chart.MARGIN_BOTTOM, chart.WIDTH - chart.MARGIN_RIGHT
    xs = scale_of((v for s in clean for v in s.x), chart.MARGIN_LEFT + 6, right - 6, is_log=x_log)
    values = [v for s in clean for part in (s.y, s.low, s.high) for v in part]
    values += [finite(level.value) for level in levels]
    ys = scale_of(values, bottom - 4, chart.MARGIN_TOP + 4, is_log=y_log, zero=zero)
    drawn = [part for i, s in enumerate(clean) for part in _drawn(s, i, xs, ys)]
    described = description or _described(clean, x, y)
    svg = chart.picture(
        key,
        title,
        described,
        *chart.axes(xs, ys, x, y),
        *chart.levels(levels, ys),
        *drawn,
        *chart.level_names(levels, ys),
        *chart.legend([s.name for s in clean]),
        *_hovers(clean, xs),
    )
    head, rows = _numbers(clean, x)
    return Chart(key, title, described, svg, head, rows)


def _clean(s: Series) -> Series:
    columns = tuple(tuple(finite(v) for v in part) for part in (s.x, s.y, s.low, s.high))
    if len(columns[0]) != len(columns[1]) or any(part and len(part) != len(columns[0]) for part in columns[2:]):
        raise ValueError("a series has as many x as y, and low and high as many or none")
    x, y, low, high = columns
    return Series(s.name, x, y, low, high, s.is_step, s.dots)


def _drawn(s: Series, number: int, xs: Scale, ys: Scale) -> list[Markup]:
    colour = f"c{number % chart.COLOURS}"
    indices = thinned(len(s.x), _DRAWN_MAX)
    elements = []
    if s.low and s.high:
        for run in _runs(
            indices, [xs.position(v) for v in s.x], [ys.position(v) for v in s.low], [ys.position(v) for v in s.high]
        ):
            edge = [(px, hi) for px, _, hi in run] + [(px, lo) for px, lo, _ in reversed(run)]
            elements.append(tag("path", class_=f"band {colour}", d=_path(edge) + "Z"))
    runs = _runs(indices, [xs.position(v) for v in s.x], [ys.position(v) for v in s.y])
    for run in runs:
        if s.dots or len(run) == 1:
            elements += [tag("circle", class_=f"dot {colour}", cx=px, cy=py, r=3) for px, py in run]
        else:
            elements.append(tag("path", class_=f"line {colour}", d=_path(run, is_step=s.is_step)))
    return elements


def _runs(indices: Sequence[int], *columns: Sequence[float | None]) -> list[list[tuple[float, ...]]]:
    """Rows of the columns at ``indices``, split at each gap."""
    runs: list[list[tuple[float, ...]]] = [[]]
    for i in indices:
        row = tuple(value for column in columns if (value := column[i]) is not None)
        if len(row) == len(columns):
            runs[-1].append(row)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _path(points: Iterable[tuple[float, ...]], *, is_step: bool = False) -> str:
    text = ""
    for px, py in points:
        if not text:
            text = f"M{px:g} {py:g}"
        else:
            text += f"H{px:g}V{py:g}" if is_step else f"L{px:g} {py:g}"
    return text


def _hovers(series: Sequence[Series], xs: Scale) -> list[Markup]:
    """Invisible columns over the whole height, whose titles show the values under the pointer."""
    if not series or not series[0].x:
        return []
    every: dict[float, list[str]] = {}
    for s in series:
        for i in thinned(len(s.x), _HOVERS_MAX):
            if (at := s.x[i]) is not None and (value := s.y[i]) is not None:
                low, high = (part[i] if part else None for part in (s.low, s.high))
                about = "" if low is None or high is None else f" ({words.number(low)} to {words.number(high)})"
                every.setdefault(at, []).append(f"{s.name} {words.number(value)}{about}")
    columns = sorted((px, at) for at in every if (px := xs.position(at)) is not None)
    columns = [columns[i] for i in thinned(len(columns), _HOVERS_MAX)]
    elements = []
    for i, (px, at) in enumerate(columns):
        start = chart.MARGIN_LEFT if i == 0 else (columns[i - 1][0] + px) / 2
        end = chart.WIDTH - chart.MARGIN_RIGHT if i == len(columns) - 1 else (px + columns[i + 1][0]) / 2
        text = chart.label_whole(f"{words.number(at)}: {'; '.join(every[at])}")
        height = chart.HEIGHT - chart.MARGIN_BOTTOM - chart.MARGIN_TOP
        box = {"x": round(start, 2), "y": chart.MARGIN_TOP, "width": round(max(end - start, 0.5), 2), "height": height}
        elements.append(tag("rect", tag("title", text), class_="hover", **box))
    return elements


def _numbers(series: Sequence[Series], x: str) -> tuple[tuple[str, ...], tuple[tuple[object, ...], ...]]:
    """A table with a row for each x of any series, in order."""
    head = [x]
    table: dict[float, dict[int, float | None]] = {}
    column = 1
    for s in series:
        parts = [("", s.y), (" low", s.low), (" high", s.high)]
        for suffix, part in parts:
            if not part:
                continue
            head.append(s.name + suffix)
            for at, value in zip(s.x, part, strict=True):
                if at is not None:
                    table.setdefault(at, {})[column] = value
            column += 1
    rows = tuple((at, *(table[at].get(c) for c in range(1, column))) for at in sorted(table))
    return tuple(head), rows


def _described(series: Sequence[Series], x: str, y: str) -> str:
    sentences = [f"{y} against {x}."]
    for s in series[:6]:
        ends = [v for v in s.y if v is not None]
        if ends:
            sentences.append(
                f"{s.name}: {len(ends)} values from {words.number(min(ends))} to {words.number(max(ends))}, "
                f"the last {words.number(ends[-1])}."
            )
    return " ".join(sentences) if len(sentences) > 1 else f"{sentences[0]} There are no values yet."
