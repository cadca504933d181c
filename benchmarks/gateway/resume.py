"""How long a stream that was cut takes to go on at another gateway, and whether every byte is there, once.

Texts are generated at 30 tokens a second by a simulated engine and read over two gateways: each reader is
cut again and again after a random number of events, and goes on at the other gateway with the last id it has.
Half of them read a variable, half all events of the session. The time is from the connection to the first
event that was missed meanwhile. In the middle one gateway is killed and started again.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.gateway.sse import events, opened
from benchmarks.harness import Report, parser, print_table, spread
from benchmarks.http_client import request
from benchmarks.manager.processes import Service, flag, started
from benchmarks.stack import Stack, free_port, running
from benchmarks.streams import environment

TOKENS: Final = 300
AWAY_S: Final = 0.15
"""How long a reader stays away, so that it has missed something."""
AGAIN_S: Final = 0.05
SEED: Final = 5


@dataclass
class Reading:
    """One reader: what it has, and how long it took to go on, each time in ms."""

    session_id: str
    whole_session: bool
    data: bytes = b""
    last_id: str = ""
    ended: bool = False
    repeated: int = 0
    missing: int = 0
    resumed_ms: list[float] = field(default_factory=list)

    @property
    def path(self) -> str:
        """What it reads."""
        return f"/v1/sessions/{self.session_id}/" + ("events" if self.whole_session else "variables/y/stream")

    def take(self, name: str, data: dict[str, Any], event_id: str) -> None:
        """One event."""
        self.last_id = event_id or self.last_id
        if name == "delta":
            self.repeated += max(0, len(self.data) - data["offset"])
            self.missing += max(0, data["offset"] - len(self.data))
            self.data += data["text"].encode()
        is_end = name == "variable" and (data["id"], data["state"]) == ("y", "ready")
        self.ended = self.ended or name == "done" or is_end


async def open_session(url: str) -> str:
    """A session with one long call."""
    session_id = str((await request(url, "POST", "/v1/sessions", {}))["id"])
    sampling = {"max_tokens": TOKENS, "ignore_eos": True}
    holes = [
        {"name": "who", "in_out": "in", "value": session_id},
        {"name": "y", "in_out": "out", "semantic_var_id": "y", "sampling": sampling},
    ]
    call = {"name": "tell", "prompt": "Tell {{who}}: {{y}}", "placeholders": holes}
    await request(url, "POST", f"/v1/sessions/{session_id}/calls", {"calls": [call]})
    return session_id


async def read(urls: list[str], reading: Reading, dice: random.Random) -> None:
    """To the end, from one gateway to the other and back."""
    place = dice.randrange(2)
    while not reading.ended:
        place = 1 - place
        try:
            await _once(urls[place], reading, dice.randint(1, 40))
        except (OSError, asyncio.IncompleteReadError):
            # This gateway is down now; the time until it is found out is not its own.
            await asyncio.sleep(AGAIN_S)
            continue
        await asyncio.sleep(AWAY_S)


async def _once(url: str, reading: Reading, most: int) -> None:
    if not reading.last_id:
        # What came before the snapshot's id comes again.
        reading.data = b""
    had = len(reading.data)
    began = time.monotonic()
    async with opened(url, reading.path, reading.last_id) as reader, aclosing(events(reader)) as stream:
        async for event in stream:
            reading.take(event.name, event.data, event.id)
            if had and event.name == "delta" and len(reading.data) > had:
                reading.resumed_ms.append((event.at - began) * 1e3)
                had = 0
            most -= 1
            if reading.ended or not most:
                return


async def measure(stack: Stack, other: Service, url: str, readers: int, rounds: int) -> list[dict[str, Any]]:
    """Rounds of readers; in the middle of each the second gateway dies and is started anew."""
    dice = random.Random(SEED)
    samples = []
    for _ in range(rounds):
        readings = [Reading(await open_session(stack.url), bool(n % 2)) for n in range(readers)]
        work = asyncio.gather(
            *(read([stack.url, url], each, random.Random(dice.random())) for each in readings)
        )
        await asyncio.sleep(TOKENS / 60)
        other.kill()
        other.start()
        await work
        for each in readings:
            value = await request(stack.url, "GET", f"/v1/sessions/{each.session_id}/variables/y?wait_s=60")
            whole = value["value"].encode()
            wrong = sum(a != b for a, b in zip(each.data, whole, strict=False))
            samples.append(
                {
                    "events": each.whole_session,
                    "resumed_ms": each.resumed_ms,
                    "bytes": len(whole),
                    "bytes_wrong": wrong + abs(len(whole) - len(each.data)) + each.repeated + each.missing,
                }
            )
            await request(stack.url, "DELETE", f"/v1/sessions/{each.session_id}")
    return samples


def main() -> None:
    """Measures and reports."""
    arguments = parser(__doc__).parse_args()
    readers, rounds = (8, 1) if arguments.quick else (16, 4)
    report = Report("gateway_resume", {"tokens": TOKENS, "readers": readers, "rounds": rounds})
    with (
        environment(PARROT_SIM_STEP_MS=str(1000 / 30)),
        running("--backend", "sim") as stack,
    ):
        port = free_port()
        at = ["--manager-address", flag(stack, "--manager-address"), "--nats-url", flag(stack, "--nats-url")]
        other = Service("parrot_gateway", ["--port", str(port), *at, "--log-level", "warning"])
        with started(other):
            url = f"http://127.0.0.1:{port}"
            report.samples = asyncio.run(measure(stack, other, url, readers, rounds))
    rows = []
    for name, kind in (("a variable", False), ("a session's events", True)):
        found = [ms for sample in report.samples if sample["events"] is kind for ms in sample["resumed_ms"]]
        rows.append([f"{name}, {len(found)} times", *(f"{value:.1f}" for value in spread(found).values())])
    print_table(["ms until it goes on", "min", "p50", "p99", "max"], rows)
    every = spread([ms for sample in report.samples for ms in sample["resumed_ms"]])
    report.summary = {
        "resume_ms_p50": every["p50"],
        "resume_ms_p99": every["p99"],
        "bytes_wrong": sum(sample["bytes_wrong"] for sample in report.samples),
        "bytes": sum(sample["bytes"] for sample in report.samples),
    }
    report.show(arguments.json)


if __name__ == "__main__":
    main()
