"""Writes that are counted for a tenant take turns for the connections.

They wait for the tenant's row, one after another, each with a connection in its hand: many at once would
leave none to others.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")

EACH: Final = 2
"""So many of one tenant are at it at once: one works while another waits for its row."""
REMEMBERED: Final = 10_000


class OutOfTurnError(Exception):
    """A write turned out to be counted, and has not waited for its turn; nothing is written."""


class Turns:
    """Whether an owner (a session, a tenant) is counted shows with its first write; others never wait."""

    def __init__(self, together: int) -> None:
        """`together`: how many are at it at once, of all tenants."""
        self._together = asyncio.Semaphore(together)
        self._tenants: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._known: OrderedDict[str, str] = OrderedDict()

    def known(self, owners: Sequence[str]) -> str:
        """The tenant whose turn a write of these owners takes; empty: none's, as far as is known."""
        return next((self._known[owner] for owner in owners if owner in self._known), "")

    def note(self, owners: Sequence[str], tenant: str) -> None:
        """Remembers for which tenant what is written for these owners is counted; empty: for none."""
        for owner in owners:
            if tenant:
                self._known[owner] = tenant
                self._known.move_to_end(owner)
            else:
                self._known.pop(owner, None)
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

    def check(self, turn: str, tenant: str, owners: Sequence[str]) -> None:
        """Notes for whom a write is counted.

        Raises:
            OutOfTurnError: it is not that tenant's turn.
        """
        self.note(owners, tenant)
        if tenant not in {"", turn}:
            raise OutOfTurnError

    @asynccontextmanager
    async def of(self, tenant: str) -> AsyncIterator[None]:
        """A tenant's turn; without a name there is nothing to wait for."""
        if not tenant:
            yield
            return
        mine = self._tenants.get(tenant)
        if mine is None:
            mine = self._tenants[tenant] = asyncio.Semaphore(EACH)
        async with mine, self._together:
            yield


async def in_turn(write: Callable[[], Awaitable[T]]) -> T:
    """Has a write begin anew that was out of turn."""
    while True:
        try:
            return await write()
        except OutOfTurnError:
            continue
