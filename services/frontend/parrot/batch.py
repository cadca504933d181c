"""Calls that were made and not yet sent, and the requests they travel in."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from parrot.errors import SessionError
from parrot.variable import SemanticVariable

if TYPE_CHECKING:
    from parrot.session import Session

BATCH_CALLS = 4096
BATCH_BYTES = 32 << 20
"""What the server takes in one request: calls, and bytes of all their templates, values, transforms and
guides."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a semantic function, with the text or variable of each placeholder.

    Attributes:
        sampling: of each output, as the server's API takes it.
        transforms: of the placeholders that have some.
    """

    name: str
    model: str
    template: str
    inputs: Mapping[str, str | SemanticVariable]
    outputs: Mapping[str, SemanticVariable]
    sampling: Mapping[str, dict[str, Any]]
    transforms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def to_wire(self) -> dict[str, Any]:
        """The call as the server's API takes it."""
        placeholders: list[dict[str, Any]] = []
        for name, given in self.inputs.items():
            what = {"semantic_var_id": given.id} if isinstance(given, SemanticVariable) else {"value": given}
            placeholders.append({"name": name, "in_out": "in", **what})
        for name, output in self.outputs.items():
            placeholders.append(
                {
                    "name": name,
                    "in_out": "out",
                    "semantic_var_id": output.id,
                    "sampling": self.sampling[name],
                }
            )
        for placeholder in placeholders:
            if transforms := self.transforms.get(placeholder["name"]):
                placeholder["transforms"] = list(transforms)
        wire = {"name": self.name, "prompt": self.template, "placeholders": placeholders}
        return wire | {"model": self.model} if self.model else wire

    def size_bytes(self) -> int:
        """Its template, values, transforms and guides, or a little more."""
        texts = [given for given in self.inputs.values() if isinstance(given, str)]
        texts += [name for names in self.transforms.values() for name in names]
        texts += [json.dumps(s["guide"], ensure_ascii=False) for s in self.sampling.values() if "guide" in s]
        return len(self.template.encode()) + sum(len(text.encode()) for text in texts)


@dataclass(frozen=True, slots=True)
class Request:
    """One request to the session: what it sends, and the calls and values that are accepted with it."""

    method: str
    path: str
    body: dict[str, Any]
    calls: list[Call] = field(default_factory=list)
    values: list[SemanticVariable] = field(default_factory=list)


class Pending:
    """The calls of a session that were not sent yet."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._known: set[str] = set()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to send."""
        return not self._calls

    def add(self, call: Call, session: Session) -> None:
        """Takes in a call and binds its variables to the session.

        Raises:
            SessionError: one of its variables can't be used so.
        """
        inputs = [given for given in call.inputs.values() if isinstance(given, SemanticVariable)]
        outputs = list(call.outputs.items())
        for variable in inputs:
            _check_input(variable, session)
        for _, variable in outputs:
            _check_output(variable, session)
        if len({variable.id for _, variable in outputs}) < len(outputs):
            raise SessionError(f"{call.name}: one variable is given for two outputs")
        for variable in inputs:
            if variable._text is None:
                variable._session = session
        for name, variable in outputs:
            variable._session = session
            variable._produced = True
            variable.name = variable.name or name
        self._calls.append(call)

    def take(self) -> tuple[list[Call], list[SemanticVariable]]:
        """The calls whose inputs are set or made by a call, and the set variables they need.

        A call that waits for a variable to be set, or for such a call, stays.
        """
        taken: list[Call] = []
        made: set[str] = set()
        before = -1
        while before < len(taken):
            before = len(taken)
            waiting: list[Call] = []
            for call in self._calls:
                if self._missing(call, made) is None:
                    taken.append(call)
                    made |= {output.id for output in call.outputs.values()}
                else:
                    waiting.append(call)
            self._calls = waiting
        self._known |= made
        return taken, self._values(taken)

    def confirm(self, values: list[SemanticVariable]) -> None:
        """Notes that the server has these values."""
        self._known |= {value.id for value in values}

    def missing_for(self, variable: SemanticVariable) -> SemanticVariable | None:
        """A variable that nobody set and that keeps the call of `variable` from being sent."""
        for call in self._calls:
            if any(output is variable for output in call.outputs.values()):
                return self._missing(call, set())
        return None

    def _missing(self, call: Call, made: set[str]) -> SemanticVariable | None:
        for given in call.inputs.values():
            if isinstance(given, SemanticVariable):
                there = given._text is not None or given.id in self._known or given.id in made
                if not there:
                    return given
        return None

    def _values(self, calls: list[Call]) -> list[SemanticVariable]:
        needed = {
            given.id: given
            for call in calls
            for given in call.inputs.values()
            if isinstance(given, SemanticVariable) and given.id not in self._known
        }
        return list(needed.values())


def requests(calls: list[Call], values: list[SemanticVariable]) -> Iterator[Request]:
    """The requests that send calls and values: one, unless they exceed what a request may hold."""
    if not calls:
        return
    sizes = [call.size_bytes() for call in calls]
    total = sum(sizes) + sum(len((value._text or "").encode()) for value in values)
    if len(calls) <= BATCH_CALLS and total <= BATCH_BYTES:
        yield _submit(calls, values)
        return
    for value in values:
        yield Request("PUT", f"/variables/{value.id}", _value(value), values=[value])
    batch: list[Call] = []
    batch_bytes = 0
    for call, size in zip(calls, sizes, strict=True):
        if batch and (len(batch) == BATCH_CALLS or batch_bytes + size > BATCH_BYTES):
            yield _submit(batch, [])
            batch, batch_bytes = [], 0
        batch.append(call)
        batch_bytes += size
    yield _submit(batch, [])


def _submit(calls: list[Call], values: list[SemanticVariable]) -> Request:
    body: dict[str, Any] = {"calls": [call.to_wire() for call in calls]}
    if values:
        body["variables"] = [{"semantic_var_id": value.id, **_value(value)} for value in values]
    return Request("POST", "/calls", body, calls, values)


def _value(variable: SemanticVariable) -> dict[str, Any]:
    named = {"name": variable.name} if variable.name else {}
    return {"value": variable._text or "", **named}


def _check_input(variable: SemanticVariable, session: Session) -> None:
    if variable._text is None and variable._session not in {None, session}:
        raise SessionError(f"{variable!r} belongs to another session; get() its text first")


def _check_output(variable: SemanticVariable, session: Session) -> None:
    if variable._produced or variable._text is not None:
        raise SessionError(f"{variable!r} has a text already, or a call that makes it")
    if variable._session not in {None, session}:
        raise SessionError(f"{variable!r} belongs to another session")
