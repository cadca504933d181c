"""The statements of the Postgres store. Parameters named `k_...` are keys, the others are columns."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, cast

from sqlalchemy import (
    ColumnElement,
    Delete,
    Select,
    Table,
    Text,
    bindparam,
    case,
    delete,
    func,
    literal,
    literal_column,
    select,
    true,
    tuple_,
    union,
    update,
)
from sqlalchemy.dialects.postgresql import insert

from parrot_manager.core.model import SessionState, VariableState
from parrot_manager.store.listing import Place
from parrot_manager.store.tables import (
    AttemptRow,
    BatchRow,
    BlockRow,
    CallRow,
    SessionRow,
    ShardRow,
    TenantRow,
    VariableRow,
)

_SESSIONS: Final = cast(Table, SessionRow.__table__)
_CALLS: Final = cast(Table, CallRow.__table__)
_VARIABLES: Final = cast(Table, VariableRow.__table__)
_ATTEMPTS: Final = cast(Table, AttemptRow.__table__)
_BATCHES: Final = cast(Table, BatchRow.__table__)
_BLOCKS: Final = cast(Table, BlockRow.__table__)
_SHARDS: Final = cast(Table, ShardRow.__table__)
_TENANTS: Final = cast(Table, TenantRow.__table__)

_THIS_SESSION: Final = _SESSIONS.c.id == bindparam("k_id")
_THIS_CALL: Final = (_CALLS.c.session_id == bindparam("k_session")) & (
    _CALLS.c.number == bindparam("k_number")
)
_THIS_VARIABLE: Final = (_VARIABLES.c.session_id == bindparam("k_session")) & (
    _VARIABLES.c.id == bindparam("k_id")
)
_THIS_BLOCK: Final = (_BLOCKS.c.session_id == bindparam("k_session")) & (
    _BLOCKS.c.number == bindparam("k_number")
)

INSERT_SESSION: Final = insert(_SESSIONS).on_conflict_do_nothing()
INSERT_NEW_SESSION: Final = INSERT_SESSION.returning(_SESSIONS.c.id)
"""A row where it was not there."""
INSERT_CALL: Final = insert(_CALLS).on_conflict_do_nothing()
INSERT_VARIABLE: Final = insert(_VARIABLES).on_conflict_do_nothing()
INSERT_BATCH: Final = insert(_BATCHES).on_conflict_do_nothing()
INSERT_BLOCK: Final = insert(_BLOCKS).on_conflict_do_nothing()

DELETE_BATCH: Final = delete(_BATCHES).where(
    _BATCHES.c.session_id == bindparam("k_session"), _BATCHES.c.key == bindparam("k_key")
)
DELETE_BLOCK: Final = delete(_BLOCKS).where(_THIS_BLOCK)
DELETE_CALL: Final = delete(_CALLS).where(_THIS_CALL)
DELETE_VARIABLE: Final = delete(_VARIABLES).where(_THIS_VARIABLE)

# What has ended stays as it is.
UPDATE_SESSION: Final = update(_SESSIONS).where(_THIS_SESSION, _SESSIONS.c.ended_ms == 0)
UPDATE_CALL: Final = update(_CALLS).where(_THIS_CALL, _CALLS.c.ended_ms == 0)
UPDATE_BLOCK: Final = update(_BLOCKS).where(_THIS_BLOCK, _BLOCKS.c.ended_ms == 0)
UPDATE_VARIABLE: Final = update(_VARIABLES).where(
    _THIS_VARIABLE, _VARIABLES.c.state < int(VariableState.READY)
)
MARK_PURGED: Final = update(_SESSIONS).where(_THIS_SESSION).values(purged=true())

_NEW_ATTEMPT: Final = insert(_ATTEMPTS)
UPSERT_ATTEMPT: Final = _NEW_ATTEMPT.on_conflict_do_update(
    index_elements=list(_ATTEMPTS.primary_key),
    set_={"state": _NEW_ATTEMPT.excluded.state, "ended_ms": _NEW_ATTEMPT.excluded.ended_ms},
    where=_ATTEMPTS.c.ended_ms == 0,
)

FENCE: Final = (
    select(_SHARDS.c.shard)
    .where(_SHARDS.c.shard == bindparam("k_shard"), _SHARDS.c.epoch == bindparam("k_epoch"))
    .with_for_update(read=True)
)
"""One row while the epoch is a shard's; a change of it waits for the transaction's end."""
FENCE_SESSION: Final = FENCE.add_columns(
    select(_TENANTS.c.name)
    .where(_TENANTS.c.name == _SESSIONS.c.tenant, _SESSIONS.c.id == bindparam("k_session"))
    .scalar_subquery()
    .label("metered")
)
"""And a session's tenant, if it has limits."""
FENCE_TENANT: Final = FENCE.add_columns(
    select(_TENANTS.c.name).where(_TENANTS.c.name == bindparam("k_tenant")).scalar_subquery().label("metered")
)
FENCE_ALL: Final = FENCE.add_columns(literal("*").label("metered"))
"""Some of many tenants may have."""

# As in the indexes, to the letter: with parameters in it a prepared statement would not use them.
_SHARD_DIGITS: Final = literal_column("substr(sessions.id, 2, 2)", Text)


def select_live(shards: Collection[int], ended_after_ms: int) -> Select[Any]:
    """Ids of sessions of shards that are open, ended lately, or hold unfinished calls; oldest first.

    With each comes how many calls it has, ended ones too. Each of the three kinds is found by a partial
    index of its own, however many sessions have ended.
    """
    digits = [_digits(shard) for shard in shards]
    mine, table = _SHARD_DIGITS.in_(digits), _SESSIONS.c
    wanted = union(
        select(table.id).where(mine, table.ended_ms == 0),
        select(table.id).where(mine, table.ended_ms > 0, table.ended_ms > ended_after_ms, ~table.purged),
        select(_CALLS.c.session_id).where(
            _CALLS.c.ended_ms == 0, func.substr(_CALLS.c.session_id, 2, 2).in_(digits)
        ),
    )
    calls = select(func.count()).where(_CALLS.c.session_id == table.id).scalar_subquery()
    query = select(table.id, calls.label("calls")).where(table.id.in_(wanted))
    return query.order_by(table.created_ms, table.id)


def select_sessions(session_ids: list[str]) -> Select[Any]:
    """Sessions, oldest first."""
    query = select(_SESSIONS).where(_SESSIONS.c.id.in_(session_ids))
    return query.order_by(_SESSIONS.c.created_ms, _SESSIONS.c.id)


def select_listed(tenant: str, state: SessionState | None, after: Place | None, limit: int) -> Select[Any]:
    """A tenant's sessions, newest first, with how many calls each has and how many have not ended.

    An index has them in this order, and two others the numbers, so that no row of a call is read.
    """
    table = _SESSIONS.c
    page = select(_SESSIONS).where(table.tenant == tenant)
    if state is not None:
        page = page.where(table.state == int(state))
    if after is not None:
        page = page.where(tuple_(table.created_ms, table.id) < tuple_(after.created_ms, after.session_id))
    found = page.order_by(table.created_ms.desc(), table.id.desc()).limit(limit).subquery()
    its_calls = select(func.count()).where(_CALLS.c.session_id == found.c.id)
    query = select(
        found,
        its_calls.scalar_subquery().label("calls"),
        its_calls.where(_CALLS.c.ended_ms == 0).scalar_subquery().label("unfinished"),
    )
    return query.order_by(found.c.created_ms.desc(), found.c.id.desc())


def select_unpurged(shard: int, ended_before_ms: int, limit: int) -> Select[Any]:
    """Tenants and ids of a shard's sessions that ended before and are not purged, in order of their ends."""
    table = _SESSIONS.c
    query = select(table.tenant, table.id).where(
        _in_shard(shard),
        table.ended_ms > 0,
        table.ended_ms < ended_before_ms,
        ~table.purged,
    )
    return query.order_by(table.ended_ms).limit(limit)


def select_outlived(shard: int, ended_before_ms: int, limit: int) -> Select[Any]:
    """Tenants and ids of a shard's purged sessions that ended before, in order of their ends."""
    table = _SESSIONS.c
    query = select(table.tenant, table.id).where(
        _in_shard(shard), table.purged, table.ended_ms < ended_before_ms
    )
    return query.order_by(table.ended_ms).limit(limit)


def delete_sessions(session_ids: list[str]) -> list[Delete]:
    """Sessions with all they hold, what hangs on them first."""
    held = [
        delete(table).where(table.c.session_id.in_(session_ids))
        for table in (_BLOCKS, _BATCHES, _ATTEMPTS, _VARIABLES, _CALLS)
    ]
    return [*held, delete(_SESSIONS).where(_SESSIONS.c.id.in_(session_ids))]


def select_calls(session_ids: list[str], *, live: bool) -> Select[Any]:
    """Calls in order; with the spec of those that have not ended when `live`."""
    spec: ColumnElement[bytes] = literal(b"")
    if live:
        spec = case((_CALLS.c.ended_ms == 0, _CALLS.c.spec), else_=b"")
    query = select(*_all_but("spec", _CALLS), spec.label("spec")).where(_CALLS.c.session_id.in_(session_ids))
    return query.order_by(_CALLS.c.session_id, _CALLS.c.number)


def select_blocks(session_ids: list[str]) -> Select[Any]:
    """Blocks in order. Their instances have no specs of their own, so theirs is always wanted."""
    query = select(_BLOCKS).where(_BLOCKS.c.session_id.in_(session_ids))
    return query.order_by(_BLOCKS.c.session_id, _BLOCKS.c.number)


def select_variables(session_ids: list[str]) -> Select[Any]:
    """Variables without their values."""
    query = select(*_all_but("value", _VARIABLES)).where(_VARIABLES.c.session_id.in_(session_ids))
    return query.order_by(_VARIABLES.c.session_id, _VARIABLES.c.id)


def select_attempts(session_ids: list[str]) -> Select[Any]:
    """The last attempt of each call that has not ended, whatever became of it."""
    its_last = (
        (_CALLS.c.session_id == _ATTEMPTS.c.session_id)
        & (_CALLS.c.number == _ATTEMPTS.c.call_number)
        & (_CALLS.c.attempt == _ATTEMPTS.c.attempt)
    )
    query = select(_ATTEMPTS).join(_CALLS, its_last)
    return query.where(_ATTEMPTS.c.session_id.in_(session_ids), _CALLS.c.ended_ms == 0)


def select_batches(session_ids: list[str]) -> Select[Any]:
    """The batches that came with a key."""
    query = select(_BATCHES).where(_BATCHES.c.session_id.in_(session_ids))
    return query.order_by(_BATCHES.c.session_id, _BATCHES.c.key)


def select_session(session_id: str) -> Select[Any]:
    """One session's row."""
    return select(_SESSIONS).where(_SESSIONS.c.id == session_id)


def select_values(session_id: str, variable_ids: list[str]) -> Select[Any]:
    """Ids and values of those of some variables that have one."""
    table = _VARIABLES.c
    return select(table.id, table.value).where(
        table.session_id == session_id, table.id.in_(variable_ids), table.value.is_not(None)
    )


def _all_but(name: str, table: Table) -> list[ColumnElement[Any]]:
    return [column for column in table.c if column.name != name]


def _in_shard(shard: int) -> ColumnElement[bool]:
    return _SHARD_DIGITS.in_([_digits(shard)])


def _digits(shard: int) -> str:
    return f"{shard:02x}"
