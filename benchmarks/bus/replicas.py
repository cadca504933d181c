"""What it costs that three NATS servers keep each message, against one of the same three.

In turns, each time on a cluster that was just started: the way of a step's text from the engine's writer to
a reader's feed, 64 sessions every 33 ms under marks; finals, one after another and 64 at once, until they
are acknowledged; and a call over HTTP, from the request to its first text, on a whole system (simulated
engine). Processor's time is that of all three servers, for each step message.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any, Final

import psutil
import uvloop
from tests.support.nats_cluster import NatsCluster, temporary_cluster

from benchmarks.harness import Report, parser, print_table
from benchmarks.http_client import request, stream
from benchmarks.stack import running
from benchmarks.streams import environment
from parrot_runtime.errors import Fault
from parrot_runtime.ids import SHARDS, new_session_id, shard_of
from parrot_runtime.values.bus import MANAGER, Bus, connected
from parrot_runtime.values.fences import Fences, Mark
from parrot_runtime.values.finals import FinalRecord, Finals
from parrot_runtime.values.reader import Chunk, Feeds
from parrot_runtime.values.subjects import SessionSubjects
from parrot_runtime.values.writer import DeltaWriter

REPLICAS: Final = (1, 3)
SESSIONS: Final = 64
STEP_S: Final = 1 / 30
PIECE: Final = "a token "
ENGINE: Final = "e-bench"
WITHIN_S: Final = 60.0
FIGURES: Final = ("way_ms_p50", "way_ms_p99", "server_us", "final_ms", "finals_64_ms", "first_text_ms")


async def trial(replicas: int, steps: int, calls: int) -> dict[str, Any]:
    """Every figure, on a cluster of its own."""
    found: dict[str, Any] = {"replicas": replicas}
    with temporary_cluster() as cluster:
        await cluster.healthy()
        async with connected(cluster.url, "m", WITHIN_S, replicas=replicas, role=MANAGER) as manager:
            marks = await marks_of(manager)
        async with (
            connected(cluster.url, "e", WITHIN_S, role="engine") as engine,
            connected(cluster.url, "g", WITHIN_S, role="gateway") as gateway,
        ):
            await cluster.healthy()
            found |= await way(cluster, engine, gateway, marks, steps)
            found |= await finals(engine, marks, calls)
        found |= await asyncio.to_thread(first_texts, cluster.url, replicas, calls)
    return found


async def marks_of(manager: Bus) -> dict[int, Mark]:
    """An engine's marks. Servers may not all have heard yet that the streams were made."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            try:
                return await Fences(manager).epochs(ENGINE, range(SHARDS))
            except Fault:
                await asyncio.sleep(STEP_S)


async def way(
    cluster: NatsCluster, engine: Bus, gateway: Bus, marks: dict[int, Mark], steps: int
) -> dict[str, float]:
    """Text of many sessions, each step of which is heard."""
    names = [SessionSubjects("default", new_session_id()) for _ in range(SESSIONS)]
    sent: list[float] = []
    took: list[float] = []
    feeds, processes = Feeds(gateway), servers(cluster)

    async def read(one: SessionSubjects) -> None:
        async with feeds.session(one.tenant, one.session_id) as feed:
            cursor = feed.cursor("v")
            while cursor.offset_bytes < steps * len(PIECE):
                before = cursor.offset_bytes // len(PIECE)
                assert isinstance(await cursor.next(WITHIN_S), Chunk)
                now = time.perf_counter()
                took.extend(now - at for at in sent[before : cursor.offset_bytes // len(PIECE)])

    readers = [asyncio.create_task(read(one)) for one in names]
    await gateway.flush()
    busy_s = sum(sum(process.cpu_times()[:2]) for process in processes)
    async with DeltaWriter(engine, ENGINE) as writer:
        for step in range(steps):
            sent.append(time.perf_counter())
            for one in names:
                writer.append(
                    one.delta,
                    variable_id="v",
                    call_id="c",
                    attempt=1,
                    offset_bytes=step * len(PIECE),
                    text=PIECE,
                    mark=marks[shard_of(one.session_id)],
                )
            await asyncio.sleep(max(0.0, sent[-1] + STEP_S - time.perf_counter()))
        await asyncio.wait_for(asyncio.gather(*readers), WITHIN_S)
    busy_s = sum(sum(process.cpu_times()[:2]) for process in processes) - busy_s
    took.sort()
    return {
        "way_ms_p50": took[len(took) // 2] * 1e3,
        "way_ms_p99": took[len(took) * 99 // 100] * 1e3,
        "server_us": busy_s / (steps * SESSIONS) * 1e6,
    }


async def finals(engine: Bus, marks: dict[int, Mark], count: int) -> dict[str, float]:
    """Ends, until the bus has acknowledged them."""
    publisher, record = Finals(engine), FinalRecord("v", "c", 1, text=PIECE * 50)

    async def one() -> float:
        session_id = new_session_id()
        began = time.perf_counter()
        final = SessionSubjects("default", session_id).final("v")
        await publisher.publish(final, record, mark=marks[shard_of(session_id)])
        return time.perf_counter() - began

    alone = [await one() for _ in range(count)]
    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(SESSIONS)))
    return {
        "final_ms": statistics.median(alone) * 1e3,
        "finals_64_ms": (time.perf_counter() - began) * 1e3,
    }


def first_texts(urls: str, replicas: int, calls: int) -> dict[str, float]:
    """Calls over HTTP, one after another, from the request to the first text."""
    with (
        environment(PARROT_STREAM_REPLICAS=str(replicas)),
        running("--backend", "sim", "--nats", urls) as stack,
    ):
        took = uvloop.run(_first_texts(stack.url, calls))
    return {"first_text_ms": statistics.median(took) * 1e3}


async def _first_texts(url: str, calls: int) -> list[float]:
    output = {"name": "text", "in_out": "out", "semantic_var_id": "text", "sampling": {"max_tokens": 8}}
    call = {"prompt": "Say: {{text}}", "placeholders": [output]}
    took = []
    for _ in range(calls):
        session = (await request(url, "POST", "/v1/sessions", {}))["id"]
        began = time.perf_counter()
        await request(url, "POST", f"/v1/sessions/{session}/calls", {"calls": [call]})
        asked = time.perf_counter()
        heard = await stream(url, f"/v1/sessions/{session}/variables/text/stream")
        took.append(asked - began + heard.first_s)
    return took


def servers(cluster: NatsCluster) -> list[psutil.Process]:
    """The cluster's processes."""
    return [process for member in cluster.members if (process := member.process()) is not None]


def in_turns(rounds: int) -> list[int]:
    """Each number of replicas so often, now the one and now the other first."""
    return [one for number in range(rounds) for one in (REPLICAS if number % 2 else REPLICAS[::-1])]


async def measure(rounds: int, steps: int, calls: int) -> Report:
    """All rounds."""
    report = Report("bus/replicas", {"rounds": rounds, "steps": steps, "calls": calls})
    for replicas in in_turns(rounds):
        report.samples.append(await trial(replicas, steps, calls))
    medians = {
        replicas: {
            name: statistics.median(one[name] for one in report.samples if one["replicas"] == replicas)
            for name in FIGURES
        }
        for replicas in REPLICAS
    }
    rows = [(name, *(f"{medians[replicas][name]:,.2f}" for replicas in REPLICAS)) for name in FIGURES]
    print_table(["replicas", *map(str, REPLICAS)], rows)
    for name in FIGURES:
        for replicas in REPLICAS:
            report.summary[f"{name}_r{replicas}"] = medians[replicas][name]
        report.summary[f"{name}_ratio"] = medians[3][name] / medians[1][name]
    return report


def main() -> None:
    """Measures and reports."""
    arguments = parser(__doc__).parse_args()
    sizes = (1, 60, 20) if arguments.quick else (3, 150, 60)
    uvloop.run(measure(*sizes)).show(arguments.json)


if __name__ == "__main__":
    main()
