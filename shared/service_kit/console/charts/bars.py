"""Horizontal bars: one for each name."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from service_kit.console import words
from service_kit.console.charts import chart
from service_kit.console.charts.chart import Chart, tag
from service_kit.console.charts.scales import Scale, finite, scale_of

_ROW, _HEAD, _FOOT = 30, 12, 46
_NAMES, _NAME_MAX = 190, 26
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
    described = _described(clean, value)
    pictures = []
    for frame in (chart.WIDE, chart.NARROW):
        row, start = (_ROW, _NAMES + 10) if frame is chart.WIDE else (_ROW + 16, 10)
        scale = scale_of((b.value for b in shown), start, frame.width - 70, zero=True)
        bottom = _HEAD + row * max(len(shown), 1)
        drawn = [part for i, b in enumerate(shown) for part in _bar(b, _HEAD + row * i, scale, frame)]
        axis = _axis(scale, bottom, value, (start, frame.width - 70), frame)
        pictures.append(chart.picture(frame, key, title, described, *axis, *drawn, height=bottom + _FOOT))
    rows = tuple((b.name, b.value) for b in clean)
    return Chart(key, title, described, pictures[0], (name, value), rows, pictures[1])


def _bar(b: Bar, top: float, scale: Scale, frame: chart.Frame) -> list[Markup]:
    if frame is chart.WIDE:
        named_at: dict[str, object] = {"class_": "tick y", "x": _NAMES, "y": top + _ROW / 2, "dy": "0.32em"}
    else:  # above its bar
        named_at, top = {"class_": "tick", "x": 10, "y": top + 13}, top + 16
    middle = top + _ROW / 2
    elements = [tag("text", chart.label(b.name, _NAME_MAX), **named_at)]
    zero, end = scale.position(0.0), scale.position(b.value)
    if zero is None or end is None:
        nothing = tag("text", words.NONE, class_="value", x=scale.start + 6, y=middle, dy="0.32em")
        return [*elements, nothing]
    named = tag("title", f"{b.name}: {words.number(b.value)}")
    box = {"x": min(zero, end), "y": top + 6, "width": round(abs(end - zero), 2), "height": _ROW - 12}
    after = round(max(zero, end) + 7, 2)
    return [
        *elements,
        tag("rect", named, class_="bar c0", rx=3, **box),
        tag("text", words.number(b.value, 3), class_="value", x=after, y=middle, dy="0.32em"),
    ]


def _axis(scale: Scale, bottom: float, value: str, ends: tuple[float, float], frame: chart.Frame) -> list[Markup]:
    elements = []
    for at in chart.apart(scale.ticks, frame.letter, ends[1] - ends[0]):
        x = scale.position(at)
        elements.append(tag("line", class_="grid", x1=x, x2=x, y1=_HEAD - 4, y2=bottom))
        elements.append(tag("text", chart.tick(at), class_="tick x", x=x, y=bottom + 16))
    zero = scale.position(0.0)
    elements.append(tag("line", class_="axis", x1=zero, x2=zero, y1=_HEAD - 4, y2=bottom))
    elements.append(
        tag("text", chart.fitting(value, frame.width, frame), class_="name", x=sum(ends) / 2, y=bottom + 38)
    )
    return elements


def _described(values: Sequence[Bar], value: str) -> str:
    if not values:
        return f"{value}. There are no values yet."
    listed = "; ".join(f"{b.name} {words.number(b.value)}" for b in values[:12])
    more = "" if len(values) <= 12 else f"; and {len(values) - 12} more"
    return f"{value}: {listed}{more}."
