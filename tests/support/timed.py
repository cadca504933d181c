"""A real manager, a real engine and a real bus in one process, in which each stage can be made slower.

What is slowed down is a double that does the same otherwise: the store, the network before the manager, and
the backend, which owns up to the time in what it says of its phases.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch
from uuid import uuid4

from parrot_engine.backends.base import Phases, Sampling, Step
from parrot_engine.backends.sim import SimBackend, SimOptions
from parrot_engine.main import serve
from parrot_engine.programs import outputs
from parrot_engine.programs.script import transformed
from parrot_engine.settings import EngineSettings
from parrot_manager.core.commands import Changes
from parrot_manager.core.events import CallsAccepted
from parrot_manager.store.memory import MemoryStore
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2 as pb
from parrot_runtime.critical_path import Analysis, SessionTimes, analyse
from parrot_runtime.critical_path.messages import times_of
from parrot_runtime.lifecycle import Stop
from parrot_runtime.values.bus import connected
from tests.support.manager import ManagerUnderTest, eventually, serving
from tests.support.passing import Proxy

MODEL = "timed"


@dataclass
class Delays:
    """What is added, in ms, each time something is done; may change at any time. `network`: each way."""

    network: float = 0.0
    admission: float = 0.0
    queue: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0
    transforms: float = 0.0
    commit: float = 0.0


class SlowStore(MemoryStore):
    """A store whose batches and commits take their time."""

    def __init__(self, delays: Delays) -> None:
        super().__init__()
        self._delays = delays

    async def insert_calls(self, accepted: CallsAccepted, epoch: int) -> None:
        """Adds a batch, later."""
        await _pause(self._delays.admission)
        await super().insert_calls(accepted, epoch)

    async def commit(self, session_id: str, changes: Changes, epoch: int) -> None:
        """Commits, later."""
        await _pause(self._delays.commit)
        await super().commit(session_id, changes, epoch)


class SlowBackend(SimBackend):
    """A backend that takes longer, and says for what."""

    def __init__(self, options: SimOptions, delays: Delays) -> None:
        super().__init__(options)
        self._delays = delays

    async def generate(
        self, sampling: Sampling, context_id: str, parent_context_id: str = "", **more: Any
    ) -> AsyncGenerator[Step, None]:
        """Generates, later."""
        added = replace(self._delays)
        await _pause(added.queue + added.prefill)
        async for step in super().generate(sampling, context_id, parent_context_id, **more):
            last = step
            if step.finish_reason is not None:
                await _pause(added.decode)
                said = step.phases or Phases()
                phases = Phases(
                    said.queue_ms + added.queue,
                    said.prefill_ms + added.prefill,
                    said.decode_ms + added.decode,
                )
                last = replace(step, phases=phases)
            yield last


class SlowNetwork(Proxy):
    """A way on which every byte takes as long."""

    def __init__(self, target: str, delays: Delays) -> None:
        super().__init__(target)
        self._delays = delays

    async def there(self, client: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        """What the engine says."""
        await self._pass_on(client, server)

    async def back(self, server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        """What the manager says."""
        await self._pass_on(server, client)

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        on_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            while True:
                due_s, data = await on_way.get()
                await asyncio.sleep(max(0.0, due_s - loop.time()))
                sink.write(data)
                await sink.drain()

        delivering = asyncio.create_task(deliver())
        try:
            while data := await source.read(65_536):
                on_way.put_nowait((loop.time() + self._delays.network / 1e3, data))
        finally:
            delivering.cancel()
            await asyncio.gather(delivering, return_exceptions=True)


@dataclass
class TimedSystem:
    """The system, and how to have a session run on it."""

    manager: ManagerUnderTest
    delays: Delays

    async def run(self, *batches: Sequence[pb.NewCall], pause_ms: float = 0.0) -> str:
        """A session that ran: each batch is sent once all of the one before has ended, after a pause."""
        client = self.manager.client
        session = await client.open()
        for number, batch in enumerate(batches):
            if number:
                await _pause(pause_ms)
            await client.submit(session, list(batch))
            for call in batch:
                for segment in call.segments:
                    if segment.HasField("output"):
                        await client.get(session, segment.output.variable_id, wait_ms=60_000)
        await client.close(session)
        return session

    async def times(self, session: str) -> SessionTimes:
        """What is recorded of a session."""
        return times_of(await self.manager.client.session(session))

    async def traced(self, *batches: Sequence[pb.NewCall], pause_ms: float = 0.0) -> Analysis:
        """The critical path of a session that ran; see `run`."""
        return analyse(await self.times(await self.run(*batches, pause_ms=pause_ms)), 0.0)


@asynccontextmanager
async def timed_system(nats_url: str, delays: Delays, options: SimOptions) -> AsyncIterator[TimedSystem]:
    """The system, with one engine attached."""
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(connected(nats_url, "timed", 5))
        manager = await stack.enter_async_context(serving(SlowStore(delays), bus))
        network = SlowNetwork(f"http://{manager.address}", delays)
        await stack.enter_async_context(network.listening())
        stack.enter_context(patch.object(outputs, "transformed", _slow_transforms(delays)))
        given = {
            "engine_id": f"e-{uuid4().hex[:8]}",
            "backend": "sim",
            "nats_url": nats_url,
            "manager_address": network.url.removeprefix("http://"),
        }
        settings = EngineSettings.model_validate(given)
        stop = Stop()
        backend = SlowBackend(replace(options, model=MODEL), delays)
        engine = asyncio.create_task(serve(settings, backend, stop))
        stack.push_async_callback(_stopped, engine, stop)
        state = manager.shell.machine.state

        async def attached() -> bool:
            if engine.done():
                engine.result()
            return bool(state.engines)

        await eventually(attached)
        yield TimedSystem(manager, delays)


def function(
    name: str, reads: Sequence[str], makes: str, *, tokens: int = 20, text: str = "", transforms: str = ""
) -> pb.NewCall:
    """A call with an output of so many tokens."""
    sampling = common_pb2.Sampling(max_tokens=tokens, ignore_eos=True)
    hole = common_pb2.OutputHole(
        name=makes, variable_id=makes, sampling=sampling, transforms=[transforms] if transforms else []
    )
    segments = [common_pb2.Segment(text=text or f"Task {name}:")]
    segments += [common_pb2.Segment(input=common_pb2.InputHole(name=v, variable_id=v)) for v in reads]
    return pb.NewCall(name=name, model=MODEL, segments=[*segments, common_pb2.Segment(output=hole)])


def chain(length: int, start: int = 0, **fields: Any) -> list[pb.NewCall]:
    """Calls that each read the one before."""
    return [
        function(f"f{n}", [f"v{n - 1}"] if n > start else [], f"v{n}", **fields)
        for n in range(start, start + length)
    ]


def _slow_transforms(delays: Delays) -> Any:
    async def slow(text: str, names: Sequence[str], variable_id: str) -> str:
        await _pause(delays.transforms)
        return await transformed(text, names, variable_id)

    return slow


async def _stopped(engine: asyncio.Task[None], stop: Stop) -> None:
    stop.set()
    await engine


async def _pause(ms: float) -> None:
    if ms:
        await asyncio.sleep(ms / 1e3)
