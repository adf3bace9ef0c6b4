"""Charts as SVG, drawn on the server: they need no script, and a table of their numbers stands beside each."""

from dataclasses import dataclass

from markupsafe import Markup


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawn chart with its numbers. ``key`` names it in the page's address."""

    key: str
    title: str
    description: str
    svg: Markup
    head: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
