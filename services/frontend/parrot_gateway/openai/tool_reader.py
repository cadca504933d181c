"""Tells a model's text apart into what it says and the calls it makes, as it comes.

Calls stand between `<tool_call>` and `</tool_call>`, as models of the Hermes and Qwen kind write them and
as the prompt asks of all others; or the whole text is JSON: a call, a list of calls, or an object whose one
member `tool_calls` is such a list, as Llama and Mistral write them and as a guide has them. What is told
does not depend on the pieces the text comes in. What is no call of a known function is text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from parrot_gateway.openai import json_calls
from parrot_gateway.openai.json_calls import JsonCalls, NoCallError

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"
HELD_CHARS: Final = 4_096
"""A call whose name does not come within so many characters is text."""


@dataclass(frozen=True, slots=True)
class Said:
    """Text that is no call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call begins; `index`: its place among the calls, from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments, which are JSON text."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A call is whole."""

    index: int


Event = Said | CallBegun | CallArguments | CallEnded


class Reader(Protocol):
    """Reads one output."""

    def feed(self, text: str) -> list[Event]:
        """What the text that comes next tells."""
        ...

    def finish(self) -> list[Event]:
        """What is left to tell at the text's end."""
        ...


class PlainReader:
    """All of it is text."""

    def feed(self, text: str) -> list[Event]:
        return [Said(text)] if text else []

    def finish(self) -> list[Event]:
        return []


class NamedReader:
    """All of it is the arguments of a call that had to be made."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = False

    def feed(self, text: str) -> list[Event]:
        if not text:
            return []
        return [*self._begin(), CallArguments(0, text)]

    def finish(self) -> list[Event]:
        return [*self._begin(), CallEnded(0)]

    def _begin(self) -> list[Event]:
        if self._begun:
            return []
        self._begun = True
        return [CallBegun(0, self._name)]


class ToolReader:
    """Text with calls in it.

    Args:
        names: the functions there are.
        tagged: calls may stand between tags; else only the whole text may be JSON of calls.
    """

    def __init__(self, names: Collection[str], *, tagged: bool = True) -> None:
        self._names = frozenset(names)
        self._tagged = tagged
        self._json = JsonCalls(self._names)
        self._push: Callable[[str], list[Event]] = self._push_whole
        self._made = 0
        self._open = False
        self._held = ""
        """Characters of which it isn't known yet whether they are said."""
        self._pause = ""
        """White space that is said if something follows that is no call."""

    def feed(self, text: str) -> list[Event]:
        events: list[Event] = []
        at = 0
        while at < len(text):
            end = self._end_of_said(text, at)
            events += self._say(text[at:end]) if end > at else self._push(text[at])
            at = max(end, at + 1)
        return _joined(events)

    def finish(self) -> list[Event]:
        events = self._end_call()
        held, self._held = self._held, ""
        if held and self._push != self._skip:
            events += self._say(held)
        if self._pause and not self._made:
            events.append(Said(self._pause))
        return _joined(events)

    def _end_of_said(self, text: str, at: int) -> int:
        """Up to where the text from a place on is said for certain: at once, and not by the character."""
        if self._held or self._push != self._push_text:
            return at
        end = text.find(OPEN[0], at) if self._tagged else -1
        return len(text) if end < 0 else end

    def _push_whole(self, char: str) -> list[Event]:
        """The text may be JSON of calls from its beginning."""
        if not self._made:
            self._held += char
        return self._push_json(char)

    def _push_text(self, char: str) -> list[Event]:
        """Outside of tags; what may begin one is held."""
        self._held += char
        if self._tagged and OPEN.startswith(self._held):
            if self._held == OPEN:
                self._json, self._push = JsonCalls(self._names), self._push_tagged
            return []
        if len(self._held) > 1:
            return self._say_first()
        said, self._held = self._held, ""
        return self._say(said)

    def _push_tagged(self, char: str) -> list[Event]:
        """Behind a tag; once a call has begun nothing is held."""
        if char == "<" and not self._json.inside:
            self._push = self._push_end
            return self._push_end(char)
        if self._held:
            self._held += char
        return self._push_json(char)

    def _push_json(self, char: str) -> list[Event]:
        try:
            events = self._told(self._json.push(char))
        except NoCallError:
            return self._break_off()
        return self._break_off() if len(self._held) > HELD_CHARS else events

    def _push_end(self, char: str) -> list[Event]:
        """In the tag that ends; a tag without a call in it is text."""
        self._held += char
        if not self._held.startswith(OPEN):
            if self._held == CLOSE:
                self._held, self._push = "", self._push_text
            elif not CLOSE.startswith(self._held):
                self._push = self._push_text
                return self._say_first()
            return []
        return self._break_off()

    def _skip(self, _char: str) -> list[Event]:
        """Behind a call that broke off: what follows is neither call nor text."""
        return []

    def _break_off(self) -> list[Event]:
        """What was read as calls is none, from here on or from its beginning: then all of it was said.

        What is held is not looked through again, so that a text is read in time linear in it.
        """
        held, self._held = self._held, ""
        if not held:
            self._push = self._skip
            return self._end_call()
        self._push = self._push_text
        return self._say(held[:-1]) + self._push(held[-1])

    def _say_first(self) -> list[Event]:
        """Only the first of the characters that are held is known to begin no tag."""
        events = self._say(self._held[0])
        self._held = self._held[1:]
        return events + self._again()

    def _again(self) -> list[Event]:
        held, self._held = self._held, ""
        return [event for char in held for event in self._push(char)]

    def _say(self, text: str) -> list[Event]:
        """Text that is said, its white space only once it is known that no call follows."""
        body = text.rstrip()
        if not body:
            self._pause += text
            return []
        pause, self._pause = self._pause, text[len(body) :]
        return [Said(pause + body)]

    def _told(self, told: Iterable[json_calls.Told]) -> list[Event]:
        events: list[Event] = []
        for one in told:
            if isinstance(one, json_calls.Begun):
                # From here on it is a call, whatever follows.
                self._held, self._pause, self._open = "", "", True
                events.append(CallBegun(self._made, one.name))
                self._made += 1
            elif isinstance(one, json_calls.Arguments):
                events.append(CallArguments(self._made - 1, one.text))
            else:
                events += self._end_call()
        return events

    def _end_call(self) -> list[Event]:
        if not self._open:
            return []
        self._open = False
        return [CallEnded(self._made - 1)]


def _joined(events: Iterable[Event]) -> list[Event]:
    """The same with neighbours made one."""
    made: list[Event] = []
    for event in events:
        last = made[-1] if made else None
        if isinstance(event, Said) and isinstance(last, Said):
            made[-1] = Said(last.text + event.text)
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments):
            made[-1] = CallArguments(event.index, last.text + event.text)
        else:
            made.append(event)
    return made
