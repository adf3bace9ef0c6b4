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


def scatter(
    key: str,
    title: str,
    points: Sequence[Points],
    *,
    x: str,
    y: str,
    colour: str = "colour",
) -> Chart:
    """A chart of groups of points; ``x``, ``y`` and ``colour`` name what they mean, with units."""
    groups = [_clean(p) for p in points]
    bottom, right = chart.HEIGHT - chart.MARGIN_BOTTOM, chart.WIDTH - chart.MARGIN_RIGHT
    xs = scale_of((v for g in groups for v in g.x), chart.MARGIN_LEFT + 8, right - 8, close=True)
    ys = scale_of((v for g in groups for v in g.y), bottom - 8, chart.MARGIN_TOP + 8, close=True)
    shades = scale_of((v for g in groups for v in g.colour), 0, _SHADES)
    drawn = [mark for i, g in enumerate(groups) for mark in _marks(g, i, (xs, ys, shades), (x, y, colour))]
    count = sum(len(g.x) for g in groups)
    described = f"{words.number(count)} points: {y} against {x}."
    has_colour = any(v is not None for g in groups for v in g.colour)
    svg = chart.picture(
        key,
        title,
        described,
        *chart.axes(xs, ys, x, y),
        *drawn,
        *(_ramp(shades, colour) if has_colour else chart.legend([g.name for g in groups])),
    )
    return Chart(key, title, described, svg, *_numbers(groups, (x, y, colour)))


def _clean(p: Points) -> Points:
    x, y, colour = (tuple(finite(v) for v in part) for part in (p.x, p.y, p.colour))
    if any(part and len(part) != len(x) for part in (colour, p.labels)) or len(x) != len(y):
        raise ValueError("a group of points has as many x as y, and of all else as many or none")
    return Points(p.name, x, y, colour, tuple(p.labels), p.is_ring)


def _marks(g: Points, number: int, scales: tuple[Scale, Scale, Scale], names: tuple[str, str, str]) -> list[Markup]:
    xs, ys, shades = scales
    elements = []
    for i in thinned(len(g.x), _DRAWN_MAX):
        px, py = xs.position(g.x[i]), ys.position(g.y[i])
        if px is None or py is None:
            continue
        shade = shades.position(g.colour[i]) if g.colour else None
        look = f"c{number % chart.COLOURS}" if shade is None else f"k{min(int(shade), _SHADES - 1)}"
        values = (g.x[i], g.y[i], g.colour[i] if g.colour else None)
        text = ", ".join(f"{n} {words.number(v)}" for n, v in zip(names, values, strict=True) if v is not None)
        named = g.labels[i] if g.labels else g.name
        kind = "ring" if g.is_ring else "point"
        title = tag("title", chart.label_whole(f"{named}: {text}"))
        elements.append(tag("circle", title, class_=f"{kind} {look}", cx=px, cy=py, r=_RADIUS))
    return elements


def _ramp(shades: Scale, name: str) -> list[Markup]:
    """The key of the colours: boxes from low to high."""
    elements = [tag("text", chart.label(f"{name}: {chart.tick(shades.low)}"), class_="key end", x=560, y=18)]
    elements += [tag("rect", class_=f"box k{i}", x=568 + 18 * i, y=8, width=18, height=12) for i in range(_SHADES)]
    elements.append(tag("text", chart.label(chart.tick(shades.high)), class_="key", x=574 + 18 * _SHADES, y=18))
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
