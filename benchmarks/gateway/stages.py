"""Where a plain streamed completion's time to the first text goes, stage by stage.

As `overhead.py --quick`: the completion is asked of a scripted server and of Parrot before it, in turns. The
services note when the functions of `stamping.POINTS` begin and end; each row is the time from the request
to one of them, and from the one before. A stage that another process does meanwhile is one of them as well.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from benchmarks.gateway.overhead import completion, scripted
from benchmarks.harness import Report, parser, print_table
from benchmarks.stack import running

REQUESTS: Final = 60
STAGES: Final = {
    "the gateway has the request": "Observed.__call__ begins",
    "it has made a call of it": "ManagerClient.open_with_calls begins",
    "the manager has checked it": "PostgresStore.insert_session_with_calls begins",
    "session and call are stored": "PostgresStore.insert_session_with_calls ends",
    "an engine is chosen": "PostgresStore.commit begins",
    "the attempt is stored": "PostgresStore.commit ends",
    "the gateway knows that it was accepted": "ManagerClient.open_with_calls ends",
    "the gateway listens to the bus": "SessionFeed.open ends",
    "the engine has the program": "Execution.run begins",
    "it asks the server": "OpenAIClient._open begins",
    "the server answers": "OpenAIClient._open ends",
    "the first text is there": "DeltaWriter.append begins",
    "the gateway has it from the bus": "SessionFeed._on_delta begins",
}
"""What has happened when a point is passed for the first time."""

Passed = dict[str, float]
"""ms from the request to each stage."""


@contextmanager
def stamped() -> Iterator[Path]:
    """Services that are started meanwhile write their stamps to this folder."""
    with tempfile.TemporaryDirectory(prefix="parrot-stamps-") as made:
        hook, stamps = Path(made, "hook"), Path(made, "stamps")
        hook.mkdir()
        stamps.mkdir()
        (hook / "sitecustomize.py").write_text("import benchmarks.gateway.stamping\n")
        paths = [str(hook), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        os.environ |= {"PARROT_STAMPS": str(stamps), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        yield stamps


async def ask(direct: str, ours: str, model: str) -> list[tuple[int, dict[str, float]]]:
    """When each completion was asked of Parrot, monotonic ns, and how long both took; but for the first."""
    found = []
    for number in range(REQUESTS + 5):
        alone = await completion(direct, model, number)
        began_ns = time.monotonic_ns()
        took = await completion(ours, model, number)
        found.append((began_ns, {"direct_ms": alone["first_ms"], "first_ms": took["first_ms"]}))
    return found[5:]


def read(folder: Path) -> list[tuple[int, str]]:
    """All stamps, in order."""
    lines = [line.split(" ", 1) for file in folder.iterdir() for line in file.read_text().splitlines()]
    return sorted((int(at_ns), name) for at_ns, name in lines)


def passed(stamps: list[tuple[int, str]], began_ns: int, first_ms: float) -> Passed:
    """When a request came through each stage."""
    points = {point: stage for stage, point in STAGES.items()}
    found: Passed = {}
    for at_ns, name in stamps:
        after_ms = (at_ns - began_ns) / 1e6
        if 0 <= after_ms <= first_ms and name in points:
            found.setdefault(points[name], after_ms)
    return found


def rows(requests: Sequence[Mapping[str, float]]) -> list[list[str]]:
    """The stages in the order of their medians, with the time from the one before."""
    each = {name: [one[name] for one in requests if name in one] for name in [*STAGES, "first_ms"]}
    order = sorted((name for name in each if each[name]), key=lambda name: statistics.median(each[name]))
    made, before = [], 0.0
    for name in order:
        median = statistics.median(each[name])
        made.append([name, f"{min(each[name]):.1f}", f"{median:.1f}", f"{median - before:.1f}"])
        before = median
    return made


def main() -> None:
    """Measures and reports."""
    arguments = parser(__doc__).parse_args()
    report = Report("gateway_stages", {"requests": REQUESTS})
    with ExitStack() as stack:
        folder = stack.enter_context(stamped())
        systems = stack.enter_context(scripted(stack.enter_context(running("--backend", "sim"))))
        asked = asyncio.run(ask(*systems))
        stamps = read(folder)
    report.samples = [took | passed(stamps, began_ns, took["first_ms"]) for began_ns, took in asked]
    print_table(["ms from the request", "min", "median", "stage"], rows(report.samples))
    extra = [one["first_ms"] - one["direct_ms"] for one in report.samples]
    report.summary = {"extra_ms_p50": statistics.median(extra), "extra_ms_min": min(extra)}
    report.show(arguments.json)


if __name__ == "__main__":
    main()
