"""The engines that are attached, and the way to each."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from parrot_manager.core.model import Engine
from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime.errors import Fault


@dataclass(slots=True, eq=False)
class EngineLink:
    """One engine's control stream.

    Attributes:
        closed: set when the stream is to end.
        refusal: what it is ended with, when the engine is not to attach again.
        heartbeat: what the engine last said of itself.
    """

    engine: Engine
    outgoing: asyncio.Queue[engine_pb2.AttachResponse] = field(default_factory=asyncio.Queue)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    refusal: Fault | None = None
    heartbeat: engine_pb2.Heartbeat = field(default_factory=engine_pb2.Heartbeat)

    def send(self, command: engine_pb2.AttachResponse) -> None:
        """Queues a command for the engine."""
        self.outgoing.put_nowait(command)


class Links:
    """The attached engines by id; of two with the same id only the later one."""

    def __init__(self) -> None:
        self._links: dict[str, EngineLink] = {}
        self._epoch = 0

    def next_epoch(self) -> int:
        """A number larger than any before, to tell attachments apart."""
        self._epoch += 1
        return self._epoch

    def add(self, link: EngineLink) -> None:
        """Keeps the link of an engine that attached."""
        self._links[link.engine.id] = link

    def remove(self, link: EngineLink) -> None:
        """Drops a link whose stream has ended."""
        if self._links.get(link.engine.id) is link:
            del self._links[link.engine.id]

    def get(self, engine_id: str, epoch: int | None = None) -> EngineLink | None:
        """An engine's link, if it is attached (by that very attachment)."""
        link = self._links.get(engine_id)
        if link is None or (epoch is not None and link.engine.epoch != epoch):
            return None
        return link

    def close_all(self) -> None:
        """Ends every stream."""
        for link in self._links.values():
            link.closed.set()
