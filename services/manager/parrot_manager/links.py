"""The engines that are attached, and the way to each."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from parrot_manager.core.model import Engine
from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime.errors import Fault


@dataclass(slots=True, eq=False)
class EngineLink:
    """One engine's control stream.

    Attributes:
        instance_id: of the engine's process.
        joined: it was told that it is registered; commands may follow.
        succeeds: the same process's older stream, whose place this one takes when it has joined.
        holds: how many things have still to be said before what is sent.
        closed: set when the stream is to end.
        refusal: what it is ended with, when the engine is not to attach again.
        parting: it said that it leaves, or says nothing any more: it is not expected back.
        leaves: it said so itself.
        heard_s: when something was heard of it, by the monotonic clock.
        heartbeat: what the engine last said of itself.
    """

    engine: Engine
    instance_id: str = ""
    joined: bool = False
    succeeds: EngineLink | None = None
    holds: int = 0
    held_back: list[engine_pb2.AttachResponse] = field(default_factory=list)
    outgoing: asyncio.Queue[engine_pb2.AttachResponse] = field(default_factory=asyncio.Queue)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    refusal: Fault | None = None
    parting: bool = False
    leaves: bool = False
    heard_s: float = field(default_factory=time.monotonic)
    heartbeat: engine_pb2.Heartbeat = field(default_factory=engine_pb2.Heartbeat)

    @property
    def there(self) -> EngineLink | None:
        """The link by which the machine knows the engine; None: it does not yet."""
        return self if self.joined else self.succeeds

    def send(self, command: engine_pb2.AttachResponse) -> None:
        """Queues a command for the engine, behind what has to be said first."""
        if self.holds:
            self.held_back.append(command)
        else:
            self.outgoing.put_nowait(command)

    def hold(self) -> None:
        """Holds back what is sent, until something is said that has to come first."""
        self.holds += 1

    def say_first(self, command: engine_pb2.AttachResponse) -> None:
        """Says what the engine has to hear before what was held back for it."""
        self.outgoing.put_nowait(command)
        self.holds -= 1
        if not self.holds:
            for held_back in self.held_back:
                self.outgoing.put_nowait(held_back)
            self.held_back.clear()


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

    def remove(self, link: EngineLink) -> bool:
        """Drops a link whose stream has ended; False when that was done."""
        if not self.has(link):
            return False
        del self._links[link.engine.id]
        return True

    def has(self, link: EngineLink) -> bool:
        """Whether a link is the one by which its engine is reached."""
        return self._links.get(link.engine.id) is link

    def joined(self) -> list[EngineLink]:
        """The links of the engines that were told that they are registered."""
        return [link for link in self._links.values() if link.joined]

    def get(self, engine_id: str, epoch: int | None = None) -> EngineLink | None:
        """An engine's link, if it is attached (by that very attachment)."""
        link = self._links.get(engine_id)
        if link is None or not link.joined or (epoch is not None and link.engine.epoch != epoch):
            return None
        return link

    def latest(self, engine_id: str) -> EngineLink | None:
        """An engine's link, whether or not it has joined yet."""
        return self._links.get(engine_id)

    def close_all(self) -> None:
        """Ends every stream."""
        for link in self._links.values():
            link.closed.set()
