"""The store in memory: for tests and simulations. Lives as long as the object, manager or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from parrot_manager.core.commands import Changes
from parrot_manager.core.model import Attempt, Call, Ref, Session, Value, Variable
from parrot_manager.store.base import SessionRecord, Store


@dataclass(slots=True)
class _Kept:
    session: Session
    calls: dict[int, Call] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    attempts: dict[Ref, Attempt] = field(default_factory=dict)
    values: dict[str, bytes] = field(default_factory=dict)
    purged: bool = False

    @property
    def unfinished(self) -> bool:
        return any(not call.state.ended for call in self.calls.values())

    def record(self, *, live: bool) -> SessionRecord:
        return SessionRecord(
            self.session,
            tuple(
                call if live and not call.state.ended else replace(call, spec=b"")
                for _, call in sorted(self.calls.items())
            ),
            tuple(variable for _, variable in sorted(self.variables.items())),
            tuple(a for a in self.attempts.values() if not a.ended_ms) if live else (),
        )


class MemoryStore(Store):
    """Keeps everything in dictionaries; writes are atomic because nothing awaits."""

    def __init__(self) -> None:
        self._sessions: dict[str, _Kept] = {}

    async def insert_session(self, session: Session) -> None:
        self._sessions.setdefault(session.id, _Kept(session))

    async def insert_calls(
        self,
        session_id: str,
        calls: Sequence[Call],
        variables: Sequence[Variable],
        values: Sequence[Value],
    ) -> None:
        kept = self._sessions[session_id]
        data = {value.variable_id: value.data for value in values}
        for call in calls:
            kept.calls.setdefault(call.number, _bare(call))
        for variable in variables:
            if variable.id not in kept.variables:
                kept.variables[variable.id] = replace(variable, published_ms=0)
                if variable.id in data:
                    kept.values[variable.id] = data[variable.id]

    async def remove_calls(
        self, session_id: str, calls: Sequence[Call], variables: Sequence[Variable]
    ) -> None:
        kept = self._sessions[session_id]
        for call in calls:
            kept.calls.pop(call.number, None)
        for variable in variables:
            kept.variables.pop(variable.id, None)
            kept.values.pop(variable.id, None)

    async def commit(self, session_id: str, changes: Changes) -> None:
        kept = self._sessions[session_id]
        data = {value.variable_id: value.data for value in changes.values}
        if changes.session is not None and not kept.session.ended_ms:
            kept.session = replace(
                kept.session, state=changes.session.state, ended_ms=changes.session.ended_ms
            )
        for call in changes.calls:
            before = kept.calls.get(call.number)
            if before is not None and not before.state.ended:
                kept.calls[call.number] = replace(_bare(call), spec=before.spec)
        for variable in changes.variables:
            known = kept.variables.get(variable.id)
            if known is not None and not known.state.ended:
                kept.variables[variable.id] = replace(variable, published_ms=0)
                if variable.id in data:
                    kept.values[variable.id] = data[variable.id]
        for attempt in changes.attempts:
            kept.attempts[attempt.ref] = attempt

    async def load_live(self, ended_after_ms: int) -> list[SessionRecord]:
        wanted = [
            kept
            for kept in self._sessions.values()
            if not kept.session.ended_ms or kept.session.ended_ms > ended_after_ms or kept.unfinished
        ]
        wanted.sort(key=lambda kept: (kept.session.created_ms, kept.session.id))
        return [kept.record(live=True) for kept in wanted]

    async def load_session(self, tenant: str, session_id: str) -> SessionRecord | None:
        kept = self._sessions.get(session_id)
        return kept.record(live=False) if kept is not None and kept.session.tenant == tenant else None

    async def read_value(self, session_id: str, variable_id: str) -> bytes | None:
        kept = self._sessions.get(session_id)
        return kept.values.get(variable_id) if kept is not None else None

    async def unpurged(self, ended_before_ms: int, limit: int) -> list[tuple[str, str]]:
        ended = [
            kept.session
            for kept in self._sessions.values()
            if 0 < kept.session.ended_ms < ended_before_ms and not kept.purged
        ]
        ended.sort(key=lambda session: session.ended_ms)
        return [(session.tenant, session.id) for session in ended[:limit]]

    async def mark_purged(self, session_ids: Sequence[str]) -> None:
        for session_id in session_ids:
            self._sessions[session_id].purged = True


def _bare(call: Call) -> Call:
    """What a database would give back: the rest is derived or of no use after a restart."""
    return replace(call, value_retries=0)
