"""Who will use a prefix: the calls that wait, and otherwise what its past says."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from parrot_manager.core.scheduling.calls import QueuedCall

REMEMBERED: Final = 50_000
"""Prefixes whose use is remembered; the one unused for longest is forgotten."""
STEPS_WHILE_WAITING: Final = 4.0
"""To the next use of a prefix by calls whose inputs are not there yet."""
NEVER: Final = -1.0
RECENT_SESSIONS: Final = 8


@dataclass(slots=True)
class _History:
    """How a prefix was used. Calls of one session count once: its own use says nothing of others'."""

    sessions: int
    session_id: str
    last: int
    interval: float = 0.0


class Uses:
    """Of prefixes, by hash."""

    def __init__(self) -> None:
        self._users: dict[str, dict[tuple[str, str], bool]] = {}
        self._calls: dict[tuple[str, str], tuple[str, ...]] = {}
        self._history: OrderedDict[str, _History] = OrderedDict()
        self._now = 0

    def expect(self, call: QueuedCall, *, ready: bool) -> tuple[str, ...]:
        """A call will use its prefixes: soon, if it is ready. Returns those whose use this changes."""
        before = self.forget(call.key)
        names = tuple(prefix.hash for prefix in call.prefixes)
        if names:
            self._calls[call.key] = names
        for name in names:
            self._users.setdefault(name, {})[call.key] = ready
        return names if before == names else (*before, *names)

    def forget(self, key: tuple[str, str]) -> tuple[str, ...]:
        """A call waits no longer. Returns the prefixes whose use this changes."""
        names = self._calls.pop(key, ())
        for name in names:
            users = self._users[name]
            del users[key]
            if not users:
                del self._users[name]
        return names

    def waiting(self, name: str) -> int:
        """How many calls wait that will use a prefix."""
        return len(self._users.get(name, ()))

    def used(self, call: QueuedCall) -> None:
        """A call was placed: this is a use of all its prefixes."""
        self._now += 1
        for prefix in call.prefixes:
            self._remember(prefix.hash, call.session_id)

    def recurs(self, name: str) -> bool:
        """Whether several sessions used a prefix, so that more of them will."""
        history = self._history.get(name)
        return history is not None and history.sessions > 1

    def steps(self, name: str, homes: int) -> float:
        """Calls that come before a prefix is used next, on one of the engines that hold it; `NEVER`."""
        users = self._users.get(name)
        if users:
            return 0.0 if any(users.values()) else STEPS_WHILE_WAITING
        history = self._history.get(name)
        if history is None or history.sessions < 2:
            return NEVER
        return max(STEPS_WHILE_WAITING, history.interval / max(1, homes))

    def _remember(self, name: str, session_id: str) -> None:
        history = self._history.get(name)
        if history is None:
            self._history[name] = _History(1, session_id, self._now)
            if len(self._history) > REMEMBERED:
                self._history.popitem(last=False)
            return
        self._history.move_to_end(name)
        if history.session_id != session_id:
            history.sessions += 1
            since = self._now - history.last
            history.interval += (since - history.interval) / min(history.sessions - 1, RECENT_SESSIONS)
            history.session_id = session_id
        history.last = self._now
