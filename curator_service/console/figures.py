"""Charts of the curator's pages, from replies of the API."""

from datetime import datetime
from typing import Any

from blindopt import wire
from curator_service.console.reading import real
from service_kit.console.charts import Bar, Chart, Level, Points, Series, bars, line, scatter

_BARS_MAX = 16
_YARDSTICKS = {
    "identity": "without protection",
    "random_rows": "random candidates",
    "groups_at_once": "groups answered at once",
}


def regret(forecast: dict[str, Any]) -> Chart:
    """The gap of the recommended record against epsilon, one line for each mechanism; yardsticks as levels."""
    points = [p | ({"epsilon": None} if p["mechanism"] == "groups_at_once" else {}) for p in forecast["points"]]
    if is_of_answers := forecast.get("spec", {}).get("answers") is not None:
        points = [p | {"epsilon": p.get("answers_epsilon")} for p in points]
    names = list(dict.fromkeys(map(_name, (p for p in points if p["epsilon"] is not None))))
    series, of_groups = [], names == ["groups"]
    for name in names:
        own = sorted((p for p in points if _name(p) == name), key=lambda p: float(p["epsilon"]))
        series.append(
            Series(
                name,
                [real(p["epsilon"]) for p in own],
                [p["regret"] for p in own],
                [band(p)[0] for p in own],
                [band(p)[1] for p in own],
            )
        )
    of = "a record in total" if of_groups else "answers" if is_of_answers else "the release"
    levels = [
        Level(p["regret"], _YARDSTICKS[p["mechanism"]])
        for p in points
        if p["mechanism"] in _YARDSTICKS and p["epsilon"] is None
    ]
    return line(
        "regret",
        "Quality of the search by epsilon",
        series,
        x=f"epsilon of {of}",
        y=f"gap to the best {'group' if of_groups else 'record'} (standard deviations)",
        x_log=True,
        zero=True,
        levels=levels,
        description=f"Mean gap of the recommended record against epsilon, with {_about(points)}. Lower is better.",
    )


def _name(point: dict[str, Any]) -> str:
    second = "" if point.get("refine_epsilon") is None else f", then {point['refine_epsilon']}"
    return f"{point['mechanism'].replace('_', ' ')}{second}"


def gaps(forecast: wire.PublicForecast | None) -> dict[str, float]:
    """The gap of the recommended record at each epsilon of answers of a forecast at levels of these.

    ``exact``: with exact answers; ``best``: without noise in the release too; ``random``: records at random;
    ``groups``: those answered at once in place of a search.
    """
    names = {"identity": "best", "random_rows": "random", "groups_at_once": "groups"}
    points = [] if forecast is None else forecast.points
    levels = {names.get(point.mechanism) or point.answers_epsilon or "exact": point.regret for point in points}
    return levels | ({"exact": levels["best"]} if "best" in levels and "exact" not in levels else {})


def band(point: dict[str, Any]) -> tuple[float, float]:
    """The least and the largest regret over length-scales; of a single one the 95 % interval."""
    regrets = [part["regret"] for part in point["by_lengthscale"]]
    return (min(regrets), max(regrets)) if len(regrets) > 1 else (point["low"], point["high"])


def _about(points: list[dict[str, Any]]) -> str:
    banded = any(len(point["by_lengthscale"]) > 1 for point in points)
    return "a band over three length-scales" if banded else "95 % intervals"


def spent(account: dict[str, Any], curve: dict[str, Any]) -> list[Chart]:
    points = curve["points"]
    if not points:
        return []
    start = datetime.fromisoformat(points[0]["at"])
    hours = [(datetime.fromisoformat(p["at"]) - start).total_seconds() / 3600 for p in points]
    units = (("days", 24.0, 72.0), ("hours", 1.0, 2.0), ("minutes", 1 / 60, 1 / 30), ("seconds", 1 / 3600, -1.0))
    unit, per = next((unit, per) for unit, per, least in units if hours[-1] > least)
    x = [hour / per for hour in hours]
    along = f"{unit} since the release was charged"
    caps = account["budget"]
    curves = [
        ("epsilon", "release and all answers", [real(p["total_epsilon"]) for p in points], caps.get("epsilon_total")),
        ("measurements", "measurements", [p["total_plays"] for p in points], caps.get("queries")),
    ]
    charts = []
    for key, name, y, cap in curves:
        if any(value is not None for value in y):
            total, levels = Series(name, x, y, is_step=True), [Level(float(cap), "cap")] if cap else []
            title = f"{key.capitalize()}{' used' if key == 'epsilon' else ''} over time"
            charts.append(line(key, title, [total], x=along, y=key, zero=True, levels=levels))
    return charts


def exposure(histogram: dict[str, Any]) -> Chart:
    """Numbers of candidates by how often they were measured; the highest counts share a bar if there are many."""
    counts = histogram["counts"]
    shown = counts if len(counts) <= _BARS_MAX else counts[: _BARS_MAX - 1]
    row_bars = [Bar(_times(part["plays"]), part["rows"]) for part in shown]
    if rest := counts[len(shown) :]:
        row_bars.append(Bar(f"{rest[0]['plays']:,} times or more", sum(part["rows"] for part in rest)))
    return bars(
        "exposure", "How often candidates were measured", row_bars, value="candidates", name="a candidate was measured"
    )


def _times(count: int) -> str:
    return "never" if count == 0 else "once" if count == 1 else f"{count:,} times"


_FEATURES_MAX = 12


def by_feature(results: dict[str, Any]) -> list[Chart]:
    """The relevance of each feature, then the answers against those that matter most."""
    features = sorted(enumerate(results["features"]), key=lambda pair: -(pair[1]["relevance"] or 0.0))
    if not results["answers"]:
        return []
    drawn = []
    if results["fitted"] and len(features) > 1:
        values = [Bar(feature["column"], 100 * feature["relevance"]) for _, feature in features[:_BARS_MAX]]
        drawn.append(bars("relevance", "Relevance of the features", values, value="% of all", name="feature"))
    return drawn + [_against(f"feature-{index}", feature) for index, feature in features[:_FEATURES_MAX]]


def _against(key: str, feature: dict[str, Any]) -> Chart:
    points, column = feature["points"], feature["column"]
    groups = [_points("answer", points, "y")]
    if any(p["measured"] is not None and p["measured"] != p["y"] for p in points):
        groups.append(_points("measured value", points, "measured"))
    return scatter(key, f"Answers against {column}", groups, x=column, y="outcome")


def _points(name: str, points: list[dict[str, Any]], which: str) -> Points:
    labels = [f"candidate {p['row']}" for p in points]
    ring = which == "measured"
    return Points(name, [p["value"] for p in points], [p[which] for p in points], labels=labels, is_ring=ring)
