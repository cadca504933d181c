"""What engines say, as events."""

from __future__ import annotations

import structlog

from parrot_manager.convert import (
    from_context,
    from_failure,
    from_heartbeat,
    from_provenance,
    from_ref,
    from_timings,
    from_usage,
)
from parrot_manager.core.attempts import running_call
from parrot_manager.core.events import (
    AttemptDone,
    AttemptFailed,
    AttemptStarted,
    AttemptStreaming,
    ContextsChanged,
    EngineAdopted,
    EngineDraining,
    EngineReported,
    SlotFreed,
)
from parrot_manager.core.model import Failure, Ref
from parrot_manager.links import EngineLink
from parrot_manager.shell import Shell
from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime import errors

log = structlog.get_logger()


class Reports:
    """Takes each message of an engine; never waits."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    def take(self, link: EngineLink, message: engine_pb2.AttachRequest) -> None:
        """Turns a message into what it means; one of a kind that is not known is passed over."""
        kind = message.WhichOneof("event")
        if kind == "heartbeat":
            link.heartbeat = message.heartbeat
            load = from_heartbeat(message.heartbeat)
            self._shell.apply(EngineReported(link.engine.id, link.engine.epoch, load))
        elif kind == "started":
            self._shell.apply(AttemptStarted(from_ref(message.started.ref)))
        elif kind == "streaming":
            streaming = message.streaming
            self._shell.apply(AttemptStreaming(from_ref(streaming.ref), streaming.variable_id))
        elif kind == "draining":
            link.parting = link.leaves = True
            self._shell.apply(EngineDraining(link.engine.id, link.engine.epoch))
        elif kind == "contexts":
            self._take_contexts(link, message.contexts)
        elif kind == "adopted":
            self._take_adopted(link, message.adopted)
        elif kind in {"done", "failed", "cancelled"}:
            self._take_end(link, message)
        else:
            log.warning("engine said something unknown", engine_id=link.engine.id, kind=kind)

    def _take_contexts(self, link: EngineLink, changed: engine_pb2.ContextsChanged) -> None:
        contexts = tuple(map(from_context, changed.contexts))
        gone = tuple(changed.gone)
        self._shell.apply(ContextsChanged(link.engine.id, link.engine.epoch, contexts, gone))

    def _take_adopted(self, link: EngineLink, adopted: engine_pb2.AttemptsAdopted) -> None:
        running = tuple(map(from_ref, adopted.refs))
        unknown = tuple(map(from_ref, adopted.unknown))
        self._shell.apply(EngineAdopted(link.engine.id, link.engine.epoch, running, unknown))

    def _take_end(self, link: EngineLink, message: engine_pb2.AttachRequest) -> None:
        engine_id = link.engine.id
        if message.HasField("done"):
            ref = from_ref(message.done.ref)
            took = from_usage(message.done.usage), from_timings(message.done.timings)
            self._shell.apply(SlotFreed(engine_id, ref, *took))
            self._finish(ref, message.done)
        elif message.HasField("failed"):
            ref = from_ref(message.failed.ref)
            self._shell.apply(SlotFreed(engine_id, ref))
            used = from_usage(message.failed.usage)
            marks = self._shell.noted.take(ref, message.failed.laps)
            failure = from_failure(message.failed.failure)
            self._shell.apply(AttemptFailed(ref, failure, usage=used, marks=marks))
        else:
            ref = from_ref(message.cancelled.ref)
            self._shell.apply(SlotFreed(engine_id, ref))
            # Nothing, when we asked for it.
            why = Failure.of(errors.ENGINE_LOST, f"engine {engine_id} stopped the call; submit it again")
            self._shell.apply(AttemptFailed(ref, why))

    def _finish(self, ref: Ref, done: engine_pb2.AttemptDone) -> None:
        if self._is_running(ref):
            self._shell.spans.finishing(ref)
            self._shell.noted.told(ref)
            self._shell.tasks.spawn(self._collected(ref, done), f"collect {ref}")

    async def _collected(self, ref: Ref, done: engine_pb2.AttemptDone) -> None:
        """The last resort: a bug ends the call it has to do with, and not the manager."""
        try:
            await self._collect(ref, done)
        except Exception:
            log.exception("values not collected", session_id=ref.session_id, call_id=ref.call_id)
            why = Failure.of(errors.INTERNAL, "an unexpected error; the manager's log has it")
            self._shell.apply(AttemptFailed(ref, why))

    async def _collect(self, ref: Ref, done: engine_pb2.AttemptDone) -> None:
        found = running_call(self._shell.machine.state, ref)
        if found is None:
            return
        live, call = found
        values = await self._shell.values.collect(
            live.session.tenant, ref, live.open_outputs(call), lambda: self._is_running(ref)
        )
        if values is None:
            why = "the engine said that it was done, but its output is not on the bus; submit the call again"
            self._shell.apply(AttemptFailed(ref, Failure.of(errors.VALUE_UNAVAILABLE, why)))
        else:
            made = from_usage(done.usage), from_timings(done.timings), from_provenance(done)
            marks = self._shell.noted.take(ref, done.laps)
            self._shell.apply(AttemptDone(ref, values, *made, marks))

    def _is_running(self, ref: Ref) -> bool:
        return running_call(self._shell.machine.state, ref) is not None
