"""What the machine was told, and what it commanded, as lines of a file: to be replayed.

The machine is a function of its events and their times, so a recorded history replays to the very
same commands, or the machine has changed its mind. A history holds what users said: values and
prompts are in it.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TextIO

from parrot_manager.core import (
    commands,
    conditions,
    criteria,
    events,
    marks,
    model,
    native_events,
    shapes,
    state,
)
from parrot_manager.core.blocks import definitions, questions
from parrot_manager.core.blocks import model as blocks
from parrot_manager.core.commands import Command
from parrot_manager.core.events import Event
from parrot_manager.core.machine import Machine
from parrot_manager.core.scheduling import policies
from parrot_manager.core.state import Policy

_MODULES: Final = (
    model,
    events,
    native_events,
    commands,
    criteria,
    conditions,
    shapes,
    state,
    policies,
    definitions,
    questions,
    blocks,
    marks,
)


@dataclass(frozen=True, slots=True)
class Step:
    """One event, when it happened, and what the machine said to it."""

    event: Event
    now_ms: int
    told: tuple[Command, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """A step that went another way than it was recorded; `number` counts from 1."""

    number: int
    step: Step
    told: tuple[Command, ...]


class Recorder:
    """Writes a history. The first line is the machine's policy."""

    def __init__(self, path: Path, policy: Policy) -> None:
        """Begins a file anew."""
        self._file: TextIO = path.open("w", encoding="utf-8", buffering=1 << 16)
        self._write([encode(policy)])

    def record(self, event: Event, now_ms: int, told: Sequence[Command]) -> None:
        """Adds a step."""
        self._write([encode(event), now_ms, encode(tuple(told))])

    def close(self) -> None:
        """Writes what is left."""
        self._file.close()

    def _write(self, line: list[Any]) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")


def read(lines: Iterable[str]) -> tuple[Policy, Iterator[Step]]:
    """A history's policy and its steps.

    Raises:
        ValueError: it is no history of this version.
    """
    found = iter(lines)
    policy = decode(json.loads(next(found))[0])
    if not isinstance(policy, Policy):
        raise ValueError("a history begins with the machine's policy")
    return policy, (_step(json.loads(line)) for line in found)


def replay(policy: Policy, steps: Iterable[Step]) -> Iterator[Difference]:
    """Plays steps to a new machine; gives those it goes otherwise about."""
    machine = Machine(policy)
    for number, step in enumerate(steps, 1):
        told = tuple(machine.step(step.event, step.now_ms))
        if told != step.told:
            yield Difference(number, step, told)


def encode(thing: object) -> Any:
    """Something of the core's, as JSON knows it."""
    if is_dataclass(thing) and not isinstance(thing, type):
        named = {field.name: encode(getattr(thing, field.name)) for field in fields(thing) if field.init}
        return {"_": type(thing).__name__, **named}
    if isinstance(thing, Enum):
        return {"_": type(thing).__name__, "": thing.value}
    if isinstance(thing, bytes):
        return {"_": "bytes", "": b64encode(thing).decode()}
    if isinstance(thing, dict):
        return {"_": "dict", "": [[encode(key), encode(value)] for key, value in thing.items()]}
    if isinstance(thing, tuple | list):
        return [encode(item) for item in thing]
    return thing


def decode(data: Any) -> Any:
    """What was encoded; lists come back as tuples."""
    if isinstance(data, list):
        return tuple(map(decode, data))
    if not isinstance(data, dict):
        return data
    name = data["_"]
    if name == "bytes":
        return b64decode(data[""])
    if name == "dict":
        return {decode(key): decode(value) for key, value in data[""]}
    kind = _KINDS[name]
    if issubclass(kind, Enum):
        return kind(data[""])
    return kind(**{key: decode(value) for key, value in data.items() if key != "_"})


def _step(line: list[Any]) -> Step:
    event, now_ms, told = line
    return Step(decode(event), now_ms, decode(told))


def _kinds(modules: Iterable[ModuleType]) -> dict[str, type]:
    return {
        name: thing
        for module in modules
        for name, thing in vars(module).items()
        if isinstance(thing, type) and (is_dataclass(thing) or issubclass(thing, Enum))
    }


_KINDS: Final = _kinds(_MODULES)
