"""The engine's managers: it is attached to every one of them.

It starts from the addresses it was given. Each manager it finds tells it of all there are; those it
was given and that no manager names, such as a service's common address, are for when none is found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from parrot_engine.programs.table import Programs
from parrot_engine.programs.tools import Tools
from parrot_engine.servicer.commands import Commands
from parrot_engine.servicer.link import ManagerLink
from parrot_engine.servicer.shards import Shards
from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime.tls import Tls

log = structlog.get_logger()


class Control:
    """Keeps the engine attached to its managers until it has drained."""

    def __init__(
        self,
        addresses: Sequence[str],
        tools: Tools,
        programs: Programs,
        shards: Shards,
        tls: Tls | None = None,
    ) -> None:
        self._given = tuple(dict.fromkeys(addresses))
        self._named: tuple[str, ...] = ()
        self._tools = tools
        self._programs = programs
        self._shards = shards
        self._tls = tls
        self._commands = Commands(tools.engine_id, programs, tools.shared, shards, tools.press.marks)
        self._links: dict[ManagerLink, asyncio.Task[None]] = {}
        self._doubles: set[ManagerLink] = set()
        self._changed = asyncio.Event()

    @property
    def attached(self) -> bool:
        """Whether some manager has this engine registered."""
        return any(link.attached for link in self._links)

    async def run(self) -> None:
        """Returns once every manager has taken what was for it, after `Shards.drain`.

        Raises:
            Fault: a manager refuses this engine.
        """
        try:
            while not self._shards.drained:
                self._changed.clear()
                await self._tend()
                changed = asyncio.create_task(self._changed.wait(), name="managers-changed")
                going_on = {task for task in self._links.values() if not task.done()}
                await asyncio.wait({*going_on, changed}, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                for task in going_on:
                    if task.done():
                        task.result()
        finally:
            for link in list(self._links):
                await self._drop(link)

    async def _tend(self) -> None:
        """Dials who is named and not dialled; drops who is gone."""
        wanted = self._named if self.attached and self._named else (*self._given, *self._named)
        for link in [link for link in self._links if link.address not in wanted and not link.attached]:
            log.info("manager gone", address=link.address)
            await self._drop(link)
        for link in self._doubles & self._links.keys():
            await self._drop(link)
        self._doubles.clear()
        for address in dict.fromkeys(wanted):
            if all(link.address != address for link in self._links):
                self._dial(address)

    def _dial(self, address: str) -> None:
        link = ManagerLink(
            address,
            self._tools,
            self._programs,
            shards=self._shards,
            commands=self._commands,
            on_registered=self._on_registered,
            on_detached=self._changed.set,
            tls=self._tls,
        )
        self._links[link] = asyncio.create_task(link.run(), name=f"manager {address}")

    async def _drop(self, link: ManagerLink) -> None:
        task = self._links.pop(link)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        link.close()

    def _on_registered(self, link: ManagerLink, registered: engine_pb2.Registered) -> None:
        """Learns who else there is. A manager names itself first: there it is found the next time.

        One that two links found, by its own address and by a common one, keeps the later stream and ends
        the earlier: the other link goes, or they would end each other's for ever.
        """
        if registered.manager_addresses:
            self._named = tuple(registered.manager_addresses)
            link.address = self._named[0]
            self._doubles.discard(link)
            self._doubles |= {one for one in self._links if one is not link and one.address == link.address}
        self._changed.set()
