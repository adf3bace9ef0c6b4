"""Horizontal bars: one for each name."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from service_kit.console import words
from service_kit.console.charts import chart
from service_kit.console.charts.chart import Chart, tag
from service_kit.console.charts.scales import Scale, finite, scale_of

_ROW, _HEAD, _FOOT = 30, 30, 46
_NAMES = 190
_DRAWN_MAX = 60


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar; None is a gap."""

    name: str
    value: float | None


def bars(key: str, title: str, values: Sequence[Bar], *, value: str, name: str) -> Chart:
    """A chart of bars from 0 on. ``value`` names the axis with its unit, and ``name`` what the bars stand for."""
    clean = [Bar(b.name, finite(b.value)) for b in values]
    shown = clean[:_DRAWN_MAX]
    scale = scale_of((b.value for b in shown), _NAMES + 10, chart.WIDTH - 70, zero=True)
    bottom = _HEAD + _ROW * max(len(shown), 1)
    drawn = [part for i, b in enumerate(shown) for part in _bar(b, _HEAD + _ROW * i, scale)]
    described = _described(clean, value)
    svg = chart.picture(key, title, described, *_axis(scale, bottom, value), *drawn, height=bottom + _FOOT)
    return Chart(key, title, described, svg, (name, value), tuple((b.name, b.value) for b in clean))


def _bar(b: Bar, top: float, scale: Scale) -> list[Markup]:
    middle = top + _ROW / 2
    elements = [tag("text", chart.label(_cut(b.name)), class_="tick y", x=_NAMES, y=middle, dy="0.32em")]
    zero, end = scale.position(0.0), scale.position(b.value)
    if zero is None or end is None:
        return [*elements, tag("text", chart.label(words.NONE), class_="value", x=_NAMES + 16, y=middle, dy="0.32em")]
    named = tag("title", chart.label_whole(f"{b.name}: {words.number(b.value)}"))
    box = {"x": min(zero, end), "y": top + 6, "width": round(abs(end - zero), 2), "height": _ROW - 12}
    after = round(max(zero, end) + 7, 2)
    return [
        *elements,
        tag("rect", named, class_="bar c0", rx=3, **box),
        tag("text", chart.label(words.number(b.value, 3)), class_="value", x=after, y=middle, dy="0.32em"),
    ]


def _cut(name: str) -> str:
    return name if len(name) <= 26 else name[:25] + "…"


def _axis(scale: Scale, bottom: float, value: str) -> list[Markup]:
    elements = []
    for at in scale.ticks:
        x = scale.position(at)
        elements.append(tag("line", class_="grid", x1=x, x2=x, y1=_HEAD - 4, y2=bottom))
        elements.append(tag("text", chart.label(chart.tick(at)), class_="tick x", x=x, y=bottom + 16))
    zero = scale.position(0.0)
    elements.append(tag("line", class_="axis", x1=zero, x2=zero, y1=_HEAD - 4, y2=bottom))
    middle = (_NAMES + 10 + chart.WIDTH - 70) / 2
    elements.append(tag("text", chart.label(value), class_="name", x=middle, y=bottom + 38))
    return elements


def _described(values: Sequence[Bar], value: str) -> str:
    if not values:
        return f"{value}. There are no values yet."
    listed = "; ".join(f"{b.name} {words.number(b.value)}" for b in values[:12])
    more = "" if len(values) <= 12 else f"; and {len(values) - 12} more"
    return f"{value}: {listed}{more}."
