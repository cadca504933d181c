"""Pictures of dashboards show each panel with its answers; those in docs are of the dashboards there are."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest
from tools.observe.asked import without_variables
from tools.observe.dashboards import DASHBOARDS
from tools.observe.drawing import MOST_SERIES, Series, drawn, shown
from tools.observe.panels import Dashboard, Panel, Query, Row
from tools.observe.pictures import PICTURES

SVG = "{http://www.w3.org/2000/svg}"
SPAN = (0.0, 10.0)
LINE = [(float(second), 1.0) for second in range(11)]


def page(panel: Panel, *series: Series) -> ElementTree.Element:
    """A dashboard of one panel, which is the second thing on it, after its row."""
    board = Dashboard("one", "One", "", [], [Row("row", [panel])])
    return ElementTree.fromstring(drawn(board.json(), {2: series}, SPAN, "a note"))  # noqa: S314 - our own


def texts(drawing: ElementTree.Element) -> list[str]:
    return ["".join(text.itertext()) for text in drawing.iter(f"{SVG}text")]


def lines(drawing: ElementTree.Element) -> list[list[tuple[float, float]]]:
    """The places of every line of a series, in pixels."""
    found = [path.attrib["d"] for path in drawing.iter(f"{SVG}path") if path.get("stroke-width")]
    return [[tuple(map(float, place.split())) for place in path[1:].split("L")] for path in found]  # type: ignore[misc]


def chart(*, stacked: bool = False) -> Panel:
    return Panel("Title & <more>", "about", (Query("up"),), stacked=stacked)


def test_a_panel_is_there_with_its_title_and_the_names_of_its_series() -> None:
    said = texts(page(chart(), Series("a<b", LINE), Series("c", LINE)))
    assert {"One", "a note", "row", "Title & <more>", "a<b", "c"} <= set(said)


def test_a_panel_without_an_answer_says_so() -> None:
    drawing = page(chart())
    assert "nothing to show" in texts(drawing)
    assert lines(drawing) == []


def test_a_larger_value_is_drawn_higher_and_later_ones_further_right() -> None:
    [line] = lines(page(chart(), Series("a", [(0.0, 1.0), (10.0, 4.0)])))
    assert line[0][0] < line[1][0]
    assert line[0][1] > line[1][1]


@pytest.mark.parametrize("hole", [[(5.0, math.nan)], []], ids=["not a number", "no point"])
def test_a_line_is_broken_where_there_is_no_value(hole: list[tuple[float, float]]) -> None:
    points = [point for point in LINE if point[0] != 5.0] + hole
    assert len(lines(page(chart(), Series("a", sorted(points))))) == 2


def test_stacked_series_lie_on_one_another() -> None:
    series = (Series("a", LINE), Series("b", LINE))
    heights = {line[0][1] for line in lines(page(chart(stacked=True), *series))}
    assert len(heights) == 2
    assert len({line[0][1] for line in lines(page(chart(), *series))}) == 1


def test_of_too_many_series_the_largest_are_drawn_and_the_rest_counted() -> None:
    many = [Series(f"s{n}", [(0.0, float(n)), (10.0, float(n))]) for n in range(MOST_SERIES + 3)]
    drawing = page(chart(), *many)
    assert len(lines(drawing)) == MOST_SERIES
    assert "s0" not in texts(drawing)
    assert "and 3 more" in texts(drawing)


@pytest.mark.parametrize(("value", "color"), [(1.0, "#2f8f4e"), (7.0, "#c22b2b")])
def test_a_number_is_red_from_its_bound_on(value: float, color: str) -> None:
    panel = Panel("n", "about", (Query("up"),), kind="stat", bad=5)
    drawing = page(panel, Series("", [(0.0, 99.0), (10.0, value)]))
    [number] = [text for text in drawing.iter(f"{SVG}text") if text.text == shown(value, "short")]
    assert number.attrib["fill"] == color


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0123, "s", "12.3 ms"),
        (12.0, "s", "12 s"),
        (0.5, "percentunit", "50 %"),
        (2048.0, "bytes", "2 KiB"),
        (1.5 * 2**30, "Bps", "1.5 GiB/s"),
        (3.0, "cps", "3/s"),
        (12345.0, "short", "12,345"),
    ],
)
def test_a_value_is_written_in_its_unit(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text


def test_a_query_is_asked_with_everything_chosen() -> None:
    asked = without_variables('rate(a{model=~"$model"}[$__rate_interval])')
    assert asked == 'rate(a{model=~".*"}[15s])'


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=[dashboard.uid for dashboard in DASHBOARDS])
def test_the_documentation_shows_a_dashboard_as_it_is(dashboard: Dashboard) -> None:
    path = PICTURES / f"{dashboard.uid}.svg"
    said = texts(ElementTree.parse(path).getroot())  # noqa: S314 - our own
    titles = [panel["title"] for panel in dashboard.json()["panels"]]
    assert [title for title in titles if title not in said] == []
    assert any("not by Grafana" in text for text in said)
    assert path.stat().st_size < 150_000
