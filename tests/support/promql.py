"""What an expression of PromQL asks for, and the metrics that docs/metrics.md says are served."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import promql_parser

from tests.support import metrics_list

ALWAYS: Final = {"job", "instance"}
"""Labels that Prometheus itself gives every series."""
OWN: Final = {"up": ALWAYS, "ALERTS": {*ALWAYS, "alertname", "alertstate", "severity"}}
"""What is Prometheus' own."""
LEGEND: Final = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@dataclass(frozen=True, slots=True)
class Selector:
    """A metric that an expression names, and the labels it names of it."""

    metric: str
    labels: frozenset[str]


def selectors(expr: str) -> list[Selector]:
    """Every metric of an expression.

    Raises:
        ValueError: it is no PromQL.
    """
    found: list[Selector] = []

    def visit(node: Any) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            matchers = node.matchers.matchers
            found.append(Selector(node.name or "", frozenset(matcher.name for matcher in matchers)))

    promql_parser.walk(promql_parser.parse(expr), visit)
    return found


def grouped_by(expr: str) -> set[str]:
    """Every label that an expression groups or matches by."""
    groups = re.findall(r"\b(?:by|on|ignoring|group_left|group_right)\s*\(([^)]*)\)", expr)
    return {label.strip() for group in groups for label in group.split(",")} - {"", "le"}


def left(expr: str) -> set[str] | None:
    """The labels by which an expression's series can differ; None: by all that its metrics have."""
    return _left(promql_parser.parse(expr))


def _left(node: Any) -> set[str] | None:
    match node:
        case promql_parser.AggregateExpr():
            return set(node.modifier.labels) - {"le"} if node.modifier is not None else set()
        case promql_parser.BinaryExpr():
            return _left(node.lhs)
        case promql_parser.ParenExpr():
            return _left(node.expr)
        case promql_parser.Call():
            return _left(node.args[-1])
        case _:
            return None


@cache
def served() -> dict[str, set[str]]:
    """Every series a service can have, with its labels: histograms by each of their three names."""
    found: dict[str, set[str]] = {}
    for service in ("manager", "gateway", "engine"):
        for name, metric in metrics_list.listed(service).items():
            for series, more in _series(name, metric.kind):
                found.setdefault(series, set()).update(ALWAYS | metric.labels | more)
    return found


def _series(name: str, kind: str) -> Iterator[tuple[str, set[str]]]:
    if kind == "histogram":
        yield from ((f"{name}_bucket", {"le"}), (f"{name}_sum", set()), (f"{name}_count", set()))
    else:
        yield name, set()
