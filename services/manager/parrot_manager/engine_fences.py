"""The engines' epochs in this manager's shards: told to who is attached, moved on for who is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

import structlog

from parrot_manager.links import EngineLink, Links
from parrot_manager.shards import Shards
from parrot_manager.tasks import Tasks
from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime.errors import Fault
from parrot_runtime.values.fences import Fences

RETRY_S: Final = 0.25
KEPT: Final = 100_000
"""Of so many fences it is known that they were done; of older ones it isn't, and they are done again."""

log = structlog.get_logger()


class EngineFences:
    """Fences each lost engine once a loss and shard, however many of its attempts are looked after.

    Args:
        valid: whether this manager's lease runs.
        allowed: returns once it does. One that has slept finds its streams broken
            before it finds that its shards are another's, who may be content with the engine.
    """

    def __init__(
        self,
        fences: Fences,
        links: Links,
        shards: Shards,
        tasks: Tasks,
        *,
        valid: Callable[[], bool],
        allowed: Callable[[], Awaitable[None]],
    ) -> None:
        self._fences = fences
        self._links = links
        self._shards = shards
        self._tasks = tasks
        self._valid = valid
        self._allowed = allowed
        self._done: dict[tuple[str, int], asyncio.Event] = {}

    def lost(self, engine_id: str) -> None:
        """An engine's attachment is over: from now on the bus is to refuse it in every shard held here."""
        self._begin(engine_id, list(self._shards.held))

    async def fenced(self, engine_id: str, shard: int) -> None:
        """Returns once an engine that is not attached can write nothing more to a shard."""
        if (engine_id, shard) not in self._done:
            self._begin(engine_id, [shard])
        await self._done[engine_id, shard].wait()

    async def epochs(self, engine_id: str) -> list[engine_pb2.ShardEpoch]:
        """The epochs of an engine that attaches, in all shards held here.

        Raises:
            Fault: `unavailable`, when the bus does not answer.
        """
        for key, done in list(self._done.items()):
            if key[0] == engine_id:
                await done.wait()
        told: list[engine_pb2.ShardEpoch] = []
        held: dict[int, int] = {}
        # Shards may be claimed meanwhile.
        while held != self._shards.held:
            held = dict(self._shards.held)
            told = await self._read(engine_id, held)
        return told

    async def tell(self, link: EngineLink, shards: Collection[int]) -> None:
        """Tells an attached engine its epochs in shards; waits as long as the bus is away."""
        link.hold()
        await self._tell_first(link, shards)

    def tell_all(self, shards: Collection[int]) -> None:
        """Tells every attached engine its epochs in shards that are new here, before anything else."""
        for link in self._links.joined():
            link.hold()
            self._tasks.spawn(self._tell_first(link, shards), f"epochs of {link.engine.id}")

    async def _tell_first(self, link: EngineLink, shards: Collection[int]) -> None:
        while self._links.has(link):
            try:
                epochs = await self._read(link.engine.id, shards)
            except Fault as fault:
                log.warning("epochs not read yet", engine_id=link.engine.id, reason=fault.message)
                await asyncio.sleep(RETRY_S)
            else:
                link.say_first(engine_pb2.AttachResponse(epochs=engine_pb2.ShardEpochs(epochs=epochs)))
                return

    def forget(self, shard: int) -> None:
        """A shard is another manager's: what is known of its fences holds no longer."""
        for key in [key for key in self._done if key[1] == shard]:
            self._done.pop(key).set()

    def _begin(self, engine_id: str, shards: Collection[int]) -> None:
        begun = {shard: asyncio.Event() for shard in shards}
        if len(self._done) > KEPT:
            self._done = {key: done for key, done in self._done.items() if not done.is_set()}
        self._done.update({(engine_id, shard): done for shard, done in begun.items()})
        self._tasks.spawn(self._fence(engine_id, begun), f"fence {engine_id}")

    async def _fence(self, engine_id: str, begun: Mapping[int, asyncio.Event]) -> None:
        # Those of shards that are another's by now were forgotten, and nobody waits any more.
        while waiting := {shard for shard, done in begun.items() if not done.is_set()}:
            await self._allowed()
            skipped = await self._fence_now(engine_id, begun, waiting)
            for shard in waiting - skipped:
                begun[shard].set()

    async def _fence_now(
        self, engine_id: str, begun: Mapping[int, asyncio.Event], shards: set[int]
    ) -> set[int]:
        """Fences an engine for as long as the lease runs; the shards for which it ended too soon."""
        skipped: set[int] = set()

        def due(shard: int) -> bool:
            if not self._valid():
                skipped.add(shard)
            return shard not in skipped and not begun[shard].is_set()

        await self._fences.fence(engine_id, shards, due)
        return skipped

    async def _read(self, engine_id: str, shards: Collection[int]) -> list[engine_pb2.ShardEpoch]:
        held = {shard: self._shards.held[shard] for shard in shards if shard in self._shards.held}
        marks = await self._fences.epochs(engine_id, held)
        return [
            engine_pb2.ShardEpoch(
                shard=shard,
                delta_sequence=marks[shard].delta_sequence,
                final_sequence=marks[shard].final_sequence,
                lease_epoch=epoch,
            )
            for shard, epoch in held.items()
        ]
