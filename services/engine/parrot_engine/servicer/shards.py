"""Which manager speaks for each shard of sessions, and hears of its attempts."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import chain

from parrot_engine.programs.table import Key, key_of
from parrot_engine.servicer.attempts import end_of, shard_of_event
from parrot_engine.servicer.memory import Memory
from parrot_engine.servicer.outbox import Outbox
from parrot_proto.engine.v1 import engine_pb2


@dataclass(slots=True)
class _Speaker:
    """`outbox` is None when the manager is gone and none has come in its place."""

    lease_epoch: int
    outbox: Outbox | None


class Shards:
    """Routes events: those about an attempt go to the manager of its shard, the others to all.

    A manager is known here by its outbox. Of two that speak for a shard the one with the later lease
    is heard. What nobody is there to hear waits for who comes.
    """

    def __init__(self) -> None:
        self._outboxes: list[Outbox] = []
        self._speakers: dict[int, _Speaker] = {}
        self._waiting: list[engine_pb2.AttachRequest] = []
        self._ends = Memory[Key, engine_pb2.AttachRequest]()
        self._draining = False

    def open(self) -> Outbox:
        """The outbox of a manager that came."""
        outbox = Outbox()
        self._outboxes.append(outbox)
        if self._draining:
            outbox.close()
        return outbox

    def close(self, outbox: Outbox) -> None:
        """A manager is gone for good: what it did not take waits for those that take its shards over."""
        self._outboxes.remove(outbox)
        self._waiting += outbox.take_all()
        for speaker in self._speakers.values():
            if speaker.outbox is outbox:
                speaker.outbox = None

    def speak(self, outbox: Outbox, shard: int, lease_epoch: int) -> bool:
        """A manager says that it serves a shard: whether it does, as far as is known here."""
        speaker = self._speakers.get(shard)
        if speaker is not None and lease_epoch < speaker.lease_epoch:
            return False
        self._speakers[shard] = _Speaker(lease_epoch, outbox)
        if speaker is None or speaker.outbox is not outbox:
            self._move(shard, speaker.outbox if speaker is not None else None, outbox)
        return True

    def speaks(self, outbox: Outbox, shard: int) -> bool:
        """Whether a manager that commands something about a shard is the one to do so.

        Where no lease was told of, the last that commands is.
        """
        speaker = self._speakers.get(shard)
        if speaker is None or not speaker.lease_epoch:
            return self.speak(outbox, shard, 0)
        return speaker.outbox is outbox

    def report(self, event: engine_pb2.AttachRequest) -> None:
        """Passes an event on; never waits."""
        shard = shard_of_event(event)
        if shard is None:
            for outbox in self._outboxes:
                outbox.put(event)
            return
        if (ref := end_of(event)) is not None:
            self._ends.put(key_of(ref), event)
        speaker = self._speakers.get(shard)
        if speaker is None or speaker.outbox is None:
            self._waiting.append(event)
        else:
            speaker.outbox.put(event)

    def report_about(self, shard: int, event: engine_pb2.AttachRequest) -> None:
        """Tells a shard's manager something, if there is one."""
        speaker = self._speakers.get(shard)
        if speaker is not None and speaker.outbox is not None:
            speaker.outbox.put(event)

    def end_of(self, ref: engine_pb2.AttemptRef) -> engine_pb2.AttachRequest | None:
        """The end of an attempt that ended lately, whether or not a manager heard of it."""
        return self._ends.get(key_of(ref))

    def tell_again(self, outbox: Outbox, shard: int, claimed: Collection[Key]) -> None:
        """Tells a manager that came the ends of attempts which it was told are still to be reported.

        Whoever spoke for the shard until now may have taken them, and be one that had lost it.
        """
        waiting = {key_of(ref) for ref in outbox.unsent_ends()}
        for key in claimed:
            end = self._ends.get(key)
            if end is not None and key not in waiting and shard_of_event(end) == shard:
                outbox.put(end)

    def unsent_ends(self) -> list[engine_pb2.AttemptRef]:
        """The attempts that have ended and whose end no manager has taken yet."""
        ends = [ref for event in self._waiting if (ref := end_of(event)) is not None]
        return [*ends, *chain.from_iterable(outbox.unsent_ends() for outbox in self._outboxes)]

    def drain(self) -> None:
        """No event follows."""
        self._draining = True
        for outbox in self._outboxes:
            outbox.close()

    @property
    def drained(self) -> bool:
        """No event follows, and every manager has taken what was for it."""
        return self._draining and all(outbox.drained for outbox in self._outboxes)

    def _move(self, shard: int, before: Outbox | None, now: Outbox) -> None:
        waiting = [event for event in self._waiting if shard_of_event(event) == shard]
        self._waiting = [event for event in self._waiting if shard_of_event(event) != shard]
        _put_all(now, [*waiting, *(before.take(shard) if before is not None else [])])


def _put_all(outbox: Outbox, events: Iterable[engine_pb2.AttachRequest]) -> None:
    for event in events:
        outbox.put(event)
