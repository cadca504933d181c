"""What engines say, as events: as `parrot_manager.reports` and the control servicer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from parrot_manager.core import events
from parrot_manager.core.model import Failure, Ref
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from tests.simulation.effects import look
from tests.simulation.kernel import sleep
from tests.simulation.links import Ended, Fenced, Link, Registered, Registration, Up

if TYPE_CHECKING:
    from tests.simulation.manager import SimManager

RETRY_MS = 250
MISSING_RETRIES = 4


class Reports:
    """Takes each message of an engine; never waits."""

    def __init__(self, manager: SimManager) -> None:
        self._manager = manager

    def serve(self, link: Link) -> None:
        """Listens to a stream that an engine opened."""
        link.on_up, link.lost_up = self._first, _pass

    def _first(self, link: Link, message: Up) -> None:
        if isinstance(message, Registration):
            link.on_up, link.lost_up = self._take, self._lose
            self._manager.process.spawn(self._attach, link, message)

    async def _attach(self, link: Link, registration: Registration) -> None:
        """Takes an engine in; what an older stream of it ran is given up, and fenced, first."""
        manager = self._manager
        engine_id = registration.engine.id
        self._supersede(engine_id, link, registration)
        manager.links[engine_id] = link
        try:
            epochs = await manager.fences.epochs(engine_id)
        except Fault:
            self._lose(link)
            link.cut(manager_notices_ms=0, engine_notices_ms=0)
            return
        if manager.links.get(engine_id) is not link:
            return
        manager.attachments += 1
        engine = replace(registration.engine, epoch=manager.attachments)
        link.down(Registered(manager.name, epochs))
        claimed = tuple(filter(self._may_judge, registration.attempts))
        manager.joined[engine_id] = link
        manager.apply(events.EngineJoined(engine, claimed, registration.contexts))

    def _may_judge(self, ref: Ref) -> bool:
        """Whether it is known here if anybody waits for an attempt; not during its take-over."""
        manager, session_id = self._manager, ref.session_id
        return session_id in manager.machine.state.sessions or manager.shards.serves(session_id)

    def _supersede(self, engine_id: str, link: Link, registration: Registration) -> None:
        """Ends the older stream of an engine that attached anew; another process has lost what that ran."""
        manager = self._manager
        before = manager.links.get(engine_id)
        same = manager.instances.get(engine_id) is registration.instance
        manager.instances[engine_id] = registration.instance
        if before is not None:
            if not same:
                self._lose(before)
            before.cut(manager_notices_ms=0, engine_notices_ms=0)

    def _lose(self, link: Link) -> None:
        """A stream is over: the engine is lost, unless a later stream has taken its place."""
        manager = self._manager
        engine_id = next((name for name, known in manager.links.items() if known is link), "")
        if not engine_id:
            return
        del manager.links[engine_id]
        if manager.joined.pop(engine_id, None) is not None:
            manager.fences.lost(engine_id)
            epoch = manager.machine.state.engines[engine_id].engine.epoch
            manager.apply(events.EngineLost(engine_id, epoch))

    def _take(self, link: Link, message: Up) -> None:
        manager = self._manager
        engine_id = next((name for name, known in manager.links.items() if known is link), "")
        if manager.joined.get(engine_id) is not link:
            return
        epoch = manager.machine.state.engines[engine_id].engine.epoch
        if isinstance(message, Ended):
            self._take_end(engine_id, message)
        elif isinstance(message, Fenced):
            manager.process.spawn(manager.fences.tell, engine_id, link, [message.shard])
        elif isinstance(
            message,
            events.EngineReported | events.ContextsChanged | events.EngineAdopted | events.EngineDraining,
        ):
            manager.apply(replace(message, epoch=epoch))
        elif not isinstance(message, Registration):
            manager.apply(message)

    def _take_end(self, engine_id: str, ended: Ended) -> None:
        manager, ref = self._manager, ended.ref
        manager.apply(events.SlotFreed(engine_id, ref))
        if isinstance(ended.event, events.AttemptDone):
            if manager.is_running(ref):
                manager.process.spawn(self._collect, ref, ended.event)
        elif ended.event is not None:
            manager.apply(ended.event)
        else:
            why = Failure.of(errors.ENGINE_LOST, "the engine stopped the call")
            manager.apply(events.AttemptFailed(ref, why))

    async def _collect(self, ref: Ref, done: events.AttemptDone) -> None:
        manager, missing = self._manager, 0
        while manager.is_running(ref):
            live = manager.machine.state.sessions[ref.session_id]
            output_ids = live.calls[ref.call_id].output_ids
            try:
                values, _ = await look(manager, ref, output_ids)
            except Fault:
                await sleep(RETRY_MS)
                continue
            if len(values) == len(output_ids):
                manager.apply(replace(done, values=values))
                return
            missing += 1
            if missing > MISSING_RETRIES:
                why = Failure.of(errors.VALUE_UNAVAILABLE, "its output is not on the bus")
                manager.apply(events.AttemptFailed(ref, why))
                return
            await sleep(RETRY_MS)


def _pass(link: Link) -> None:
    """It has not registered yet."""
