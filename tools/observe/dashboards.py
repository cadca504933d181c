"""Writes Grafana's dashboards to deploy/observe/grafana/dashboards. `--check` tells of drift instead.

Usage: python -m tools.observe.dashboards [--check]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Final

from tools.observe.applications import APPLICATIONS
from tools.observe.engines import ENGINES
from tools.observe.gateway import GATEWAY
from tools.observe.managers import MANAGERS
from tools.observe.overview import OVERVIEW
from tools.observe.panels import Dashboard

FOLDER: Final = Path(__file__).resolve().parents[2] / "deploy" / "observe" / "grafana" / "dashboards"
DASHBOARDS: Final = (OVERVIEW, APPLICATIONS, MANAGERS, ENGINES, GATEWAY)


def rendered(dashboard: Dashboard) -> str:
    """The dashboard as its file holds it."""
    return json.dumps(dashboard.json(), indent=1, ensure_ascii=False) + "\n"


def drifted() -> list[str]:
    """The files that are not what they would be, those that should not be there among them."""
    wanted = {f"{dashboard.uid}.json": rendered(dashboard) for dashboard in DASHBOARDS}
    found = {path.name: path.read_text() for path in FOLDER.glob("*.json")}
    return sorted(name for name in wanted | found if wanted.get(name) != found.get(name))


def main() -> int:
    """Writes them, or tells which are not what they would be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="tell of drift, write nothing")
    if parser.parse_args().check:
        if names := drifted():
            print(f"not current: {', '.join(names)}; run: make docs", file=sys.stderr)
        return 1 if names else 0
    for dashboard in DASHBOARDS:
        (FOLDER / f"{dashboard.uid}.json").write_text(rendered(dashboard))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
