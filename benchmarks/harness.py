"""What every benchmark shares: its flags, the machine's name, the table, and the file it writes.

The file is `{name, machine, config, samples: [...], summary: {metric: number}}`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Report:
    """A benchmark's outcome."""

    name: str
    config: dict[str, Any]
    samples: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, float] = field(default_factory=dict)

    def show(self, out: Path | None) -> None:
        """Prints the summary, and writes everything to `out` when it is given."""
        print()
        print_table(["metric", "value"], [(name, f"{value:,.3f}") for name, value in self.summary.items()])
        if out is not None:
            content = {
                "name": self.name,
                "machine": machine(),
                "config": self.config,
                "samples": self.samples,
                "summary": self.summary,
            }
            out.write_text(json.dumps(content, indent=1) + "\n")
            print(f"written to {out}")


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser with the flags every benchmark takes."""
    made = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    made.add_argument("--quick", action="store_true", help="fewer repetitions: under 50 s")
    made.add_argument("--json", type=Path, metavar="OUT", help="write samples and summary to this file")
    return made


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(pages / 2**30, 1),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
    }


def print_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints rows under their heads, numbers to the right."""
    lines = [list(head), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for number, line in enumerate(lines):
        cells = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))


def spread(values: Sequence[float]) -> Mapping[str, float]:
    """Minimum, median, 99th percentile and maximum."""
    ordered = sorted(values)
    return {
        "min": ordered[0],
        "p50": statistics.median(ordered),
        "p99": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))],
        "max": ordered[-1],
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
