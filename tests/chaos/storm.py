"""Kills what a cluster consists of, at random moments, while applications run on it."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import secrets
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.chaos.applications import Clients
from tests.chaos.cluster import Cluster, Part, Size, running_cluster
from tests.chaos.verdict import Rows, read_rows, summary, violations
from tests.support.tiny_model import write_tiny_model

CALM_S: Final = (0.2, 2.0)
"""Between one kill and the next, once everything serves again."""
DOWN_S: Final = (0.0, 1.0)
LONG_DOWN_S: Final = (4.0, 6.0)
"""Longer than a lease and than an engine may be silent: others take over."""
QUIET_WITHIN_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Weather:
    """What a storm strikes, and how.

    Attributes:
        targets: what the names of those it strikes begin with.
        pauses: how many of the strikes stop a process for a time instead of killing it, of those that have
            a lease or a heartbeat to miss.
    """

    targets: tuple[str, ...] = ("m-", "e-", "gateway", "nats", "postgres")
    pauses: float = 0.2


ZOMBIES: Final = Weather(targets=("e-",), pauses=1.0)
"""Engines wake up after they were given up, and write on."""


@dataclass
class Outcome:
    """What a storm did, and what it broke."""

    kills: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)


class Storm:
    """Strikes a cluster."""

    def __init__(self, cluster: Cluster, chance: random.Random, weather: Weather) -> None:
        self._cluster = cluster
        self._chance = chance
        self._weather = weather
        self._targets = sorted(name for name in cluster.parts if name.startswith(weather.targets))
        self.done: list[str] = []

    async def rage(self, kills: int) -> None:
        """So many strikes, one or two at a time; everything serves again between them."""
        while len(self.done) < kills:
            await asyncio.sleep(self._chance.uniform(*CALM_S))
            count = 2 if self._chance.random() < 0.2 and len(self._targets) > 1 else 1
            names = self._chance.sample(self._targets, count)
            await asyncio.gather(*(self._strike(self._cluster.parts[name]) for name in names))

    async def _strike(self, part: Part) -> None:
        may_pause = part.name.startswith(("m-", "e-"))
        kind = "pause" if may_pause and self._chance.random() < self._weather.pauses else "kill"
        long = may_pause and (kind == "pause" or self._chance.random() < 0.3)
        down_s = self._chance.uniform(*(LONG_DOWN_S if long else DOWN_S))
        self.done.append(f"{kind} {part.name} for {down_s:.2f} s at {time.strftime('%X')}")
        if kind == "pause":
            part.signal(signal.SIGSTOP)
            await asyncio.sleep(down_s)
            part.signal(signal.SIGCONT)
        else:
            part.kill()
            await asyncio.sleep(down_s)
            part.start()
        await part.ready()


async def storm(kills: int, seed: int, size: Size | None = None, weather: Weather | None = None) -> Outcome:
    """A storm over a cluster of its own, and its outcome."""
    chance = random.Random(seed)
    outcome = Outcome()
    async with running_cluster(size or Size()) as cluster:
        clients = Clients(cluster.url, random.Random(chance.random()))
        running = asyncio.create_task(clients.run())
        wild = Storm(cluster, chance, weather or Weather())
        outcome.kills = wild.done
        try:
            await wild.rage(kills)
            clients.stop()
            async with asyncio.timeout(QUIET_WITHIN_S):
                await asyncio.shield(running)
        except TimeoutError:
            outcome.broken.append(f"not all had ended {QUIET_WITHIN_S:g} s after the storm")
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            outcome.logs = cluster.logs()
        rows: Rows = await read_rows(cluster.postgres_url, clients.record.accepted)
        outcome.broken += violations(clients.record, rows)
        outcome.summary = summary(clients.record, rows)
    return outcome


def report(outcome: Outcome, seed: int) -> str:
    """The outcome for people."""
    lines = [f"seed {seed}: {len(outcome.kills)} strikes, {json.dumps(outcome.summary)}"]
    lines += [f"  {kill}" for kill in outcome.kills] if outcome.broken else []
    lines += [f"BROKEN {text[:1000]}" for text in outcome.broken]
    return "\n".join(lines)


def main() -> None:
    """`python -m tests.chaos.storm --kills 200`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31))
    parser.add_argument("--vllm", action="store_true", help="real engines with a tiny model")
    parser.add_argument("--zombies", action="store_true", help="one engine, which is paused again and again")
    parser.add_argument("--logs", type=Path, help="a folder for the processes' logs")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)  # noqa: T201 - a command
    with tempfile.TemporaryDirectory(prefix="tiny-") as folder:
        model = str(write_tiny_model(Path(folder) / "tiny")) if arguments.vllm else ""
        size = Size(engines=1 if arguments.zombies else 2, model=model)
        weather = ZOMBIES if arguments.zombies else Weather()
        outcome = asyncio.run(storm(arguments.kills, arguments.seed, size, weather))
    print(report(outcome, arguments.seed))  # noqa: T201
    if arguments.logs is not None:
        arguments.logs.mkdir(parents=True, exist_ok=True)
        for name, text in outcome.logs.items():
            (arguments.logs / f"{name}.log").write_text(text)
    sys.exit(bool(outcome.broken))


if __name__ == "__main__":
    main()
