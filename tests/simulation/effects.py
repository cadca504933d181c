"""What the machine commands beyond the store: as `parrot_manager.effects` and `parrot_manager.values`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parrot_manager.convert import to_failure
from parrot_manager.core import commands, events
from parrot_manager.core.blocks import questions
from parrot_manager.core.model import Failure, Ref, Streamed, Value, Variable, VariableState
from parrot_runtime.errors import Fault
from parrot_runtime.ids import shard_of
from parrot_runtime.values.finals import FinalRecord
from tests.simulation.kernel import sleep

if TYPE_CHECKING:
    from tests.simulation.bus import Delta
    from tests.simulation.manager import SimManager

RETRY_MS = 250
SLOW_ANSWERS = 0.1
SLOW_MS = 5_000
"""Who takes over many sessions has much to read."""


class Effects:
    """Carries effects out. Each session's come one after another, in order."""

    def __init__(self, manager: SimManager) -> None:
        self._manager = manager
        self._dice = manager.dice.apart("answers")

    async def perform(self, effect: commands.Effect) -> None:
        """Does it; what comes of it returns to the machine as an event."""
        if isinstance(effect, commands.Dispatch):
            await self._dispatch(effect)
        elif isinstance(effect, commands.PublishValue):
            value = effect.value
            await self._publish(effect.session_id, FinalRecord(value.variable_id, text=value.data.decode()))
        elif isinstance(effect, commands.PublishStored):
            await self._publish_stored(effect)
        elif isinstance(effect, commands.PublishEnd):
            await self._publish(effect.session_id, _end(effect))
        elif isinstance(effect, commands.ReadValues):
            self._manager.process.spawn(self._answer, effect)
        elif isinstance(effect, commands.Probe):
            self._manager.process.spawn(self._probe, effect)
        elif isinstance(effect, commands.Cancel):
            self.cancel(effect)

    def cancel(self, command: commands.Cancel) -> None:
        """Tells an engine to stop an attempt, if the engine is there."""
        link = self._manager.link(command.engine_id)
        if link is not None:
            link.down(command)

    async def _dispatch(self, command: commands.Dispatch) -> None:
        manager, ref = self._manager, command.call.ref
        for variable, attempt in command.republish:
            await self._republish(command, variable, attempt)
        load = manager.machine.state.engines.get(command.engine_id)
        link = manager.link(command.engine_id)
        if link is None or load is None or load.engine.epoch != command.engine_epoch:
            manager.apply(events.AttemptUndelivered(ref))
        elif manager.is_running(ref):
            link.down(command)
        else:
            manager.apply(events.SlotFreed(command.engine_id, ref))

    async def _republish(self, command: commands.Dispatch, variable: Variable, attempt: int) -> None:
        while self._manager.is_running(command.call.ref):
            try:
                data = await self._manager.store.read_value(variable.session_id, variable.id)
            except Fault:
                await sleep(RETRY_MS)
            else:
                text = (data or b"").decode()
                record = FinalRecord(variable.id, variable.producer_call_id, attempt, text=text)
                await self._publish(variable.session_id, record)
                return

    async def _publish_stored(self, command: commands.PublishStored) -> None:
        session_id, variable = command.session_id, command.variable
        while session_id in self._manager.machine.state.sessions:
            try:
                data = await self._manager.store.read_value(session_id, variable.id)
            except Fault:
                await sleep(RETRY_MS)
            else:
                text = (data or b"").decode()
                await self._publish(
                    session_id, FinalRecord(variable.id, variable.producer_call_id, 0, text=text)
                )
                return

    async def _answer(self, command: commands.ReadValues) -> None:
        wanted = dict.fromkeys(name for asked in command.questions for name in asked.variable_ids)
        if self._dice.chance(SLOW_ANSWERS):
            await sleep(self._dice.between(0, SLOW_MS))
        while command.session_id in self._manager.machine.state.sessions:
            try:
                values = await self._manager.store.read_values(command.session_id, list(wanted))
            except Fault:
                await sleep(RETRY_MS)
            else:
                answers = tuple(questions.answer(asked, values) for asked in command.questions)
                self._manager.apply(
                    events.ValuesRead(command.session_id, command.owner_id, command.ask, answers)
                )
                return

    async def _publish(self, session_id: str, record: FinalRecord) -> None:
        while True:
            try:
                await self._manager.bus.put(session_id, record)
            except Fault:
                await sleep(RETRY_MS)
            else:
                return

    async def _probe(self, probe: commands.Probe) -> None:
        ref = probe.ref
        while self._manager.is_running(ref):
            try:
                if probe.fence:
                    await self._manager.fences.fenced(probe.engine_id, shard_of(ref.session_id))
                values, streamed = await look(self._manager, ref, probe.output_ids)
            except Fault:
                await sleep(RETRY_MS)
                continue
            if len(values) == len(probe.output_ids):
                self._manager.apply(events.AttemptDone(ref, values))
            else:
                self._manager.apply(events.AttemptLost(ref, probe.restarted, streamed, values))
            return


async def look(
    manager: SimManager, ref: Ref, output_ids: tuple[str, ...]
) -> tuple[tuple[Value, ...], tuple[Streamed, ...]]:
    """What the bus holds of an attempt's outputs: the values, and the text of those without one.

    Raises:
        Fault: `unavailable`.
    """
    values: list[Value] = []
    open_ids: list[str] = []
    for variable_id in output_ids:
        record = await manager.bus.read(ref.session_id, variable_id)
        if record is not None and record.text is not None and record.call_id == ref.call_id:
            values.append(Value(variable_id, record.text.encode(), record.finish_reason))
        else:
            open_ids.append(variable_id)
    deltas = await manager.bus.replay(ref.session_id)
    streamed = [Streamed(name, _folded(deltas, name)) for name in open_ids]
    return tuple(values), tuple(found for found in streamed if found.data)


def _folded(deltas: list[Delta], variable_id: str) -> bytes:
    """The text a reader has of a variable who misses nothing."""
    data, attempt = b"", 0
    for delta in deltas:
        if delta.variable_id == variable_id and delta.attempt >= attempt and delta.offset_bytes <= len(data):
            attempt = delta.attempt
            data += delta.text.encode()[len(data) - delta.offset_bytes :]
    return data


def _end(effect: commands.PublishEnd) -> FinalRecord:
    variable = effect.variable
    why = variable.failure or Failure("cancelled", "")
    if variable.state is VariableState.CANCELLED:
        return FinalRecord(variable.id, variable.producer_call_id, effect.attempt, cancelled=why.message)
    return FinalRecord(variable.id, variable.producer_call_id, effect.attempt, failure=to_failure(why))
