"""Ids of a session's events: `<session>:<number>`, the same on every gateway and after every restart.

A number is a message's sequence in the stream of the bus, and which of its events it is: numbers ascend,
with gaps. Number 0 of a sequence stands before all its events.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Final

from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.values.bus import DELTA_AGE_S
from parrot_runtime.values.session_entries import Entry
from parrot_runtime.values.session_log import SessionLog

PART_BITS: Final = 17
"""A message has fewer events: each carries a character of at most 128 Ki, or a change of some dozen bytes."""
SURE_S: Final = DELTA_AGE_S - 30
"""What is older may have gone with its age."""

_EVENT_ID = re.compile(r"([a-z0-9-]{1,64}):([0-9]{1,18})\Z")


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a log: behind so many events of a message, and of everything before it."""

    sequence: int
    part: int

    @property
    def is_beginning(self) -> bool:
        """Whether nothing is before it."""
        return self.sequence == 1 and not self.part

    def event_id(self, session_id: str) -> str:
        """The id of the event that ends here."""
        return f"{session_id}:{(self.sequence << PART_BITS) + self.part}"


def place_of(last_event_id: str, session_id: str) -> Place | None:
    """The place an event's id names; None for none.

    Raises:
        Fault: `invalid_request`, when it is no id of this session's events.
    """
    if not last_event_id:
        return None
    match = _EVENT_ID.match(last_event_id)
    if match is None or match[1] != session_id:
        raise unknown(session_id)
    number = int(match[2])
    place = Place(number >> PART_BITS, number & ((1 << PART_BITS) - 1))
    if not place.sequence:
        raise unknown(session_id)
    return place


def unknown(session_id: str) -> Fault:
    """What is none of a session's event ids is refused, whatever else it may be."""
    return Fault(
        errors.INVALID_REQUEST,
        "Last-Event-ID is none of this session's event ids; send one of them, or none to begin anew",
        field="Last-Event-ID",
        session_id=session_id,
    )


def expired(session_id: str) -> Fault:
    """What came after an event is not kept for ever."""
    return Fault(
        errors.EXPIRED_CURSOR,
        "what followed this event is not kept any more; send no Last-Event-ID to begin with how it is now",
        field="Last-Event-ID",
        session_id=session_id,
    )


@dataclass(frozen=True, slots=True)
class Start:
    """Where a reader begins: an entry's number, and how many of its parts it has."""

    number: int
    parts: int


async def find(log: SessionLog, place: Place, session_id: str) -> Start | None:
    """Where a place is in a log; None: before what the log keeps.

    Raises:
        Fault: `invalid_request`, when the session has no such event; `expired_cursor`, when what came
            after it may have gone with its age; `unavailable`.
    """
    behind = place.sequence if place.part else place.sequence - 1
    if not behind:
        return _from_the_beginning(log, session_id)
    if behind > log.last:
        raise unknown(session_id)
    number = log.entries.number_of(behind)
    if log.entries.first and number == log.entries.first:
        return None
    entry = log.entries.get(number)
    if entry is None or (entry.sequence != behind and number == 0):
        raise expired(session_id)
    if entry.sequence != behind:
        raise unknown(session_id)
    if _is_old(entry) and (number + 1 < log.entries.end or log.fold.is_streaming):
        raise expired(session_id)
    if place.part > len(await log.parts(entry)):
        raise unknown(session_id)
    return Start(number, place.part) if place.part else Start(number + 1, 0)


def _from_the_beginning(log: SessionLog, session_id: str) -> Start | None:
    """For one who has nothing, because nothing had happened yet."""
    if log.entries.first:
        return None
    oldest = log.entries.get(0)
    if oldest is not None and _is_old(oldest):
        raise expired(session_id)
    return Start(0, 0)


def _is_old(entry: Entry) -> bool:
    return entry.at_s < time.time() - SURE_S
