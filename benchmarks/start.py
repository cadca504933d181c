"""From `parrot up` to the summary: time to ready, the demo's application, and each process's memory.

With `--cold` also the whole of `make demo` in a fresh clone, environment and model included. With
`--quick` the engine is simulated.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import Report, parser, print_table
from benchmarks.stack import running

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "map_reduce_summary.py"


def warm(backend: str) -> dict[str, Any]:
    """One stack from its start to the summary, and what its processes used by then."""
    with running("--backend", backend) as stack, tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [sys.executable, str(EXAMPLE), "--json", str(out)]
        started = time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={"PARROT_URL": stack.url})
        application_s = time.monotonic() - started
        result = json.loads(out.read_text())
        used = {}
        for name, process in stack.processes().items():
            times = process.cpu_times()
            used[name] = {"rss_mib": process.memory_info().rss / 2**20, "cpu_s": times.user + times.system}
        return {
            "ready_s": stack.ready_s,
            "application_s": application_s,
            "e2e_s": result["e2e_ms"] / 1e3,
            "calls": len(result["calls"]),
            "processes": used,
        }


def cold() -> float:
    """Seconds of `make demo` in a fresh clone with an empty cache of models."""
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)  # noqa: S607
        started = time.monotonic()
        command = ["env", f"XDG_CACHE_HOME={folder}/cache", f"XDG_DATA_HOME={folder}/data", "make", "demo"]
        subprocess.run(command, check=True, cwd=clone, stdout=subprocess.DEVNULL)
        return time.monotonic() - started


def by_component(sample: dict[str, Any]) -> dict[str, dict[str, float]]:
    """What the processes used, summed by name: Postgres is many processes."""
    summed: dict[str, dict[str, float]] = {}
    for name, used in sample["processes"].items():
        whole = summed.setdefault(name.rpartition("-")[0], {"processes": 0, "rss_mib": 0.0, "cpu_s": 0.0})
        whole["processes"] += 1
        whole["rss_mib"] += used["rss_mib"]
        whole["cpu_s"] += used["cpu_s"]
    return summed


def main() -> None:
    """Measures and reports."""
    made = parser(__doc__)
    made.add_argument("--cold", action="store_true", help="also `make demo` in a fresh clone (minutes)")
    made.add_argument("--rounds", type=int, default=3, help="stacks to start (default: 3)")
    arguments = made.parse_args()
    backend = "sim" if arguments.quick else "vllm"
    report = Report("start", {"backend": backend, "cold": arguments.cold})
    report.samples = [warm(backend) for _ in range(1 if arguments.quick else arguments.rounds)]
    last = report.samples[-1]
    rows = [
        (name, f"{used['processes']:.0f}", f"{used['rss_mib']:,.0f}", f"{used['cpu_s']:,.1f}")
        for name, used in sorted(by_component(last).items())
    ]
    print_table(["component", "processes", "RSS MiB", "CPU s"], rows)
    for key in ("ready_s", "application_s", "e2e_s"):
        values = sorted(sample[key] for sample in report.samples)
        report.summary[key] = values[len(values) // 2]
    for name, used in by_component(last).items():
        report.summary[f"rss_mib_{name}"] = used["rss_mib"]
    if arguments.cold:
        report.summary["make_demo_cold_s"] = cold()
    report.show(arguments.json)


if __name__ == "__main__":
    main()
