"""What the machine commands beyond the store: programs to engines, ends to the bus, looks at it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from parrot_manager import programs
from parrot_manager.convert import to_ref
from parrot_manager.core.attempts import running_call
from parrot_manager.core.commands import Cancel, Dispatch, Effect, Probe, PublishEnd, PublishValue
from parrot_manager.core.events import AttemptDone, AttemptLost, AttemptUndelivered, SlotFreed
from parrot_manager.core.model import Session, Variable
from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime.errors import Fault

if TYPE_CHECKING:
    from parrot_manager.shell import Shell

log = structlog.get_logger()


class Effects:
    """Carries effects out. Each session's come one after another, in order."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    async def perform(self, effect: Effect) -> None:
        """Does it; what comes of it returns to the machine as an event."""
        if isinstance(effect, Dispatch):
            await self._dispatch(effect)
        elif isinstance(effect, PublishValue):
            await self._shell.values.publish_value(effect, self._trace(effect.session_id))
        elif isinstance(effect, PublishEnd):
            await self._shell.values.publish_end(effect, self._trace(effect.session_id))
        elif isinstance(effect, Probe):
            self._shell.tasks.spawn(self._probe(effect), f"probe {effect.ref}")
        else:
            self.cancel(effect)

    def cancel(self, command: Cancel) -> None:
        """Tells an engine to stop an attempt, if the engine is there."""
        link = self._shell.links.get(command.engine_id)
        if link is not None:
            cancel = engine_pb2.CancelAttempt(ref=to_ref(command.ref), reason=command.reason)
            link.send(engine_pb2.AttachResponse(cancel=cancel))

    async def _dispatch(self, command: Dispatch) -> None:
        call = command.call
        for variable, attempt in command.republish:
            await self._republish(command, variable, attempt)
        link = self._shell.links.get(command.engine_id, command.engine_epoch)
        if link is None:
            self._shell.apply(AttemptUndelivered(call.ref))
        elif self._is_running(command):
            headers = self._shell.spans.headers(call)
            link.send(engine_pb2.AttachResponse(run=programs.build(command, headers)))
        else:
            self._shell.apply(SlotFreed(command.engine_id, call.ref))

    async def _republish(self, command: Dispatch, variable: Variable, attempt: int) -> None:
        while self._is_running(command):
            try:
                data = await self._shell.store.read_value(variable.session_id, variable.id)
            except Fault as fault:
                log.warning("value not read yet", session_id=variable.session_id, reason=fault.message)
            else:
                trace = self._shell.spans.headers(command.call)
                tenant = command.session.tenant
                await self._shell.values.republish(tenant, variable, attempt, data or b"", trace)
                return

    async def _probe(self, command: Probe) -> None:
        values = await self._shell.values.probe(command.tenant, command.ref, command.output_ids)
        if values is not None:
            self._shell.apply(AttemptDone(command.ref, values))
            return
        streamed = command.restarted and await self._shell.values.streamed(
            command.tenant, command.ref, command.output_ids
        )
        self._shell.apply(AttemptLost(command.ref, command.restarted, streamed))

    def _is_running(self, command: Dispatch) -> bool:
        """Whether the attempt was not cancelled meanwhile."""
        return running_call(self._shell.machine.state, command.call.ref) is not None

    def _trace(self, session_id: str) -> dict[str, str]:
        live = self._shell.machine.state.sessions.get(session_id)
        session: Session | None = live.session if live is not None else None
        return dict(session.trace) if session is not None else {}
