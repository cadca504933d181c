"""What several in a process use at once: opened on first use, closed with the last user."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar


class Opened(Protocol):
    """Something to be opened and closed."""

    async def open(self) -> None:
        """Returns once it can be used."""
        ...

    async def close(self) -> None:
        """Gives back what it holds."""
        ...


T = TypeVar("T", bound=Opened)


@dataclass(slots=True)
class Held(Generic[T]):
    """A thing and those who use it."""

    thing: T
    users: int = 0
    is_open: bool = False
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def ensure_open(self) -> None:
        """Opens it, unless that was done: if whoever tried first fails, the next one tries."""
        async with self.opening:
            if not self.is_open:
                await self.thing.open()
                self.is_open = True


class Shared(Generic[T]):
    """Things by key."""

    def __init__(self) -> None:
        self._open: dict[str, Held[T]] = {}

    @asynccontextmanager
    async def use(self, key: str, make: Callable[[], T]) -> AsyncIterator[T]:
        """The thing of that key, made if there is none; errors of its opening are raised."""
        found = self._open.get(key)
        if found is None:
            found = self._open[key] = Held(make())
        found.users += 1
        try:
            await found.ensure_open()
            yield found.thing
        finally:
            await asyncio.shield(self._leave(key, found))

    def opened(self, key: str) -> T | None:
        """The thing of that key, if somebody uses it now."""
        found = self._open.get(key)
        return found.thing if found is not None and found.is_open else None

    def renew(self, key: str) -> None:
        """Whoever comes from now on gets another one, such as when what this one heard may be wrong."""
        self._open.pop(key, None)

    async def _leave(self, key: str, found: Held[T]) -> None:
        found.users -= 1
        if not found.users:
            # Whoever comes while this one closes opens another.
            if self._open.get(key) is found:
                del self._open[key]
            await found.thing.close()
