"""The words dashboards are written in, and how they become Grafana's JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

Json = dict[str, Any]

COLUMNS: Final = 24
"""The width of a dashboard, in Grafana's units."""
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_HEIGHTS: Final = {"row": 1, "stat": 4, "timeseries": 8}
_SCHEMA_VERSION: Final = 41


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked of Prometheus, and how an answer's series are called (`{{label}}` is a label)."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture.

    Attributes:
        about: what it shows and what it means, for whoever looks at it for the first time.
        unit: of Grafana's names for units: `s`, `reqps`, `percentunit`, `bytes`, `short`...
        bad: from which value on it is red; None where no value is bad by itself.
        few_are_bad: whether `bad` is a lower bound rather than an upper one.
    """

    title: str
    about: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: Literal["timeseries", "stat"] = "timeseries"
    width: int = 8
    stacked: bool = False
    bad: float | None = None
    few_are_bad: bool = False

    def json(self, number: int, x: int, y: int) -> Json:
        """The panel as Grafana keeps it, at a place of the dashboard."""
        letters = "ABCDEFGHIJ"
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.about,
            "datasource": DATASOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": _HEIGHTS[self.kind]},
            "targets": [
                {
                    "refId": letters[place],
                    "datasource": DATASOURCE,
                    "expr": query.expr,
                    "legendFormat": query.legend or "__auto",
                    "range": True,
                }
                for place, query in enumerate(self.queries)
            ],
            "fieldConfig": {"defaults": self._defaults(), "overrides": []},
            "options": _OPTIONS[self.kind],
        }

    def _defaults(self) -> Json:
        found: Json = {"unit": self.unit, "thresholds": self._thresholds()}
        if self.kind == "stat":
            return found | {"color": {"mode": "thresholds"}}
        drawn = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 30 if self.stacked else 8,
            "showPoints": "never",
            "stacking": {"mode": "normal" if self.stacked else "none", "group": "A"},
        }
        return found | {"min": 0, "color": {"mode": "palette-classic"}, "custom": drawn}

    def _thresholds(self) -> Json:
        colors = ("red", "green") if self.few_are_bad else ("green", "red")
        steps: list[Json] = [{"value": None, "color": colors[0]}]
        if self.bad is None:
            steps[0]["color"] = "green"
        else:
            steps.append({"value": self.bad, "color": colors[1]})
        return {"mode": "absolute", "steps": steps}


_OPTIONS: Final[dict[str, Json]] = {
    "stat": {
        "reduceOptions": {"calcs": ["lastNotNull"], "values": False, "fields": ""},
        "colorMode": "value",
        "graphMode": "area",
        "textMode": "auto",
    },
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
}


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one head."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class Choice:
    """A variable of a dashboard: the values of a label, all of them unless some are chosen."""

    name: str
    metric: str

    def json(self) -> Json:
        """The variable as Grafana keeps it."""
        query = f"label_values({self.metric}, {self.name})"
        return {
            "name": self.name,
            "type": "query",
            "datasource": DATASOURCE,
            "query": query,
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"]},
        }


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A page of Grafana. `uid` is also its file's name, and stays what it is: links hold it."""

    uid: str
    title: str
    about: str
    choices: Sequence[Choice]
    rows: Sequence[Row]

    def json(self) -> Json:
        """The dashboard as Grafana keeps it."""
        source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
        links = {"type": "dashboards", "title": "Parrot", "tags": ["parrot"], "includeVars": False}
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.about,
            "tags": ["parrot"],
            "editable": False,
            "graphTooltip": 1,
            "refresh": "10s",
            "schemaVersion": _SCHEMA_VERSION,
            "time": {"from": "now-1h", "to": "now"},
            "timezone": "browser",
            "links": [links | {"asDropdown": False, "icon": "dashboard", "keepTime": True}],
            "templating": {"list": [source, *(choice.json() for choice in self.choices)]},
            "panels": list(self._placed()),
        }

    def _placed(self) -> Iterator[Json]:
        """Every panel at its place: from left to right, and below where a line is full."""
        number, y = 1, 0
        for row in self.rows:
            yield {
                "id": number,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": _HEIGHTS["row"]},
            }
            number, y, x, height = number + 1, y + _HEIGHTS["row"], 0, 0
            for panel in row.panels:
                if x + panel.width > COLUMNS:
                    x, y, height = 0, y + height, 0
                yield panel.json(number, x, y)
                number, x, height = number + 1, x + panel.width, max(height, _HEIGHTS[panel.kind])
            y += height
