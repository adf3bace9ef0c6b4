"""What all charts share: the frame of the picture, axes, levels, the legend, and the numbers."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from service_kit.console import words
from service_kit.console.charts.scales import Scale

COLOURS = 6
_LABEL_MAX = 48
_APART = 17
"""Smallest distance of two level lines with a label each."""
_KEY, _SHORTEST = 38, 8
"""Of a legend: width of what is beside a name, and the fewest letters of a name."""
_LEGEND_LINE = 17


@dataclass(frozen=True, slots=True)
class Frame:
    """The size of a picture, the margins about its axes, and the width of a letter, in units of its viewBox."""

    name: str
    width: int
    height: int
    start: int
    top: int
    letter: float
    margin_right: int
    margin_bottom: int

    @property
    def right(self) -> int:
        return self.width - self.margin_right

    @property
    def bottom(self) -> int:
        return self.height - self.margin_bottom


WIDE = Frame("wide", 760, 340, 72, 38, 7.2, 20, 52)
NARROW = Frame("narrow", 310, 280, 54, 38, 7.4, 12, 50)
"""For phones, where the wide one would be scaled down until nobody can read it. The stylesheet shows one of them."""
_PER_LINE = 2


def frames(series: int = 1) -> tuple[Frame, Frame]:
    """The frames of the two pictures; the narrow one has room above for the legend of so many series."""
    above = 24 + (_LEGEND_LINE * math.ceil(series / _PER_LINE) if series > 1 else 0)
    return WIDE, replace(NARROW, top=above, height=NARROW.height + above - NARROW.top)


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawn chart with its numbers. ``key`` is its name in the address of the page and in files."""

    key: str
    title: str
    description: str
    svg: Markup
    head: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    narrow: Markup
    """The same for a narrow screen."""
    links: tuple[str | None, ...] = ()
    """Where each row leads to; empty if none leads anywhere."""
    span: tuple[float, float, float, float] | None = None
    """Of the x axis of the wide picture: its values at both ends, and their places as fractions of the width."""


@dataclass(frozen=True, slots=True)
class Level:
    """A value for comparison, drawn as a dashed line with a name: a cap, an optimum."""

    value: float
    name: str


def tag(name: str, *inside: str, **attributes: object) -> Markup:
    """An element, whose text and values are escaped; attributes ``class_`` and ``x_y`` are written class and x-y."""
    pairs = Markup().join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), value)
        for key, value in attributes.items()
        if value is not None
    )
    # ``name`` is a constant of this package.
    return Markup("<{name}{attributes}>{inside}</{name}>").format(
        name=name, attributes=pairs, inside=Markup().join(inside)
    )


def label(content: str, most: int = _LABEL_MAX) -> str:
    """A text, shortened to ``most`` letters if it is longer."""
    return content if len(content) <= most else content[: most - 1] + "…"


def tick(value: float) -> str:
    if value != 0 and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.3g}".replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")
    return words.number(float(value), 5)


def _shorter(value: float, frame: Frame) -> str:
    """A value at an axis; 150k for 150,000 where there is little room."""
    if frame.name == NARROW.name and 1e4 <= abs(value) < 1e6 and value % 1_000 == 0:
        return f"{value / 1_000:g}k"
    return tick(value)


def picture(
    frame: Frame, key: str, title: str, description: str, *inside: Markup, height: float = 0, is_linked: bool = False
) -> Markup:
    """The whole SVG, with title and description for screen readers."""
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,40}", key):
        raise ValueError("a chart's key is made of small letters, digits and hyphens")
    name = key if frame is WIDE else f"{key}-{frame.name}"
    return tag(
        "svg",
        tag("title", title, id=f"{name}-title"),
        tag("desc", description, id=f"{name}-desc"),
        *inside,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {frame.width} {height or frame.height:g}",
        class_=frame.name,
        role="group" if is_linked else "img",
        aria_labelledby=f"{name}-title {name}-desc",
    )


def linked(mark: Markup, address: str | None) -> Markup:
    """A mark that leads to a page. The keyboard takes the same links in the table of the numbers."""
    return mark if address is None else tag("a", mark, href=address, tabindex=-1)


def axes(frame: Frame, x: Scale, y: Scale, x_label: str, y_label: str) -> list[Markup]:
    start, right, bottom = frame.start, frame.right, frame.bottom
    elements = []
    for value in y.ticks:
        at = y.position(value)
        elements.append(tag("line", class_="grid", x1=start, x2=right, y1=at, y2=at))
        elements.append(tag("text", _shorter(value, frame), class_="tick y", x=start - 8, y=at, dy="0.32em"))
    for value in apart(x.ticks, frame.letter, right - start):
        at = x.position(value)
        elements.append(tag("line", class_="mark", x1=at, x2=at, y1=bottom, y2=bottom + 5))
        elements.append(tag("text", _shorter(value, frame), class_="tick x", x=at, y=bottom + 18))
    elements.append(tag("line", class_="axis", x1=start, x2=right, y1=bottom, y2=bottom))
    across, up = (fitting(text, room, frame) for text, room in ((x_label, right), (y_label, bottom)))
    elements.append(tag("text", across, class_="name", x=(start + right) / 2, y=frame.height - 10))
    if frame.name == NARROW.name:  # above the axis: beside it there is no room
        return [*elements, tag("text", up, class_="name key", x=4, y=13)]
    middle = (frame.top + bottom) / 2
    elements.append(tag("text", up, class_="name", x=9, y=middle, transform=f"rotate(-90 9 {middle})"))
    return elements


def apart(ticks: Sequence[float], letter: float, room: float) -> Sequence[float]:
    """Every tick, or every second or further one, so that their labels do not touch."""
    needed = sum((len(tick(value)) + 2) * letter for value in ticks)
    return ticks[:: max(1, math.ceil(needed / room))]


def fitting(content: str, room: float, frame: Frame) -> str:
    return label(content, min(_LABEL_MAX, int(room / frame.letter)))


def levels(frame: Frame, shown: Sequence[Level], y: Scale) -> list[Markup]:
    """Dashed lines across the picture."""
    return [tag("line", class_="level", x1=frame.start, x2=frame.right, y1=at, y2=at) for at, _ in _placed(shown, y)]


Spot = tuple[float, float]


def level_names(frame: Frame, shown: Sequence[Level], y: Scale, spots: Sequence[Spot]) -> list[Markup]:
    """Names of the dashed lines, to be drawn last. Lines that are close share a label, the upper one first.

    Each stands at the end of its line, above or below it, where it covers the fewest of the ``spots``.
    """
    groups: list[list[tuple[float, Level]]] = []
    for at, level in _placed(shown, y):
        if groups and at - groups[-1][-1][0] < _APART:
            groups[-1].append((at, level))
        else:
            groups.append([(at, level)])
    elements = []
    for group in groups:
        values = ["" if len(group) == 1 else f" {words.number(level.value, 3)}" for _, level in group]
        names = ", ".join(label(level.name + value) for (_, level), value in zip(group, values, strict=True))
        width = frame.letter * len(names)
        places = [
            (
                start,
                group[0][0] - 5 if above else group[-1][0] + 13,
                "level" if start != frame.start + 4 else "level start",
            )
            for above in (True, False)
            for start in (frame.right - 4 - width, frame.start + 4)
        ]
        start, base, look = min(places, key=lambda spot: _covered(spot[0], spot[1], width, spots))
        elements.append(tag("text", names, class_=look, x=start if "start" in look else frame.right - 4, y=base))
    return elements


def _covered(start: float, base: float, width: float, spots: Sequence[Spot]) -> int:
    return sum(start - 4 <= px <= start + width + 4 and base - 14 <= py <= base + 5 for px, py in spots)


def _placed(shown: Sequence[Level], y: Scale) -> list[tuple[float, Level]]:
    """Levels that can be shown, from the top of the picture down."""
    positions = ((y.position(level.value), level) for level in shown)
    return sorted(((at, level) for at, level in positions if at is not None), key=lambda pair: pair[0])


def legend(frame: Frame, names: Sequence[tuple[str, str]]) -> list[Markup]:
    """Names of the series, shortened to fit, with marks that look like theirs; nothing for a single series.

    ``names`` are pairs of name and mark: ``line``, ``point`` or ``ring``. A narrow picture has two names a line, below
    that of its y axis.
    """
    if len(names) < 2:
        return []
    per_line = len(names) if frame is WIDE else _PER_LINE
    room = (frame.right - frame.start if frame is WIDE else frame.width) - _KEY * min(per_line, len(names))
    most = max((len(name) for name, _ in names), default=0)
    while most > _SHORTEST and sum(min(len(name), most) for name, _ in names[:per_line]) * frame.letter > room:
        most -= 1
    elements: list[Markup] = []
    first = float(frame.start if frame is WIDE else 4)
    at, y = first, 18.0 if frame is WIDE else 32.0
    for i, (name, mark) in enumerate(names):
        if i and i % per_line == 0:
            at, y = first, y + _LEGEND_LINE
        shown = label(name, most)
        elements.append(_mark(mark, i, at, y - 4))
        elements.append(tag("text", shown, class_="key", x=round(at + 20, 1), y=y))
        at += _KEY + frame.letter * len(shown)
    return elements


def _mark(kind: str, number: int, at: float, y: float) -> Markup:
    colour = f"c{number % COLOURS}"
    if kind == "line":
        return tag("rect", class_=f"key {colour}", x=round(at, 1), y=y - 2, width=14, height=4, rx=2)
    return tag("circle", class_=f"key {kind} {colour}", cx=round(at + 7, 1), cy=y, r=4)
