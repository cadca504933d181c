"""Whose a key is, as the managers said lately.

What was said is believed for a few seconds, so that most requests ask nobody; a key that is revoked is
good for that much longer. While no manager can be asked, a key that was good a minute ago still is.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from parrot_runtime import errors
from parrot_runtime.api_keys import KeyParts, parts_of
from parrot_runtime.errors import Fault

BELIEVED_UNASKED_S: Final = 60.0
PATIENCE_S: Final = 1.0
"""So long a request with a key that was good lately waits for the managers' word."""
WRONG_S: Final = 1.0
"""So long a key that was wrong is wrong without asking."""
KEPT: Final = 10_000
"""Of good keys, and of wrong ones."""
ASKED_AT_ONCE: Final = 32
"""Keys that are asked about at once: whoever sends many wrong ones is not to keep the managers busy."""
MOST_WAITING: Final = 512
"""So many more wait for their turn; the next are told to come again. Keys that were good once wait apart."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a key. `requests_per_second` 0: as many as they like."""

    tenant: str
    requests_per_second: int = 0


@dataclass(frozen=True, slots=True)
class _Known:
    holder: Holder
    at_s: float


class _Lane:
    """Keys that are asked about, some at once and some waiting for their turn."""

    def __init__(self) -> None:
        self.places = asyncio.Semaphore(ASKED_AT_ONCE)
        self.inside = 0


What = TypeVar("What")
Ask = Callable[[KeyParts], Coroutine[Any, Any, Holder]]
"""Asks a manager; raises `unauthenticated` for a key that is nobody's."""


class KeyRing:
    """Knows the keys that were seen lately, by their digests.

    Wrong ones, which anybody can make up, crowd out no others: neither from what is known, nor from the turns
    in which managers are asked.
    """

    def __init__(self, ask: Ask, believed_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._believed_s = believed_s
        self._clock = clock
        self._known: OrderedDict[KeyParts, _Known] = OrderedDict()
        self._wrong: OrderedDict[KeyParts, float] = OrderedDict()
        self._asking: dict[KeyParts, asyncio.Task[Holder]] = {}
        self._good_once, self._strange = _Lane(), _Lane()

    async def holder(self, key: str) -> Holder:
        """Whose a key is.

        Raises:
            Fault: `unauthenticated`; `unavailable`, when nobody can be asked and it was not seen lately.
        """
        parts = parts_of(key)
        if parts is None:
            raise refused("the API key is none of this server's: those begin with pk-")
        known, now_s = self._known.get(parts), self._clock()
        if parts in self._wrong and now_s < self._wrong[parts] + WRONG_S:
            raise refused("the API key is not known, or was revoked")
        if known is None:
            return await self._asked(parts)
        age_s = now_s - known.at_s
        if age_s < self._believed_s:
            if age_s > self._believed_s / 2:
                with suppress(Fault):
                    self._begin(parts)
            return known.holder
        if age_s > BELIEVED_UNASKED_S:
            return await self._asked(parts)
        try:
            asking = self._begin(parts)
            await asyncio.wait({asking}, timeout=PATIENCE_S)
            return await asyncio.shield(asking) if asking.done() else known.holder
        except Fault as fault:
            if fault.kind is not errors.UNAVAILABLE:
                raise
            return known.holder

    async def close(self) -> None:
        """Asks nothing more."""
        for task in self._asking.values():
            task.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)

    async def _asked(self, parts: KeyParts) -> Holder:
        return await asyncio.shield(self._begin(parts))

    def _begin(self, parts: KeyParts) -> asyncio.Task[Holder]:
        """Asks about a key, once for all who want to know.

        Raises:
            Fault: `unavailable`, when too many are asked about.
        """
        task = self._asking.get(parts)
        if task is None:
            lane = self._good_once if parts in self._known else self._strange
            if lane.inside >= ASKED_AT_ONCE + MOST_WAITING:
                why = "too many keys are being looked up; try again"
                raise Fault(errors.UNAVAILABLE, why, retry_after_ms=1000)
            task = self._asking[parts] = asyncio.create_task(self._learn(parts, lane), name="check-key")
            lane.inside += 1
            task.add_done_callback(_heard)
        return task

    async def _learn(self, parts: KeyParts, lane: _Lane) -> Holder:
        try:
            async with lane.places:
                holder = await self._ask(parts)
        except Fault as fault:
            if fault.kind is errors.UNAUTHENTICATED:
                self._known.pop(parts, None)
                _keep(self._wrong, parts, self._clock())
            raise
        else:
            self._wrong.pop(parts, None)
            _keep(self._known, parts, _Known(holder, self._clock()))
            return holder
        finally:
            del self._asking[parts]
            lane.inside -= 1


def _keep(kept: OrderedDict[KeyParts, What], parts: KeyParts, what: What) -> None:
    kept[parts] = what
    kept.move_to_end(parts)
    while len(kept) > KEPT:
        kept.popitem(last=False)


def refused(why: str) -> Fault:
    """The refusal of a request without a good key."""
    return Fault(
        errors.UNAUTHENTICATED,
        f"{why}; send a good one as Authorization: Bearer <key>",
        field="Authorization",
    )


def _heard(task: asyncio.Task[Holder]) -> None:
    """Nobody may be waiting for a key that was looked at again in good time."""
    if not task.cancelled():
        task.exception()
