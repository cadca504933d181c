"""Sessions out of their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import Row, Select

from parrot_manager.store import block_rows, rows, statements
from parrot_manager.store.base import SessionRecord

CALLS_A_SLICE: Final = 1_000
SESSIONS_A_SLICE: Final = 50

T = TypeVar("T")
Rows = Sequence[Row[Any]]


def sliced(sessions: Iterable[tuple[str, int]]) -> list[list[str]]:
    """Ids in slices of so many sessions and calls at the most; a larger session comes alone.

    Args:
        sessions: ids, with the number of calls of each.
    """
    slices: list[list[str]] = []
    room = 0
    for session_id, calls in sessions:
        if not slices or calls > room or len(slices[-1]) == SESSIONS_A_SLICE:
            slices.append([])
            room = CALLS_A_SLICE
        slices[-1].append(session_id)
        room -= calls
    return slices


def queries_of(session_ids: list[str], *, live: bool) -> dict[str, Select[Any]]:
    """What is asked about sessions, by table; of those that are not live, what people see or send again."""
    seen = {
        "sessions": statements.select_sessions(session_ids),
        "calls": statements.select_calls(session_ids, live=live),
        "variables": statements.select_variables(session_ids),
        "blocks": statements.select_blocks(session_ids),
        "batches": statements.select_batches(session_ids),
    }
    if not live:
        return seen
    return seen | {"attempts": statements.select_attempts(session_ids)}


def records_of(found: Mapping[str, Rows]) -> list[SessionRecord]:
    """The sessions of what `queries_of` asked for."""
    calls = _grouped(found["calls"], rows.to_call)
    variables = _grouped(found["variables"], rows.to_variable)
    attempts = _grouped(found.get("attempts", ()), rows.to_attempt)
    batches = _grouped(found["batches"], rows.to_batch)
    blocks = _grouped(found["blocks"], block_rows.to_block)
    return [
        SessionRecord(
            rows.to_session(row),
            tuple(calls.get(row.id, ())),
            tuple(variables.get(row.id, ())),
            tuple(attempts.get(row.id, ())),
            tuple(batches.get(row.id, ())),
            tuple(blocks.get(row.id, ())),
        )
        for row in found["sessions"]
    ]


def _grouped(found: Iterable[Row[Any]], convert: Callable[[Row[Any]], T]) -> dict[str, list[T]]:
    groups: dict[str, list[T]] = {}
    for row in found:
        groups.setdefault(row.session_id, []).append(convert(row))
    return groups
