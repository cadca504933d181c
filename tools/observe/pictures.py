"""Draws docs/pictures: Grafana's dashboards, from a run of the whole system under load and with mishaps.

Usage: python -m tools.observe.pictures [--seconds N] [--out FOLDER]

It starts two managers, three simulated engines, a gateway and a Prometheus that asks them, lets
applications run, more of them for a while, and ends an engine and a manager as a crash would. Then it
asks Prometheus what each panel of each dashboard asks. It needs the program `prometheus`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tools.observe import dashboards
from tools.observe.asked import Prometheus, prometheus
from tools.observe.drawing import Series, drawn
from tools.observe.panels import Dashboard
from tools.observe.scene import Load, Scene, scene

PICTURES: Final = Path(__file__).resolve().parents[2] / "docs" / "pictures"
POINTS: Final = 100
NOTE: Final = (
    "Drawn by tools/observe/pictures.py, not by Grafana: the dashboard's own queries over {seconds} s of "
    "two managers, three simulated engines and a gateway on one machine. On the way: more load, a dead "
    "engine, a dead manager."
)
CALM: Final = 4
"""Applications that run at once all the time."""
BURST: Final = 16
"""How many more in the burst."""


def main(argv: Sequence[str] | None = None) -> int:
    """Plays, asks and draws; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=int, default=180, help="how long the run is (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=PICTURES, metavar="FOLDER")
    arguments = parser.parse_args(argv)
    try:
        with tempfile.TemporaryDirectory(prefix="parrot-pictures-") as folder:
            return _draw(Path(folder), arguments.seconds, arguments.out)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1


def _draw(folder: Path, seconds: int, out: Path) -> int:
    with scene(folder) as stage, prometheus(folder, stage.targets) as server:
        span = _play(stage, seconds)
        note = NOTE.format(seconds=seconds)
        out.mkdir(parents=True, exist_ok=True)
        for dashboard in dashboards.DASHBOARDS:
            answers = _answers(server, dashboard, span)
            (out / f"{dashboard.uid}.svg").write_text(drawn(dashboard.json(), answers, span, note))
    return 0


def _play(stage: Scene, seconds: int) -> tuple[float, float]:
    """Lets applications run, and things go wrong; the first and the last second of it."""
    begin, load = time.time(), Load(stage.url)

    def until(share: float) -> None:
        time.sleep(max(0.0, begin + share * seconds - time.time()))  # what happens when is the play

    load.add(CALM, seconds)
    until(0.2)
    load.add(BURST, 0.2 * seconds)
    for name, dies, returns in (("engine-1", 0.55, 0.65), ("manager-1", 0.75, 0.85)):
        until(dies)
        stage.services[name].kill()
        until(returns)
        stage.services[name].start()
    until(1)
    end = time.time()
    load.end()
    print(f"{load.done} applications ended well, {len(load.failed)} did not")
    for message in sorted(set(load.failed)):
        print(f"  {message}")
    return begin, end


def _answers(server: Prometheus, dashboard: Dashboard, span: tuple[float, float]) -> dict[int, list[Series]]:
    step_s = max(1.0, (span[1] - span[0]) / POINTS)
    answers = {}
    for panel in dashboard.json()["panels"]:
        answers[panel["id"]] = server.panel(panel, span, step_s)
        if panel.get("targets") and not answers[panel["id"]]:
            print(f"{dashboard.title}: {panel['title']}: no series")
    return answers


if __name__ == "__main__":
    raise SystemExit(main())
