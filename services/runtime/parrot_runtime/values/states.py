"""What managers tell of a session's states, on a subject of its own: one writer at a time, each message once.

A message expects the one that its writer knows to be the last to be the last indeed; the server refuses
it otherwise. So a manager that was superseded, or whose message came though it did not hear so, finds out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from parrot_proto.values.v1 import values_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.values import subjects
from parrot_runtime.values.bus import STATE_AGE_S, TROUBLE, Bus
from parrot_runtime.values.fences import refused
from parrot_runtime.values.subjects import SessionSubjects

VERSION: Final = 1
PUBLISH_S: Final = 2.0
ENDED: Final = {
    "session": frozenset({"closed", "failed", "cancelled", "expired"}),
    "call": frozenset({"done", "failed", "cancelled"}),
    "block": frozenset({"done", "failed", "cancelled"}),
    "variable": frozenset({"ready", "failed", "cancelled"}),
}
"""The states that stay, by kind of thing."""

_SUM: Final = 1 << 64


class SupersededError(Exception):
    """The message that was to be followed is not the last: something else was told."""


@dataclass(frozen=True, slots=True)
class Last:
    """The last message of a session's states, and its sequence in the stream."""

    sequence: int
    message: values_pb2.SessionStates


def has_ended(change: values_pb2.StateChange) -> bool:
    """Whether a thing stays as it is."""
    return change.state in ENDED.get(change.kind, ())


def sum_of_ends(changes: Sequence[values_pb2.StateChange], before: int = 0) -> int:
    """The sum of everything that has ended, for `SessionStates.ends`; in any order it is the same."""
    for change in changes:
        if has_ended(change):
            name = f"{change.kind} {change.id} {change.state}".encode()
            before += int.from_bytes(blake2b(name, digest_size=8).digest())
    return before % _SUM


class StateSubject:
    """Where the states of sessions are told."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def append(self, names: SessionSubjects, message: values_pb2.SessionStates, after: int) -> int:
        """Tells what follows the message of sequence `after` (0: none); its own sequence.

        Raises:
            SupersededError: another message is the last.
            Fault: `unavailable`; it may have come all the same.
        """
        headers = {"Nats-Expected-Last-Subject-Sequence": str(after), "Nats-TTL": str(STATE_AGE_S)}
        try:
            taken = await self._bus.publish(names.state, message.SerializeToString(), headers, PUBLISH_S)
        except TROUBLE as error:
            if refused(error):
                raise SupersededError(names.session_id) from None
            raise _unavailable(error) from error
        return taken.seq

    async def last(self, names: SessionSubjects) -> Last | None:
        """The last message there; None: there is none.

        Raises:
            Fault: `unavailable`.
        """
        try:
            found = await self._bus.last(subjects.DELTA_STREAM, names.state)
        except TROUBLE as error:
            raise _unavailable(error) from error
        if found is None:
            return None
        return Last(found.seq or 0, values_pb2.SessionStates.FromString(found.data or b""))


def _unavailable(error: BaseException) -> Fault:
    return Fault(errors.UNAVAILABLE, f"the bus does not answer ({error!r}); is NATS running?")


class Telling:
    """What one manager has still to tell of one session, and what it told. Whoever drives it does the I/O.

    Attributes:
        after: the sequence of the message the next one follows; None: that is to be looked up.
    """

    def __init__(self, epoch: int, message_bytes: int) -> None:
        """`epoch`: of the session's shard; `message_bytes`: about how large a message gets."""
        self.after: int | None = 0
        self._epoch = epoch
        self._message_bytes = message_bytes
        self._due: list[values_pb2.StateChange] = []
        self._ends = 0
        self._sent: values_pb2.SessionStates | None = None
        self._restored: list[values_pb2.StateChange] = []

    @property
    def is_due(self) -> bool:
        """Whether something is to be done."""
        return bool(self._due) or self.after is None

    def add(self, changes: Sequence[values_pb2.StateChange]) -> None:
        """More to tell."""
        self._due += changes

    def restore(self, changes: Sequence[values_pb2.StateChange]) -> None:
        """A session as the store has it, whose earlier manager may not have told all: at the start only."""
        self._restored = list(changes)
        self.after = None

    def message(self) -> values_pb2.SessionStates:
        """What is to be told next: as much as a message holds, and at least one change."""
        chosen: list[values_pb2.StateChange] = []
        size = 0
        for change in self._due:
            size += change.ByteSize()
            if chosen and size > self._message_bytes:
                break
            chosen.append(change)
        ends = sum_of_ends(chosen, self._ends)
        self._sent = values_pb2.SessionStates(version=VERSION, epoch=self._epoch, changes=chosen, ends=ends)
        return self._sent

    def told(self, sequence: int) -> None:
        """The message that was sent last has come."""
        if self._sent is not None:
            del self._due[: len(self._sent.changes)]
            self._ends = self._sent.ends
            self._sent = None
        self.after = sequence

    def found(self, last: Last | None) -> bool:
        """What is the last message; False: a later manager's, and there is nothing more to tell from here."""
        if last is not None and last.message.epoch > self._epoch:
            return False
        if last is not None and last.message == self._sent:
            self.told(last.sequence)
            return True
        restored, self._restored = self._restored, []
        ends = last.message.ends if last is not None else 0
        if not self._ends and sum_of_ends(restored) == ends:
            # Whatever ended was told of; what has not ended is told again, and is no news to who knows it.
            restored = [change for change in restored if not has_ended(change)]
            self._ends = ends
        self._due = restored + self._due
        self.after = last.sequence if last is not None else 0
        return True
