"""Horizontal bars: one for each name, with an interval if there is one."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from service_kit.console import words
from service_kit.console.charts import chart
from service_kit.console.charts.chart import Chart, Level, tag
from service_kit.console.charts.scales import Scale, finite, scale_of

_ROW, _HEAD, _FOOT = 30, 30, 46
_NAMES = 190
_DRAWN_MAX = 60


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar; ``low`` and ``high`` are an interval about ``value``. ``mood``: good, bad, or None."""

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    mood: str | None = None


def bars(
    key: str,
    title: str,
    values: Sequence[Bar],
    *,
    value: str,
    name: str = "name",
    description: str = "",
    levels: Sequence[Level] = (),
) -> Chart:
    """A chart of bars from 0 on. ``value`` names the axis with its unit, and ``name`` what the bars stand for."""
    clean = [Bar(b.name, finite(b.value), finite(b.low), finite(b.high), b.mood) for b in values]
    shown = clean[:_DRAWN_MAX]
    numbers = [v for b in shown for v in (b.value, b.low, b.high)] + [finite(level.value) for level in levels]
    scale = scale_of(numbers, _NAMES + 10, chart.WIDTH - 70, zero=True)
    bottom = _HEAD + _ROW * max(len(shown), 1)
    drawn = [part for i, b in enumerate(shown) for part in _bar(b, _HEAD + _ROW * i, scale)]
    described = description or _described(clean, value)
    svg = chart.picture(
        key,
        title,
        described,
        *_axis(scale, bottom, value),
        *drawn,
        *_levels(levels, scale, bottom),
        height=bottom + _FOOT,
    )
    has_interval = any(b.low is not None or b.high is not None for b in clean)
    head = (name, value, *(("low", "high") if has_interval else ()))
    rows = tuple((b.name, b.value, *((b.low, b.high) if has_interval else ())) for b in clean)
    return Chart(key, title, described, svg, head, rows)


def _bar(b: Bar, top: float, scale: Scale) -> list[Markup]:
    middle = top + _ROW / 2
    elements = [tag("text", chart.label(_cut(b.name)), class_="tick y", x=_NAMES, y=middle, dy="0.32em")]
    zero, end = scale.position(0.0), scale.position(b.value)
    if zero is None or end is None:
        return [*elements, tag("text", chart.label(words.NONE), class_="value", x=_NAMES + 16, y=middle, dy="0.32em")]
    text = f"{b.name}: {words.number(b.value)}"
    low, high = scale.position(b.low), scale.position(b.high)
    if low is not None and high is not None:
        text += f" ({words.number(b.low)} to {words.number(b.high)})"
    box = {"x": min(zero, end), "y": top + 6, "width": round(abs(end - zero), 2), "height": _ROW - 12}
    look = f"bar {b.mood}" if b.mood in ("good", "bad") else "bar c0"
    elements.append(tag("rect", tag("title", chart.label_whole(text)), class_=look, rx=3, **box))
    if low is not None and high is not None:
        elements.append(
            tag(
                "path",
                class_="whisker",
                d=f"M{low:g} {middle:g}H{high:g}M{low:g} {middle - 5:g}v10M{high:g} {middle - 5:g}v10",
            )
        )
    farthest = max(v for v in (end, zero, high) if v is not None)
    elements.append(
        tag(
            "text",
            chart.label(words.number(b.value, 3)),
            class_="value",
            x=round(farthest + 7, 2),
            y=middle,
            dy="0.32em",
        )
    )
    return elements


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


def _levels(levels: Sequence[Level], scale: Scale, bottom: float) -> list[Markup]:
    elements = []
    for level in levels:
        if (at := scale.position(finite(level.value))) is not None:
            elements.append(tag("line", class_="level", x1=at, x2=at, y1=_HEAD - 4, y2=bottom))
            elements.append(tag("text", chart.label(level.name), class_="level across", x=at, y=_HEAD - 10))
    return elements


def _described(values: Sequence[Bar], value: str) -> str:
    if not values:
        return f"{value}. There are no values yet."
    listed = "; ".join(f"{b.name} {words.number(b.value)}" for b in values[:12])
    more = "" if len(values) <= 12 else f"; and {len(values) - 12} more"
    return f"{value}: {listed}{more}."
