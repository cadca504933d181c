"""Epochs of the engines in a manager's shards: as `parrot_manager.engine_fences`."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from parrot_runtime.errors import Fault
from tests.simulation.kernel import Signal, sleep
from tests.simulation.links import Epochs, Link

if TYPE_CHECKING:
    from tests.simulation.manager import SimManager

RETRY_MS = 250


class _Done:
    """Whether something is done, and a way to wait for it."""

    def __init__(self) -> None:
        self.is_set = False
        self._signal = Signal()

    def set(self) -> None:
        self.is_set = True
        self._signal.notify()

    async def wait(self) -> None:
        while not self.is_set:
            await self._signal.wait()


class Fences:
    """Fences each lost engine once a loss and shard."""

    def __init__(self, manager: SimManager) -> None:
        self._manager = manager
        self._done: dict[tuple[str, int], _Done] = {}

    def lost(self, engine_id: str) -> None:
        """An engine's attachment is over: the bus is to refuse it in every shard held here."""
        self._begin(engine_id, list(self._manager.shards.held))

    async def fenced(self, engine_id: str, shard: int) -> None:
        """Returns once an engine that is not attached can write nothing more to a shard."""
        if (engine_id, shard) not in self._done:
            self._begin(engine_id, [shard])
        await self._done[engine_id, shard].wait()

    async def epochs(self, engine_id: str) -> Epochs:
        """The epochs of an engine that attaches.

        Raises:
            Fault: `unavailable`.
        """
        for key, done in list(self._done.items()):
            if key[0] == engine_id:
                await done.wait()
        held, told = {-1: 0}, Epochs(())
        while held != self._manager.shards.held:
            held = dict(self._manager.shards.held)
            told = await self._read(engine_id, held)
        return told

    async def tell(self, engine_id: str, link: Link, shards: Collection[int]) -> None:
        """Tells an attached engine its epochs in shards."""
        while self._manager.links.get(engine_id) is link:
            try:
                link.down(await self._read(engine_id, shards))
            except Fault:
                await sleep(RETRY_MS)
            else:
                return

    async def tell_all(self, shards: Collection[int]) -> None:
        """Tells every attached engine its epochs in shards that are new here."""
        for engine_id, link in list(self._manager.links.items()):
            if self._manager.link(engine_id) is link:
                await self.tell(engine_id, link, shards)

    def forget(self, shard: int) -> None:
        """A shard is another manager's: what is known of its fences holds no longer."""
        for key in [key for key in self._done if key[1] == shard]:
            self._done.pop(key).set()

    def _begin(self, engine_id: str, shards: Collection[int]) -> None:
        done = {shard: _Done() for shard in shards}
        self._done.update({(engine_id, shard): done[shard] for shard in shards})
        self._manager.process.spawn(self._fence, engine_id, done)

    async def _fence(self, engine_id: str, done: dict[int, _Done]) -> None:
        # A manager that slept finds its streams broken before it finds its shards lost.
        await self._manager.holder.until_valid()
        while due := [shard for shard, event in done.items() if not event.is_set]:
            try:
                await self._manager.bus.fence(engine_id, due)
            except Fault:
                await sleep(RETRY_MS)
            else:
                for shard in due:
                    done[shard].set()

    async def _read(self, engine_id: str, shards: Collection[int]) -> Epochs:
        held = {s: self._manager.shards.held[s] for s in shards if s in self._manager.shards.held}
        marks = await self._manager.bus.read_epochs(engine_id, list(held))
        return Epochs(tuple((shard, epoch, marks[shard]) for shard, epoch in held.items()))
