"""Calls and blocks that were made and not yet sent, and the requests they travel in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from parrot.bodies import foreign
from parrot.errors import NoValue, SessionError
from parrot.nodes import Block, Call, Node
from parrot.variable import SemanticVariable

if TYPE_CHECKING:
    from parrot.session import Session

BATCH_CALLS: Final = 4096
BATCH_BLOCKS: Final = 256
BATCH_BYTES: Final = 32 << 20
"""What the server takes in one request: calls, blocks, and bytes of all their templates, values,
transforms, guides and conditions."""

Variable = SemanticVariable[Any]


@dataclass(frozen=True, slots=True)
class Request:
    """One request to the session: what it sends, and the nodes and values that are accepted with it."""

    method: str
    path: str
    body: dict[str, Any]
    nodes: Sequence[Node] = ()
    values: Sequence[Variable] = ()

    @property
    def calls(self) -> list[Call]:
        """Its calls."""
        return [node for node in self.nodes if isinstance(node, Call)]

    @property
    def blocks(self) -> list[Block]:
        """Its blocks."""
        return [node for node in self.nodes if isinstance(node, Block)]


class Pending:
    """The calls and blocks of a session that were not sent yet."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._known: set[str] = set()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to send."""
        return not self._nodes

    def add(self, node: Node, session: Session) -> None:
        """Takes in a call or block and binds its variables to the session.

        Raises:
            SessionError: one of its variables can't be used so.
        """
        inputs = list(node.reads())
        outputs = list(node.outputs.items())
        for variable in inputs:
            _check_input(variable, session)
        for _, variable in outputs:
            _check_output(variable, session)
        if len({variable.id for _, variable in outputs}) < len(outputs):
            raise SessionError(f"{node.name}: one variable is given for two outputs")
        for variable in inputs:
            if variable._text is None:
                variable._session = session
        for name, variable in outputs:
            variable._session = session
            variable._produced = True
            variable.name = variable.name or name
        self._nodes.append(node)

    def take(self) -> tuple[list[Node], list[Variable]]:
        """The nodes whose inputs are set or made by a node, and the set variables they need.

        A node that waits for a variable to be set, or for such a node, stays.
        """
        taken: list[Node] = []
        made: set[str] = set()
        before = -1
        while before < len(taken):
            before = len(taken)
            waiting: list[Node] = []
            for node in self._nodes:
                if self._missing(node, made) is None:
                    taken.append(node)
                    made |= {output.id for output in node.outputs.values()}
                else:
                    waiting.append(node)
            self._nodes = waiting
        self._known |= made
        return taken, self._values(taken)

    def know(self, variable_id: str) -> None:
        """Notes that the server has this variable."""
        self._known.add(variable_id)

    def confirm(self, values: Sequence[Variable]) -> None:
        """Notes that the server has these values."""
        self._known |= {value.id for value in values}

    def missing_for(self, variable: Variable) -> Variable | None:
        """A variable that nobody set and that keeps the node that makes `variable` from being sent."""
        for node in self._nodes:
            if any(output is variable for output in node.outputs.values()):
                return self._missing(node, set())
        return None

    def _missing(self, node: Node, made: set[str]) -> Variable | None:
        for given in node.reads():
            there = given._text is not None or given.id in self._known or given.id in made
            if not there:
                return given
        return None

    def _values(self, nodes: list[Node]) -> list[Variable]:
        needed = {given.id: given for node in nodes for given in node.reads() if given.id not in self._known}
        return list(needed.values())


def requests(nodes: Sequence[Node], values: Sequence[Variable]) -> Iterator[Request]:
    """The requests that send nodes and values: one, unless they exceed what a request may hold."""
    if not nodes:
        return
    batches = list(_batches(nodes))
    total = sum(node.size_bytes() for node in nodes)
    total += sum(len((value._text or "").encode()) for value in values)
    if len(batches) == 1 and total <= BATCH_BYTES:
        yield _submit(nodes, values)
        return
    for value in values:
        yield Request("PUT", f"/variables/{value.id}", _value(value), values=[value])
    for batch in batches:
        yield _submit(batch, [])


def _batches(nodes: Sequence[Node]) -> Iterator[list[Node]]:
    """The nodes, in their order, in as few requests as can hold them."""
    batch: list[Node] = []
    calls = blocks = batch_bytes = 0
    for node in nodes:
        block, size = isinstance(node, Block), node.size_bytes()
        full = blocks == BATCH_BLOCKS if block else calls == BATCH_CALLS
        if batch and (full or batch_bytes + size > BATCH_BYTES):
            yield batch
            batch, calls, blocks, batch_bytes = [], 0, 0, 0
        batch.append(node)
        calls, blocks, batch_bytes = calls + (not block), blocks + block, batch_bytes + size
    yield batch


def _submit(nodes: Sequence[Node], values: Sequence[Variable]) -> Request:
    request = Request("POST", "/calls", {}, nodes, values)
    request.body["calls"] = [call.to_wire() for call in request.calls]
    if request.blocks:
        request.body["blocks"] = [block.to_wire() for block in request.blocks]
    if values:
        request.body["variables"] = [{"semantic_var_id": value.id, **_value(value)} for value in values]
    return request


def _value(variable: Variable) -> dict[str, Any]:
    named = {"name": variable.name} if variable.name else {}
    return {"value": variable._text or "", **named}


def _check_input(variable: Variable, session: Session) -> None:
    if variable._body is not None:
        raise foreign(variable)
    if variable._text is None and variable._session not in {None, session}:
        raise SessionError(f"{variable!r} belongs to another session; get() its text first")
    if variable._error is not None and not isinstance(variable._error, NoValue):
        raise SessionError(f"{variable!r} is made by no call, for that was not accepted: {variable._error}")


def _check_output(variable: Variable, session: Session) -> None:
    if variable._produced or variable._text is not None or variable._body is not None:
        raise SessionError(f"{variable!r} has a text already, or a call that makes it")
    if variable._session not in {None, session}:
        raise SessionError(f"{variable!r} belongs to another session")
