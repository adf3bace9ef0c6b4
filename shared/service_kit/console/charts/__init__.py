"""Charts as SVG, drawn on the server without scripts, each with a table of its numbers.

Colours are classes of the stylesheet, so that a chart is readable in dark mode and on paper. Text is escaped when it
is inserted. Numbers that are not finite are gaps. Charts of very many points draw a part of them; their files have
all.
"""

from service_kit.console.charts.bars import Bar, bars
from service_kit.console.charts.chart import Chart, Level
from service_kit.console.charts.lines import Series, line
from service_kit.console.charts.scatters import Points, scatter

__all__ = ["Bar", "Chart", "Level", "Points", "Series", "bars", "line", "scatter"]
