"""Draws a dashboard as SVG: its panels at their places, with the answers to their queries.

It is no Grafana: it draws what a reader of the documentation needs to know what to expect.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from textwrap import wrap
from typing import Final

from tools.observe.panels import COLUMNS, Json

COLUMN_PX: Final = 50
LINE_PX: Final = 27
HEAD_PX: Final = 72
LEGEND_PX: Final = 32
NOTE_CHARS: Final = 190
"""A line of the note, at most."""
TINT: Final = 0.75
"""How much white is in what is under a stacked line."""
COLORS: Final = ("#2563a8", "#c2571a", "#2f8f4e", "#a33a7c", "#8a6d1d", "#5b4bb3", "#b3352f", "#3b8f93")
MOST_SERIES: Final = 8
"""More are not told apart by their colours; the legend says how many are left out."""
_BYTES: Final = 1024.0


@dataclass(frozen=True, slots=True)
class Series:
    """One line: its name in the legend, and its points (seconds, value)."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Box:
    """A place on the page, in pixels."""

    x: float
    y: float
    width: float
    height: float


def drawn(
    dashboard: Json, answers: Mapping[int, Sequence[Series]], span: tuple[float, float], note: str
) -> str:
    """The page as SVG.

    Args:
        answers: the series of each panel, by its id.
        span: the first and the last second shown.
        note: said under the title: what this is a picture of.
    """
    lines = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"])
    width, height = COLUMNS * COLUMN_PX, HEAD_PX + lines * LINE_PX
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#f4f5f5"/>',
        _text(10, 24, dashboard["title"], size=18, weight="bold"),
        *(_text(10, 44 + 16 * line, said, fill="#555") for line, said in enumerate(wrap(note, NOTE_CHARS))),
    ]
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        box = Box(
            place["x"] * COLUMN_PX + 4,
            HEAD_PX + place["y"] * LINE_PX,
            place["w"] * COLUMN_PX - 8,
            place["h"] * LINE_PX - 6,
        )
        parts.extend(_panel(panel, box, answers.get(panel["id"], ()), span))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(panel: Json, box: Box, series: Sequence[Series], span: tuple[float, float]) -> Iterator[str]:
    if panel["type"] == "row":
        yield _text(box.x + 4, box.y + 16, panel["title"], size=13, weight="bold", fill="#333")
        return
    yield f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="3" fill="#fff"/>'
    yield _text(box.x + 8, box.y + 16, panel["title"], weight="bold")
    if panel["type"] == "stat":
        yield _stat(panel, box, series)
    elif not any(one.points for one in series):
        yield _text(
            box.x + box.width / 2, box.y + box.height / 2, "nothing to show", fill="#999", anchor="middle"
        )
    else:
        yield from _chart(panel, box, series, span)


def _stat(panel: Json, box: Box, series: Sequence[Series]) -> str:
    defaults = panel["fieldConfig"]["defaults"]
    values = [value for one in series for _, value in one.points if math.isfinite(value)]
    if not values:
        return _text(box.x + box.width / 2, box.y + 66, "nothing to show", fill="#999", anchor="middle")
    value, color = values[-1], ""
    for step in defaults["thresholds"]["steps"]:
        if step["value"] is None or value >= step["value"]:
            color = {"green": "#2f8f4e", "red": "#c22b2b"}[step["color"]]
    said = shown(value, defaults["unit"])
    return _text(box.x + box.width / 2, box.y + 70, said, size=28, weight="bold", fill=color, anchor="middle")


def _chart(panel: Json, box: Box, series: Sequence[Series], span: tuple[float, float]) -> Iterator[str]:
    defaults = panel["fieldConfig"]["defaults"]
    stacked = defaults["custom"]["stacking"]["mode"] == "normal"
    # The largest ones, if there are more than can be told apart.
    kept = sorted(series, key=lambda one: -sum(v for _, v in one.points if math.isfinite(v)))[:MOST_SERIES]
    kept.sort(key=lambda one: one.name)
    lines = list(_stacked(kept)) if stacked else [one.points for one in kept]
    most = max((v for points in lines for _, v in points if math.isfinite(v)), default=0.0)
    top = _round_up(most, 1024 if defaults["unit"] in {"bytes", "Bps"} else 10)
    plot = Box(box.x + 52, box.y + 26, box.width - 62, box.height - 46 - LEGEND_PX)
    for share in (0.0, 0.5, 1.0):
        y = plot.y + plot.height * (1 - share)
        yield f'<path d="M{plot.x:.0f} {y:.0f}h{plot.width:.0f}" stroke="#e3e5e6"/>'
        yield _text(plot.x - 4, y + 4, shown(top * share, defaults["unit"]), fill="#555", anchor="end")
    yield _text(plot.x, plot.y + plot.height + 14, "0 s", fill="#555")
    yield _text(
        plot.x + plot.width,
        plot.y + plot.height + 14,
        f"{span[1] - span[0]:.0f} s",
        fill="#555",
        anchor="end",
    )
    # From the uppermost of a stack down: each covers what is under it.
    for number, points in reversed(list(enumerate(lines))):
        for piece in _unbroken(points):
            path = _path(piece, plot, span, top)
            if stacked:
                yield _area(path, piece, plot, span, COLORS[number])
            yield f'<path d="{path}" fill="none" stroke="{COLORS[number]}" stroke-width="1.5"/>'
    yield from _legend([one.name for one in kept], len(series), box)


def _stacked(series: Sequence[Series]) -> Iterator[list[tuple[float, float]]]:
    below: dict[float, float] = {}
    for one in series:
        for moment, value in one.points:
            below[moment] = below.get(moment, 0.0) + (value if math.isfinite(value) else 0.0)
        yield [(moment, below[moment]) for moment, _ in one.points]


def _unbroken(points: Sequence[tuple[float, float]]) -> Iterator[list[tuple[float, float]]]:
    """The pieces between which there is no value: Prometheus had none, or it is not a number."""
    steps = [after[0] - before[0] for before, after in pairwise(points)]
    step = min(steps, default=0.0)
    piece: list[tuple[float, float]] = []
    for moment, value in points:
        if piece and (moment - piece[-1][0] > 1.5 * step or not math.isfinite(value)):
            yield piece
            piece = []
        if math.isfinite(value):
            piece.append((moment, value))
    if piece:
        yield piece


def _path(points: Sequence[tuple[float, float]], plot: Box, span: tuple[float, float], top: float) -> str:
    first, last = span
    places = [
        f"{plot.x + (moment - first) / (last - first) * plot.width:.0f} "
        f"{plot.y + (1 - value / top) * plot.height:.1f}"
        for moment, value in points
    ]
    # A single point is drawn as a short dash.
    return f"M{places[0]}h2" if len(places) == 1 else "M" + "L".join(places)


def _area(
    path: str, points: Sequence[tuple[float, float]], plot: Box, span: tuple[float, float], color: str
) -> str:
    """What is between a line and the axis."""
    first, last = (plot.x + (points[end][0] - span[0]) / (span[1] - span[0]) * plot.width for end in (0, -1))
    parts = (int(color[place : place + 2], 16) for place in (1, 3, 5))
    tint = "".join(f"{round(part + (255 - part) * TINT):02x}" for part in parts)
    down = plot.y + plot.height
    return f'<path d="{path}L{last:.0f} {down:.0f}L{first:.0f} {down:.0f}z" fill="#{tint}"/>'


def _legend(names: Sequence[str], count: int, box: Box) -> Iterator[str]:
    x, y = box.x + 10, box.y + box.height - 8 - LEGEND_PX / 2
    for number, name in enumerate(names):
        cut = name if len(name) < 28 else f"{name[:26]}…"
        if x + 22 + 6.2 * len(cut) > box.x + box.width - 50:
            if y > box.y + box.height - 10:
                yield _text(x, y, f"and {count - number} more", fill="#555")
                return
            x, y = box.x + 10, y + LEGEND_PX / 2
        yield f'<rect x="{x:.0f}" y="{y - 7:.0f}" width="9" height="4" fill="{COLORS[number]}"/>'
        yield _text(x + 12, y, cut, fill="#333")
        x += 22 + 6.2 * len(cut)
    if count > len(names):
        yield _text(x, y, f"and {count - len(names)} more", fill="#555")


def shown(value: float, unit: str) -> str:
    """A value for people, in one of Grafana's units."""
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit in {"bytes", "Bps"}:
        tail = "/s" if unit == "Bps" else ""
        for name in ("B", "KiB", "MiB"):
            if abs(value) < _BYTES:
                return f"{value:.3g} {name}{tail}"
            value /= _BYTES
        return f"{value:.3g} GiB{tail}"
    if unit == "s":
        return f"{value * 1000:.3g} ms" if 0 < abs(value) < 1 else f"{value:.3g} s"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" + _TAILS.get(unit, "")


_TAILS: Final = {"cps": "/s", "reqps": "/s"}


def _round_up(value: float, base: int) -> float:
    """The next round number, in powers of a base; 1 for nothing."""
    if value <= 0:
        return 1.0
    size = float(base) ** math.floor(math.log(value, base))
    steps = (1, 2, 5, 10) if base == 10 else (1, 2, 5, 10, 20, 50, 100, 200, 500, 1024)
    return next(step * size for step in steps if value <= step * size * (1 + 1e-9))


def _text(
    x: float, y: float, text: str, *, size: int = 0, weight: str = "", fill: str = "", anchor: str = ""
) -> str:
    more = {"font-size": size, "font-weight": weight, "fill": fill, "text-anchor": anchor}
    said = "".join(f' {name}="{value}"' for name, value in more.items() if value)
    return f'<text x="{x:.0f}" y="{y:.0f}"{said}>{escape(text)}</text>'
