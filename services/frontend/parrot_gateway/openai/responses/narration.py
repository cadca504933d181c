"""A response, told event by event.

The same text gives the same events under the same numbers, however it is cut: an event has the number of
the last thing it tells of, where each begin and end is one thing, and so is each character of a text. So
numbers grow by more than one where a piece has several characters, and any gateway can go on after any
number, from the text alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from parrot_gateway.openai.responses.resource import Status, Told, resource

_TEXT_DELTA = "response.output_text.delta"
_ARGUMENTS_DELTA = "response.function_call_arguments.delta"


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its numbers are `first` to `last`, its own is `last`."""

    kind: str
    first: int
    last: int
    members: dict[str, Any]

    def after(self, number: int) -> Event | None:
        """What of it comes after `number`; None: nothing."""
        if number >= self.last:
            return None
        if number < self.first:
            return self
        # Only a delta has several numbers: one a character.
        text = self.members["delta"][number + 1 - self.first :]
        return replace(self, first=number + 1, members={**self.members, "delta": text})

    @property
    def data(self) -> dict[str, Any]:
        """The event as it is sent."""
        return {"type": self.kind, "sequence_number": self.last, **self.members}


class _Open(Protocol):
    """An output item that is being written."""

    def begin(self) -> Iterator[Event]: ...
    def add(self, text: str) -> Iterator[Event]: ...
    def end(self, status: str) -> Iterator[Event]: ...


Emit = Callable[..., Event]


class Narrator:
    """Tells one response, once, in order. Every method gives the events that follow."""

    def __init__(self, told: Told) -> None:
        """`told`: the response, whose end is not told before its time."""
        self._told = replace(told, model="", output=(), usage=None, failure=None)
        self._next = 0
        self._running = False
        self._open: _Open | None = None
        self.output: list[dict[str, Any]] = []

    @property
    def last(self) -> int:
        """The number of the last event so far; -1 for none."""
        return self._next - 1

    def begin(self) -> Iterator[Event]:
        """It is there."""
        status: Status = "queued" if self._told.record.background else "in_progress"
        yield self._state("response.created", status)
        if self._told.record.background:
            yield self._state("response.queued", status)
        else:
            yield from self.run()

    def run(self) -> Iterator[Event]:
        """It runs; said once."""
        if not self._running:
            self._running = True
            yield self._state("response.in_progress", "in_progress")

    def text(self, text: str) -> Iterator[Event]:
        """The model says something."""
        if not isinstance(self._open, _Message):
            yield from self._start(partial(_Message, self._emit, self._told, self.output))
        yield from self._add(text)

    def call(self, name: str) -> Iterator[Event]:
        """The model begins to call a function."""
        yield from self._start(partial(_Call, self._emit, self._told, self.output, name))

    def arguments(self, text: str) -> Iterator[Event]:
        """More of the arguments of the function it calls."""
        yield from self._add(text)

    def call_ended(self) -> Iterator[Event]:
        """The call it made is whole."""
        yield from self._close("completed")

    def end(self, told: Told, logprobs: list[dict[str, Any]] | None = None) -> Iterator[Event]:
        """It is over; `told` says how, its output aside, which is the narrator's own.

        What was begun before a failure stays as it is; only text that is whole gets an end.
        """
        yield from self.run()
        if told.status in {"completed", "incomplete"}:
            if self._open is None and not self.output:
                yield from self._start(partial(_Message, self._emit, self._told, self.output))
            if isinstance(self._open, _Message) and logprobs is not None:
                self._open.logprobs = logprobs
            yield from self._close(told.status)
            told = replace(told, output=tuple(self.output))
        if told.status != "cancelled":
            yield self._emit(f"response.{told.status}", response=resource(told))

    def error(self, members: dict[str, Any]) -> Event:
        """The last event of a response that did not come to a good end."""
        return self._emit("error", **members)

    def interrupted(self, members: dict[str, Any]) -> Event:
        """The last event of a stream of a response that goes on.

        It tells nothing of the response: whoever goes on after its number misses nothing.
        """
        return Event("error", self.last, self.last, members)

    def skip_to(self, number: int) -> None:
        """What is told from here on comes after `number`: what led there can't be told any more."""
        self._next = max(self._next, number + 1)

    def _start(self, make: Callable[[], _Open]) -> Iterator[Event]:
        yield from self.run()
        # Its place is behind the one before it, which has to be whole.
        yield from self._close("completed")
        self._open = make()
        yield from self._open.begin()

    def _add(self, text: str) -> Iterator[Event]:
        if self._open is not None and text:
            yield from self._open.add(text)

    def _close(self, status: str) -> Iterator[Event]:
        if self._open is not None:
            yield from self._open.end(status)
            self._open = None

    def _state(self, kind: str, status: Status) -> Event:
        return self._emit(kind, response=resource(replace(self._told, status=status)))

    def _emit(self, kind: str, things: int = 1, /, **members: Any) -> Event:
        first = self._next
        self._next += things
        return Event(kind, first, self._next - 1, members)


class _Message:
    """A message."""

    def __init__(self, emit: Emit, told: Told, output: list[dict[str, Any]]) -> None:
        self._emit = emit
        self._output = output
        self._index = len(output)
        self._id = told.response.output_id("msg", self._index)
        self._pieces: list[str] = []
        self._tells_logprobs = told.record.logprobs
        self.logprobs: list[dict[str, Any]] = []

    def begin(self) -> Iterator[Event]:
        item = self._item("in_progress", [])
        yield self._emit("response.output_item.added", output_index=self._index, item=item)
        yield self._emit("response.content_part.added", **self._place, part=self._part(""))

    def add(self, text: str) -> Iterator[Event]:
        self._pieces.append(text)
        yield self._emit(_TEXT_DELTA, len(text), **self._place, delta=text, logprobs=[])

    def end(self, status: str) -> Iterator[Event]:
        text = "".join(self._pieces)
        part = self._part(text)
        logprobs = part["logprobs"]
        yield self._emit("response.output_text.done", **self._place, text=text, logprobs=logprobs)
        yield self._emit("response.content_part.done", **self._place, part=part)
        item = self._item(status, [part])
        self._output.append(item)
        yield self._emit("response.output_item.done", output_index=self._index, item=item)

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._id, "output_index": self._index, "content_index": 0}

    def _part(self, text: str) -> dict[str, Any]:
        logprobs = self.logprobs if self._tells_logprobs else []
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }


class _Call:
    """A call of a function."""

    def __init__(self, emit: Emit, told: Told, output: list[dict[str, Any]], name: str) -> None:
        self._emit = emit
        self._output = output
        self._index = len(output)
        self._id = told.response.output_id("fc", self._index)
        self._call_id = told.response.call_id(self._index)
        self._name = name
        self._pieces: list[str] = []

    def begin(self) -> Iterator[Event]:
        item = self._item("in_progress", "")
        yield self._emit("response.output_item.added", output_index=self._index, item=item)

    def add(self, text: str) -> Iterator[Event]:
        self._pieces.append(text)
        yield self._emit(_ARGUMENTS_DELTA, len(text), **self._place, delta=text)

    def end(self, status: str) -> Iterator[Event]:
        text = "".join(self._pieces)
        yield self._emit(
            "response.function_call_arguments.done", **self._place, name=self._name, arguments=text
        )
        item = self._item(status, text)
        self._output.append(item)
        yield self._emit("response.output_item.done", output_index=self._index, item=item)

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._id, "output_index": self._index}

    def _item(self, status: str, arguments: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "function_call",
            "status": status,
            "call_id": self._call_id,
            "name": self._name,
            "arguments": arguments,
        }
