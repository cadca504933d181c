"""How long readers hear nothing when a NATS server of three ends in order, dies or hangs.

64 sessions get text every 33 ms, under marks, from an engine's writer; each reader's longest silence counts,
and that every byte came once. The server is the one that leads the deltas, or another one.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any, Final

import uvloop
from tests.support.nats_cluster import NatsCluster, temporary_cluster

from benchmarks.bus.replicas import ENGINE, PIECE, SESSIONS, STEP_S, WITHIN_S, marks_of
from benchmarks.harness import Report, parser, print_table
from parrot_runtime.ids import new_session_id, shard_of
from parrot_runtime.values import subjects
from parrot_runtime.values.bus import MANAGER, connected
from parrot_runtime.values.fences import Mark
from parrot_runtime.values.reader import Chunk, Feeds
from parrot_runtime.values.subjects import SessionSubjects
from parrot_runtime.values.writer import DeltaWriter

HAPPENS: Final = ("nothing", "leader ends in order", "leader dies", "leader hangs", "follower dies")
BEFORE_S: Final = 2.0
AFTER_S: Final = 15.0
LOOK_S: Final = 0.5
LONGEST_S: Final = 120.0


async def trial(what: str) -> dict[str, Any]:
    """One thing that happens, on a cluster of its own."""
    with temporary_cluster() as cluster:
        await cluster.healthy()
        async with connected(cluster.url, "m", WITHIN_S, replicas=3, role=MANAGER) as manager:
            marks = await marks_of(manager)
        async with (
            asyncio.timeout(LONGEST_S),
            connected(cluster.url, "e", WITHIN_S, role="engine") as engine,
            connected(cluster.url, "g", WITHIN_S, role="gateway") as gateway,
        ):
            await cluster.healthy()
            feeds = Feeds(gateway)
            names = [SessionSubjects("default", new_session_id()) for _ in range(SESSIONS)]
            stop = asyncio.Event()
            async with DeltaWriter(engine, ENGINE) as writer, asyncio.TaskGroup() as group:
                writing = group.create_task(write(writer, names, marks, stop))
                readers = [group.create_task(read(feeds, one, writing)) for one in names]
                await asyncio.sleep(BEFORE_S)
                await happen(cluster, what)
                await asyncio.sleep(AFTER_S)
                stop.set()
    silences = [reader.result() for reader in readers]
    return {"what": what, "silence_s": max(silences), "silence_s_p50": statistics.median(silences)}


async def happen(cluster: NatsCluster, what: str) -> None:
    """Has it happen, now."""
    leader = await cluster.leader_of(subjects.DELTA_STREAM)
    follower = next(member for member in cluster.members if member is not leader)
    ways = {
        "leader ends in order": leader.stop,
        "leader dies": leader.kill,
        "leader hangs": leader.pause,
        "follower dies": follower.kill,
    }
    if what in ways:
        await asyncio.to_thread(ways[what])


async def write(
    writer: DeltaWriter, names: list[SessionSubjects], marks: dict[int, Mark], stop: asyncio.Event
) -> int:
    """Text, until it is enough; how many bytes of each session."""
    offset = 0
    while not stop.is_set():
        for one in names:
            writer.append(
                one.delta,
                variable_id="v",
                call_id="c",
                attempt=1,
                offset_bytes=offset,
                text=PIECE,
                mark=marks[shard_of(one.session_id)],
            )
        offset += len(PIECE)
        await asyncio.sleep(STEP_S)
    return offset


async def read(feeds: Feeds, one: SessionSubjects, writing: asyncio.Task[int]) -> float:
    """The longest time in which nothing was heard. All has come when there is no more."""
    longest = 0.0
    async with feeds.session(one.tenant, one.session_id) as feed:
        cursor = feed.cursor("v")
        last = 0.0
        while not (writing.done() and cursor.offset_bytes == writing.result()):
            before = cursor.offset_bytes
            news = await cursor.next(LOOK_S)
            if news is None:
                continue
            assert isinstance(news, Chunk)
            assert news.offset_bytes == before
            now = time.perf_counter()
            longest, last = max(longest, now - last if last else 0.0), now
    return longest


async def measure(rounds: int) -> Report:
    """All of it, in turns."""
    report = Report("bus/outages", {"rounds": rounds, "sessions": SESSIONS})
    for _ in range(rounds):
        report.samples += [await trial(what) for what in HAPPENS]
    rows = []
    for what in HAPPENS:
        found = sorted(one["silence_s"] for one in report.samples if one["what"] == what)
        rows.append((what, f"{statistics.median(found):.2f}", f"{found[-1]:.2f}"))
        report.summary[f"silence_s_{what.replace(' ', '_')}"] = statistics.median(found)
    print_table(["longest silence, s", "median", "most"], rows)
    return report


def main() -> None:
    """Measures and reports."""
    arguments = parser(__doc__).parse_args()
    uvloop.run(measure(1 if arguments.quick else 3)).show(arguments.json)


if __name__ == "__main__":
    main()
