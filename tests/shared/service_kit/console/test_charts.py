"""Charts against coordinates found another way, and with text and numbers that mean harm."""

import math
import re
import xml.etree.ElementTree as ET

import pytest

from service_kit.console.charts import Bar, Level, Points, Series, bars, line, scatter
from service_kit.console.charts.scales import LARGEST, Scale, finite, scale_of, thinned
from tests.shared.service_kit.console import sample_service

SVG = "{http://www.w3.org/2000/svg}"
HUGE = [1e308, -1e308, 10**400, -(10**400), math.inf, -math.inf, math.nan, 5e-324, 0.0, None, True, "7"]


def _parsed(chart):
    return ET.fromstring(str(chart.svg))


def _with(root, name):
    return [e for e in root.iter() if name in e.get("class", "").split()]


def test_a_line_goes_through_the_positions_of_its_values():
    chart = line("a", "A", [Series("s", [0, 5, 10], [0, 50, 100])], x="x", y="y")
    (path,) = _with(_parsed(chart), "line")
    # The frame is 72 to 740 across and 38 to 288 down; 6 and 4 are left free at its ends.
    x_min, x_max, bottom, top = 72 + 6, 760 - 20 - 6, 340 - 52 - 4, 38 + 4
    expected = f"M{x_min} {bottom}L{(x_min + x_max) / 2:g} {(bottom + top) / 2:g}L{x_max} {top}"
    assert path.get("d") == expected
    ticks = [t.text for t in _with(_parsed(chart), "tick") if "y" in t.get("class")]
    assert ticks == ["0", "20", "40", "60", "80", "100"]


def test_a_logarithmic_axis_puts_equal_factors_at_equal_distances_and_leaves_out_what_is_not_positive():
    chart = line("a", "A", [Series("s", [1, 2, 3, 4, 5], [100.0, 10.0, 1.0, 0.0, -3.0])], x="x", y="y", y_log=True)
    (path,) = _with(_parsed(chart), "line")
    ys = [float(pair.split()[1]) for pair in re.split("[ML]", path.get("d"))[1:]]
    assert len(ys) == 3
    assert ys[1] - ys[0] == pytest.approx(ys[2] - ys[1])
    assert chart.rows[3:] == ((4.0, 0.0), (5.0, -3.0))  # the table has all


def test_a_step_holds_its_value_until_the_next_and_a_gap_breaks_the_line():
    chart = line("a", "A", [Series("s", [0, 1, 2], [3, 2, 1], is_step=True)], x="x", y="y")
    (path,) = _with(_parsed(chart), "line")
    assert re.fullmatch(r"M[\d.]+ [\d.]+(H[\d.]+V[\d.]+){2}", path.get("d"))
    chart = line("a", "A", [Series("s", [0, 1, 2, 3, 4], [3, 2, None, 1, 0])], x="x", y="y")
    assert len(_with(_parsed(chart), "line")) == 2


def test_a_band_goes_out_along_its_top_and_back_along_its_bottom():
    chart = line("a", "A", [Series("s", [0, 1], [5, 5], low=[0, 0], high=[10, 10])], x="x", y="y")
    (band,) = _with(_parsed(chart), "band")
    assert band.get("d") == "M78 42L734 42L734 284L78 284Z"


def test_points_have_an_area_by_size_and_a_shade_by_colour():
    chart = scatter("a", "A", [Points("p", [0, 1, 2], [0, 1, 2], colour=[0, 5, 10])], x="x", y="y")
    marks = _with(_parsed(chart), "point")
    assert [m.get("class") for m in marks] == ["point k0", "point k3", "point k6"]
    xs = [float(m.get("cx")) for m in marks]
    assert xs[1] == (80 + 732) / 2
    assert 80 <= xs[0] < xs[1] < xs[2] <= 732
    assert xs[0] + xs[2] == pytest.approx(2 * xs[1])


def test_bars_start_at_zero_whatever_their_sign():
    chart = bars("a", "A", [Bar("up", 10), Bar("down", -10), Bar("none", None)], value="v", name="n")
    up, down = _with(_parsed(chart), "bar")
    zero = (200 + 690) / 2
    assert float(up.get("x")) == zero
    assert float(down.get("x")) + float(down.get("width")) == zero
    assert up.get("width") == down.get("width") == "245.0"
    assert chart.rows == (("up", 10), ("down", -10), ("none", None))


@pytest.mark.parametrize("make", ["line", "scatter", "bars"])
def test_hostile_text_and_numbers_are_drawn_harmlessly(make):
    text, n = sample_service.HOSTILE + "\x00" * 0 + "]]></svg><script>x</script>", len(HUGE)
    if make == "line":
        series = [Series(text, list(range(n)), HUGE, low=HUGE, high=HUGE), Series(text, HUGE, HUGE)]
        charts = [
            line("a", text, series, x=text, y=text, y_log=log, levels=[Level(1e308, text), Level(math.nan, text)])
            for log in (False, True)
        ]
    elif make == "scatter":
        charts = [scatter("a", text, [Points(text, HUGE, HUGE[::-1], HUGE, [text] * n)], x=text, y=text, colour=text)]
    else:
        charts = [bars("a", text, [Bar(text, v) for v in HUGE], value=text, name=text)]
    for chart in charts:
        root = _parsed(chart)  # well-formed
        tags = {e.tag.removeprefix(SVG) for e in root.iter()}
        assert tags <= {"svg", "title", "desc", "g", "path", "line", "rect", "circle", "text"}
        names = {name for e in root.iter() for name in e.attrib}
        assert not [name for name in names if name.startswith("on") or name in ("style", "href")]
        narrow = ET.fromstring(str(chart.narrow))
        assert narrow.find(f"{SVG}title").text == text
        assert {e.tag.removeprefix(SVG) for e in narrow.iter()} <= tags
        assert root.find(f"{SVG}title").text == text
        numbers = " ".join(v for e in root.iter() for k, v in e.attrib.items() if k not in ("class", "id"))
        assert not re.search(r"\b(nan|inf)\b", numbers)
        for e in root.iter():
            for name in ("x", "cx", "x1", "x2"):
                assert 0 <= float(e.get(name, 0)) <= 760
            for name in ("y", "cy", "y1", "y2"):
                assert 0 <= float(e.get(name, 0)) <= 800


@pytest.mark.parametrize("count", [0, 1])
def test_a_chart_of_nothing_is_a_chart(count):
    for chart in (
        line("a", "A", [Series("s", [1] * count, [2] * count)], x="x", y="y"),
        line("a", "A", [], x="x", y="y"),
        scatter("a", "A", [Points("s", [1] * count, [2] * count)], x="x", y="y"),
        bars("a", "A", [Bar("b", 1)] * count, value="v", name="n"),
    ):
        assert _parsed(chart).get("role") == "img"


def test_a_hundred_thousand_points_are_thinned_for_the_eye_and_kept_in_the_numbers():
    x = list(range(100_000))
    chart = line("a", "A", [Series("s", x, x)], x="x", y="y")
    assert len(chart.svg) < 200_000
    assert len(chart.rows) == 100_000
    cloud = scatter("a", "A", [Points("s", x, x)], x="x", y="y")
    assert len(_with(_parsed(cloud), "point")) == 3_000
    assert thinned(100_000, 1_500)[0] == 0
    assert thinned(100_000, 1_500)[-1] == 99_999


def test_every_chart_names_itself_and_its_key_is_plain():
    chart = line("regret-1", "Regret", [Series("s", [1, 2], [3, 4])], x="answers", y="regret")
    root = _parsed(chart)
    names = root.get("aria-labelledby").split()
    assert [e.get("id") for e in root if e.get("id")] == names
    assert "s: 2 values from 3 to 4, the last 4" in root.find(f"{SVG}desc").text
    for key in ("", "a b", 'a"', "A", "1", "ä"):
        with pytest.raises(ValueError, match="key"):
            line(key, "A", [], x="x", y="y")


@pytest.mark.parametrize("power", [-290, -12, -3, 0, 3, 12, 290])
@pytest.mark.parametrize("is_log", [False, True])
def test_every_scale_holds_what_it_was_made_of(power, is_log):
    values = [m * 10.0**power for m in (1, 1.0000001, 2, 70)]
    for chosen in (values, values[:1], values[:2], [-v for v in values], [*values, -values[0]]):
        scale = scale_of(chosen, 0, 100, is_log=is_log)
        assert scale.low < scale.high
        for value in chosen:
            position = scale.position(value)
            if value > 0 or not is_log:
                assert scale.low * (1 - 1e-9) - 1e-320 <= value or not is_log
                assert 0 <= position <= 100
            else:
                assert position is None
        assert 2 <= len(scale.ticks) <= 24
        assert all(0 <= scale.position(tick) <= 100 for tick in scale.ticks)


def test_numbers_that_cannot_be_drawn_are_none_and_those_too_large_are_at_the_edge():
    assert [finite(v) for v in (math.nan, None, "7", True, 10**400, -math.inf)] == [
        None, None, None, None, LARGEST, -LARGEST,
    ]  # fmt: skip
    assert Scale(0, 1, 0, 100).position(7) == 100


def _level_names(values):
    chart = line(
        "a", "A", [Series("one", [1.0, 4.0], [0.0, 10.0])], x="x", y="y", levels=[Level(v, n) for n, v in values]
    )
    return [(t.text, float(t.get("y"))) for t in _with(_parsed(chart), "level") if t.tag.endswith("text")]


def test_names_of_levels_that_are_close_stand_in_one_line_the_upper_one_first():
    assert _level_names([("low", 5.0), ("high", 5.2)]) == [("high 5.2, low 5", _level_names([("high", 5.2)])[0][1])]
    apart = _level_names([("low", 2.0), ("high", 8.0), ("highest", 8.1)])
    assert [text for text, _ in apart] == ["highest 8.1, high 8", "low"]
    assert apart[1][1] - apart[0][1] > 15


def test_a_label_stands_where_it_covers_no_line():
    """The line runs along the level at the right end: the label stands at the left, or below where that is full too."""

    def label_of(*series):
        chart = line("a", "A", series, x="x", y="y", levels=[Level(5.0, "goal")])
        drawn, text = sorted(_with(_parsed(chart), "level"), key=lambda e: e.tag)
        return text.get("class"), "above" if float(text.get("y")) < float(drawn.get("y1")) else "below"

    assert label_of(Series("s", [0, 1], [0.0, 10.0])) == ("level", "above")
    assert label_of(Series("s", [0, 2, 4], [0.0, 5.2, 5.2])) == ("level start", "above")
    assert label_of(Series("s", [0, 4], [5.2, 5.2]), Series("t", [0, 1], [0.0, 0.1])) == ("level", "below")


def test_a_narrow_picture_is_drawn_for_its_size_with_all_names():
    """Scaled to a phone of 360 px the wide one had text of 5 px. At 320 px 266 are left beside the margins."""
    series = [Series(f"series {i}", [0, 100_000], [i, 20_000], dots=i == 1) for i in range(5)]
    chart = line("a", "A", series, x="trial", y="answer")
    wide, narrow = _parsed(chart), ET.fromstring(str(chart.narrow))
    width = float(narrow.get("viewBox").split()[2])
    assert 13 * 266 / width >= 11  # 13 px: its font in the stylesheet
    texts = [t.text for t in narrow.iter(f"{SVG}text")]
    assert {f"series {i}" for i in range(5)} <= set(texts)
    assert {"trial", "answer", "20k"} <= set(texts)
    assert narrow.get("class") == "narrow"
    for root in (wide, narrow):  # marks of the legend look like those in the picture
        kinds = [e.tag.removeprefix(SVG) for e in _with(root, "key") if not e.tag.endswith("text")]
        assert kinds == ["rect", "circle", "rect", "rect", "rect"]
    top = min(float(e.get("y1")) for e in _with(narrow, "grid"))
    assert all(float(t.get("y")) < top for t in _with(narrow, "key") if t.tag.endswith("text"))


def test_a_point_leads_to_its_page_and_so_does_its_row_in_the_table():
    chart = line("a", "A", [Series("s", [3, 1], [5, 6], dots=True, links=["/3", "/1"])], x="x", y="y")
    for root in (_parsed(chart), ET.fromstring(str(chart.narrow))):
        links = list(root.iter(f"{SVG}a"))
        assert [(a.get("href"), a.get("tabindex")) for a in links] == [("/3", "-1"), ("/1", "-1")]
        assert root.get("role") == "group"  # an image has nothing in it that one could press
    assert [(row[0], link) for row, link in zip(chart.rows, chart.links, strict=True)] == [(1, "/1"), (3, "/3")]


def test_a_legend_is_cut_only_where_it_needs_more_room():
    long, short = "expected, with a 95 % interval", "answer"

    def keys(*names):
        drawn = [Series(name, [1.0, 2.0], [1.0, 2.0]) for name in names]
        return [t.text for t in _with(_parsed(line("a", "A", drawn, x="x", y="y")), "key") if t.tag.endswith("text")]

    assert keys(long, short) == [long, short]
    cut = keys(*[f"{long} {i}" for i in range(6)])
    assert all(text.endswith("…") for text in cut)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(1, 4, [1, 2, 3, 4]), (0.5, 8, [0.5, 1, 2, 5]), (0.1, 1000, [0.1, 1, 10, 100, 1000]), (2, 3, [2, 3])],
)
def test_a_short_logarithmic_axis_has_ticks_enough(low, high, ticks):
    assert Scale(low, high, 0, 100, is_log=True).ticks == ticks
