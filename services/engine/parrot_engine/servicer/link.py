"""One manager's control stream: the engine dials, says what it is, and takes programs.

A manager that goes away takes nothing with it: programs run on, what they report waits, and the next
registration names every attempt whose end was not delivered.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, Final

import structlog
from grpc import aio

from parrot_engine.backends.base import BackendError
from parrot_engine.programs.table import Programs, key_of
from parrot_engine.programs.tools import Tools
from parrot_engine.servicer.commands import Commands
from parrot_engine.servicer.messages import heartbeat, registration
from parrot_engine.servicer.outbox import Outbox
from parrot_engine.servicer.shards import Shards
from parrot_engine.servicer.stream import Stream
from parrot_proto.engine.v1 import engine_pb2, engine_pb2_grpc
from parrot_runtime import errors, rpc, skew
from parrot_runtime.errors import Fault
from parrot_runtime.tls import Tls
from parrot_runtime.tls_trouble import why_not

SHORTEST_RETRY_S: Final = 0.1
LONGEST_RETRY_S: Final = 2.0
DEFAULT_HEARTBEAT_MS: Final = 1000
GOODBYE_S: Final = 2.0
"""How long the manager has to end a stream after the engine has."""

log = structlog.get_logger()

OnRegistered = Callable[["ManagerLink", engine_pb2.Registered], None]


class ManagerLink:
    """Keeps the engine attached to one manager until it has drained.

    Attributes:
        address: where the manager is dialled next.
        attached: whether a stream stands, registered.
    """

    def __init__(
        self,
        address: str,
        tools: Tools,
        programs: Programs,
        *,
        shards: Shards,
        commands: Commands,
        on_registered: OnRegistered,
        on_detached: Callable[[], None],
        tls: Tls | None = None,
    ) -> None:
        self.address = address
        self.attached = False
        self._tools = tools
        self._programs = programs
        self._shards = shards
        self._commands = commands
        self._on_registered = on_registered
        self._on_detached = on_detached
        self._tls = tls
        self._outbox: Outbox = shards.open()
        self._retry_s = SHORTEST_RETRY_S

    async def run(self) -> None:
        """Attaches, again whenever the stream breaks; returns once its outbox is drained.

        Raises:
            Fault: the manager refuses this engine.
        """
        while not self._outbox.drained:
            async with rpc.channel(self.address, self._tls) as channel:
                fault = await self._attach(channel)
            self.attached = False
            self._on_detached()
            await self._before_next(fault)

    async def _before_next(self, fault: Fault | None) -> None:
        """Returns when it is time to attach again, after the stream ended with `fault`, or without one."""
        if self._outbox.drained:
            return
        if fault is not None and fault.kind not in (errors.UNAVAILABLE, errors.INTERNAL):
            raise fault
        reason = fault.message if fault else "it ended the stream"
        if fault is not None and (why := await why_not(self.address, self._tls)):
            reason = why
        log.warning("detached from the manager", address=self.address, reason=reason)
        # Spread out, so that a fleet does not come back all at once.
        await asyncio.sleep(self._retry_s * random.uniform(0.5, 1.0))  # noqa: S311
        self._retry_s = min(LONGEST_RETRY_S, self._retry_s * 2)

    def close(self) -> None:
        """The manager is gone for good; after its task has ended."""
        self._shards.close(self._outbox)

    async def _attach(self, channel: aio.Channel) -> Fault | None:
        """One stream, to its end; the fault it broke with, if it did."""
        attach: Any = engine_pb2_grpc.EngineControlServiceStub(channel).Attach
        stream = Stream(attach())
        try:
            sent = registration(self._tools, self._programs, self._shards.unsent_ends())
            await stream.write(engine_pb2.AttachRequest(registration=sent))
            first = await stream.read()
            if first is None:
                return None
            if first.WhichOneof("command") != "registered":
                return Fault(errors.INTERNAL, "the manager did not answer the registration")
            self._retry_s = SHORTEST_RETRY_S
            self.attached = True
            claimed = {key_of(ref) for ref in sent.attempts}
            self._commands.hear(self._outbox, first.registered.epochs, claimed)
            self._on_registered(self, first.registered)
            skew.note("manager", first.registered.parrot_version)
            log.info("attached to the manager", engine_id=self._tools.engine_id, address=self.address)
            await self._serve(stream, first.registered)
        except aio.AioRpcError as error:
            return rpc.fault_of(error, "manager")
        finally:
            stream.cancel()
        return None

    async def _serve(self, stream: Stream, registered: engine_pb2.Registered) -> None:
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

    async def _send(self, stream: Stream) -> None:
        await self._outbox.send_all(stream.write)
        await stream.end()

    async def _beat(self, stream: Stream, interval_s: float) -> None:
        while not self._outbox.drained:
            await asyncio.sleep(interval_s)
            await stream.write(engine_pb2.AttachRequest(heartbeat=heartbeat(self._tools, self._programs)))

    async def _refresh(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self._tools.shared.refresh()
            except BackendError as error:
                # A backend that died is noticed where its death is waited for.
                log.warning("what the shared contexts have in memory is not known", error=str(error))

    async def _take(self, stream: Stream) -> None:
        while (command := await stream.read()) is not None:
            if command.WhichOneof("command") == "registered":
                self._commands.hear(self._outbox, command.registered.epochs)
                self._on_registered(self, command.registered)
            else:
                await self._commands.obey(self._outbox, command)
