"""What the messages of a session's log amount to: a function of them, the same wherever they are read.

Of states, only what changes something is news, and what has ended stays as it is: a manager that takes a
session over tells again what its last one may have told. Of text, only what goes on where the variable's
text ends: what two attempts wrote alike is told once, and what follows a message that the bus did not take
reached nobody, and is told by the attempt that makes it anew, or as the rest of the value. A rest there
nearly always is: an output's last piece goes with its value, and one that is transformed comes whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from parrot_proto.values.v1 import values_pb2
from parrot_runtime.values.bus import AGED_S
from parrot_runtime.values.states import has_ended

StateChange = values_pb2.StateChange


@dataclass(frozen=True, slots=True)
class Added:
    """Text a variable got, at an offset in bytes of UTF-8 from its start."""

    variable_id: str
    offset_bytes: int
    text: str


@dataclass(frozen=True, slots=True)
class Rest:
    """What a variable's value has from an offset on: told with the variable's end, and nowhere before."""

    variable_id: str
    offset_bytes: int


News = StateChange | Added | Rest


@dataclass(slots=True)
class _Text:
    """A variable's text as far as the log has it, without a gap from `base_bytes` on."""

    base_bytes: int
    data: bytearray = field(default_factory=bytearray)
    attempt: int = 0

    @property
    def end_bytes(self) -> int:
        """How far it goes."""
        return self.base_bytes + len(self.data)

    def add(self, delta: values_pb2.Delta) -> Added | None:
        """What a delta adds; None when it is old, of a superseded attempt, or behind a gap."""
        have = self.end_bytes
        if delta.attempt < self.attempt or delta.offset_bytes > have:
            return None
        self.attempt = delta.attempt
        new = delta.text.encode()[have - delta.offset_bytes :]
        self.data += new
        return Added(delta.variable_id, have, new.decode(errors="replace")) if new else None


class Fold:
    """The state of a session after some messages of its log.

    Attributes:
        states: of every thing that was told of, by kind and id, in the order they came up.
        session_state: the session's; empty: nothing was told of it, so it is open.
    """

    def __init__(self) -> None:
        self.states: dict[tuple[str, str], StateChange] = {}
        self.session_state = ""
        self._texts: dict[str, _Text] = {}

    def add_states(self, message: values_pb2.SessionStates) -> list[News]:
        """What is new in it."""
        found: list[News] = []
        for change in message.changes:
            before = self.states.get((change.kind, change.id))
            if before is None or (before != change and not has_ended(before)):
                found += self._keep(change)
        return found

    def add_step(self, message: values_pb2.StepDeltas, age_s: float) -> list[News]:
        """What is new in it; `age_s`: how old it is."""
        found: list[News] = []
        for delta in message.deltas:
            if self._is_over(delta.variable_id):
                continue
            text = self._texts.get(delta.variable_id)
            if text is None:
                headless = age_s > AGED_S
                text = self._texts[delta.variable_id] = _Text(delta.offset_bytes if headless else 0)
            added = text.add(delta)
            if added is not None:
                found.append(added)
        return found

    def texts(self) -> Iterator[Added]:
        """The text so far of what is being written, where the log has it from its start."""
        for variable_id, text in self._texts.items():
            if text.data and not text.base_bytes:
                yield Added(variable_id, 0, text.data.decode(errors="replace"))

    @property
    def is_streaming(self) -> bool:
        """Whether some variable is being written."""
        return any(
            change.state == "streaming" for (kind, _), change in self.states.items() if kind == "variable"
        )

    def _keep(self, change: StateChange) -> list[News]:
        self.states[change.kind, change.id] = change
        if change.kind == "session":
            self.session_state = change.state
        elif change.kind == "variable" and has_ended(change):
            text = self._texts.pop(change.id, None)
            told_bytes = text.end_bytes if text is not None else 0
            is_made = bool(change.producer_call_id or change.producer_block_id)
            # What a client set it has.
            if change.state == "ready" and is_made and told_bytes < change.size_bytes:
                return [Rest(change.id, told_bytes), change]
        return [change]

    def _is_over(self, variable_id: str) -> bool:
        known = self.states.get(("variable", variable_id))
        return known is not None and has_ended(known)
