"""What managers tell of states: as `parrot_manager.tellings`, over a log that outlives everybody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parrot_manager import told
from parrot_manager.core.commands import Changes
from parrot_manager.core.events import CallsAccepted
from parrot_manager.store.base import SessionRecord
from parrot_proto.values.v1 import values_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.ids import shard_of
from parrot_runtime.values.session_fold import Fold
from parrot_runtime.values.states import Last, SupersededError, Telling, has_ended
from tests.simulation.bus import Bus
from tests.simulation.dice import Dice
from tests.simulation.kernel import Signal, sleep
from tests.simulation.violations import promise

if TYPE_CHECKING:
    from tests.simulation.manager import SimManager
    from tests.simulation.world import World

RETRY_MS = 250
MESSAGE_BYTES = 300
"""Small, so that what is to be told takes several messages."""


class StateLog:
    """The subjects of all sessions; a sequence is a message's place in its own."""

    def __init__(self, bus: Bus, dice: Dice) -> None:
        self.messages: dict[str, list[values_pb2.SessionStates]] = {}
        self._bus = bus
        self._dice = dice

    async def append(self, session_id: str, message: values_pb2.SessionStates, after: int) -> int:
        """As `StateSubject.append`."""
        await self._trip()
        messages = self.messages.setdefault(session_id, [])
        if len(messages) != after:
            raise SupersededError(session_id)
        messages.append(message)
        await self._trip()
        return after + 1

    async def last(self, session_id: str) -> Last | None:
        """As `StateSubject.last`."""
        await self._trip()
        messages = self.messages.get(session_id)
        return Last(len(messages), messages[-1]) if messages else None

    async def purge(self, session_id: str) -> None:
        """As `Values.purge`."""
        await self._trip()
        self.messages.pop(session_id, None)

    async def _trip(self) -> None:
        await sleep(self._dice.between(0, 6))
        if self._bus.down or self._dice.chance(self._bus.loss):
            raise Fault(errors.UNAVAILABLE, "the bus does not answer")


class Tellings:
    """One life of a manager: what it has to tell of its sessions."""

    def __init__(self, manager: SimManager) -> None:
        self._manager = manager
        self._tellings: dict[str, Telling] = {}
        self._speaking: dict[str, Signal] = {}

    def accepted(self, event: CallsAccepted) -> None:
        """A batch is stored."""
        self._add(event.session_id, told.of_batch(event))

    def committed(self, session_id: str, changes: Changes) -> None:
        """Changes are stored."""
        self._add(session_id, told.of_changes(changes))

    def restored(self, record: SessionRecord) -> None:
        """A session was taken over."""
        telling = self._telling(record.session.id)
        if telling is not None:
            telling.restore(told.of_record(record))
            self._speak(record.session.id)

    async def quiet(self, session_id: str, timeout_ms: int) -> None:
        """Returns once nothing of a session is still to be told, or on its way.

        Raises:
            Fault: `unavailable`, when that takes too long.
        """
        spoken = self._speaking.get(session_id)
        if spoken is not None and not await spoken.wait(timeout_ms):
            raise Fault(errors.UNAVAILABLE, "what became of it is not told")

    def forget(self, session_id: str) -> None:
        """A session has left."""
        self._tellings.pop(session_id, None)

    def _add(self, session_id: str, changes: list[values_pb2.StateChange]) -> None:
        telling = self._telling(session_id) if changes else None
        if telling is not None:
            telling.add(changes)
            self._speak(session_id)

    def _telling(self, session_id: str) -> Telling | None:
        found = self._tellings.get(session_id)
        epoch = self._manager.shards.held.get(shard_of(session_id)) if found is None else None
        if epoch is not None:
            found = self._tellings[session_id] = Telling(epoch, MESSAGE_BYTES)
        return found

    def _speak(self, session_id: str) -> None:
        if session_id not in self._speaking:
            self._speaking[session_id] = Signal()
            self._manager.process.spawn(self._tell_all, session_id)

    async def _tell_all(self, session_id: str) -> None:
        while (telling := self._tellings.get(session_id)) is not None and telling.is_due:
            await self._manager.holder.until_valid()
            try:
                await self._tell(session_id, telling)
            except Fault:
                await sleep(RETRY_MS)
        self._speaking.pop(session_id).notify()

    async def _tell(self, session_id: str, telling: Telling) -> None:
        log = self._manager.states
        if telling.after is None:
            if not telling.found(await log.last(session_id)):
                self.forget(session_id)
            return
        message = telling.message()
        self._check(session_id, message)
        try:
            telling.told(await log.append(session_id, message, telling.after))
        except SupersededError:
            telling.after = None

    def _check(self, session_id: str, message: values_pb2.SessionStates) -> None:
        """An end is told once it is stored."""
        for change in message.changes:
            if has_ended(change) and change.kind != "session":
                name = f"variable {change.id}" if change.kind == "variable" else change.id
                stored = self._manager.audit.stored_end(session_id, name)
                promise(
                    stored == change.state, "told before it was stored", f"{session_id} {change}: {stored}"
                )


def check_told(world: World) -> None:
    """Whoever read every message knows each thing as it is stored; of what was deleted nothing is left."""
    for client in world.clients:
        session_id = client.app.session_id
        record = world.stored(session_id)
        if record is None:
            left = world.states.messages.get(session_id)
            promise(not left, "told of what was deleted", f"{session_id}: {left}")
            continue
        fold = Fold()
        for message in world.states.messages.get(session_id, ()):
            fold.add_states(message)
        for change in told.of_record(record):
            known = fold.states.get((change.kind, change.id))
            silent = change.kind == "session" and known is None and change.state == "open"
            promise(silent or known == change, "told otherwise", f"{session_id}: {known} is {change}")
