"""How long ready calls wait, by the model they ask for. Nothing is decided by it: it is for operators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from parrot_manager.core.scheduling.calls import QueuedCall

_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Backlog:
    """The ready calls of a model: how many, and since when the oldest of them waits (Unix ms)."""

    model: str
    calls: int
    oldest_ms: int


class Backlogs:
    """The calls that wait for a place, in the order they came: what is said again keeps its place."""

    def __init__(self) -> None:
        self._models: dict[str, dict[_Key, int]] = {}
        self._of: dict[_Key, str] = {}

    def __len__(self) -> int:
        return len(self._of)

    def add(self, call: QueuedCall) -> None:
        """A call is ready; one that was is where it was, unless it asks for another model now."""
        if self._of.get(call.key) != call.model:
            self.remove(call.key)
            self._of[call.key] = call.model
        self._models.setdefault(call.model, {})[call.key] = call.ready_ms

    def remove(self, key: _Key) -> None:
        """A call waits no more, if it did."""
        model = self._of.pop(key, None)
        if model is not None:
            waiting = self._models[model]
            del waiting[key]
            if not waiting:
                del self._models[model]

    def __iter__(self) -> Iterator[Backlog]:
        for model, waiting in self._models.items():
            yield Backlog(model, len(waiting), next(iter(waiting.values())))
