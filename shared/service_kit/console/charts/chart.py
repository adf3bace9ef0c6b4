"""What all charts share: the frame of the picture, axes, levels, the legend, and the numbers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from service_kit.console import words
from service_kit.console.charts.scales import Scale

WIDTH, HEIGHT = 760, 340
MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 72, 20, 38, 52
COLOURS = 6
_LABEL_MAX = 48
_APART = 17
"""Smallest distance of two level lines with a label each."""
_LETTER, _KEY, _SHORTEST = 7.2, 38, 8
"""Of a legend: width of a letter, of what is beside a name, and the fewest letters of a name."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawn chart with its numbers. ``key`` is its name in the address of the page and in files."""

    key: str
    title: str
    description: str
    svg: Markup
    head: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]


@dataclass(frozen=True, slots=True)
class Level:
    """A value for comparison, drawn as a dashed line with a name: a cap, an optimum."""

    value: float
    name: str


def tag(name: str, *inside: Markup, **attributes: object) -> Markup:
    """An element. Attribute values are escaped; ``class_`` and ``x_y`` are written class and x-y."""
    pairs = Markup().join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), value)
        for key, value in attributes.items()
        if value is not None
    )
    # ``name`` is a constant of this package.
    return Markup("<{name}{attributes}>{inside}</{name}>").format(
        name=name, attributes=pairs, inside=Markup().join(inside)
    )


def label(text: str) -> Markup:
    """Escaped text, shortened if it is too long."""
    return Markup("{}").format(text if len(text) <= _LABEL_MAX else text[: _LABEL_MAX - 1] + "…")


def tick(value: float) -> str:
    """A value at an axis, in short form."""
    if value != 0 and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.3g}".replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")
    return words.number(float(value), 5)


def picture(key: str, title: str, description: str, *inside: Markup, height: float = HEIGHT) -> Markup:
    """The whole SVG, with title and description for screen readers."""
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,40}", key):
        raise ValueError("a chart's key is made of small letters, digits and hyphens")
    return tag(
        "svg",
        tag("title", label_whole(title), id=f"{key}-title"),
        tag("desc", label_whole(description), id=f"{key}-desc"),
        *inside,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {height:g}",
        role="img",
        aria_labelledby=f"{key}-title {key}-desc",
    )


def label_whole(text: str) -> Markup:
    """Escaped text of any length."""
    return Markup("{}").format(text)


def axes(x: Scale, y: Scale, x_label: str, y_label: str) -> list[Markup]:
    """Grid, ticks and names of both axes."""
    bottom, right = HEIGHT - MARGIN_BOTTOM, WIDTH - MARGIN_RIGHT
    elements = []
    for value in y.ticks:
        at = y.position(value)
        elements.append(tag("line", class_="grid", x1=MARGIN_LEFT, x2=right, y1=at, y2=at))
        elements.append(tag("text", label(tick(value)), class_="tick y", x=MARGIN_LEFT - 8, y=at, dy="0.32em"))
    for value in x.ticks:
        at = x.position(value)
        elements.append(tag("line", class_="mark", x1=at, x2=at, y1=bottom, y2=bottom + 5))
        elements.append(tag("text", label(tick(value)), class_="tick x", x=at, y=bottom + 18))
    elements.append(tag("line", class_="axis", x1=MARGIN_LEFT, x2=right, y1=bottom, y2=bottom))
    elements.append(tag("text", label(x_label), class_="name", x=(MARGIN_LEFT + right) / 2, y=HEIGHT - 10))
    turned = f"rotate(-90 16 {(MARGIN_TOP + bottom) / 2})"
    elements.append(tag("text", label(y_label), class_="name", x=16, y=(MARGIN_TOP + bottom) / 2, transform=turned))
    return elements


def levels(lines: Sequence[Level], y: Scale) -> list[Markup]:
    """Dashed lines across the picture."""
    right = WIDTH - MARGIN_RIGHT
    return [tag("line", class_="level", x1=MARGIN_LEFT, x2=right, y1=at, y2=at) for at, _ in _placed(lines, y)]


def level_names(lines: Sequence[Level], y: Scale) -> list[Markup]:
    """Names of the dashed lines, to be drawn last. Lines that are close share a label, the upper one first."""
    groups: list[list[tuple[float, Level]]] = []
    for at, level in _placed(lines, y):
        if groups and at - groups[-1][-1][0] < _APART:
            groups[-1].append((at, level))
        else:
            groups.append([(at, level)])
    elements = []
    for group in groups:
        values = ["" if len(group) == 1 else f" {words.number(level.value, 3)}" for _, level in group]
        names = Markup(", ").join(label(level.name + value) for (_, level), value in zip(group, values, strict=True))
        elements.append(tag("text", names, class_="level", x=WIDTH - MARGIN_RIGHT - 4, y=group[0][0], dy="-0.4em"))
    return elements


def _placed(lines: Sequence[Level], y: Scale) -> list[tuple[float, Level]]:
    """Levels that can be shown, from the top of the picture down."""
    positions = ((y.position(level.value), level) for level in lines)
    return sorted(((at, level) for at, level in positions if at is not None), key=lambda pair: pair[0])


def legend(names: Sequence[str]) -> list[Markup]:
    """Names of the series with their colours, shortened to fit; nothing for a single series."""
    if len(names) < 2:
        return []
    room = (WIDTH - MARGIN_LEFT - MARGIN_RIGHT - _KEY * len(names)) / _LETTER
    most = max((len(name) for name in names), default=0)
    while most > _SHORTEST and sum(min(len(name), most) for name in names) > room:
        most -= 1
    elements, at = [], float(MARGIN_LEFT)
    for i, name in enumerate(names):
        shown = name if len(name) <= most else name[: most - 1] + "…"
        elements.append(tag("rect", class_=f"key c{i % COLOURS}", x=round(at, 1), y=12, width=14, height=4, rx=2))
        elements.append(tag("text", label_whole(shown), class_="key", x=round(at + 20, 1), y=18))
        at += _KEY + _LETTER * len(shown)
    return elements
