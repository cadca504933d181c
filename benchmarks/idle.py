"""What a request costs after the system was idle for a while, against one in a row of them.

`/healthz` touches the gateway alone, `/v1/models` the gateway and the manager; neither touches the
database or the bus. What grows with the pause is the cost of processes that have gone cold.
"""

from __future__ import annotations

import asyncio
import time

from benchmarks.harness import Report, parser, print_table, spread
from benchmarks.http_client import request
from benchmarks.stack import running

PAUSES_MS = (0, 50, 500)
PATHS = ("/healthz", "/v1/models")


async def timed(url: str, path: str, pause_ms: int) -> float:
    """One request after a pause, in ms."""
    await asyncio.sleep(pause_ms / 1e3)
    started = time.perf_counter()
    await request(url, "GET", path)
    return (time.perf_counter() - started) * 1e3


async def measure(url: str, rounds: int) -> list[dict[str, float | str]]:
    """Samples of every path after every pause."""
    return [
        {"path": path, "pause_ms": pause_ms, "ms": await timed(url, path, pause_ms)}
        for pause_ms in PAUSES_MS
        for path in PATHS
        for _ in range(rounds)
    ]


def main() -> None:
    """Measures and reports."""
    arguments = parser(__doc__).parse_args()
    rounds = 12 if arguments.quick else 60
    report = Report("idle", {"rounds": rounds})
    with running("--backend", "sim") as stack:
        report.samples = asyncio.run(measure(stack.url, rounds))
    rows = []
    for path in PATHS:
        for pause_ms in PAUSES_MS:
            of = spread(
                [float(s["ms"]) for s in report.samples if (s["path"], s["pause_ms"]) == (path, pause_ms)]
            )
            report.summary[f"{path.rpartition('/')[2]}_ms_after_{pause_ms}"] = of["p50"]
            rows.append((f"{path} after {pause_ms} ms", *(f"{of[k]:.1f}" for k in ("min", "p50", "max"))))
    print_table(["a request, ms", "min", "p50", "max"], rows)
    report.show(arguments.json)


if __name__ == "__main__":
    main()
