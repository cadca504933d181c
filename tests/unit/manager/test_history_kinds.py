"""All that an event or a command can hold can be read from a recording again."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum

from parrot_manager import history
from parrot_manager.core.commands import Command
from parrot_manager.core.events import Event
from parrot_manager.core.state import Policy


def kinds(found: set[type], hint: object) -> Iterator[type]:
    """Dataclasses and enumerations in a type, and in the types of their fields."""
    for inner in typing.get_args(hint):
        yield from kinds(found, inner)
    if not isinstance(hint, type) or hint in found:
        return
    if issubclass(hint, Enum):
        found.add(hint)
        yield hint
    elif is_dataclass(hint):
        found.add(hint)
        yield hint
        hints = typing.get_type_hints(hint)
        for field in fields(hint):
            if field.init:
                yield from kinds(found, hints[field.name])


def test_every_kind_of_thing_that_is_recorded_can_be_read() -> None:
    found: set[type] = set()
    for root in (Event, Command, Policy):
        list(kinds(found, root))
    assert len(found) > 80, "the search itself has to find them"
    missing = sorted(kind.__name__ for kind in found if history._KINDS.get(kind.__name__) is not kind)
    assert missing == []
