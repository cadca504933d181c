"""A session as the store in memory keeps it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from parrot_manager.core.blocks.model import Block
from parrot_manager.core.commands import Changes
from parrot_manager.core.events import CallsAccepted
from parrot_manager.core.model import Attempt, Batch, Call, Ref, Session, Value, Variable
from parrot_manager.store.base import SessionRecord
from parrot_manager.store.listing import ListedSession


@dataclass(slots=True)
class KeptSession:
    """A session's rows, by their keys. What has ended stays as it is."""

    session: Session
    calls: dict[int, Call] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    attempts: dict[Ref, Attempt] = field(default_factory=dict)
    values: dict[str, bytes] = field(default_factory=dict)
    batches: dict[str, Batch] = field(default_factory=dict)
    blocks: dict[int, Block] = field(default_factory=dict)
    purged: bool = False

    def is_live(self, ended_after_ms: int) -> bool:
        """Whether it is open, ended lately, or has calls that have not ended."""
        ended_ms = self.session.ended_ms
        lately = ended_ms > ended_after_ms and not self.purged
        return not ended_ms or lately or any(not call.state.ended for call in self.calls.values())

    def listed(self) -> ListedSession:
        """As it stands in a list."""
        ended = sum(call.state.ended for call in self.calls.values())
        return ListedSession(self.session, len(self.calls), ended)

    def record(self, *, live: bool) -> SessionRecord:
        """What a database would give back."""
        return SessionRecord(
            self.session,
            tuple(
                call if live and not call.state.ended else replace(call, spec=b"")
                for _, call in sorted(self.calls.items())
            ),
            tuple(variable for _, variable in sorted(self.variables.items())),
            tuple(self._last_attempts()) if live else (),
            tuple(batch for _, batch in sorted(self.batches.items())) if live else (),
            tuple(block for _, block in sorted(self.blocks.items())),
        )

    def has(self, accepted: CallsAccepted) -> bool:
        """Whether a batch is there."""
        return (
            any(call.number in self.calls for call in accepted.calls[:1])
            or any(variable.id in self.variables for variable in accepted.variables[:1])
            or any(block.number in self.blocks for block in accepted.blocks[:1])
        )

    def add(self, accepted: CallsAccepted) -> None:
        """Adds a batch."""
        if accepted.batch is not None:
            self.batches.setdefault(accepted.batch.key, accepted.batch)
        self._add(accepted.calls, accepted.variables, accepted.values)
        for block in accepted.blocks:
            self.blocks.setdefault(block.number, _bare_block(block))

    def remove(self, accepted: CallsAccepted) -> None:
        """Takes a batch back."""
        if accepted.batch is not None:
            self.batches.pop(accepted.batch.key, None)
        for call in accepted.calls:
            self.calls.pop(call.number, None)
        for variable in accepted.variables:
            self.variables.pop(variable.id, None)
            self.values.pop(variable.id, None)
        for block in accepted.blocks:
            self.blocks.pop(block.number, None)

    def change(self, changes: Changes) -> None:
        """Adds what is new, and brings the rest up to its newest snapshots."""
        if changes.session is not None and not self.session.ended_ms:
            new = changes.session
            self.session = replace(self.session, state=new.state, ended_ms=new.ended_ms, marks=new.marks)
        self._add(changes.new_calls, changes.new_variables, changes.values)
        self._change_calls(changes.calls)
        self._change_variables(changes.variables, changes.values)
        for attempt in changes.attempts:
            known = self.attempts.get(attempt.ref)
            if known is None or not known.ended_ms:
                self.attempts[attempt.ref] = attempt
        self._change_blocks(changes.blocks)

    def _add(self, calls: Sequence[Call], variables: Sequence[Variable], values: Sequence[Value]) -> None:
        data = {value.variable_id: value.data for value in values}
        for call in calls:
            self.calls.setdefault(call.number, _bare(call))
        for variable in variables:
            if variable.id not in self.variables:
                self.variables[variable.id] = replace(variable, published_ms=0)
                if variable.id in data:
                    self.values[variable.id] = data[variable.id]

    def _change_calls(self, calls: Iterable[Call]) -> None:
        for call in calls:
            known = self.calls.get(call.number)
            if known is not None and not known.state.ended:
                self.calls[call.number] = replace(_bare(call), spec=known.spec)

    def _change_variables(self, variables: Iterable[Variable], values: Iterable[Value]) -> None:
        data = {value.variable_id: value.data for value in values}
        for variable in variables:
            known = self.variables.get(variable.id)
            if known is not None and not known.state.ended:
                self.variables[variable.id] = replace(variable, published_ms=0)
                if variable.id in data:
                    self.values[variable.id] = data[variable.id]

    def _change_blocks(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            known = self.blocks.get(block.number)
            if known is not None and not known.state.ended:
                self.blocks[block.number] = replace(_bare_block(block), spec=known.spec)

    def _last_attempts(self) -> Iterator[Attempt]:
        for call in self.calls.values():
            if not call.state.ended and call.ref in self.attempts:
                yield self.attempts[call.ref]


def _bare(call: Call) -> Call:
    """Without what is derived, or of no use after a restart. An instance's spec is its block's."""
    spec = b"" if call.block_id else call.spec
    return replace(call, value_retries=0, shape=(), when=None, objective=None, spec=spec)


def _bare_block(block: Block) -> Block:
    return replace(block, plan=None, when=None)
