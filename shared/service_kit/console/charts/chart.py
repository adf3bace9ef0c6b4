"""What all charts share: the picture's frame, its axes, its legend, and the numbers beside it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from service_kit.console import words
from service_kit.console.charts.scales import Scale

WIDTH, HEIGHT = 760, 340
LEFT, RIGHT, TOP, BOTTOM = 72, 20, 38, 52
COLOURS = 6
_LABEL_MAX = 48
_APART = 17
"""Between two level lines, so that each can have a label of its own."""
_LETTER, _KEY, _SHORTEST = 7.2, 38, 8
"""Of a legend: width of a letter, of what is beside a name, and the fewest letters of a name."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawn chart with its numbers. ``key`` names it in the page's address and in files."""

    key: str
    title: str
    description: str
    svg: Markup
    head: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]


@dataclass(frozen=True, slots=True)
class Level:
    """A value that others are held against, as a dashed line with a name: a cap, an optimum."""

    value: float
    name: str


def tag(name: str, *inside: Markup, **attributes: object) -> Markup:
    """An element. Everything in attributes is escaped; ``class_`` and ``x_y`` are written class and x-y."""
    told = Markup().join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), value)
        for key, value in attributes.items()
        if value is not None
    )
    # The name is one of ours.
    return Markup("<{name}{told}>{inside}</{name}>").format(name=name, told=told, inside=Markup().join(inside))


def label(text: str) -> Markup:
    """Text in a picture, cut where it is too long."""
    return Markup("{}").format(text if len(text) <= _LABEL_MAX else text[: _LABEL_MAX - 1] + "…")


def tick(value: float) -> str:
    """A value at an axis, short."""
    if value != 0 and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.3g}".replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")
    return words.number(float(value), 5)


def picture(key: str, title: str, description: str, *inside: Markup, height: float = HEIGHT) -> Markup:
    """The whole SVG: a picture to a screen reader, with title and description."""
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
    """Escaped text, uncut."""
    return Markup("{}").format(text)


def axes(x: Scale, y: Scale, x_label: str, y_label: str) -> list[Markup]:
    """Grid, ticks and names of both axes."""
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    made = []
    for value in y.ticks:
        at = y.place(value)
        made.append(tag("line", class_="grid", x1=LEFT, x2=right, y1=at, y2=at))
        made.append(tag("text", label(tick(value)), class_="tick y", x=LEFT - 8, y=at, dy="0.32em"))
    for value in x.ticks:
        at = x.place(value)
        made.append(tag("line", class_="mark", x1=at, x2=at, y1=bottom, y2=bottom + 5))
        made.append(tag("text", label(tick(value)), class_="tick x", x=at, y=bottom + 18))
    made.append(tag("line", class_="axis", x1=LEFT, x2=right, y1=bottom, y2=bottom))
    made.append(tag("text", label(x_label), class_="name", x=(LEFT + right) / 2, y=HEIGHT - 10))
    turned = f"rotate(-90 16 {(TOP + bottom) / 2})"
    made.append(tag("text", label(y_label), class_="name", x=16, y=(TOP + bottom) / 2, transform=turned))
    return made


def levels(lines: Sequence[Level], y: Scale) -> list[Markup]:
    """Dashed lines across."""
    right = WIDTH - RIGHT
    return [tag("line", class_="level", x1=LEFT, x2=right, y1=at, y2=at) for at, _ in _placed(lines, y)]


def level_names(lines: Sequence[Level], y: Scale) -> list[Markup]:
    """What the dashed lines are, to be drawn over all else. Lines that are close share a label: the upper one first."""
    groups: list[list[tuple[float, Level]]] = []
    for at, level in _placed(lines, y):
        if groups and at - groups[-1][-1][0] < _APART:
            groups[-1].append((at, level))
        else:
            groups.append([(at, level)])
    made = []
    for group in groups:
        told = [label(one.name if len(group) == 1 else f"{one.name} {words.number(one.value, 3)}") for _, one in group]
        shown = Markup(", ").join(told)
        made.append(tag("text", shown, class_="level", x=WIDTH - RIGHT - 4, y=group[0][0], dy="-0.4em"))
    return made


def _placed(lines: Sequence[Level], y: Scale) -> list[tuple[float, Level]]:
    """Levels that can be shown, from the top of the picture down."""
    found = ((y.place(level.value), level) for level in lines)
    return sorted(((at, level) for at, level in found if at is not None), key=lambda pair: pair[0])


def legend(names: Sequence[str]) -> list[Markup]:
    """Names of series at the top, each with its colour, cut where there is no room; none where there is one alone."""
    if len(names) < 2:
        return []
    room = (WIDTH - LEFT - RIGHT - _KEY * len(names)) / _LETTER
    most = max((len(name) for name in names), default=0)
    while most > _SHORTEST and sum(min(len(name), most) for name in names) > room:
        most -= 1
    made, at = [], float(LEFT)
    for i, name in enumerate(names):
        shown = name if len(name) <= most else name[: most - 1] + "…"
        made.append(tag("rect", class_=f"key c{i % COLOURS}", x=round(at, 1), y=12, width=14, height=4, rx=2))
        made.append(tag("text", label_whole(shown), class_="key", x=round(at + 20, 1), y=18))
        at += _KEY + _LETTER * len(shown)
    return made
