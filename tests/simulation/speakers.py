"""Which manager speaks for a shard at an engine, and hears of its attempts: as its `servicer.shards`."""

from __future__ import annotations

from parrot_manager.core.model import Ref
from parrot_runtime.ids import shard_of
from tests.simulation.links import Ended, Link, Up


class Speakers:
    """Of two managers that speak for a shard, the one with the later lease is heard.

    What nobody is there to hear waits for who comes.

    Attributes:
        links: the registered streams, by manager.
    """

    def __init__(self) -> None:
        self.links: dict[str, Link] = {}
        self._speaker: dict[int, tuple[int, str]] = {}
        self._waiting: list[tuple[int, Up]] = []
        self._ends: dict[Ref, Ended] = {}

    def speak(self, manager_id: str, shard: int, lease: int) -> bool:
        """A manager says that it serves a shard: whether it does, as far as is known here."""
        known = self._speaker.get(shard)
        if known is not None and lease < known[0]:
            return False
        self._speaker[shard] = lease, manager_id
        return True

    def speaks(self, link: Link, shard: int) -> bool:
        """Whether whoever commands something about a shard is the one to do so."""
        known = self._speaker.get(shard)
        return known is not None and self.links.get(known[1]) is link

    def report(self, shard: int, event: Up) -> None:
        """Tells the shard's manager, now or when there is one."""
        if isinstance(event, Ended):
            self._ends[event.ref] = event
        link = self._link(shard)
        if link is None or link.broken:
            self._waiting.append((shard, event))
        else:
            link.up(event)

    def tell(self, shard: int, event: Up) -> None:
        """Tells the shard's manager something, if there is one."""
        link = self._link(shard)
        if link is not None:
            link.up(event)

    def tell_all(self, event: Up) -> None:
        """Tells every manager."""
        for link in self.links.values():
            link.up(event)

    def flush(self) -> None:
        """Says what has waited to those who are there now."""
        waiting, self._waiting = self._waiting, []
        for shard, event in waiting:
            self.report(shard, event)

    def end_of(self, ref: Ref) -> Ended | None:
        """The end of an attempt that ended here."""
        return self._ends.get(ref)

    @property
    def unsent(self) -> list[Ref]:
        """The attempts whose end no manager was told of."""
        return [event.ref for _, event in self._waiting if isinstance(event, Ended)]

    def _link(self, shard: int) -> Link | None:
        known = self._speaker.get(shard)
        return self.links.get(known[1]) if known is not None else None


def shard_of_ref(ref: Ref) -> int:
    """The shard an attempt's session lives in."""
    return shard_of(ref.session_id)
