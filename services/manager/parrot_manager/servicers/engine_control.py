"""EngineControlService: one stream an engine, for as long as it lives."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import structlog
from grpc import aio

from parrot_manager.convert import from_ref
from parrot_manager.core.events import EngineJoined, EngineLost
from parrot_manager.core.model import Engine
from parrot_manager.links import EngineLink
from parrot_manager.reports import Reports
from parrot_manager.shell import Shell
from parrot_proto.engine.v1 import engine_pb2, engine_pb2_grpc
from parrot_runtime import errors, rpc
from parrot_runtime.errors import Fault
from parrot_runtime.ids import is_id
from parrot_runtime.text import check_name

REGISTER_S: Final = 10.0
_EOF: Final[Any] = aio.EOF  # type: ignore[attr-defined]

Context = Any
log = structlog.get_logger()


class EngineControlServicer(engine_pb2_grpc.EngineControlServiceServicer):
    """Attaches engines. The stream's end, or its silence, is the engine's loss."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._reports = Reports(shell)

    async def Attach(  # type: ignore[override]  # noqa: N802 - reads and writes by itself
        self, request_iterator: Any, context: Context
    ) -> None:
        """Registers an engine and stays with it."""
        try:
            link, registration = await self._register(context)
        except Fault as fault:
            await rpc.abort(context, fault)
        claimed = tuple(from_ref(ref) for ref in registration.attempts)
        self._shell.links.add(link)
        self._shell.apply(EngineJoined(link.engine, claimed))
        log.info("engine attached", engine_id=link.engine.id, model=link.engine.model)
        try:
            await self._stay(link, context)
        finally:
            self._lose(link)
        if link.refusal is not None:
            await rpc.abort(context, link.refusal)

    async def _register(self, context: Context) -> tuple[EngineLink, engine_pb2.Registration]:
        try:
            first = await asyncio.wait_for(context.read(), REGISTER_S)
        except TimeoutError:
            first = _EOF
        if first is _EOF or first.WhichOneof("event") != "registration":
            raise Fault(errors.INVALID_REQUEST, "an engine's first event is its registration")
        engine = self._engine_of(first.registration)
        before = self._shell.links.get(engine.id)
        if before is not None:
            log.warning("engine attached anew; its older stream is given up", engine_id=engine.id)
            # An engine that attached anew listens here no more. Another one would attach again, and so
            # would the first: both would lose their calls for ever.
            before.refusal = Fault(
                errors.INVALID_REQUEST,
                f"another engine attached with the id {engine.id}; give each its own --engine-id",
                field="engine_id",
            )
            before.closed.set()
            self._lose(before)
        link = EngineLink(engine)
        interval_ms = round(self._shell.settings.heartbeat_s * 1000)
        registered = engine_pb2.Registered(heartbeat_interval_ms=interval_ms)
        link.send(engine_pb2.AttachResponse(registered=registered))
        return link, first.registration

    def _engine_of(self, registration: engine_pb2.Registration) -> Engine:
        if not is_id(registration.engine_id):
            raise Fault(errors.INVALID_REQUEST, "engine_id is no id", field="engine_id")
        for name in ("model", "backend", "version", "dtype", "attention", "parrot_version"):
            check_name(getattr(registration, name), name)
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
                return
            if message is _EOF:
                return
            self._reports.take(link, message)

    def _lose(self, link: EngineLink) -> None:
        self._shell.links.remove(link)
        if self._shell.stopping:
            # What still runs is the next start's to find.
            return
        self._shell.apply(EngineLost(link.engine.id, link.engine.epoch))
        log.info("engine detached", engine_id=link.engine.id)


async def _send(link: EngineLink, context: Context) -> None:
    while True:
        await context.write(await link.outgoing.get())
