"""What the machine commands beyond the store: programs to engines, ends to the bus, looks at it."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

import structlog

from parrot_manager import clock, programs
from parrot_manager.answers import Answers
from parrot_manager.convert import to_ref
from parrot_manager.core.attempts import running_call
from parrot_manager.core.commands import (
    Adopt,
    Cancel,
    Dispatch,
    Effect,
    FleetCommand,
    FreeContexts,
    Probe,
    PublishEnd,
    PublishStored,
    PublishValue,
    ReadValues,
)
from parrot_manager.core.events import (
    AttemptDone,
    AttemptFailed,
    AttemptLost,
    AttemptUndelivered,
    SlotFreed,
)
from parrot_manager.core.model import Failure, Ref, Session, Variable, VariableState
from parrot_manager.traces import Traces
from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.ids import shard_of
from parrot_runtime.values.bus import DELTA_AGE_S

if TYPE_CHECKING:
    from parrot_manager.shell import Shell

_UNEXPECTED: Final = Failure.of(errors.INTERNAL, "an unexpected error; the manager's log has it")

log = structlog.get_logger()


class Effects:
    """Carries effects out. Each session's come one after another, in order."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._answers = Answers(shell)

    async def perform(self, effect: Effect) -> None:
        """Does it; what comes of it returns to the machine as an event."""
        await self._guarded(effect, self._perform(effect))

    async def _guarded(self, effect: Effect, work: Coroutine[Any, Any, None]) -> None:
        """The last resort: a bug ends the call it has to do with, and not the manager."""
        try:
            await work
        except Exception:
            log.exception("effect failed", session_id=effect.session_id, effect=type(effect).__name__)
            if isinstance(effect, Dispatch):
                self._shell.apply(SlotFreed(effect.engine_id, effect.call.ref))
                self._shell.apply(AttemptFailed(effect.call.ref, _UNEXPECTED))
            elif isinstance(effect, Probe):
                self._shell.apply(AttemptFailed(effect.ref, _UNEXPECTED, blind=True))

    async def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Dispatch):
            await self._dispatch(effect)
        elif isinstance(effect, PublishValue):
            await self._shell.values.publish_value(effect, self._trace(effect.session_id))
        elif isinstance(effect, PublishEnd):
            await self._shell.values.publish_end(effect, self._trace(effect.session_id))
        elif isinstance(effect, PublishStored):
            await self._publish_stored(effect)
        elif isinstance(effect, ReadValues):
            work = self._guarded(effect, self._answers.give(effect))
            self._shell.tasks.spawn(work, f"answer {effect.owner_id}")
        elif isinstance(effect, Probe):
            self._shell.tasks.spawn(self._guarded(effect, self._probe(effect)), f"probe {effect.ref}")
        else:
            self.cancel(effect)

    def cancel(self, command: Cancel) -> None:
        """Tells an engine to stop an attempt, if the engine is there."""
        link = self._shell.links.get(command.engine_id)
        if link is not None:
            cancel = engine_pb2.CancelAttempt(ref=to_ref(command.ref), reason=command.reason)
            link.send(engine_pb2.AttachResponse(cancel=cancel))

    def tell(self, command: FleetCommand) -> None:
        """Tells an engine something that concerns no session, if the engine is there."""
        link = self._shell.links.get(command.engine_id)
        if link is not None:
            link.send(_fleet_message(command))

    async def _dispatch(self, command: Dispatch) -> None:
        ref = command.call.ref
        for variable, attempt in command.republish:
            if not await self._republish(command, variable, attempt):
                why = f"the value of its input {variable.id!r} is gone"
                self._shell.apply(SlotFreed(command.engine_id, ref))
                self._shell.apply(AttemptFailed(ref, Failure.of(errors.VALUE_UNAVAILABLE, why)))
                return
        link = self._shell.links.get(command.engine_id, command.engine_epoch)
        if link is None:
            self._shell.apply(AttemptUndelivered(ref))
        elif not self._is_running(ref):
            self._shell.apply(SlotFreed(command.engine_id, ref))
        else:
            try:
                program = programs.build(command, self._shell.spans.headers(command.call))
            except Fault as fault:
                self._shell.apply(SlotFreed(command.engine_id, ref))
                self._shell.apply(AttemptFailed(ref, Failure.of(fault.kind, fault.message)))
            else:
                self._shell.noted.sent(ref)
                link.send(engine_pb2.AttachResponse(run=program))
                self._shell.metrics.dispatched(command.call)

    async def _publish_stored(self, command: PublishStored) -> None:
        session_id, variable = command.session_id, command.variable
        while session_id in self._shell.machine.state.sessions:
            try:
                data = await self._shell.store.read_value(session_id, variable.id)
            except Fault as fault:
                log.warning("value not read yet", session_id=session_id, reason=fault.message)
            else:
                if data is None:
                    log.error("a value is gone", session_id=session_id, variable_id=variable.id)
                else:
                    trace = self._trace(session_id)
                    await self._shell.values.republish(command.tenant, variable, 0, data, trace)
                return

    async def _republish(self, command: Dispatch, variable: Variable, attempt: int) -> bool:
        """Puts a value a call reads on the bus again; False when the store does not have it."""
        while self._is_running(command.call.ref):
            try:
                data = await self._shell.store.read_value(variable.session_id, variable.id)
            except Fault as fault:
                log.warning("value not read yet", session_id=variable.session_id, reason=fault.message)
            else:
                if data is None:
                    return False
                trace = self._shell.spans.headers(command.call)
                tenant = command.session.tenant
                await self._shell.values.republish(tenant, variable, attempt, data, trace)
                return True
        return True

    async def _probe(self, command: Probe) -> None:
        ref = command.ref
        if command.fence:
            await self._shell.fences.fenced(command.engine_id, shard_of(ref.session_id))
        found = await self._shell.values.look(
            command.tenant, ref, command.output_ids, lambda: self._is_running(ref)
        )
        if found is None:
            return
        if len(found.values) == len(command.output_ids):
            self._shell.apply(AttemptDone(ref, found.values))
        elif self._has_lost_text(command, found):
            why = "what was streamed of its output is not on the bus any more; submit the call again"
            self._shell.apply(AttemptFailed(ref, Failure.of(errors.NOT_RESUMABLE, why)))
        else:
            self._shell.apply(AttemptLost(ref, command.restarted, found.streamed, found.values))

    def _has_lost_text(self, command: Probe, found: Traces) -> bool:
        """Whether readers may have text that the bus has dropped with its age."""
        running = running_call(self._shell.machine.state, command.ref)
        if running is None:
            return False
        live, call = running
        made = {value.variable_id for value in found.values} | {text.variable_id for text in found.streamed}
        missing = [name for name in command.output_ids if name not in made]
        streaming = any(live.variables[name].state is VariableState.STREAMING for name in missing)
        began = streaming or found.cut
        return began and clock.now_ms() - (call.ready_ms or call.accepted_ms) > DELTA_AGE_S * 1000

    def _is_running(self, ref: Ref) -> bool:
        """Whether the attempt is not over, by a cancel or otherwise."""
        return running_call(self._shell.machine.state, ref) is not None

    def _trace(self, session_id: str) -> dict[str, str]:
        live = self._shell.machine.state.sessions.get(session_id)
        session: Session | None = live.session if live is not None else None
        return dict(session.trace) if session is not None else {}


def _fleet_message(command: FleetCommand) -> engine_pb2.AttachResponse:
    if isinstance(command, Adopt):
        refs = engine_pb2.AdoptAttempts(refs=map(to_ref, command.refs))
        return engine_pb2.AttachResponse(adopt=refs)
    if isinstance(command, FreeContexts):
        return engine_pb2.AttachResponse(free=engine_pb2.FreeContexts(context_ids=command.context_ids))
    uses = [
        engine_pb2.ContextUse(context_id=context_id, steps_to_next_use=steps)
        for context_id, steps in command.uses
    ]
    return engine_pb2.AttachResponse(uses=engine_pb2.ContextUses(uses=uses))
