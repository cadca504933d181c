"""Calls in JSON text, read a character at a time: `{"name": ..., "arguments": {...}}`, alone or in a list.

What is told of a text does not depend on the pieces it comes in. A call's arguments are told as they
come, in the very characters the model wrote; the name has to be known before.
"""

from __future__ import annotations

import json
from collections.abc import Container
from dataclasses import dataclass
from typing import Final, Literal

ARGUMENTS: Final = frozenset({"arguments", "parameters"})
"""What the formats call them; the latter is Llama's word."""
WRAPPER: Final = '{"tool_calls":'
NO_ARGUMENTS: Final = "{}"

_SPACE: Final = frozenset(" \t\r\n")
_KEYS: Final = ARGUMENTS | {"name", "type", "id", "tool_calls"}
"""What may stand in front of the name."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A call begins."""

    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the arguments' text of the call that has begun."""

    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The call that has begun is whole."""


Told = Begun | Arguments | Ended


class NoCallError(Exception):
    """The text is no call, or none of a known function."""


class JsonCalls:
    """Calls that are all of a text.

    Args:
        names: the functions there are.
    """

    def __init__(self, names: Container[str]) -> None:
        self._names = names
        self._call: _Call | None = None
        self._in_list = False
        self._compact = ""

    @property
    def inside(self) -> bool:
        """Whether a call's object is open."""
        return self._call is not None

    def push(self, char: str) -> list[Told]:
        """What a character tells.

        Raises:
            NoCallError: this is no text of calls.
        """
        if len(self._compact) < len(WRAPPER) and char not in _SPACE:
            self._compact += char
            if self._compact == WRAPPER:
                self._call = None
                return []
        if self._call is not None:
            told = self._call.push(char)
            if self._call.ended:
                self._call = None
            return told
        return self._between(char)

    def _between(self, char: str) -> list[Told]:
        if char == "{":
            self._call = _Call(self._names)
        elif char == "[" and not self._in_list:
            self._in_list = True
        elif char not in _SPACE and not (char in ",]}" and self._in_list):
            raise NoCallError
        return []


class _Call:
    """One call's object, behind its brace."""

    def __init__(self, names: Container[str]) -> None:
        self._names = names
        self._state: Literal["key", "colon", "value"] = "key"
        self._key = ""
        self._value: _Value | None = None
        self._name = ""
        self._early = ""
        self._has_arguments = False
        self.ended = False

    def push(self, char: str) -> list[Told]:
        if self._value is not None:
            return self._go_on(self._value, char)
        if char in _SPACE:
            return []
        if self._state == "colon":
            return self._expect(char, ":")
        if self._state == "key" and char == "}":
            return self._end()
        if self._state == "key" and char == ",":
            return []
        if self._state == "key" and char != '"':
            raise NoCallError
        if self._state == "value" and self._key == "name" and char != '"':
            raise NoCallError
        self._value = _Value(char)
        return self._tell_arguments(char)

    def _expect(self, char: str, wanted: str) -> list[Told]:
        if char != wanted:
            raise NoCallError
        self._state = "value"
        return []

    def _go_on(self, value: _Value, char: str) -> list[Told]:
        belongs = value.push(char)
        told = self._tell_arguments(char) if belongs else []
        if value.ended:
            self._value = None
            told += self._take(value)
        return told if belongs else told + self.push(char)

    def _tell_arguments(self, char: str) -> list[Told]:
        """Arguments that are an object are told as they come."""
        value = self._value
        if self._state != "value" or self._key not in ARGUMENTS or value is None or not value.is_object:
            return []
        self._has_arguments = True
        if not self._name:
            self._early += char
            return []
        return [Arguments(char)]

    def _take(self, value: _Value) -> list[Told]:
        if self._state == "key":
            self._key, self._state = value.text(), "colon"
            if not self._name and self._key not in _KEYS:
                raise NoCallError
            return []
        self._state = "key"
        if self._key == "name":
            return self._take_name(value.text())
        if self._key in ARGUMENTS and value.is_text:
            self._has_arguments = True
            self._early += value.text()
            return self._tell_early()
        return []

    def _take_name(self, name: str) -> list[Told]:
        if self._name or name not in self._names:
            raise NoCallError
        self._name = name
        return [Begun(name), *self._tell_early()]

    def _tell_early(self) -> list[Told]:
        if not self._name or not self._early:
            return []
        early, self._early = self._early, ""
        return [Arguments(early)]

    def _end(self) -> list[Told]:
        if not self._name:
            raise NoCallError
        self.ended = True
        return [*([] if self._has_arguments else [Arguments(NO_ARGUMENTS)]), Ended()]


class _Value:
    """A JSON value on its way, from its first character."""

    def __init__(self, first: str) -> None:
        self._chars = [first]
        self._depth = int(first in "{[")
        self._in_text = first == '"'
        self._escaped = False
        self.is_object = first == "{"
        self.is_text = first == '"'
        self.ended = False

    def push(self, char: str) -> bool:
        """Whether a character belongs to it."""
        if not self._in_text and not self._depth and char in ",]} \t\r\n":
            self.ended = True
            return False
        self._chars.append(char)
        if self._in_text:
            self._push_text(char)
        elif char == '"':
            self._in_text = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            self.ended = self._depth == 0
        return True

    def text(self) -> str:
        """The text it stands for.

        Raises:
            NoCallError: it is no text.
        """
        # What nests is not parsed: a model may write it deeper than a parser goes.
        if not self.is_text:
            raise NoCallError
        try:
            return str(json.loads("".join(self._chars), strict=False))
        except ValueError:
            raise NoCallError from None

    def _push_text(self, char: str) -> None:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_text = False
            self.ended = self._depth == 0
