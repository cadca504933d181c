"""What a session sends: calls, and blocks that unfold on the server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from parrot.prompts import Message
from parrot.variable import SemanticVariable

if TYPE_CHECKING:
    from parrot.conditions import Condition
    from parrot.session import Session

Variable = SemanticVariable[Any]
Accepted = Callable[["Session", str], None]
"""What is done, on the background loop, when the server took a call; it gets the session and the id."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a semantic function, with the text or variable of each placeholder.

    Attributes:
        sampling: of each output, as the server's API takes it.
        transforms: of the placeholders that have some.
        messages: of a chat, instead of a template.
        native: of a call that no model runs, as the server's API takes it; instead of a template.
        when: the call runs only if this holds.
        criteria: of the outputs that will be read, what is wanted of them, as `criteria.to_wire` has it.
        on_accepted: see `Accepted`.
    """

    name: str
    model: str
    template: str
    inputs: Mapping[str, str | Variable]
    outputs: Mapping[str, Variable]
    sampling: Mapping[str, dict[str, Any]]
    transforms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    messages: tuple[Message, ...] = ()
    native: Mapping[str, Any] | None = None
    when: Condition | None = None
    criteria: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    on_accepted: Accepted | None = None

    def reads(self) -> Iterator[Variable]:
        """The variables among its inputs, and the one its condition is about."""
        for given in self.inputs.values():
            if isinstance(given, SemanticVariable):
                yield given
        if self.when is not None:
            yield self.when.variable

    def to_wire(self) -> dict[str, Any]:
        """The call as the server's API takes it."""
        placeholders = [self._input(name, given) for name, given in self.inputs.items()]
        placeholders += [self._output(name, output) for name, output in self.outputs.items()]
        wire: dict[str, Any] = {"name": self.name, **self._prompt(), "placeholders": placeholders}
        if self.model:
            wire["model"] = self.model
        if self.when is not None:
            wire["when"] = self.when.to_wire()
        return wire

    def size_bytes(self) -> int:
        """Its prompt, values, transforms, guides and condition, or a little more."""
        texts = [given for given in self.inputs.values() if isinstance(given, str)]
        texts += [name for names in self.transforms.values() for name in names]
        texts += [json.dumps(s["guide"], ensure_ascii=False) for s in self.sampling.values() if "guide" in s]
        texts += [message.content for message in self.messages]
        if self.native is not None:
            texts.append(json.dumps(self.native, ensure_ascii=False))
        if self.when is not None:
            texts += self.when.texts()
        return len(self.template.encode()) + sum(len(text.encode()) for text in texts)

    def accepted(self, session: Session, node_id: str) -> None:
        """Passes it on to `on_accepted`."""
        if self.on_accepted is not None:
            self.on_accepted(session, node_id)

    def _prompt(self) -> dict[str, Any]:
        if self.native is not None:
            return {"native": dict(self.native)}
        if self.messages:
            return {"messages": [message.to_wire() for message in self.messages]}
        return {"prompt": self.template}

    def _input(self, name: str, given: str | Variable) -> dict[str, Any]:
        what = {"semantic_var_id": given.id} if isinstance(given, SemanticVariable) else {"value": given}
        return {"name": name, "in_out": "in", **what, **self._transforms(name)}

    def _output(self, name: str, output: Variable) -> dict[str, Any]:
        wire: dict[str, Any] = {"name": name, "in_out": "out", "semantic_var_id": output.id}
        if sampling := self.sampling.get(name):
            wire["sampling"] = sampling
        if criteria := self.criteria.get(name):
            wire["criteria"] = criteria
        return {**wire, **self._transforms(name)}

    def _transforms(self, name: str) -> dict[str, Any]:
        transforms = self.transforms.get(name)
        return {"transforms": list(transforms)} if transforms else {}


@dataclass(frozen=True, slots=True)
class Block:
    """A map, a loop or a select.

    Attributes:
        kind: which of them.
        plan: what it is, as the server's API takes it.
        inputs: the variables of the session it waits for.
        body: the calls that it repeats.
        when: it unfolds only if this holds.
    """

    name: str
    kind: str
    plan: Mapping[str, Any]
    inputs: tuple[Variable, ...]
    outputs: Mapping[str, Variable]
    body: tuple[Call, ...] = ()
    when: Condition | None = None

    def reads(self) -> Iterator[Variable]:
        """Its inputs, and the variable its condition is about."""
        yield from self.inputs
        if self.when is not None:
            yield self.when.variable

    def to_wire(self) -> dict[str, Any]:
        """The block as the server's API takes it."""
        wire: dict[str, Any] = {"name": self.name, self.kind: dict(self.plan)}
        return wire | {"when": self.when.to_wire()} if self.when is not None else wire

    def size_bytes(self) -> int:
        """Its plan and condition, or a little more."""
        texts = self.when.texts() if self.when is not None else []
        return sum(len(text.encode()) for text in (json.dumps(self.plan, ensure_ascii=False), *texts))

    def accepted(self, session: Session, node_id: str) -> None:
        """Tells the calls of its body, which will have instances, of the block."""
        for call in self.body:
            call.accepted(session, node_id)


Node = Call | Block
