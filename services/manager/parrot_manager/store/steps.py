"""The statements of each write, in the order in which rows are locked: calls, variables, attempts, blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from sqlalchemy import Executable

from parrot_manager.core.blocks.model import Block
from parrot_manager.core.commands import Changes
from parrot_manager.core.events import CallsAccepted
from parrot_manager.core.model import Attempt, Call, Session, Value, Variable
from parrot_manager.store import block_rows, rows, statements

Step = tuple[Executable, list[rows.Params]]
"""A statement and each row's parameters; without any it is left out."""
N = TypeVar("N", Call, Block)


def of_session(session: Session) -> list[Step]:
    """Adds a session."""
    return [(statements.INSERT_SESSION, [rows.session_row(session)])]


def of_session_with_batch(session: Session, accepted: CallsAccepted) -> list[Step]:
    """Adds a session, which the first statement's answer shows to be new, and its first batch."""
    return [(statements.INSERT_NEW_SESSION, [rows.session_row(session)]), *of_batch(accepted)]


def of_batch(accepted: CallsAccepted) -> list[Step]:
    """Adds a batch, with its key if it has one."""
    batch = accepted.batch
    return [
        (statements.INSERT_BATCH, [rows.batch_row(accepted.session_id, batch)] if batch else []),
        *_additions(accepted.calls, accepted.variables, accepted.values),
        (statements.INSERT_BLOCK, [block_rows.block_row(block) for block in _in_order(accepted.blocks)]),
    ]


def of_removal(accepted: CallsAccepted) -> list[Step]:
    """Takes a batch back."""
    session_id, batch = accepted.session_id, accepted.batch
    return [
        (statements.DELETE_BATCH, [{"k_session": session_id, "k_key": batch.key}] if batch else []),
        (statements.DELETE_CALL, [_key(call, k_number=call.number) for call in _in_order(accepted.calls)]),
        (statements.DELETE_VARIABLE, [_key(each, k_id=each.id) for each in _by_id(accepted.variables)]),
        (statements.DELETE_BLOCK, [_key(each, k_number=each.number) for each in _in_order(accepted.blocks)]),
    ]


def of_changes(changes: Changes) -> list[Step]:
    """Adds what is new, and brings the rest up to its newest snapshots."""
    session = changes.session
    return [
        (statements.UPDATE_SESSION, [_session_update(session)] if session else []),
        *_additions(changes.new_calls, changes.new_variables, changes.values),
        (statements.UPDATE_CALL, [_call_update(call) for call in _in_order(changes.calls)]),
        *_variable_updates(changes),
        (statements.UPSERT_ATTEMPT, [rows.attempt_row(each) for each in _tries(changes.attempts)]),
        (statements.UPDATE_BLOCK, [_block_update(block) for block in _in_order(changes.blocks)]),
    ]


def _additions(calls: Sequence[Call], variables: Sequence[Variable], values: Sequence[Value]) -> list[Step]:
    data = {value.variable_id: value.data for value in values}
    return [
        (statements.INSERT_CALL, [rows.call_row(call) for call in _in_order(calls)]),
        (statements.INSERT_VARIABLE, [rows.variable_row(v, data.get(v.id)) for v in _by_id(variables)]),
    ]


def _session_update(session: Session) -> rows.Params:
    return {"k_id": session.id} | rows.session_status(session)


def _call_update(call: Call) -> rows.Params:
    return _key(call, k_number=call.number) | rows.call_status(call)


def _block_update(block: Block) -> rows.Params:
    return _key(block, k_number=block.number) | block_rows.block_status(block)


def _variable_updates(changes: Changes) -> list[Step]:
    """Those without a value and those with one: each statement's rows have the same columns."""
    data = {value.variable_id: {"value": value.data} for value in changes.values}
    bare: list[rows.Params] = []
    valued: list[rows.Params] = []
    for variable in _by_id(changes.variables):
        update = _key(variable, k_id=variable.id) | rows.variable_status(variable)
        if variable.id in data:
            valued.append(update | data[variable.id])
        else:
            bare.append(update)
    return [(statements.UPDATE_VARIABLE, bare), (statements.UPDATE_VARIABLE, valued)]


def _key(owner: Call | Variable | Block, **key: object) -> rows.Params:
    return {"k_session": owner.session_id, **key}


def _in_order(numbered: Iterable[N]) -> list[N]:
    return sorted(numbered, key=lambda each: each.number)


def _by_id(variables: Iterable[Variable]) -> list[Variable]:
    return sorted(variables, key=lambda variable: variable.id)


def _tries(attempts: Iterable[Attempt]) -> list[Attempt]:
    return sorted(attempts, key=lambda attempt: (attempt.ref.call_id, attempt.ref.attempt))
