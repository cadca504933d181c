"""Grafana's dashboards: Grafana takes them, and they ask for what the services serve."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import dashboard as grafana
from tests.support import promql
from tools.observe import dashboards
from tools.observe.asked import without_variables
from tools.observe.panels import COLUMNS

FILES = {path.stem: json.loads(path.read_text()) for path in dashboards.FOLDER.glob("*.json")}


def queries(name: str) -> Iterator[tuple[str, str]]:
    """Every query of a dashboard, as it is with nothing chosen, and its legend."""
    for panel in FILES[name]["panels"]:
        for target in panel.get("targets", ()):
            yield without_variables(target["expr"]), target["legendFormat"]


def labels_of(expr: str) -> set[str]:
    """The labels of everything that an expression names."""
    known = promql.served() | promql.OWN
    return set().union(*(known[selector.metric] for selector in promql.selectors(expr)))


@pytest.mark.parametrize("name", FILES)
def test_grafana_knows_every_field_of_it(name: str) -> None:
    register_default_plugins()
    read = json.loads(JSONEncoder().encode(grafana.Dashboard.from_json(FILES[name])))
    assert list(lost(FILES[name], read, name)) == []


def lost(written: Any, read: Any, place: str) -> Iterator[str]:
    """What is written and was not read: a field that Grafana does not have, or a value it can't hold."""
    if isinstance(written, dict) and isinstance(read, dict):
        for key, value in written.items():
            yield from lost(value, read.get(key), f"{place}.{key}")
    elif isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        for number, (one, other) in enumerate(zip(written, read, strict=True)):
            yield from lost(one, other, f"{place}[{number}]")
    elif written != read:
        yield f"{place}: {written!r}, read as {read!r}"


def test_a_field_that_grafana_does_not_have_is_found() -> None:
    register_default_plugins()
    written = FILES["parrot-overview"] | {"sheduler": True}
    read = json.loads(JSONEncoder().encode(grafana.Dashboard.from_json(written)))
    assert list(lost(written, read, "it")) == ["it.sheduler: True, read as None"]


def test_they_are_as_they_are_written() -> None:
    assert dashboards.drifted() == []
    names = ("overview", "applications", "managers", "engines", "gateway")
    assert set(FILES) == {f"parrot-{name}" for name in names}


@pytest.mark.parametrize("name", FILES)
def test_it_asks_for_what_is_served(name: str) -> None:
    known = promql.served() | promql.OWN
    for expr, _ in queries(name):
        asked = promql.selectors(expr)
        assert asked, expr
        for selector in asked:
            assert selector.metric in known, expr
            assert selector.labels <= known[selector.metric], expr
        assert promql.grouped_by(expr) <= labels_of(expr), expr


@pytest.mark.parametrize("name", FILES)
def test_a_legend_names_labels_that_are_left_and_all_that_series_differ_by(name: str) -> None:
    for expr, legend in queries(name):
        named = set(promql.LEGEND.findall(legend))
        left = promql.left(expr)
        if left is None:
            assert named, expr
            assert named <= labels_of(expr), expr
        else:
            assert named == left, expr


@pytest.mark.parametrize("name", FILES)
def test_panels_lie_side_by_side_and_say_what_they_show(name: str) -> None:
    panels = FILES[name]["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= COLUMNS
        assert panel["type"] == "row" or panel["description"]
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        across = one["x"] < other["x"] + other["w"] and other["x"] < one["x"] + one["w"]
        down = one["y"] < other["y"] + other["h"] and other["y"] < one["y"] + one["h"]
        assert not (across and down), (one, other)


@pytest.mark.parametrize("name", FILES)
def test_a_variable_lists_the_values_of_a_label_that_is_served(name: str) -> None:
    own, *choices = FILES[name]["templating"]["list"]
    assert own["type"] == "datasource"
    for choice in choices:
        metric, label = choice["query"].removeprefix("label_values(").removesuffix(")").split(", ")
        assert label in promql.served()[metric]
        written = [target["expr"] for panel in FILES[name]["panels"] for target in panel.get("targets", ())]
        assert any(f"${choice['name']}" in expr for expr in written)
