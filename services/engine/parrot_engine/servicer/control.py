"""The control stream: the engine dials its manager, says what it is, and takes programs.

A manager that goes away takes nothing with it: programs run on, what they report waits in the
outbox, and the next registration names every attempt whose end was not delivered.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any, Final, NoReturn

import structlog
from grpc import aio

from parrot_engine.backends.base import BackendError
from parrot_engine.programs.table import Programs
from parrot_engine.programs.tools import Tools, parrot_version
from parrot_engine.servicer.outbox import Outbox
from parrot_proto.engine.v1 import engine_pb2, engine_pb2_grpc
from parrot_runtime import errors, rpc
from parrot_runtime.errors import Fault

SHORTEST_RETRY_S: Final = 0.1
LONGEST_RETRY_S: Final = 2.0
DEFAULT_HEARTBEAT_MS: Final = 1000
GOODBYE_S: Final = 2.0
"""How long the manager has to end a stream after the engine has."""

log = structlog.get_logger()


class ControlStream:
    """Keeps the engine attached until it has drained."""

    def __init__(self, channel: aio.Channel, tools: Tools, programs: Programs, outbox: Outbox) -> None:
        self._stub = engine_pb2_grpc.EngineControlServiceStub(channel)
        self._engine_id = tools.engine_id
        self._backend = tools.backend
        self._shared = tools.shared
        self._programs = programs
        self._outbox = outbox
        self._retry_s = SHORTEST_RETRY_S

    async def run(self) -> None:
        """Attaches, again whenever the stream breaks; returns once the outbox is drained.

        Raises:
            Fault: the manager refuses this engine.
        """
        while True:
            fault = await self._attach()
            if self._outbox.drained:
                return
            if fault is not None and fault.kind not in (errors.UNAVAILABLE, errors.INTERNAL):
                raise fault
            log.warning("detached from the manager", reason=fault.message if fault else "it ended the stream")
            # Spread out, so that a fleet does not come back all at once.
            await asyncio.sleep(self._retry_s * random.uniform(0.5, 1.0))  # noqa: S311
            self._retry_s = min(LONGEST_RETRY_S, self._retry_s * 2)

    async def _attach(self) -> Fault | None:
        """One stream, to its end; the fault it broke with, if it did."""
        attach: Any = self._stub.Attach
        stream = _Stream(attach())
        try:
            await stream.write(engine_pb2.AttachRequest(registration=self._registration()))
            first = await stream.read()
            if first is None:
                return None
            if first.WhichOneof("command") != "registered":
                return Fault(errors.INTERNAL, "the manager did not answer the registration")
            self._retry_s = SHORTEST_RETRY_S
            log.info("attached to the manager", engine_id=self._engine_id)
            await self._serve(stream, first.registered)
        except aio.AioRpcError as error:
            return rpc.fault_of(error, "manager")
        finally:
            stream.cancel()
        return None

    async def _serve(self, stream: _Stream, registered: engine_pb2.Registered) -> None:
        """Sends and takes until either side ends the stream."""
        interval_s = (registered.heartbeat_interval_ms or DEFAULT_HEARTBEAT_MS) / 1000
        sending = asyncio.create_task(self._send(stream), name="control-send")
        beating = asyncio.create_task(self._beat(stream, interval_s), name="control-heartbeat")
        taking = asyncio.create_task(self._take(stream), name="control-take")
        # By itself: what it asks of a busy backend must not keep the heartbeat waiting.
        refreshing = asyncio.create_task(self._refresh(interval_s), name="control-contexts")
        try:
            await asyncio.wait((sending, beating, taking), return_when=asyncio.FIRST_COMPLETED)
            # When writing broke or is done, what the manager says last tells why and that it heard.
            await asyncio.wait((taking,), timeout=GOODBYE_S)
            if taking.done():
                taking.result()
        finally:
            for task in (sending, beating, taking, refreshing):
                task.cancel()
            await asyncio.gather(sending, beating, taking, refreshing, return_exceptions=True)

    async def _send(self, stream: _Stream) -> None:
        await self._outbox.send_all(stream.write)
        await stream.end()

    async def _beat(self, stream: _Stream, interval_s: float) -> None:
        while not self._outbox.drained:
            await asyncio.sleep(interval_s)
            await stream.write(engine_pb2.AttachRequest(heartbeat=self._heartbeat()))

    async def _refresh(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self._shared.refresh()
            except BackendError as error:
                # A backend that died is noticed where its death is waited for.
                log.warning("what the shared contexts have in memory is not known", error=str(error))

    async def _take(self, stream: _Stream) -> None:
        while (command := await stream.read()) is not None:
            try:
                await self._obey(command)
            except BackendError as error:
                log.warning("command not carried out", kind=command.WhichOneof("command"), error=str(error))

    async def _obey(self, command: engine_pb2.AttachResponse) -> None:
        kind = command.WhichOneof("command")
        if kind == "run":
            self._programs.start(command.run)
        elif kind == "cancel":
            self._programs.cancel(command.cancel.ref, command.cancel.reason)
        elif kind == "free":
            await self._shared.free(command.free.context_ids)
        elif kind == "uses":
            await self._shared.expect(command.uses.uses)
        else:
            log.warning("command not known", kind=kind)

    def _registration(self) -> engine_pb2.Registration:
        info = self._backend.info
        return engine_pb2.Registration(
            engine_id=self._engine_id,
            model=info.model,
            context_window_tokens=info.context_window_tokens,
            backend=info.backend,
            version=info.version,
            capacity=info.capacity,
            dtype=info.dtype,
            kv_tokens=info.kv_tokens,
            block_tokens=info.block_tokens,
            tensor_parallel=info.tensor_parallel,
            attempts=[*self._programs.attempts(), *self._outbox.unsent_ends()],
            contexts=self._shared.messages(),
            attention=info.attention,
            batch_invariant=info.batch_invariant,
            parrot_version=parrot_version(),
        )

    def _heartbeat(self) -> engine_pb2.Heartbeat:
        stats = self._backend.stats()
        return engine_pb2.Heartbeat(
            running=self._programs.running,
            waiting=self._programs.waiting,
            paused=self._programs.paused,
            kv_used_fraction=stats.kv_used_fraction,
            held_tokens=stats.held_tokens,
            free_tokens=stats.free_tokens,
            step_ms=stats.step_ms,
        )


class _Stream:
    """One attached stream: writes take turns, and an end is an end whatever noticed it first."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._commands = aiter(call)
        self._turn = asyncio.Lock()

    async def write(self, event: engine_pb2.AttachRequest) -> None:
        """Raises aio.AioRpcError when the stream is broken."""
        async with self._turn:
            try:
                await self._call.write(event)
            except asyncio.InvalidStateError:
                await self._raise_status()

    async def read(self) -> engine_pb2.AttachResponse | None:
        """The next command, or None when the manager ended the stream. Raises aio.AioRpcError."""
        command: engine_pb2.AttachResponse | None = await anext(self._commands, None)
        return command

    async def end(self) -> None:
        """Nothing more will be written."""
        async with self._turn:
            await self._call.done_writing()

    def cancel(self) -> None:
        """Gives the stream up, if it has not ended."""
        self._call.cancel()

    async def _raise_status(self) -> NoReturn:
        raise aio.AioRpcError(
            await self._call.code(),
            await self._call.initial_metadata(),
            await self._call.trailing_metadata(),
            await self._call.details(),
            None,
        )
