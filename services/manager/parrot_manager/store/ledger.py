"""What writes take of a tenant's quota, in the transactions that write.

The tenant's row is locked last, so that whoever holds it waits for nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from sqlalchemy import Delete, Row, Select
from sqlalchemy.ext.asyncio import AsyncConnection

from parrot_manager.core.commands import Changes
from parrot_manager.core.events import CallsAccepted
from parrot_manager.core.model import Session, VariableState
from parrot_manager.core.reservations import taken_by, used_tokens
from parrot_manager.core.tenants import Movement, Taken, Tenant, TenantLimits, refusal
from parrot_manager.store import ledger_statements, statements

Fence = tuple[Select[Any], dict[str, Any]]
"""As `statements.FENCE`, with the tenant's name if it has limits; and its parameters."""


def tenant_of(row: Row[Any]) -> Tenant:
    """The tenant of a row."""
    limits = TenantLimits(
        row.max_sessions,
        row.max_calls,
        row.max_tokens,
        row.tokens_per_minute,
        row.requests_per_second,
        row.max_stored_bytes,
    )
    taken = Taken(row.sessions, row.calls, row.tokens, row.stored_bytes, float(row.budget_left))
    return Tenant(row.name, limits, taken)


class Account(Protocol):
    """What of a write has to do with a quota; called on only where the tenant has limits."""

    @property
    def fence(self) -> Fence:
        """What the transaction begins with."""
        ...

    async def begin(self, connection: AsyncConnection) -> None:
        """Comes before the rows."""
        ...

    async def end(self, connection: AsyncConnection) -> None:
        """Comes behind them."""
        ...


@dataclass(frozen=True, slots=True)
class Charge:
    """Something new takes its share; refused, nothing of it is stored.

    Attributes:
        kind: "session" or "batch".
        tenant: of a session that is not there yet.
        canary: rows of the write, by which to see whether it is new.
    """

    kind: str
    session_id: str
    movement: Movement
    tenant: str = ""
    canary: dict[str, Any] = field(default_factory=dict)

    @property
    def fence(self) -> Fence:
        """Finds the tenant by its name, or by the session."""
        return (
            _fence(self.session_id)
            if not self.tenant
            else (statements.FENCE_TENANT, {"k_tenant": self.tenant})
        )

    async def begin(self, connection: AsyncConnection) -> None:
        """Refuses, in most cases, before anything is written.

        Raises:
            Fault: `quota_exceeded`, `too_large`.
        """
        row = await self._look(connection)
        if row is not None and not row.there:
            self._check(row)

    async def end(self, connection: AsyncConnection) -> None:
        """Takes the share of what is new.

        Raises:
            Fault: `quota_exceeded`, `too_large`.
        """
        parameters = {"session": self.session_id, **self.canary, **asdict(self.movement)}
        while True:
            told = (await connection.execute(ledger_statements.TAKE[self.kind], parameters)).one()
            if told.taken or not told.new:
                return
            row = await self._look(connection)
            if row is None:
                return
            self._check(row)

    async def _look(self, connection: AsyncConnection) -> Row[Any] | None:
        of = {"tenant": self.tenant} if self.tenant else self.canary
        found = await connection.execute(
            ledger_statements.LOOK[self.kind], {"session": self.session_id, **of}
        )
        return found.first()

    def _check(self, row: Row[Any]) -> None:
        fault = refusal(tenant_of(row), self.movement)
        if fault is not None:
            raise fault


@dataclass(slots=True)
class Refund:
    """A batch that is taken back gives its share back, if it was there."""

    accepted: CallsAccepted
    _was_there: bool = False

    @property
    def fence(self) -> Fence:
        """Finds the tenant by the session."""
        return _fence(self.accepted.session_id)

    async def begin(self, connection: AsyncConnection) -> None:
        """Takes one row of it away, which shows whether it was there."""
        statement, key = _one_of(self.accepted)
        done = await connection.execute(statement, {"k_session": self.accepted.session_id, **key})
        self._was_there = done.rowcount > 0

    async def end(self, connection: AsyncConnection) -> None:
        """Gives back what it had taken."""
        if self._was_there:
            parameters = {"session": self.accepted.session_id, **asdict(taken_by(self.accepted).reversed)}
            await connection.execute(ledger_statements.GIVE_BACK, parameters)


@dataclass(frozen=True, slots=True)
class Settlement:
    """What ended gives its share back, less what it used; values that were made take storage."""

    session_id: str
    changes: Changes

    @property
    def fence(self) -> Fence:
        """Finds the tenant by the session."""
        return _fence(self.session_id)

    async def begin(self, connection: AsyncConnection) -> None:
        """Nothing yet: only the rows show what is news."""

    async def end(self, connection: AsyncConnection) -> None:
        """Counts what this transaction itself ended or added."""
        calls = [call for call in self.changes.calls if call.ended_ms]
        variables = (*self.changes.variables, *self.changes.new_variables)
        parameters = {
            "session": self.session_id,
            "calls": [call.number for call in calls],
            "used": [used_tokens(call) for call in calls],
            "blocks": [block.number for block in self.changes.blocks if block.ended_ms],
            "variables": sorted({v.id for v in variables if v.state is VariableState.READY}),
        }
        await connection.execute(ledger_statements.SETTLE, parameters)

    @property
    def is_due(self) -> bool:
        """Whether there is anything to count."""
        changes, session = self.changes, self.changes.session
        if changes.values or (session is not None and session.ended_ms):
            return True
        return any(call.ended_ms for call in changes.calls) or any(b.ended_ms for b in changes.blocks)


@dataclass(slots=True)
class Freed:
    """Deleted sessions give their storage back. `tenants`: of each session."""

    tenants: Mapping[str, str]
    _sizes: dict[str, int] = field(default_factory=dict)

    @property
    def fence(self) -> Fence:
        """They may be several tenants'."""
        names = sorted(set(self.tenants.values()))
        if len(names) == 1:
            return statements.FENCE_TENANT, {"k_tenant": names[0]}
        return statements.FENCE_ALL, {}

    async def begin(self, connection: AsyncConnection) -> None:
        """Deletes what is counted."""
        self._sizes = {}
        for statement in ledger_statements.FREE:
            for row in await connection.execute(statement, {"sessions": sorted(self.tenants)}):
                name = self.tenants[row.session_id]
                self._sizes[name] = self._sizes.get(name, 0) + int(row.size)

    async def end(self, connection: AsyncConnection) -> None:
        """Gives it back."""
        for name, size in sorted(self._sizes.items()):
            parameters = asdict(Movement(stored_bytes=-size))
            await connection.execute(ledger_statements.GIVE_BACK_NAMED, {"tenant": name, **parameters})


def charge_of_session(session: Session, accepted: CallsAccepted | None = None) -> Charge:
    """What a session takes, with the batch that it comes with."""
    movement = Movement(sessions=1) if accepted is None else taken_by(accepted, opened=1)
    return Charge("session", session.id, movement, session.tenant)


def charge_of_batch(accepted: CallsAccepted) -> Charge:
    """What a batch takes."""
    canary = {
        "call": accepted.calls[0].number if accepted.calls else -1,
        "variable": _first(accepted),
        "block": accepted.blocks[0].number if accepted.blocks else -1,
    }
    return Charge("batch", accepted.session_id, taken_by(accepted), canary=canary)


def _fence(session_id: str) -> Fence:
    return statements.FENCE_SESSION, {"k_session": session_id}


def _one_of(accepted: CallsAccepted) -> tuple[Delete, dict[str, Any]]:
    """What deletes one row of a batch; every batch has one."""
    if accepted.calls:
        return statements.DELETE_CALL, {"k_number": accepted.calls[0].number}
    if accepted.variables:
        return statements.DELETE_VARIABLE, {"k_id": _first(accepted)}
    return statements.DELETE_BLOCK, {"k_number": accepted.blocks[0].number if accepted.blocks else -1}


def _first(accepted: CallsAccepted) -> str:
    return min((variable.id for variable in accepted.variables), default="")
