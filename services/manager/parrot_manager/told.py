"""What is told on the bus of what is stored: the things of a session, each as it is now."""

from __future__ import annotations

from collections.abc import Iterable

from parrot_manager.convert import to_failure
from parrot_manager.core.blocks.model import Block
from parrot_manager.core.commands import Changes
from parrot_manager.core.events import CallsAccepted
from parrot_manager.core.model import Call, Session, Variable
from parrot_manager.store.base import SessionRecord
from parrot_proto.values.v1 import values_pb2

StateChange = values_pb2.StateChange


def of_batch(event: CallsAccepted) -> list[StateChange]:
    """Of a batch."""
    return _things(event.calls, event.blocks, event.variables)


def of_changes(changes: Changes) -> list[StateChange]:
    """Of one write; the session comes last: who hears that it has ended may go."""
    calls = {call.id: call for call in (*changes.new_calls, *changes.calls)}
    variables = {found.id: found for found in (*changes.new_variables, *changes.variables)}
    told = _things(calls.values(), changes.blocks, variables.values())
    return told if changes.session is None else [*told, _session(changes.session)]


def of_record(record: SessionRecord) -> list[StateChange]:
    """Of all that a session holds."""
    return [*_things(record.calls, record.blocks, record.variables), _session(record.session)]


def _things(
    calls: Iterable[Call], blocks: Iterable[Block], variables: Iterable[Variable]
) -> list[StateChange]:
    """Calls first: who hears that a variable is there knows by whom it was made."""
    return [*map(_call, calls), *map(_block, blocks), *map(_variable, variables)]


def _session(session: Session) -> StateChange:
    return StateChange(kind="session", id=session.id, name=session.label, state=session.state.name.lower())


def _call(call: Call) -> StateChange:
    return StateChange(
        kind="call",
        id=call.id,
        name=call.name,
        state=call.state.name.lower(),
        failure=to_failure(call.failure),
        attempt=call.attempt,
        engine_id=call.engine_id,
        block_id=call.block_id,
    )


def _block(block: Block) -> StateChange:
    return StateChange(
        kind="block",
        id=block.id,
        name=block.name,
        state=block.state.name.lower(),
        failure=to_failure(block.failure),
        block_kind=block.kind,
        instances=block.count,
    )


def _variable(variable: Variable) -> StateChange:
    return StateChange(
        kind="variable",
        id=variable.id,
        name=variable.name,
        state=variable.state.name.lower(),
        failure=to_failure(variable.failure),
        size_bytes=variable.size_bytes,
        producer_call_id=variable.producer_call_id,
        producer_block_id=variable.producer_block_id,
    )
