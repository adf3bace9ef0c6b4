"""Lines and steps, with a band for their uncertainty if there is one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

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
    links: Sequence[str] = ()
    """Where each point leads to."""


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
    described = description or _described(clean, x, y)
    values = [v for s in clean for part in (s.y, s.low, s.high) for v in part]
    values += [finite(level.value) for level in levels]
    pictures, spans = [], []
    for frame in chart.frames(len(clean)):
        xs = scale_of((v for s in clean for v in s.x), frame.start + 6, frame.right - 6, is_log=x_log, tight=True)
        ys = scale_of(values, frame.bottom - 4, frame.top + 4, is_log=y_log, zero=zero)
        drawn = [part for i, s in enumerate(clean) for part in _drawn(s, i, xs, ys, frame)]
        svg = chart.picture(
            frame,
            key,
            title,
            described,
            *chart.axes(frame, xs, ys, x, y),
            *chart.levels(frame, levels, ys),
            *drawn,
            *chart.legend(frame, [(s.name, "point" if s.dots else "line") for s in clean]),
            *_hovers(clean, xs, frame),
            *(part for i, s in enumerate(clean) if s.links for part in _linked(s, i, xs, ys, frame)),
            *chart.level_names(frame, levels, ys, _spots(clean, xs, ys) if levels else ()),
            is_linked=any(s.links for s in clean),
        )
        pictures.append(svg)
        spans.append((xs.low, xs.high, xs.start / frame.width, xs.end / frame.width))
    head, rows = _numbers(clean, x)
    to: dict[object, str] = {at: address for s in clean for at, address in zip(s.x, s.links, strict=False)}
    links = tuple(to.get(row[0]) for row in rows) if to else ()
    span = None if x_log else spans[0]
    return Chart(key, title, described, pictures[0], head, rows, pictures[1], links, span)


def _clean(s: Series) -> Series:
    columns = tuple(tuple(finite(v) for v in part) for part in (s.x, s.y, s.low, s.high))
    if len(columns[0]) != len(columns[1]) or any(part and len(part) != len(columns[0]) for part in columns[2:]):
        raise ValueError("a series has as many x as y, and low and high as many or none")
    x, y, low, high = columns
    return Series(s.name, x, y, low, high, s.is_step, s.dots, s.links)


def _indices(s: Series, frame: chart.Frame) -> list[int]:
    return thinned(len(s.x), _DRAWN_MAX if frame is chart.WIDE else frame.width // 2)


def _drawn(s: Series, number: int, xs: Scale, ys: Scale, frame: chart.Frame) -> list[Markup]:
    colour = f"c{number % chart.COLOURS}"
    indices = _indices(s, frame)
    elements = []
    if s.low and s.high:
        for run in _runs(
            indices, [xs.position(v) for v in s.x], [ys.position(v) for v in s.low], [ys.position(v) for v in s.high]
        ):
            edge = [(px, hi) for px, _, hi in run] + [(px, lo) for px, lo, _ in reversed(run)]
            elements.append(tag("path", class_=f"band {colour}", d=_path(edge) + "Z"))
    runs = _runs(indices, [xs.position(v) for v in s.x], [ys.position(v) for v in s.y])
    for run in () if s.links else runs:
        if s.dots or len(run) == 1:
            elements += [tag("circle", class_=f"dot {colour}", cx=px, cy=py, r=3) for px, py in run]
        else:
            elements.append(tag("path", class_=f"line {colour}", d=_path(run, is_step=s.is_step)))
    return elements


def _linked(s: Series, number: int, xs: Scale, ys: Scale, frame: chart.Frame) -> list[Markup]:
    """The points of a series with links, above the columns that show values."""
    marks = []
    for i in _indices(s, frame):
        px, py = xs.position(s.x[i]), ys.position(s.y[i])
        if px is not None and py is not None:
            named = tag("title", f"{words.number(s.x[i])}: {s.name} {words.number(s.y[i])}")
            dot = tag("circle", named, class_=f"dot c{number % chart.COLOURS}", cx=px, cy=py, r=3)
            marks.append(chart.linked(dot, s.links[i]))
    return marks


def _spots(series: Sequence[Series], xs: Scale, ys: Scale) -> list[chart.Spot]:
    """Places along the lines and at the points, close enough that no label fits between two of a line."""
    spots: list[chart.Spot] = []
    for s in series:
        points = [
            (px, py)
            for i in thinned(len(s.x), _DRAWN_MAX)
            if (px := xs.position(s.x[i])) is not None and (py := ys.position(s.y[i])) is not None
        ]
        spots += points
        for (x1, y1), (x2, y2) in () if s.dots else pairwise(points):
            steps = int(max(abs(x2 - x1), abs(y2 - y1)) / 6)
            spots += [(x1 + (x2 - x1) * k / (steps + 1), y1 + (y2 - y1) * k / (steps + 1)) for k in range(1, steps + 1)]
    return spots


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
    path = ""
    for px, py in points:
        if not path:
            path = f"M{px:g} {py:g}"
        else:
            path += f"H{px:g}V{py:g}" if is_step else f"L{px:g} {py:g}"
    return path


def _hovers(series: Sequence[Series], xs: Scale, frame: chart.Frame) -> list[Markup]:
    """Invisible columns over the whole height, whose titles show the values under the pointer."""
    if not series or not series[0].x:
        return []
    most = _HOVERS_MAX if frame is chart.WIDE else _HOVERS_MAX // 4
    every: dict[float, list[str]] = {}
    for s in series:
        for i in thinned(len(s.x), most):
            if (at := s.x[i]) is not None and (value := s.y[i]) is not None:
                low, high = (part[i] if part else None for part in (s.low, s.high))
                about = "" if low is None or high is None else f" ({words.number(low)} to {words.number(high)})"
                every.setdefault(at, []).append(f"{s.name} {words.number(value)}{about}")
    columns = sorted((px, at) for at in every if (px := xs.position(at)) is not None)
    columns = [columns[i] for i in thinned(len(columns), most)]
    elements = []
    for i, (px, at) in enumerate(columns):
        start = frame.start if i == 0 else (columns[i - 1][0] + px) / 2
        end = frame.right if i == len(columns) - 1 else (px + columns[i + 1][0]) / 2
        text = f"{words.number(at)}: {'; '.join(every[at])}"
        height = frame.bottom - frame.top
        box = {"x": round(start, 2), "y": frame.top, "width": round(max(end - start, 0.5), 2), "height": height}
        elements.append(tag("rect", tag("title", text), class_="hover", **box))
    return elements


def _numbers(series: Sequence[Series], x: str) -> tuple[tuple[str, ...], tuple[tuple[object, ...], ...]]:
    """A table with a row for each x of any series, in order."""
    head = [x]
    rows_by_x: dict[float, dict[int, float | None]] = {}
    column = 1
    for s in series:
        parts = [("", s.y), (" low", s.low), (" high", s.high)]
        for suffix, part in parts:
            if not part:
                continue
            head.append(s.name + suffix)
            for at, value in zip(s.x, part, strict=True):
                if at is not None:
                    rows_by_x.setdefault(at, {})[column] = value
            column += 1
    rows = tuple((at, *(rows_by_x[at].get(c) for c in range(1, column))) for at in sorted(rows_by_x))
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
