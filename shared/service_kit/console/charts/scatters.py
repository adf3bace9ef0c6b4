"""Points in the plane, with a third value as colour."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from service_kit.console import words
from service_kit.console.charts import chart
from service_kit.console.charts.chart import Chart, tag
from service_kit.console.charts.scales import Scale, finite, scale_of, thinned

_DRAWN_MAX = 3_000
_SHADES = 7
_RADIUS = 3.5


@dataclass(frozen=True, slots=True)
class Points:
    """One group. ``labels`` names each point, under the pointer and in the table."""

    name: str
    x: Sequence[float | None]
    y: Sequence[float | None]
    colour: Sequence[float | None] = ()
    labels: Sequence[str] = ()
    is_ring: bool = False
    """Whether they are drawn as rings, such as the chosen points."""
    links: Sequence[str] = ()
    """Where each point leads to."""


def scatter(key: str, title: str, points: Sequence[Points], *, x: str, y: str, colour: str = "colour") -> Chart:
    """A chart of groups of points; ``x``, ``y`` and ``colour`` name what they mean, with units."""
    groups = [_clean(p) for p in points]
    shades = scale_of((v for g in groups for v in g.colour), 0, _SHADES)
    count = sum(len(g.x) for g in groups)
    described = f"{words.number(count)} points: {y} against {x}."
    has_colour = any(v is not None for g in groups for v in g.colour)
    pictures = []
    for frame in chart.frames(2):
        xs = scale_of((v for g in groups for v in g.x), frame.start + 8, frame.right - 8, close=True)
        ys = scale_of((v for g in groups for v in g.y), frame.bottom - 8, frame.top + 8, close=True)
        names = [(g.name, "ring" if g.is_ring else "point") for g in groups]
        svg = chart.picture(
            frame,
            key,
            title,
            described,
            *chart.axes(frame, xs, ys, x, y),
            *(mark for i, g in enumerate(groups) for mark in _marks(g, i, (xs, ys, shades), (x, y, colour), frame)),
            *(_ramp(shades, colour, frame) if has_colour else chart.legend(frame, names)),
            is_linked=any(g.links for g in groups),
        )
        pictures.append(svg)
    links: list[str | None] = [address for g in groups for address in (g.links or (None,) * len(g.x))]
    head, rows = _numbers(groups, (x, y, colour))
    return Chart(key, title, described, pictures[0], head, rows, pictures[1], tuple(links) if any(links) else ())


def _clean(p: Points) -> Points:
    x, y, colour = (tuple(finite(v) for v in column) for column in (p.x, p.y, p.colour))
    if any(column and len(column) != len(x) for column in (colour, p.labels)) or len(x) != len(y):
        raise ValueError("a group of points has as many x as y, and of all else as many or none")
    return Points(p.name, x, y, colour, tuple(p.labels), p.is_ring, p.links)


def _marks(
    g: Points, number: int, scales: tuple[Scale, Scale, Scale], names: tuple[str, str, str], frame: chart.Frame
) -> list[Markup]:
    xs, ys, shades = scales
    elements = []
    for i in thinned(len(g.x), _DRAWN_MAX if frame is chart.WIDE else _DRAWN_MAX // 4):
        px, py = xs.position(g.x[i]), ys.position(g.y[i])
        if px is None or py is None:
            continue
        shade = shades.position(g.colour[i]) if g.colour else None
        look = f"c{number % chart.COLOURS}" if shade is None else f"k{min(int(shade), _SHADES - 1)}"
        values = (g.x[i], g.y[i], g.colour[i] if g.colour else None)
        text = ", ".join(f"{n} {words.number(v)}" for n, v in zip(names, values, strict=True) if v is not None)
        named = g.labels[i] if g.labels else g.name
        kind = "ring" if g.is_ring else "point"
        title = tag("title", f"{named}: {text}")
        mark = tag("circle", title, class_=f"{kind} {look}", cx=px, cy=py, r=_RADIUS)
        elements.append(chart.linked(mark, g.links[i] if g.links else None))
    return elements


def _ramp(shades: Scale, name: str, frame: chart.Frame) -> list[Markup]:
    """The key of the colours: boxes from low to high, at the right."""
    high, low = chart.tick(shades.high), f"{name}: {chart.tick(shades.low)}"
    box = 18 if frame is chart.WIDE else 12
    start = frame.right - 6 - frame.letter * len(high) - box * _SHADES
    y = 18 if frame is chart.WIDE else 32
    elements = [tag("text", chart.label(low), class_="key end", x=round(start - 8, 1), y=y)]
    elements += [
        tag("rect", class_=f"box k{i}", x=round(start + box * i, 1), y=y - 10, width=box, height=12)
        for i in range(_SHADES)
    ]
    elements.append(tag("text", high, class_="key", x=round(start + box * _SHADES + 6, 1), y=y))
    return elements


def _numbers(
    groups: Sequence[Points], names: tuple[str, str, str]
) -> tuple[tuple[str, ...], tuple[tuple[object, ...], ...]]:
    has_colour = any(g.colour for g in groups)
    rows: list[tuple[object, ...]] = []
    for g in groups:
        for i in range(len(g.x)):
            colour = (g.colour[i] if g.colour else None,) if has_colour else ()
            rows.append((g.labels[i] if g.labels else g.name, g.x[i], g.y[i], *colour))
    return ("point", *names[: 2 + has_colour]), tuple(rows)
