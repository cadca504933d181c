"""A manager that a test plays: it takes engines in and sends them what the test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.integration.engine.harness import WAIT_S, Reports

from parrot_proto.engine.v1 import engine_pb2, engine_pb2_grpc
from parrot_runtime import rpc
from parrot_runtime.errors import Fault


@dataclass
class Attachment:
    """One stream of one engine, as its manager sees it."""

    registration: engine_pb2.Registration
    reports: Reports = field(default_factory=Reports)
    commands: asyncio.Queue[engine_pb2.AttachResponse | None] = field(default_factory=asyncio.Queue)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def run(self, program: engine_pb2.RunProgram) -> None:
        self.commands.put_nowait(engine_pb2.AttachResponse(run=program))

    def cancel(self, ref: engine_pb2.AttemptRef) -> None:
        self.commands.put_nowait(engine_pb2.AttachResponse(cancel=engine_pb2.CancelAttempt(ref=ref)))

    def adopt(self, *refs: engine_pb2.AttemptRef) -> None:
        self.commands.put_nowait(engine_pb2.AttachResponse(adopt=engine_pb2.AdoptAttempts(refs=refs)))

    def epochs(self, *epochs: engine_pb2.ShardEpoch) -> None:
        self.commands.put_nowait(engine_pb2.AttachResponse(epochs=engine_pb2.ShardEpochs(epochs=epochs)))

    def end(self) -> None:
        """Ends the stream from the manager's side."""
        self.commands.put_nowait(None)


class Manager(engine_pb2_grpc.EngineControlServiceServicer):
    """Takes whoever attaches, unless told to refuse; says `registered` to it."""

    def __init__(self) -> None:
        self.attached: asyncio.Queue[Attachment] = asyncio.Queue()
        self.refusal: Fault | None = None
        self.registered = engine_pb2.Registered(heartbeat_interval_ms=20)

    async def Attach(  # noqa: N802
        self, request_iterator: AsyncIterator[engine_pb2.AttachRequest], context: Any
    ) -> AsyncIterator[engine_pb2.AttachResponse]:
        first = await anext(aiter(request_iterator))
        if self.refusal is not None:
            trailer = ((rpc.FAILURE_KEY, self.refusal.to_failure().SerializeToString()),)
            await context.abort(self.refusal.kind.grpc, "refused", trailing_metadata=trailer)
        attachment = Attachment(first.registration)
        self.attached.put_nowait(attachment)
        yield engine_pb2.AttachResponse(registered=self.registered)
        listening = asyncio.create_task(self._listen(request_iterator, attachment))
        try:
            while (command := await attachment.commands.get()) is not None:
                yield command
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _listen(self, events: AsyncIterator[engine_pb2.AttachRequest], attachment: Attachment) -> None:
        try:
            async for event in events:
                attachment.reports.put(event)
        finally:
            attachment.ended.set()
            attachment.end()

    async def next(self, within_s: float = WAIT_S) -> Attachment:
        return await asyncio.wait_for(self.attached.get(), within_s)


@asynccontextmanager
async def manager_at(port: int) -> AsyncIterator[Manager]:
    server, manager = rpc.server(), Manager()
    engine_pb2_grpc.add_EngineControlServiceServicer_to_server(manager, server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield manager
    finally:
        await server.stop(0)
