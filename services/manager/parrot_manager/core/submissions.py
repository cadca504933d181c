"""What clients submit, as the core sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

from parrot_manager.core.conditions import Condition
from parrot_manager.core.model import Edge, NativeKind
from parrot_manager.core.shapes import Shape


@dataclass(frozen=True, slots=True)
class NewCall:
    """A call as it is submitted.

    Attributes:
        spec: opaque here.
        when: what must hold for it to run.
        path: where it stands in its request, such as "blocks[0].map.body[1]"; empty: among the calls.
        native: who runs its code; None: it has none.
        native_timeout_ms: how long it waits for a worker of the client.
    """

    name: str
    model: str
    inputs: tuple[Edge, ...]
    outputs: tuple[Edge, ...]
    spec: bytes = field(repr=False)
    shape: Shape = field(default=(), repr=False)
    when: Condition | None = None
    path: str = ""
    native: NativeKind | None = None
    native_timeout_ms: int = 0


@dataclass(frozen=True, slots=True)
class NewValue:
    """A value a client gives to a variable that is new to the session."""

    variable_id: str
    name: str
    data: bytes = field(repr=False)
