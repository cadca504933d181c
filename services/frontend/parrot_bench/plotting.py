"""The picture of a benchmark: each system's rounds as points, and their median."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from parrot_bench import figures
from parrot_bench.figures import Round, Spread
from parrot_bench.registry import OURS
from parrot_bench.report import TIMES
from parrot_bench.systems.base import Unavailable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES: Final = (".svg", ".png", ".pdf")
OUR_COLOUR: Final = "#1b7837"
OTHER_COLOUR: Final = "#5a5a5a"
ROW_INCHES: Final = 0.4
PANEL_INCHES: Final = 3.5
TITLE_CHARS_PER_INCH: Final = 14


def check() -> None:
    """Finds out, before anything is run, whether there can be a plot.

    Raises:
        Unavailable: matplotlib is missing.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise Unavailable("--plot needs matplotlib: pip install 'parrot-serve[bench]'") from None


def draw(path: Path, rounds: Sequence[Round], title: str) -> None:
    """Draws every time that the workload has, a panel each.

    Raises:
        OSError: the file can't be written.
        ValueError: nothing was measured.
    """
    from matplotlib.figure import Figure

    table = figures.by_system(rounds)
    shown = [name for name in TIMES if any(name in of for of in table.values())]
    if not shown:
        raise ValueError("no round was measured to its end; there is nothing to draw")
    height = 1.6 + ROW_INCHES * len(table)
    figure = Figure(figsize=(1.5 + PANEL_INCHES * len(shown), height), layout="constrained")
    panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for panel, metric in zip(panels, shown, strict=True):
        _panel(panel, metric, table, rounds)
    width = round(TITLE_CHARS_PER_INCH * figure.get_figwidth())
    figure.suptitle("\n".join(textwrap.wrap(title.replace("$", r"\$"), width)), fontsize=9)
    figure.savefig(path, dpi=150)


def _panel(
    panel: Axes, metric: str, table: Mapping[str, Mapping[str, Spread]], rounds: Sequence[Round]
) -> None:
    names = list(table)
    for place, name in enumerate(names):
        colour = OUR_COLOUR if name.startswith(OURS) else OTHER_COLOUR
        spread = table[name].get(metric)
        if spread is None:
            continue
        points = [
            value / 1000
            for played in rounds
            if played.system == name and (value := figures.metrics(played).get(metric)) is not None
        ]
        panel.barh(place, spread.median / 1000, color=colour, alpha=0.35, height=0.7)
        panel.plot(points, [place] * len(points), "o", color=colour, markersize=4)
        panel.annotate(
            f"{spread.median / 1000:.2f}",
            (spread.most / 1000, place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    panel.set_yticks(range(len(names)), names, fontsize=8)
    if not panel.yaxis_inverted():
        panel.invert_yaxis()
    panel.margins(x=0.2)
    panel.set_xlim(left=0)
    panel.set_xlabel(f"{TIMES[metric]}, seconds (less is better)", fontsize=8)
    panel.tick_params(labelsize=8)
