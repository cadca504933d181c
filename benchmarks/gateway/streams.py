"""How many streams one gateway holds at 30 tokens a second each, what an event costs it, and idle streams.

The engine is this process: it writes to the bus what an engine would, one message a session and step, for
calls that the real manager has accepted. So gateway, bus, writer and readers share the machine, and what is
counted is the gateway's own processor time. A number of streams is held if the pace is kept (98 % of the
tokens a second) and the 99th percentile of the way from the writer to the reader stays within 200 ms.
"""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Coroutine, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import psutil

from benchmarks.gateway.sse import events, opened
from benchmarks.harness import Report, parser, print_table, spread
from benchmarks.http_client import request
from benchmarks.manager.processes import flag
from benchmarks.stack import Stack, running
from parrot_runtime.values.bus import Bus, connected
from parrot_runtime.values.subjects import SessionSubjects
from parrot_runtime.values.writer import DeltaWriter

RATE: Final = 30
PIECE: Final = " lorem"
LATE_MS: Final = 200.0
PACE: Final = 0.98
TENANT: Final = "default"
TOGETHER: Final = 32
TRIES: Final = 5
T = TypeVar("T")


@dataclass
class Written:
    """One output, and when each of its pieces was written, by where it begins."""

    session_id: str
    size: int = 0
    at: dict[int, float] = field(default_factory=dict)


async def new_session(url: str) -> Written:
    """A session with a call that waits for a worker, which never comes."""
    session_id = (await request(url, "POST", "/v1/sessions", {}))["id"]
    hole = {"name": "y", "in_out": "out", "semantic_var_id": "y"}
    call = {"name": "talk", "native": {"kind": "client", "timeout_s": 3600}, "placeholders": [hole]}
    await request(url, "POST", f"/v1/sessions/{session_id}/calls", {"calls": [call]})
    return Written(session_id)


class Writer:
    """What engines write."""

    def __init__(self, bus: Bus, writer: DeltaWriter) -> None:
        self._bus = bus
        self._writer = writer

    async def step(self, outputs: list[Written]) -> None:
        """One more piece of each."""
        now = time.monotonic()
        for output in outputs:
            output.at[output.size] = now
            self._writer.append(
                SessionSubjects(TENANT, output.session_id).delta,
                variable_id="y",
                call_id="c-1",
                attempt=1,
                offset_bytes=output.size,
                text=PIECE,
            )
            output.size += len(PIECE)
        await self._writer.flush()

    async def steps(self, outputs: list[Written], seconds: float) -> int:
        """At the pace; how many there were."""
        began, count = time.monotonic(), 0
        while (now := time.monotonic()) < began + seconds:
            await self.step(outputs)
            count += 1
            await asyncio.sleep(max(0.0, began + count / RATE - now))
        return count


@dataclass
class Heard:
    """What a reader has got: events, and how long each piece was on its way. An event may hold several."""

    events: int = 0
    ways_ms: list[float] = field(default_factory=list)


async def read(url: str, output: Written, ready: asyncio.Event, heard: Heard) -> None:
    """Reads a stream until it is cancelled."""
    async with opened(url, f"/v1/sessions/{output.session_id}/variables/y/stream") as reader:
        ready.set()
        async for event in events(reader):
            if event.name == "delta":
                begin = event.data["offset"]
                pieces = range(begin, begin + len(event.data["text"]), len(PIECE))
                heard.ways_ms += [(event.at - output.at[place]) * 1e3 for place in pieces]
                heard.events += 1


def gateway_of(stack: Stack) -> psutil.Process:
    """The gateway's process."""
    return next(one for name, one in stack.processes().items() if name.startswith("parrot_gateway"))


def cpu_s(process: psutil.Process) -> float:
    """What it has computed so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


async def at_pace(stack: Stack, writer: Writer, streams: int, seconds: float) -> dict[str, Any]:
    """So many streams for a while."""
    outputs = await together(new_session(stack.url) for _ in range(streams))
    heard = [Heard() for _ in outputs]
    readies = [asyncio.Event() for _ in outputs]
    reading = [
        asyncio.create_task(read(stack.url, *each)) for each in zip(outputs, readies, heard, strict=True)
    ]
    await asyncio.gather(*(ready.wait() for ready in readies))
    gateway = gateway_of(stack)
    before, began = cpu_s(gateway), time.monotonic()
    steps = await writer.steps(outputs, seconds)
    elapsed = time.monotonic() - began
    spent = cpu_s(gateway) - before
    deadline = time.monotonic() + 10
    while _pieces(heard) < steps * streams and time.monotonic() < deadline:  # noqa: ASYNC110 - they arrive
        await asyncio.sleep(0.05)
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    for output in outputs:
        await request(stack.url, "DELETE", f"/v1/sessions/{output.session_id}")
    times = spread([way for each in heard for way in each.ways_ms])
    count = sum(each.events for each in heard)
    pace = steps / elapsed / RATE
    return {
        "streams": streams,
        "pace": pace,
        "events": count,
        "lost": steps * streams - _pieces(heard),
        "way_ms_p50": times["p50"],
        "way_ms_p99": times["p99"],
        "cpu_us": spent / max(count, 1) * 1e6,
        "cpu_share": spent / elapsed,
        "held": pace >= PACE and times["p99"] <= LATE_MS and _pieces(heard) == steps * streams,
    }


def _pieces(heard: list[Heard]) -> int:
    return sum(len(each.ways_ms) for each in heard)


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of much work, a bounded number of it at once."""
    turns = asyncio.Semaphore(TOGETHER)

    async def one(each: Coroutine[Any, Any, T]) -> T:
        async with turns:
            return await each

    return await asyncio.gather(*map(one, work))


async def idle(stack: Stack, writer: Writer, streams: int, sessions: int) -> dict[str, Any]:
    """So many streams that say nothing, half of them of variables and half of whole sessions."""
    outputs = await together(new_session(stack.url) for _ in range(sessions))
    gateway = gateway_of(stack)
    before_rss = gateway.memory_info().rss
    kinds = ("variables/y/stream", "events")
    paths = [
        f"/v1/sessions/{outputs[number // 2 % sessions].session_id}/{kinds[number % 2]}"
        for number in range(streams)
    ]
    async with AsyncExitStack() as exits:
        opening = time.monotonic()
        readers = await together(_open(exits, stack.url, path) for path in paths)
        opened_s = time.monotonic() - opening
        rss, before, began = gateway.memory_info().rss, cpu_s(gateway), time.monotonic()
        await asyncio.sleep(20)  # the idleness that is measured
        share = (cpu_s(gateway) - before) / (time.monotonic() - began)
        await writer.step(outputs[:1])
        found = await asyncio.wait_for(_heard(readers[0], outputs[0]), 30)
    return {
        "idle_streams": streams,
        "idle_sessions": sessions,
        "idle_opened_per_s": streams / opened_s,
        "idle_kib_per_stream": (rss - before_rss) / 1024 / streams,
        "idle_cpu_share": share,
        "idle_way_ms": found,
    }


async def _open(exits: AsyncExitStack, url: str, path: str) -> asyncio.StreamReader:
    """A stream, asked for again while the manager is too busy with all of them."""
    for _ in range(TRIES):
        try:
            return await exits.enter_async_context(opened(url, path))
        except RuntimeError as error:
            if " 503 " not in str(error):
                raise
    return await exits.enter_async_context(opened(url, path))


async def _heard(reader: asyncio.StreamReader, output: Written) -> float:
    async for event in events(reader):
        if event.name == "delta":
            return (event.at - output.at[event.data["offset"]]) * 1e3
    raise RuntimeError("the stream ended")


async def measure(
    stack: Stack, report: Report, counts: list[int], seconds: float, quiet: tuple[int, int]
) -> None:
    """More and more streams, until they are not held; then idle ones."""
    async with connected(flag(stack, "--nats-url"), "bench", 10) as bus, DeltaWriter(bus, "e-bench") as pen:
        writer = Writer(bus, pen)
        await at_pace(stack, writer, 8, 1.0)
        for count in counts:
            report.samples.append(await at_pace(stack, writer, count, seconds))
            if not report.samples[-1]["held"]:
                break
        report.samples.append(await idle(stack, writer, *quiet))


def main() -> None:
    """Measures and reports."""
    arguments = parser(__doc__).parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    counts = [64, 256] if arguments.quick else [64, 128, 192, 256, 320, 384, 448, 512, 640, 768]
    seconds, quiet = (4.0, (1_000, 100)) if arguments.quick else (8.0, (10_000, 1_000))
    report = Report(
        "gateway_streams", {"rate": RATE, "seconds": seconds, "counts": counts, "cores": os.cpu_count()}
    )
    with running("--backend", "sim") as stack:
        asyncio.run(measure(stack, report, counts, seconds, quiet))
    *paced, still = report.samples
    columns = ("streams", "pace", "way_ms_p50", "way_ms_p99", "cpu_us", "cpu_share")
    print_table(
        [*columns, "held"],
        [[f"{s[c]:.2f}" if c != "streams" else s[c] for c in columns] + [s["held"]] for s in paced],
    )
    held = [sample for sample in paced if sample["held"]]
    best = held[-1] if held else paced[0]
    report.summary = {
        "streams_held": best["streams"] if held else 0,
        "event_cpu_us": best["cpu_us"],
        "way_ms_p99": best["way_ms_p99"],
        **{
            name: still[name]
            for name in ("idle_streams", "idle_kib_per_stream", "idle_cpu_share", "idle_way_ms")
        },
    }
    report.show(arguments.json)


if __name__ == "__main__":
    main()
