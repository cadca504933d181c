"""EngineControlService: one stream an engine, for as long as it lives."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import structlog
from grpc import aio

from parrot_manager.convert import from_context, from_ref
from parrot_manager.core.events import EngineDraining, EngineJoined, EngineLost
from parrot_manager.core.model import Engine, Ref
from parrot_manager.links import EngineLink
from parrot_manager.reports import Reports
from parrot_manager.shell import Shell
from parrot_proto.engine.v1 import engine_pb2, engine_pb2_grpc
from parrot_runtime import errors, rpc, skew
from parrot_runtime.errors import Fault
from parrot_runtime.ids import is_id
from parrot_runtime.text import check_name

REGISTER_S: Final = 10.0
_EOF: Final[Any] = aio.EOF  # type: ignore[attr-defined]

Context = Any
log = structlog.get_logger()


class EngineControlServicer(engine_pb2_grpc.EngineControlServiceServicer):
    """Attaches engines. The stream's end, or its silence, is the engine's loss.

    A stream that breaks may be the network's doing: the engine has a moment to come back on another.
    """

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._reports = Reports(shell)

    async def Attach(  # type: ignore[override]  # noqa: N802 - reads and writes by itself
        self, request_iterator: Any, context: Context
    ) -> None:
        """Registers an engine and stays with it."""
        try:
            registration = await _registration(context)
            link = EngineLink(self._engine_of(registration), registration.instance_id)
        except Fault as fault:
            await rpc.abort(context, fault)
        self._supersede(link)
        self._shell.links.add(link)
        try:
            await self._join(link, registration)
            await self._stay(link, context)
        except Fault as fault:
            link.refusal = fault
        finally:
            self._part(link)
        if link.refusal is not None:
            await rpc.abort(context, link.refusal)

    def _supersede(self, link: EngineLink) -> None:
        """Ends the older stream of an engine that attached anew."""
        engine_id = link.engine.id
        before = self._shell.links.latest(engine_id)
        if before is None:
            return
        before.closed.set()
        if link.instance_id and link.instance_id == before.instance_id:
            link.succeeds = before.there
            return
        log.warning("engine attached anew; its older stream is given up", engine_id=engine_id)
        # An engine that attached anew listens here no more. Another one would attach again, and so
        # would the first: both would lose their calls for ever.
        before.refusal = Fault(
            errors.INVALID_REQUEST,
            f"another engine attached with the id {engine_id}; give each its own --engine-id",
            field="engine_id",
        )
        self._lose(before)

    async def _join(self, link: EngineLink, registration: engine_pb2.Registration) -> None:
        """Tells the engine that it is registered, and the machine that it is there."""
        epochs = await self._shell.fences.epochs(link.engine.id)
        if not self._shell.links.has(link):
            return
        link.joined = True
        link.send(self._shell.registered(epochs))
        claimed = tuple(filter(self._may_judge, map(from_ref, registration.attempts)))
        contexts = tuple(map(from_context, registration.contexts))
        self._shell.apply(EngineJoined(link.engine, claimed, contexts))
        log.info("engine attached", engine_id=link.engine.id, model=link.engine.model)

    def _may_judge(self, ref: Ref) -> bool:
        """Whether it is known here if anybody waits for an attempt.

        That is not so while a shard is being taken over: its sessions ask for their attempts when they
        come to memory.
        """
        return ref.session_id in self._shell.machine.state.sessions or self._shell.shards.serves(
            ref.session_id
        )

    def _engine_of(self, registration: engine_pb2.Registration) -> Engine:
        if not is_id(registration.engine_id):
            raise Fault(errors.INVALID_REQUEST, "engine_id is no id", field="engine_id")
        for name in ("model", "backend", "version", "dtype", "attention", "parrot_version"):
            check_name(getattr(registration, name), name)
        skew.check("engine", registration.parrot_version)
        if not registration.model or not registration.capacity:
            raise Fault(errors.INVALID_REQUEST, "an engine serves a model, and at least one call at once")
        return Engine(
            id=registration.engine_id,
            epoch=self._shell.links.next_epoch(),
            model=registration.model,
            capacity=registration.capacity,
            context_window_tokens=registration.context_window_tokens,
            backend=registration.backend,
            version=registration.version,
            dtype=registration.dtype,
            attention=registration.attention,
            parrot_version=registration.parrot_version,
            kv_tokens=registration.kv_tokens,
            block_tokens=registration.block_tokens,
            tensor_parallel=registration.tensor_parallel or 1,
        )

    async def _stay(self, link: EngineLink, context: Context) -> None:
        """Returns when the engine ends the stream, falls silent, or is to go."""
        parts = [
            asyncio.create_task(self._receive(link, context), name=f"from {link.engine.id}"),
            asyncio.create_task(_send(link, context), name=f"to {link.engine.id}"),
            asyncio.create_task(link.closed.wait(), name=f"close {link.engine.id}"),
        ]
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for part in parts:
                part.cancel()
            for outcome in await asyncio.gather(*parts, return_exceptions=True):
                if isinstance(outcome, Exception) and not isinstance(
                    outcome, (aio.BaseError, asyncio.InvalidStateError)
                ):
                    log.error("engine stream broke", engine_id=link.engine.id, exc_info=outcome)

    async def _receive(self, link: EngineLink, context: Context) -> None:
        silence_s = self._shell.settings.engine_silence_s
        while True:
            try:
                message = await asyncio.wait_for(context.read(), silence_s)
            except TimeoutError:
                log.warning("engine silent", engine_id=link.engine.id, silence_s=silence_s)
                link.parting = True
                return
            if message is _EOF:
                return
            link.heard_s = time.monotonic()
            if message.HasField("fenced"):
                tell = self._shell.fences.tell(link, message.fenced.shards)
                self._shell.tasks.spawn(tell, f"epochs of {link.engine.id}")
            else:
                self._reports.take(link, message)

    def _part(self, link: EngineLink) -> None:
        """A stream is over. Where its process may come back, and would be known, it has a moment to do so."""
        ending = not self._shell.links.has(link) or self._shell.stopping or link.refusal is not None
        if ending or link.there is None or link.parting or not link.instance_id:
            self._lose(link)
            return
        self._shell.apply(EngineDraining(link.there.engine.id, link.there.engine.epoch))
        self._shell.tasks.spawn(self._lose_later(link), f"grace of {link.engine.id}")

    async def _lose_later(self, link: EngineLink) -> None:
        await asyncio.sleep(self._shell.settings.engine_grace_s)
        self._lose(link)

    def _lose(self, link: EngineLink) -> None:
        """The engine is lost, unless a later stream has taken this one's place."""
        lost = link.there
        if not self._shell.links.remove(link) or lost is None or self._shell.stopping:
            # When this manager stops, what still runs is the next one's to find.
            return
        if not lost.leaves:
            self._shell.metrics.engine_lost()
        self._shell.fences.lost(lost.engine.id)
        self._shell.apply(EngineLost(lost.engine.id, lost.engine.epoch))
        log.info("engine detached", engine_id=lost.engine.id)


async def _registration(context: Context) -> engine_pb2.Registration:
    try:
        first = await asyncio.wait_for(context.read(), REGISTER_S)
    except TimeoutError:
        first = _EOF
    if first is _EOF or first.WhichOneof("event") != "registration":
        raise Fault(errors.INVALID_REQUEST, "an engine's first event is its registration")
    registration: engine_pb2.Registration = first.registration
    return registration


async def _send(link: EngineLink, context: Context) -> None:
    while True:
        await context.write(await link.outgoing.get())
