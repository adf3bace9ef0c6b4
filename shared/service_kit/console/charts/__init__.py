"""Charts as SVG, drawn on the server: they need no script, and a table of their numbers stands beside each.

Colours are classes of the stylesheet, so that a chart is right in the dark and on paper. Text is escaped where it is
put in; numbers that are not finite are gaps. A chart of very many points is thinned for the eye; its files have all.
"""

from service_kit.console.charts.bars import Bar, bars
from service_kit.console.charts.chart import Chart, Level
from service_kit.console.charts.lines import Series, line
from service_kit.console.charts.scatters import Points, scatter

__all__ = ["Bar", "Chart", "Level", "Points", "Series", "bars", "line", "scatter"]
