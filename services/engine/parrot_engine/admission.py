"""Who may run, and whose KV may be there: decided before anything is asked of the backend.

The budget is the backend's KV memory, in tokens. A program that *runs* (generates, or is about to) has
its whole need reserved: its prompt, and its output as long as it is expected to get. A program that is
*paused* waits for an input and may hold what it has prefilled so far, in what running ones leave over.

Nothing here can deadlock, by three rules. Running programs wait for nobody. What a paused program
holds can be taken from it at any time: it is then as if it had not started, and computes it again
later. And when nothing runs, the first in line does, whatever its need: a program whose need exceeds
the memory has been refused by its window. An output that gets longer than expected is the backend's
to make room for: it drops held KV, and then turns the last comer back, so that the first always
finishes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

PAUSED_SHARE: Final = 0.9
"""Of the budget, how far paused programs may fill it: what comes next should not have to push first."""


@dataclass(eq=False, slots=True)
class Claim:
    """What one program has of the budget.

    Attributes:
        priority: lower ones run first, and lose what they hold last.
        on_drop: told that what was held is to be let go.
        held_tokens: of a paused program, without what is a shared context's.
        need_tokens: of a running one; 0: it does not run.
        dropped: what it held was taken from it, and not given back since.
        shared: shared contexts it uses, and the tokens each has of its own. Several programs may
            use one: it counts once, and as needed only while one of them runs.
    """

    priority: int
    on_drop: Callable[[], None]
    held_tokens: int = 0
    need_tokens: int = 0
    dropped: bool = False
    slots: int = 0
    number: int = 0
    shared: dict[str, int] = field(default_factory=dict)

    @property
    def order(self) -> tuple[int, int]:
        """Who goes before whom."""
        return self.priority, self.number


@dataclass(eq=False, slots=True)
class _Waiter:
    claim: Claim
    need_tokens: int
    slots: int
    admitted: asyncio.Future[None]


class Admission:
    """The budget of one backend. Use within one event loop; only `running` waits."""

    def __init__(self, slots: int, kv_tokens: int) -> None:
        """`slots`: outputs at once; `kv_tokens`: the budget, 0: there is no limit."""
        self._slots = slots
        self._kv_tokens = kv_tokens
        self._claims: set[Claim] = set()
        self._waiters: list[_Waiter] = []
        self._numbers = itertools.count()

    @property
    def running(self) -> int:
        """Programs that run."""
        # A copy: metrics are read from another thread.
        return sum(claim.need_tokens > 0 for claim in tuple(self._claims))

    @property
    def waiting(self) -> int:
        """Programs that could run and have no place yet."""
        return len(self._waiters)

    @property
    def programs(self) -> int:
        """Programs that are here at all."""
        return len(self._claims)

    def enter(self, priority: int, on_drop: Callable[[], None]) -> Claim:
        """A program's claim, of nothing yet."""
        claim = Claim(priority, on_drop, number=next(self._numbers))
        self._claims.add(claim)
        return claim

    def leave(self, claim: Claim) -> None:
        """Gives back all that a program has."""
        self._claims.discard(claim)
        self._admit()

    def hold(self, claim: Claim, tokens: int) -> bool:
        """Whether a paused program may hold `tokens` in all, which are then its own.

        Refused while others wait for memory, and where there is no room.
        """
        if self._kv_tokens:
            others = sum(found.need_tokens + found.held_tokens for found in self._claims) - claim.held_tokens
            used = others + _shared_tokens(self._claims)
            if self._short_of_memory() or used + tokens > PAUSED_SHARE * self._kv_tokens:
                return False
        claim.held_tokens = tokens
        claim.dropped = False
        return True

    @asynccontextmanager
    async def run(self, claim: Claim, need_tokens: int, slots: int = 1) -> AsyncIterator[None]:
        """Waits for a place; within the block the program runs.

        What it held is part of what it needs.
        """
        slots = min(slots, self._slots)
        waiter = _Waiter(claim, max(1, need_tokens), slots, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        self._waiters.sort(key=lambda waiter: waiter.claim.order)
        self._admit()
        try:
            await waiter.admitted
            yield
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            else:
                claim.need_tokens, claim.slots = 0, 0
            self._admit()

    def _admit(self) -> None:
        """Lets in whoever is first in line, as long as there is room: nobody overtakes."""
        while self._waiters:
            waiter = self._waiters[0]
            if not self._fits(waiter):
                return
            del self._waiters[0]
            claim = waiter.claim
            claim.need_tokens, claim.slots, claim.held_tokens = waiter.need_tokens, waiter.slots, 0
            self._make_room()
            # Its wait may have been cancelled in this very turn of the loop; `run` gives it back then.
            if not waiter.admitted.done():
                waiter.admitted.set_result(None)

    def _fits(self, waiter: _Waiter) -> bool:
        if not self.running:
            return True
        if sum(claim.slots for claim in self._claims) + waiter.slots > self._slots:
            return False
        return not self._kv_tokens or self._reserved_with(waiter) <= self._kv_tokens

    def _short_of_memory(self) -> bool:
        """The first in line waits for memory, not for a slot."""
        return bool(self._waiters) and self._reserved_with(self._waiters[0]) > self._kv_tokens

    def _make_room(self) -> None:
        """Takes from paused programs what the running ones need, last in order first."""
        if not self._kv_tokens:
            return
        paused = sorted((claim for claim in self._claims if claim.held_tokens), key=lambda claim: claim.order)
        used = self._reserved() + sum(claim.held_tokens for claim in paused)
        while paused and used > self._kv_tokens:
            claim = paused.pop()
            used -= claim.held_tokens
            claim.held_tokens, claim.dropped = 0, True
            claim.on_drop()

    def _reserved(self) -> int:
        running = [claim for claim in self._claims if claim.need_tokens]
        return sum(claim.need_tokens for claim in running) + _shared_tokens(running)

    def _reserved_with(self, waiter: _Waiter) -> int:
        """What would be reserved if it ran too."""
        running = [claim for claim in self._claims if claim.need_tokens]
        need_tokens = sum(claim.need_tokens for claim in running) + waiter.need_tokens
        return need_tokens + _shared_tokens([*running, waiter.claim])


def _shared_tokens(claims: Iterable[Claim]) -> int:
    """Tokens of the shared contexts these use, each counted once."""
    contexts: dict[str, int] = {}
    for claim in claims:
        contexts |= claim.shared
    return sum(contexts.values())
