"""From records to nodes: each call's time in tiles, and what began or ended which."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from parrot_runtime.critical_path.calls import Makers, add_stages
from parrot_runtime.critical_path.nodes import Network, Node, Sign, Signal
from parrot_runtime.critical_path.records import BlockTimes, CallTimes, SessionTimes, VariableTimes
from parrot_runtime.critical_path.stages import Stage

Cause = tuple[Signal, float, Stage]
"""A signal, when it was given, and what lies between that and what it began."""
BEGIN: Final = "begin"
END: Final = "end"


def build(session: SessionTimes, now_ms: float) -> Network:
    """A session's nodes; what has not ended reaches up to `now_ms`."""
    nodes = {BEGIN: _begin(session)}
    causes = _Causes(session)
    made = Makers(
        {variable.id: variable.producer_id for variable in session.variables},
        {variable.id for variable in session.variables if variable.ready_ms},
        {call.id: call.dispatched_ms for call in session.calls},
        {call.id: call.ended_ms for call in session.calls}
        | {block.id: block.ended_ms for block in session.blocks},
    )
    blocks = {block.id: block for block in session.blocks}
    for call in session.calls:
        cause = _sent(nodes, call, causes.of_call(call, blocks))
        nodes[call.id] = node = _node(call.id, call.accepted_ms, cause)
        node.ran = call.ran
        add_stages(node, call, made, lazy=session.lazy, now_ms=now_ms)
    for block in session.blocks:
        nodes[block.id] = node = _node(block.id, block.accepted_ms, causes.of_client(block.accepted_ms))
        _add_block(node, block, causes.instances(block.id), made, now_ms)
    _add_variables(nodes, session.variables, causes)
    nodes[END] = _end(session, nodes.values(), now_ms)
    emitters = {signal: node.id for node in nodes.values() for signal in node.emits}
    return Network(nodes, END, emitters)


def _add_variables(nodes: dict[str, Node], variables: Iterable[VariableTimes], causes: _Causes) -> None:
    """Has whoever makes a variable say when it was ready; a client's own is a node by itself."""
    for variable in variables:
        if not variable.ready_ms:
            continue
        maker = nodes.get(variable.producer_id)
        if maker is not None:
            maker.emit(Sign.READY, variable.id, variable.ready_ms)
        elif not variable.producer_id:
            name = f"value {variable.id}"
            nodes[name] = _node(name, variable.ready_ms, causes.of_client(variable.ready_ms))
            nodes[name].emit(Sign.READY, variable.id)


def _begin(session: SessionTimes) -> Node:
    node = Node(BEGIN, session.created_ms)
    node.emit(Sign.CREATED, BEGIN)
    node.add(Stage.ADMISSION, session.opened_ms)
    node.emit(Sign.OPENED, BEGIN)
    return node


def _end(session: SessionTimes, nodes: Iterable[Node], now_ms: float) -> Node:
    """The session's own end, behind all that ended in it; of one that is open and idle, now."""
    node = Node(END, session.created_ms)
    last_ms = session.created_ms
    signals: list[Signal] = []
    for other in nodes:
        other.emit(Sign.OVER, other.id)
        signals.append((Sign.OVER, other.id))
        last_ms = max(last_ms, other.end_ms)
    node.add(Stage.UNEXPLAINED, last_ms, tuple(signals))
    if session.ended_ms:
        node.add(Stage.COMMIT, min(session.settled_ms, session.ended_ms))
        node.add(Stage.CLIENT, min(session.closing_ms or session.ended_ms, session.ended_ms))
        node.add(Stage.COMMIT, session.ended_ms)
    else:
        node.add(Stage.CLIENT, now_ms)
    return node


def _add_block(
    node: Node, block: BlockTimes, instances: tuple[str, ...], made: Makers, now_ms: float
) -> None:
    ended_ms = block.ended_ms or now_ms
    inputs = tuple((Sign.READY, name) for name in block.inputs)
    if not block.unfolded_ms and block.ended_ms:
        inputs += made.ends(block.inputs, block.ended_ms)
    node.add(Stage.INPUTS, block.unfolded_ms or ended_ms, inputs)
    node.add(Stage.INPUTS, ended_ms, tuple((Sign.OVER, name) for name in instances))


def _node(node_id: str, start_ms: float, cause: Cause) -> Node:
    signal, caused_ms, stage = cause
    return Node(node_id, max(start_ms, caused_ms), signal, stage)


def _sent(nodes: dict[str, Node], call: CallTimes, cause: Cause) -> Cause:
    """A client knows what ended once that is stored: what it takes begins there, once for a batch."""
    # When it came is kept in whole ms only.
    caused_ms, settled_ms = cause[1], min(call.settled_ms, call.accepted_ms)
    if cause[2] is not Stage.CLIENT or not caused_ms < settled_ms or call.settled_ms >= call.accepted_ms + 1:
        return cause
    name = f"sent {settled_ms} {call.accepted_ms}"
    if name not in nodes:
        nodes[name] = node = Node(name, settled_ms, cause[0], Stage.COMMIT)
        node.add(Stage.CLIENT, call.accepted_ms)
        node.emit(Sign.OVER, name)
    return (Sign.OVER, name), call.accepted_ms, Stage.CLIENT


class _Causes:
    """After what something began that a client sent, or a block unfolded into."""

    def __init__(self, session: SessionTimes) -> None:
        self._session = session
        self._ends = _Ends(session.calls, session.created_ms)
        self._ready = {variable.id: variable.ready_ms for variable in session.variables}
        members: dict[str, list[CallTimes]] = defaultdict(list)
        for call in session.calls:
            if call.block_id:
                members[call.block_id].append(call)
        self._members = {block_id: _Ends(calls, session.created_ms) for block_id, calls in members.items()}

    def instances(self, block_id: str) -> tuple[str, ...]:
        """The calls a block unfolded into."""
        found = self._members.get(block_id)
        return found.ids if found is not None else ()

    def of_call(self, call: CallTimes, blocks: dict[str, BlockTimes]) -> Cause:
        """A call's: of an instance, what its block last waited for."""
        block = blocks.get(call.block_id)
        return self.of_client(call.accepted_ms) if block is None else self._of_instance(call, block)

    def of_client(self, at_ms: float) -> Cause:
        """A client that sends something is taken to have waited for what ended last before."""
        last = self._ends.last(at_ms)
        if last is not None:
            return (Sign.OVER, last[1]), last[0], Stage.CLIENT
        # A session that was opened with its calls was stored with them, after they were accepted.
        if self._session.created_ms <= self._session.opened_ms <= at_ms:
            return (Sign.OPENED, BEGIN), self._session.opened_ms, Stage.CLIENT
        return (Sign.CREATED, BEGIN), self._session.created_ms, Stage.CLIENT

    def _of_instance(self, call: CallTimes, block: BlockTimes) -> Cause:
        at_ms = call.accepted_ms
        found: list[tuple[float, Signal]] = [
            (ready_ms, (Sign.READY, name))
            for name in block.inputs
            if self._session.created_ms <= (ready_ms := self._ready.get(name, 0.0)) <= at_ms
        ]
        if (last := self._members[block.id].last(at_ms)) is not None:
            found.append((last[0], (Sign.OVER, last[1])))
        if not found:
            return self.of_client(at_ms)
        caused_ms, signal = max(found)
        return signal, caused_ms, Stage.INPUTS


class _Ends:
    """The ends of some calls."""

    def __init__(self, calls: Iterable[CallTimes], after_ms: float) -> None:
        found = tuple(calls)
        self.ids = tuple(call.id for call in found)
        # One that began and ended in the same millisecond explains nothing, and might be its own cause.
        # Of several at one time the last is one that ran: those that only ended with it explain nothing.
        self._ended = sorted(
            (call.ended_ms, call.ran, call.id)
            for call in found
            if call.ended_ms > max(call.accepted_ms, after_ms)
        )

    def last(self, at_ms: float) -> tuple[float, str] | None:
        """The last that ended until then, and when."""
        place = bisect_right(self._ended, at_ms, key=lambda end: end[0])
        return (self._ended[place - 1][0], self._ended[place - 1][2]) if place else None
