"""What happens in a session, as server-sent events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from parrot_gateway import resources
from parrot_gateway.events import EVENT_CHARS, event_block
from parrot_gateway.session_cursor import Place
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2
from parrot_proto.values.v1 import values_pb2
from parrot_runtime.values.session_fold import Added
from parrot_runtime.values.session_log import Render, Told

StateChange = values_pb2.StateChange


def renderer(session_id: str) -> Render:
    """Renders a session's messages: each event once, with its id, for all who read it."""

    def render(sequence: int, news: Sequence[Told]) -> list[bytes]:
        return [
            event_block(name, data, Place(sequence, part).event_id(session_id))
            for part, (name, data) in enumerate(_events(news), 1)
        ]

    return render


def as_it_is(news: Iterable[Told]) -> Iterator[bytes]:
    """Events of a snapshot: without ids, for there is no place behind one of them."""
    for name, data in _events(news):
        yield event_block(name, data)


def changes_of(found: manager_pb2.GetSessionResponse) -> list[StateChange]:
    """A session's things as its manager shows them, in the shape they are told of on the bus."""
    session = found.session
    told = [
        StateChange(
            kind="session",
            id=session.id,
            name=session.label,
            state=_word(common_pb2.SessionState.Name(session.state)),
        )
    ]
    told += map(_of_call, found.calls)
    told += map(_of_block, found.blocks)
    return told + list(map(_of_variable, found.variables))


def _of_call(call: manager_pb2.Call) -> StateChange:
    return StateChange(
        kind="call",
        id=call.id,
        name=call.name,
        state=_word(common_pb2.CallState.Name(call.state)),
        failure=call.failure if call.HasField("failure") else None,
        attempt=call.attempt,
        engine_id=call.engine_id,
        block_id=call.block_id,
    )


def _of_block(block: manager_pb2.Block) -> StateChange:
    return StateChange(
        kind="block",
        id=block.id,
        name=block.name,
        state=_word(manager_pb2.BlockState.Name(block.state)),
        failure=block.failure if block.HasField("failure") else None,
        block_kind=block.kind,
        instances=block.instances,
    )


def _of_variable(variable: manager_pb2.Variable) -> StateChange:
    return StateChange(
        kind="variable",
        id=variable.id,
        name=variable.name,
        state=resources.variable_state(variable),
        failure=variable.failure if variable.HasField("failure") else None,
        size_bytes=variable.size_bytes,
        producer_call_id=variable.producer_call_id,
        producer_block_id=variable.producer_block_id,
    )


def _events(news: Iterable[Told]) -> Iterator[tuple[str, dict[str, Any]]]:
    for one in news:
        if isinstance(one, Added):
            yield from _deltas(one)
        else:
            yield one.kind, _STATES[one.kind](one)


def _deltas(added: Added) -> Iterator[tuple[str, dict[str, Any]]]:
    offset = added.offset_bytes
    for start in range(0, len(added.text), EVENT_CHARS):
        text = added.text[start : start + EVENT_CHARS]
        yield "delta", {"semantic_var_id": added.variable_id, "offset": offset, "text": text}
        offset += len(text.encode())


def _session(change: StateChange) -> dict[str, Any]:
    return {"id": change.id, "state": change.state}


def _call(change: StateChange) -> dict[str, Any]:
    return {
        "id": change.id,
        "name": change.name,
        "state": change.state,
        "attempt": change.attempt,
        "engine": change.engine_id,
        "block_id": change.block_id,
        "error": resources.failure(change.failure),
    }


def _block(change: StateChange) -> dict[str, Any]:
    return {
        "id": change.id,
        "name": change.name,
        "kind": change.block_kind,
        "state": change.state,
        "instances": change.instances,
        "error": resources.failure(change.failure),
    }


def _variable(change: StateChange) -> dict[str, Any]:
    return {
        "id": change.id,
        "name": change.name,
        "state": change.state,
        "size_bytes": change.size_bytes,
        "producer_call_id": change.producer_call_id,
        "producer_block_id": change.producer_block_id,
        "error": resources.failure(change.failure),
    }


def _word(name: str) -> str:
    return name.partition("_STATE_")[2].lower()


_STATES = {"session": _session, "call": _call, "block": _block, "variable": _variable}
