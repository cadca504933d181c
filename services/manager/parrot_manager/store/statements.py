"""The statements of the Postgres store. Parameters named `k_...` are keys, the others are columns."""

from __future__ import annotations

from typing import Any, Final, cast

from sqlalchemy import (
    ColumnElement,
    Select,
    Table,
    bindparam,
    case,
    delete,
    literal,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import insert

from parrot_manager.core.model import VariableState
from parrot_manager.store.tables import AttemptRow, CallRow, SessionRow, VariableRow

_SESSIONS: Final = cast(Table, SessionRow.__table__)
_CALLS: Final = cast(Table, CallRow.__table__)
_VARIABLES: Final = cast(Table, VariableRow.__table__)
_ATTEMPTS: Final = cast(Table, AttemptRow.__table__)

_THIS_SESSION: Final = _SESSIONS.c.id == bindparam("k_id")
_THIS_CALL: Final = (_CALLS.c.session_id == bindparam("k_session")) & (
    _CALLS.c.number == bindparam("k_number")
)
_THIS_VARIABLE: Final = (_VARIABLES.c.session_id == bindparam("k_session")) & (
    _VARIABLES.c.id == bindparam("k_id")
)

INSERT_SESSION: Final = insert(_SESSIONS).on_conflict_do_nothing()
INSERT_CALL: Final = insert(_CALLS).on_conflict_do_nothing()
INSERT_VARIABLE: Final = insert(_VARIABLES).on_conflict_do_nothing()

DELETE_CALL: Final = delete(_CALLS).where(_THIS_CALL)
DELETE_VARIABLE: Final = delete(_VARIABLES).where(_THIS_VARIABLE)

# What has ended stays as it is.
UPDATE_SESSION: Final = update(_SESSIONS).where(_THIS_SESSION, _SESSIONS.c.ended_ms == 0)
UPDATE_CALL: Final = update(_CALLS).where(_THIS_CALL, _CALLS.c.ended_ms == 0)
UPDATE_VARIABLE: Final = update(_VARIABLES).where(
    _THIS_VARIABLE, _VARIABLES.c.state < int(VariableState.READY)
)
MARK_PURGED: Final = update(_SESSIONS).where(_THIS_SESSION).values(purged=true())

_NEW_ATTEMPT: Final = insert(_ATTEMPTS)
UPSERT_ATTEMPT: Final = _NEW_ATTEMPT.on_conflict_do_update(
    index_elements=list(_ATTEMPTS.primary_key),
    set_={"state": _NEW_ATTEMPT.excluded.state, "ended_ms": _NEW_ATTEMPT.excluded.ended_ms},
)


def select_live(ended_after_ms: int) -> Select[Any]:
    """Sessions that are open, ended lately, or hold calls that have not ended; oldest first."""
    unfinished = select(_CALLS.c.session_id).where(_CALLS.c.ended_ms == 0)
    wanted = or_(
        _SESSIONS.c.ended_ms == 0, _SESSIONS.c.ended_ms > ended_after_ms, _SESSIONS.c.id.in_(unfinished)
    )
    return select(_SESSIONS).where(wanted).order_by(_SESSIONS.c.created_ms, _SESSIONS.c.id)


def select_session(tenant: str, session_id: str) -> Select[Any]:
    """A tenant's session."""
    return select(_SESSIONS).where(_SESSIONS.c.id == session_id, _SESSIONS.c.tenant == tenant)


def select_unpurged(ended_before_ms: int, limit: int) -> Select[Any]:
    """Tenants and ids of sessions that ended before and are not purged, the longest ended first."""
    table = _SESSIONS.c
    query = select(table.tenant, table.id).where(
        table.ended_ms > 0, table.ended_ms < ended_before_ms, ~table.purged
    )
    return query.order_by(table.ended_ms).limit(limit)


def select_calls(session_ids: list[str], *, live: bool) -> Select[Any]:
    """Calls in order; with the spec of those that have not ended when `live`."""
    spec: ColumnElement[bytes] = literal(b"")
    if live:
        spec = case((_CALLS.c.ended_ms == 0, _CALLS.c.spec), else_=b"")
    query = select(*_all_but("spec", _CALLS), spec.label("spec")).where(_CALLS.c.session_id.in_(session_ids))
    return query.order_by(_CALLS.c.session_id, _CALLS.c.number)


def select_variables(session_ids: list[str]) -> Select[Any]:
    """Variables without their values."""
    query = select(*_all_but("value", _VARIABLES)).where(_VARIABLES.c.session_id.in_(session_ids))
    return query.order_by(_VARIABLES.c.session_id, _VARIABLES.c.id)


def select_attempts(session_ids: list[str]) -> Select[Any]:
    """Attempts that have not ended."""
    return select(_ATTEMPTS).where(_ATTEMPTS.c.session_id.in_(session_ids), _ATTEMPTS.c.ended_ms == 0)


def select_value(session_id: str, variable_id: str) -> Select[Any]:
    """One variable's value."""
    return select(_VARIABLES.c.value).where(
        _VARIABLES.c.session_id == session_id, _VARIABLES.c.id == variable_id
    )


def _all_but(name: str, table: Table) -> list[ColumnElement[Any]]:
    return [column for column in table.c if column.name != name]
