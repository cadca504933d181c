"""What an age of its own and an engine's mark cost each message of the bus.

A server keeps one stream, as that of deltas is kept; messages to 512 subjects are published without being
awaited, and timed until the stream has them all.
"""

from __future__ import annotations

import statistics
import time
from typing import Any, Final

import nats
import psutil
import uvloop
from nats.js import api

from benchmarks.engine.rig import nats as server
from benchmarks.harness import Report, parser, print_table
from parrot_runtime.values import subjects

PAYLOAD: Final = b"x" * 120
SUBJECTS: Final = 512
FLUSHED_EVERY: Final = 500
EPOCH: Final = "sv.epoch.delta.00.e1"
AGE_S: Final = 600
AGED: Final = {"Nats-TTL": str(AGE_S)}
MARKED: Final = {
    "Nats-Expected-Last-Subject-Sequence": "1",
    "Nats-Expected-Last-Subject-Sequence-Subject": EPOCH,
}
WAYS: Final[dict[str, tuple[int, dict[str, str] | None]]] = {
    "the stream has an age": (AGE_S, None),
    "an age of its own": (0, AGED),
    "and a mark": (0, AGED | MARKED),
}


def config(age_s: int) -> api.StreamConfig:
    """A stream of deltas, whose messages age together or each by itself."""
    return api.StreamConfig(
        name="DELTAS",
        subjects=[f"{subjects.DELTA_ROOT}.>", EPOCH],
        storage=api.StorageType.FILE,
        max_age=age_s,
        allow_direct=True,
        allow_msg_ttl=True,
        republish=api.RePublish(src=f"{subjects.DELTA_ROOT}.>", dest=f"live.{subjects.DELTA_ROOT}.>"),
    )


async def _not_there_yet(error: Exception) -> None:
    """The client tries again by itself while the server starts."""


async def trial(way: str, messages: int) -> dict[str, Any]:
    """Publishes them one way, on a server of its own: microseconds and bytes a message."""
    age_s, headers = WAYS[way]
    with server() as url:
        client = await nats.connect(url, pending_size=64 << 20, error_cb=_not_there_yet)
        js = client.jetstream()
        await js.add_stream(config(age_s))
        await js.publish(EPOCH, b"granted")
        process = next(p for p in psutil.Process().children() if p.name() == "nats-server")
        servers_s, ours_s, began_s = sum(process.cpu_times()[:2]), time.process_time(), time.monotonic()
        for number in range(messages):
            subject = f"{subjects.DELTA_ROOT}.00.default.s{number % SUBJECTS}"
            await client.publish(subject, PAYLOAD, headers=headers)
            if number % FLUSHED_EVERY == 0:
                await client.flush()
        await client.flush()
        ours_s = time.process_time() - ours_s
        state = (await js.stream_info("DELTAS")).state
        while state.messages <= messages:
            state = (await js.stream_info("DELTAS")).state
        elapsed_s = time.monotonic() - began_s
        servers_s = sum(process.cpu_times()[:2]) - servers_s
        await client.close()
    micro = 1e6 / messages
    return {
        "way": way,
        "elapsed_us": elapsed_s * micro,
        "server_us": servers_s * micro,
        "client_us": ours_s * micro,
        "bytes": state.bytes / messages,
    }


async def measure(rounds: int, messages: int) -> Report:
    """All ways in turns."""
    report = Report("manager/fence", {"rounds": rounds, "messages": messages})
    for _ in range(rounds):
        report.samples += [await trial(way, messages) for way in WAYS]
    columns = ("elapsed_us", "server_us", "client_us", "bytes")
    medians = {
        way: [statistics.median(s[name] for s in report.samples if s["way"] == way) for name in columns]
        for way in WAYS
    }
    print_table(["a message", *columns], [(way, *(f"{m:,.1f}" for m in medians[way])) for way in WAYS])
    before, after = medians["the stream has an age"], medians["and a mark"]
    for name, old, new in zip(columns, before, after, strict=True):
        report.summary[f"extra_{name}"] = new - old
    return report


def main() -> None:
    """Measures and reports."""
    arguments = parser(__doc__).parse_args()
    uvloop.run(measure(*((1, 20_000) if arguments.quick else (3, 100_000)))).show(arguments.json)


if __name__ == "__main__":
    main()
