"""An engine that takes no time: whatever it is sent is done at once, its one-word outputs on the bus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from parrot_proto.engine.v1 import engine_pb2, engine_pb2_grpc
from parrot_runtime import rpc
from parrot_runtime.values.bus import Bus
from parrot_runtime.values.finals import FinalRecord, Finals

TEXT = "done"
CAPACITY = 512


class InstantEngine:
    """See the module.

    Attributes:
        arrived: when each call's program came, by the monotonic clock.
    """

    def __init__(self, bus: Bus, engine_id: str, model: str) -> None:
        self.arrived: dict[tuple[str, str], float] = {}
        self._finals = Finals(bus)
        self._registration = engine_pb2.Registration(
            engine_id=engine_id,
            model=model,
            backend="sim",
            capacity=CAPACITY,
            context_window_tokens=1 << 15,
            kv_tokens=1 << 22,
            block_tokens=32,
        )
        self._events: asyncio.Queue[engine_pb2.AttachRequest] = asyncio.Queue()

    @asynccontextmanager
    async def attached(self, manager_address: str) -> AsyncIterator[None]:
        """Attached, for the length of the `async with`."""
        async with rpc.channel(manager_address) as channel, asyncio.TaskGroup() as group:
            attach: Any = engine_pb2_grpc.EngineControlServiceStub(channel).Attach
            self._events.put_nowait(engine_pb2.AttachRequest(registration=self._registration))
            stream = attach(self._said())
            assert (await stream.read()).HasField("registered")
            taking = [group.create_task(self._take(stream, group)), group.create_task(self._beat())]
            yield
            for task in taking:
                task.cancel()

    async def _said(self) -> AsyncIterator[engine_pb2.AttachRequest]:
        while True:
            yield await self._events.get()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(1)
            self._events.put_nowait(engine_pb2.AttachRequest(heartbeat=engine_pb2.Heartbeat()))

    async def _take(self, stream: Any, group: asyncio.TaskGroup) -> None:
        while command := await stream.read():
            if command.HasField("run"):
                program = command.run
                self.arrived[program.ref.session_id, program.ref.call_id] = time.monotonic()
                group.create_task(self._run(program))

    async def _run(self, program: engine_pb2.RunProgram) -> None:
        ref, outputs = program.ref, []
        for operation in program.operations:
            if operation.HasField("generate"):
                sink = operation.generate.output
                record = FinalRecord(sink.variable_id, ref.call_id, ref.attempt, text=TEXT)
                await self._finals.publish(sink.final_subject, record)
                outputs.append(
                    engine_pb2.OutputEnd(
                        variable_id=sink.variable_id, size_bytes=len(TEXT), finish_reason="stop"
                    )
                )
        done = engine_pb2.AttemptDone(ref=ref, outputs=outputs)
        self._events.put_nowait(engine_pb2.AttachRequest(done=done))
