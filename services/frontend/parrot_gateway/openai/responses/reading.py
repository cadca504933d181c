"""What a model wrote, read for what it says and the functions it calls, and told on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from parrot_gateway.events import EVENT_CHARS
from parrot_gateway.openai.responses.narration import Event, Narrator
from parrot_gateway.openai.responses.record import Record
from parrot_gateway.openai.responses.resource import Told
from parrot_gateway.openai.tool_reader import CallArguments, CallBegun, CallEnded, Said
from parrot_gateway.openai.tool_reader import Event as Read


class Teller:
    """Tells a narrator what a text means, as it comes. Every method gives the events that follow."""

    def __init__(self, narrator: Narrator, record: Record) -> None:
        self._narrator = narrator
        self._reader = record.reader()

    def text(self, text: str) -> Iterator[Event]:
        """The text goes on."""
        for start in range(0, len(text), EVENT_CHARS):
            yield from self._tell(self._reader.feed(text[start : start + EVENT_CHARS]))

    def end(self, told: Told, logprobs: list[dict[str, Any]] | None = None) -> Iterator[Event]:
        """It is over; see `Narrator.end`."""
        if told.status in {"completed", "incomplete"}:
            # Whether a call that was begun is whole, the text's own end says.
            left = [one for one in self._reader.finish() if not isinstance(one, CallEnded)]
            yield from self._tell(left)
        yield from self._narrator.end(told, logprobs)

    def _tell(self, read: Iterable[Read]) -> Iterator[Event]:
        for one in read:
            if isinstance(one, Said):
                yield from self._narrator.text(one.text)
            elif isinstance(one, CallBegun):
                yield from self._narrator.call(one.name)
            elif isinstance(one, CallArguments):
                yield from self._narrator.arguments(one.text)
            else:
                yield from self._narrator.call_ended()
