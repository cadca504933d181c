"""The engines, what waits for them, and who goes where. Pure: the same calls give the same decisions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from parrot_manager.core.commands import ExpectUses, FreeContexts
from parrot_manager.core.model import (
    NO_TIMINGS,
    NO_USAGE,
    SANDBOX_MODEL,
    Engine,
    Load,
    Ref,
    SharedContext,
    Timings,
    Usage,
)
from parrot_manager.core.scheduling.backlog import Backlogs
from parrot_manager.core.scheduling.books import Books
from parrot_manager.core.scheduling.calls import Placement, QueuedCall
from parrot_manager.core.scheduling.engines import UNKNOWN, EngineLoad
from parrot_manager.core.scheduling.placing import Placing
from parrot_manager.core.scheduling.policies import APP_CENTRIC, SchedulingPolicy
from parrot_manager.core.scheduling.quotas import Quotas
from parrot_runtime.errors import Fault


class Fleet:
    """See the package."""

    def __init__(self, policy: SchedulingPolicy = APP_CENTRIC) -> None:
        self.policy = policy
        self._quotas = Quotas(policy.limits)
        self._books = books = Books(policy)
        self._placing = Placing(policy, books)
        self.backlogs = Backlogs()
        self._queue, self._room, self._contexts = books.queue, books.room, books.contexts
        self.engines, self.estimates = books.engines, books.estimates

    # What happens to engines.

    def join(
        self,
        engine: Engine,
        claimed: Iterable[Ref] = (),
        contexts: Iterable[SharedContext] = (),
        now_ms: int = 0,
    ) -> None:
        """An engine takes calls from here on; it runs `claimed` already, and holds `contexts`."""
        if engine.id in self.engines:
            self.leave(engine.id)
        load = self.engines[engine.id] = EngineLoad(engine, self.estimates.pace(engine))
        for ref in claimed:
            load.take(ref, replace(UNKNOWN, placed_ms=now_ms))
        self._contexts.join(load, contexts)
        self._changed(load)

    def update(self, engine: Engine) -> None:
        """An engine is another than it was: it drains."""
        load = self.engines[engine.id]
        load.engine = engine
        self._changed(load)
        self._placing.look_again()

    def leave(self, engine_id: str) -> tuple[Ref, ...]:
        """An engine is gone; returns what it ran."""
        load = self.engines.pop(engine_id)
        self._room.remove(load)
        self._contexts.leave(load)
        self._books.chooser.held.pop(engine_id, None)
        self.estimates.forget_engine(engine_id)
        for ref in load.running:
            self._books.forget(ref)
        self._placing.look_again()
        return tuple(load.running)

    def report(self, engine_id: str, load: Load) -> None:
        """An engine said how loaded it is."""
        found = self.engines[engine_id]
        found.load = load
        found.foreign = max(0, load.running + load.waiting + load.paused - len(found.running))
        if load.running and load.step_ms:
            self.estimates.hear_step(found.engine, found.step_weight, load.step_ms)
        self._changed(found)

    def contexts_changed(
        self, engine_id: str, contexts: Iterable[SharedContext], gone: Iterable[str]
    ) -> None:
        """Shared contexts of an engine came, changed, or are gone (their context ids)."""
        self._contexts.report(self.engines[engine_id], contexts, gone)

    def serving(self, model: str) -> bool:
        """Whether an engine is there that takes calls of a model, now or when it has room."""
        return any(load.serves(model) for load in self.engines.values())

    def models(self) -> list[str]:
        """The models that are served to prompts, each once."""
        return sorted({load.engine.model for load in self.engines.values()} - {SANDBOX_MODEL})

    # What happens to calls.

    def count(self, tenant: str, session_id: str, call_id: str) -> None:
        """A call was accepted that may never run: it counts for the limits until it is forgotten."""
        self._quotas.add((session_id, call_id), tenant)

    def expect(self, call: QueuedCall) -> None:
        """A call was accepted and waits for inputs; said again when it is another."""
        self._quotas.add(call.key, call.tenant)
        self._contexts.expect(call, ready=False)

    def ready(self, call: QueuedCall) -> None:
        """A call may be placed; said again when its objective changed.

        One with `pending` inputs is placed when that helps; it is said again, without them, when they came.
        """
        self._quotas.add(call.key, call.tenant)
        self._contexts.expect(call, ready=not call.pending)
        self._placing.add(call)
        if call.pending:
            self.backlogs.remove(call.key)
        else:
            self.backlogs.add(call)

    def withdraw(self, session_id: str, call_id: str) -> None:
        """A ready call is not to be placed, for now."""
        self._placing.discard((session_id, call_id))
        self.backlogs.remove((session_id, call_id))

    def forget_call(self, session_id: str, call_id: str) -> None:
        """A call has ended, however that was, or is another manager's."""
        key = session_id, call_id
        self._placing.discard(key)
        self.backlogs.remove(key)
        self._contexts.forget(key)
        self._quotas.remove(key)

    def adopt(self, engine_id: str, ref: Ref, call: QueuedCall) -> None:
        """An engine runs an attempt that was dispatched before this manager knew of it."""
        self._quotas.add(call.key, call.tenant)
        self._books.adopt(self.engines[engine_id], ref, call)

    def dispatched(self, placement: Placement, ref: Ref, now_ms: int) -> None:
        """A placement was carried out, as this attempt."""
        self._books.name(placement, ref)
        self.backlogs.remove(placement.call.key)

    def arrived(self, ref: Ref) -> None:
        """An attempt that was sent ahead of its inputs has them all."""
        self._books.arrived(ref)

    def started(self, ref: Ref, now_ms: int) -> None:
        """An engine took an attempt up."""
        self._books.started(ref, now_ms)

    def finished(
        self, ref: Ref, usage: Usage = NO_USAGE, timings: Timings = NO_TIMINGS, now_ms: int = 0
    ) -> None:
        """An attempt made its outputs: estimates learn from it. Its slot is freed by `freed`."""
        self._books.learn(ref, usage, timings)

    def freed(self, engine_id: str, ref: Ref) -> None:
        """An engine no longer runs an attempt, however that ended."""
        load = self.engines.get(engine_id)
        if load is not None and self._books.free(load, ref):
            self._placing.wake()

    # What is asked.

    def place(self, now_ms: int) -> list[Placement]:
        """What goes where now. Each is `dispatched` or `refused` before this is asked again."""
        return self._placing.place(now_ms)

    def refused(self, placement: Placement) -> None:
        """A placement was not carried out; its call is forgotten, or said to be ready again."""
        self.freed(placement.engine_id, self._books.provisional(placement.call))
        self.backlogs.remove(placement.call.key)

    def drain_keeps(self) -> list[FreeContexts | ExpectUses]:
        """What engines are to be told of their contexts, since it was last asked."""
        return self._contexts.drain() if self.policy.prefix_affinity else []

    def refuse(self, tenant: str, new_calls: int) -> Fault | None:
        """Why so many more calls of a tenant can't be taken; None: they can."""
        return self._quotas.refuse(tenant, new_calls)

    def asked_models(self) -> list[str]:
        """The models that calls ask for which may be placed, each once."""
        return sorted({*self._queue.models(), *(call.model for call in self._placing.ahead())})

    def queued(self, model: str) -> list[QueuedCall]:
        """The calls that ask for a model and may be placed, oldest session first."""
        ahead = [call for call in self._placing.ahead() if call.model == model]
        return sorted([*self._queue.of(model), *ahead])

    def queued_calls(self) -> int:
        """How many calls have all their inputs and no place."""
        return len(self._queue)

    def unfinished_calls(self) -> int:
        """How many calls were accepted and have not ended, wherever they are."""
        return len(self._quotas)

    def tenant_lead_tokens(self) -> float:
        """The most that a waiting tenant was served more than another that waits for the same."""
        return self._queue.lead()

    def running_calls(self) -> int:
        """How many attempts the engines run, as far as is known here."""
        return sum(len(load.running) for load in self.engines.values())

    def _changed(self, load: EngineLoad) -> None:
        load.pace = self.estimates.pace(load.engine)
        self._room.update(load)
        self._placing.wake()
