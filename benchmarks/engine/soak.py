"""Ten thousand mixed programs: chains, forks, alternatives, pending inputs, cancels, a memory too small.

At the end no block, context, task or subscription may be left, and the process not have grown.
"""

from __future__ import annotations

import asyncio
import gc
import random
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import uvloop
from tests.support.tiny_model import kv_bytes, write_tiny_model

from benchmarks.engine.rig import Client, bus, client, english, options, started
from benchmarks.harness import Report, parser, print_table
from parrot_engine.backends.base import Backend
from parrot_engine.backends.sim import SimBackend, SimOptions
from parrot_engine.backends.vllm import VllmBackend
from parrot_proto.engine.v1 import engine_pb2

BLOCKS = 160
BLOCK_TOKENS = 32
AT_ONCE = 24
WITHIN_S = 600.0
REFRESH_S = 1.0
SHARED_KEEP_S = 20.0
"""How long a shared context stays that nobody uses; an engine keeps it longer than this lasts."""


class Soak:
    """Sends random applications until enough programs have been sent."""

    def __init__(self, sender: Client, seed: int, programs: int) -> None:
        self._sender = sender
        self._random = random.Random(seed)
        self._programs = programs
        self._sent = 0
        self.outcomes: Counter[str] = Counter()
        self.rss_mb: list[dict[str, float]] = []
        """By process, after each tenth of the programs."""

    async def run(self) -> None:
        """Returns when every program has ended."""
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(self._applications())

    async def _applications(self) -> None:
        while self._sent < self._programs:
            await self._application()

    async def _application(self) -> None:
        """A chain whose consumers are sent before their producers, and what befalls them."""
        chance, sender = self._random, self._sender
        name = f"v{self._sent}"
        length = chance.randint(1, 4)
        contexts = [self._link(name, place) for place in reversed(range(length))]
        self._sent += length
        if chance.random() < 0.15:
            await asyncio.sleep(chance.random() * 0.05)
            self._cancel(chance.choice(contexts))
        # Producers first: what becomes of one is told before anybody waits for its consumer.
        for context_id in reversed(contexts):
            event = await sender.event(context_id)
            kind = str(event.WhichOneof("event"))
            self.outcomes[event.failed.failure.type if kind == "failed" else kind] += 1
            if self.outcomes.total() % max(1, self._programs // 10) == 0:
                self.rss_mb.append(rss_mb())
            await self._say_so(event)

    def _link(self, name: str, place: int) -> str:
        chance, sender = self._random, self._sender
        text = english(sender.backend, chance.randint(4, 300), chance.randint(0, 20))
        operations = [sender.text(text)]
        if place:
            operations.append(sender.variable(f"{name}-{place - 1}", chance.choice((0, 60))))
        if chance.random() < 0.2:
            operations += [
                sender.output(f"{name}-{place}-first", chance.randint(1, 20)),
                sender.text(" And "),
            ]
        output = sender.output(f"{name}-{place}", chance.randint(1, 60))
        if chance.random() < 0.2:
            extra = sender.output(f"{name}-{place}-other", 1).generate.output
            output.generate.alternatives.append(extra)
        operations.append(output)
        if chance.random() < 0.3:
            # The constant text is the engine's, for whoever has the same.
            operations[0].fill.shared.prefix_hash = str(hash(text))
        return sender.send(f"{name}-{place}", *operations)

    def _cancel(self, context_id: str) -> None:
        session_id, call_id = context_id.split("/")
        ref = engine_pb2.AttemptRef(session_id=session_id, call_id=call_id, attempt=1)
        self._sender.programs.cancel(ref, "the soak's whim")

    async def _say_so(self, event: engine_pb2.AttachRequest) -> None:
        """A producer that ended without a value says so on the bus, as a manager does."""
        kind = str(event.WhichOneof("event"))
        if kind != "done":
            ref = getattr(event, kind).ref
            await self._sender.fail(f"{ref.call_id.rsplit('-', 1)[0]}")


def backend_of(name: str, folder: Path) -> Backend:
    """The simulated engine, or vLLM with a tiny model; both with too little memory."""
    if name == "sim":
        tokens = BLOCKS * BLOCK_TOKENS
        return SimBackend(SimOptions(step_ms=1.0, kv_tokens=tokens, capacity=8, context_window_tokens=2048))
    model = write_tiny_model(folder / "tiny")
    return VllmBackend(
        options(
            model=str(model),
            dtype="float32",
            kv_cache_bytes=kv_bytes(BLOCKS),
            context_window_tokens=2048,
            capacity=8,
        )
    )


async def measure(name: str, programs: int, seed: int) -> Report:
    """The whole benchmark."""
    report = Report("engine/soak", {"backend": name, "programs": programs, "seed": seed, "blocks": BLOCKS})
    with tempfile.TemporaryDirectory(prefix="parrot-bench-") as folder:
        async with (
            bus() as made,
            started(backend_of(name, Path(folder))) as backend,
            client(backend, made, shared_keep_s=SHARED_KEEP_S) as sender,
            upkeep(sender),
        ):
            # The first tenth warms everything up: caches, pools, the allocator.
            await Soak(sender, seed, programs // 10).run()
            before = state(sender)
            began = time.monotonic()
            soak = Soak(sender, seed + 1, programs)
            async with asyncio.timeout(WITHIN_S * max(1, programs / 1000)):
                await soak.run()
            seconds = time.monotonic() - began
            await sender.tools.shared.free([c.context_id for c in sender.tools.shared.messages()])
            # The audit waits until what was freed is free.
            audit, contexts = await backend.audit(), backend.stats().contexts
            after = state(sender)
    report.samples = [
        {"before": before, "after": after, "outcomes": dict(soak.outcomes), "rss_mb": soak.rss_mb}
    ]
    report.summary |= {
        "programs": sum(soak.outcomes.values()),
        "programs_per_s": sum(soak.outcomes.values()) / seconds,
        "leaked_blocks": audit.total_blocks - audit.free_blocks,
        "leaked_contexts": contexts,
        "leaked_tasks": after["tasks"] - before["tasks"],
    }
    half = soak.rss_mb[len(soak.rss_mb) // 2]
    for process, size in after["rss_mb"].items():
        suffix = "" if process == "all" else f"_{process}"
        report.summary[f"rss_growth_mb{suffix}"] = size - before["rss_mb"][process]
        report.summary[f"rss_growth_mb_second_half{suffix}"] = soak.rss_mb[-1][process] - half[process]
    print_table(["outcome", "programs"], [(kind, n) for kind, n in soak.outcomes.most_common()])
    return report


@asynccontextmanager
async def upkeep(sender: Client) -> AsyncIterator[None]:
    """What an engine does beside its programs: shared contexts that nobody uses go."""

    async def refresh() -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            await sender.tools.shared.refresh()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(refresh())
        yield
        task.cancel()


def state(sender: Client) -> dict[str, Any]:
    """What could have leaked, as it is now."""
    gc.collect()
    return {
        "rss_mb": rss_mb(),
        "tasks": len(asyncio.all_tasks()),
        "programs": len(sender.programs.attempts()),
    }


def rss_mb() -> dict[str, float]:
    """Resident memory of this process, of vLLM's, of the bus and of them all."""
    process = psutil.Process()
    sizes = {"all": 0.0, "service": 0.0}
    for member in (process, *process.children(recursive=True)):
        try:
            name, size = member.name(), member.memory_info().rss / 2**20
        except psutil.NoSuchProcess:
            continue
        kind = "service" if member == process else "bus" if "nats" in name else "vllm"
        sizes[kind] = sizes.get(kind, 0.0) + size
        sizes["all"] += size
    return sizes


def main() -> None:
    """Measures and reports."""
    made = parser(__doc__)
    made.add_argument("--backend", choices=("sim", "tiny"), default="tiny", help="tiny: vLLM, a tiny model")
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--programs", type=int, default=10_000)
    arguments = made.parse_args()
    programs = 300 if arguments.quick else arguments.programs
    # On the loop that the engine runs on.
    uvloop.run(measure(arguments.backend, programs, arguments.seed)).show(arguments.json)


if __name__ == "__main__":
    main()
