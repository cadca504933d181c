"""A Prometheus of its own, and the answers to a dashboard's queries."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.stack import free_port
from tools.observe.drawing import Series
from tools.observe.panels import Json

from parrot_cli.child import tethered

OBSERVE: Final = Path(__file__).resolve().parents[2] / "deploy" / "observe"
SCRAPE_S: Final = 2
RATE_INTERVAL: Final = "15s"
"""Grafana would take four scrapes for `$__rate_interval`; over some more, lines are calmer."""
READY_WITHIN_S: Final = 30.0
STOPPED_WITHIN_S: Final = 20.0
_LABEL: Final = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running server."""

    url: str

    def over(self, expr: str, span: tuple[float, float], step_s: float) -> list[tuple[dict[str, str], Any]]:
        """The labels and the points of every series that an expression has over a span of seconds.

        Raises:
            RuntimeError: Prometheus refuses the expression.
        """
        query = {"query": expr, "start": span[0], "end": span[1], "step": step_s}
        url = f"{self.url}/api/v1/query_range?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                found = json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{expr}: {error.read().decode()}") from None
        return [(one["metric"], one["values"]) for one in found]

    def panel(self, panel: Json, span: tuple[float, float], step_s: float) -> list[Series]:
        """Every line of a panel, with nothing chosen in the dashboard's variables."""
        lines = []
        for target in panel.get("targets", ()):
            for labels, values in self.over(without_variables(target["expr"]), span, step_s):
                points = [(float(moment), _number(value)) for moment, value in values]
                lines.append(Series(_name(target["legendFormat"], labels), points))
        return lines


def without_variables(expr: str) -> str:
    """An expression as Grafana would send it with "All" chosen everywhere."""
    return re.sub(r"\$(?!__)\w+", ".*", expr.replace("$__rate_interval", RATE_INTERVAL))


@contextmanager
def prometheus(folder: Path, targets: Mapping[str, Mapping[str, str]]) -> Iterator[Prometheus]:
    """A server with Parrot's rules that asks each job's targets, by name, for the length of a `with`.

    Raises:
        RuntimeError: it can't be had, or does not start.
    """
    program = shutil.which("prometheus")
    if program is None:
        raise RuntimeError(
            "there is no program `prometheus` on the PATH; Debian has it in a package of that name"
        )
    config = folder / "prometheus.json"
    jobs = [
        {
            "job_name": job,
            "static_configs": [
                {"targets": [address], "labels": {"instance": name}} for name, address in found.items()
            ],
        }
        for job, found in targets.items()
    ]
    every = f"{SCRAPE_S}s"
    config.write_text(
        json.dumps(
            {
                "global": {"scrape_interval": every, "evaluation_interval": every, "scrape_timeout": every},
                "rule_files": [str(OBSERVE / "rules" / "*.yml")],
                "scrape_configs": jobs,
            }
        )
    )
    address = f"127.0.0.1:{free_port()}"
    flags = [
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address={address}",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(tethered([program, *flags], signal.SIGTERM), stdout=log, stderr=log)
    try:
        _wait_ready(f"http://{address}/-/ready", process, folder / "prometheus.log")
        yield Prometheus(f"http://{address}")
    finally:
        process.terminate()
        _ended(process)


def _ended(process: subprocess.Popen[bytes]) -> None:
    """Returns when it is gone; one that does not go by itself is killed."""
    try:
        process.wait(STOPPED_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.05)  # between two looks at a server that starts
    raise RuntimeError(f"Prometheus did not start:{os.linesep}{log.read_text()}")


def _name(legend: str, labels: Mapping[str, str]) -> str:
    """What a series is called, as Grafana would call it."""
    if legend == "__auto":
        legend = ", ".join(f"{{{{{name}}}}}" for name in labels if name != "__name__") or "value"
    return _LABEL.sub(lambda found: labels.get(found[1], ""), legend)


def _number(text: str) -> float:
    return math.nan if text == "NaN" else float(text)
