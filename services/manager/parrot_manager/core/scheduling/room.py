"""The engines with room for one more, in the orders in which a place is looked for."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from parrot_manager.core.paces import weight
from parrot_manager.core.scheduling.calls import models_taken
from parrot_manager.core.scheduling.cost import within_latency
from parrot_manager.core.scheduling.engines import EngineLoad, Kind
from parrot_manager.core.scheduling.policies import SchedulingPolicy

NOMINAL_TOKENS: Final = 512
"""Of the call that engines are compared by before it is known which one it is."""
LOOKED_AT: Final = 32
"""Engines that are looked at in all, of those that changed or when the first ones have no room."""
Order = list[tuple[float, str]]
_NONE: Final[Order] = []


class Room:
    """Sorted as engines change; a change costs the logarithm of their number, and so does a look."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._policy = policy
        self._orders: dict[tuple[str, Kind], Order] = {}
        self._changes: OrderedDict[str, int] = OrderedDict()
        self.version = 0

    def has(self, model: str) -> bool:
        """Whether any engine has room for a call of a model."""
        return bool(self._orders.get((model, Kind.FASTEST)))

    def admits(self, load: EngineLoad, model: str, *, patient: bool) -> bool:
        """Whether an engine has room for a call of a model."""
        return (model, Kind.PATIENT if patient else Kind.FASTEST) in load.keys

    def of(self, model: str, *, patient: bool) -> tuple[Sequence[tuple[float, str]], ...]:
        """Engines with room for a call of a model, by id, the best first: in one order or in several."""
        if patient:
            return (self._orders.get((model, Kind.PATIENT), _NONE),)
        fastest = self._orders.get((model, Kind.FASTEST), _NONE)
        return (fastest, self._orders.get((model, Kind.CALMEST), _NONE))

    def update(self, load: EngineLoad) -> None:
        """An engine changed."""
        self.remove(load)
        self.version += 1
        self._changes[load.engine.id] = self.version
        self._changes.move_to_end(load.engine.id)
        free = load.free
        if not free:
            return
        step_ms = self._step_ms(load)
        self._insert(load, Kind.FASTEST, step_ms)
        if not self._policy.costs:
            return
        self._insert(load, Kind.CALMEST, load.hurry * step_ms)
        if free > reserved(load, self._policy) and within_latency(load, 0, self._policy):
            # Where nobody is in a hurry, however full, is the better place for a patient call.
            self._insert(load, Kind.PATIENT, step_ms * (1 + load.urgent))

    def changed_since(self, version: int) -> tuple[list[str], int]:
        """Engines that changed after a version: what had no place then may have one there.

        When there are many, the last ones and the first ones; those between are not lost: the version
        returned is the one to ask for next.
        """
        found: list[str] = []
        for engine_id, changed in reversed(self._changes.items()):
            if changed <= version:
                break
            found.append(engine_id)
        if len(found) <= LOOKED_AT:
            return found, self.version
        first = found[-LOOKED_AT // 2 :]
        return [*found[: LOOKED_AT // 2], *first], self._changes[first[0]]

    def remove(self, load: EngineLoad) -> None:
        """An engine is gone, or full."""
        for of, entry in load.keys.items():
            order = self._orders[of]
            del order[bisect_left(order, entry)]
        load.keys.clear()
        self._changes.pop(load.engine.id, None)

    def _insert(self, load: EngineLoad, kind: Kind, key: float) -> None:
        entry = (key, load.engine.id)
        for model in models_taken(load.engine.model):
            insort(self._orders.setdefault((model, kind), []), entry)
            load.keys[model, kind] = entry

    def _step_ms(self, load: EngineLoad) -> float:
        if not self._policy.load_aware:
            return load.turn
        if not self._policy.costs:
            return (len(load.running) + load.foreign) / load.engine.capacity
        return load.pace.line.step_ms(load.step_weight + weight(1, NOMINAL_TOKENS))


def reserved(load: EngineLoad, policy: SchedulingPolicy) -> int:
    """Places of an engine that patient calls leave free, so that an urgent one finds one at once."""
    return int(load.engine.capacity * policy.reserved_share) if policy.objectives else 0
