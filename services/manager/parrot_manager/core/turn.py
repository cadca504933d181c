"""One step of the machine in progress: what it touches, and what it will command."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from parrot_manager.core.blocks.model import Block
from parrot_manager.core.commands import (
    Arm,
    Cancel,
    Changes,
    Command,
    Effect,
    FleetCommand,
    Forget,
    Persist,
    PublishEnd,
)
from parrot_manager.core.events import Timer, TimerKind
from parrot_manager.core.model import (
    Attempt,
    AttemptState,
    Call,
    Ref,
    Session,
    Value,
    Variable,
)
from parrot_manager.core.state import LiveSession, Policy, State


@dataclass(slots=True)
class _Touched:
    """What changed in one session, by id, and what is to be done about it afterwards."""

    session: Session | None = None
    calls: dict[str, Call] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    attempts: dict[Ref, Attempt] = field(default_factory=dict)
    values: list[Value] = field(default_factory=list)
    new_calls: list[Call] = field(default_factory=list)
    new_variables: list[Variable] = field(default_factory=list)
    blocks: dict[str, Block] = field(default_factory=dict)
    effects: list[Effect] = field(default_factory=list)
    can_wait: bool = True

    def commands(self, session_id: str) -> list[Command]:
        changes = Changes(
            self.session,
            tuple(self.calls.values()),
            tuple(self.variables.values()),
            tuple(self.attempts.values()),
            tuple(self.values),
            tuple(self.new_calls),
            tuple(self.new_variables),
            tuple(self.blocks.values()),
        )
        persist: list[Command] = [Persist(session_id, changes, self.can_wait)] if changes != Changes() else []
        return persist + list[Command](self.effects)


class Turn:
    """Changes the state and collects commands. Every change of an entity goes through here.

    Attributes:
        again: calls that are to find a place anew.
        reconsidered: sessions whose graph, or what is wanted of it, changed.
        ended: variables that ended in this step, for blocks and conditions to hear of.
        looks: calls and blocks that may be able to go on.
    """

    def __init__(self, state: State, policy: Policy, now_ms: int) -> None:
        self.state = state
        self.policy = policy
        self.now_ms = now_ms
        self.reconsidered: dict[str, None] = {}
        self.again: list[Call] = []
        self.ended: deque[tuple[LiveSession, str]] = deque()
        self.looks: deque[tuple[LiveSession, str]] = deque()
        self._touched: dict[str, _Touched] = {}
        self._last: list[Command] = []

    def commands(self) -> list[Command]:
        """All commands of the step: each session's in order, its `Persist` first."""
        found: list[Command] = []
        for session_id, touched in self._touched.items():
            found += touched.commands(session_id)
        return found + self._last

    @property
    def touched(self) -> tuple[str, ...]:
        """The sessions something changed in."""
        return tuple(self._touched)

    def save_session(self, session: Session) -> None:
        """Keeps and persists a session's new snapshot."""
        self.state.sessions[session.id].session = session
        self._touch(session.id).session = session

    def save_call(self, live: LiveSession, call: Call) -> None:
        """Keeps and persists a call's new snapshot."""
        live.put_call(call)
        self._touch(call.session_id).calls[call.id] = call

    def save_variable(
        self, live: LiveSession, variable: Variable, value: Value | None = None, *, can_wait: bool = False
    ) -> None:
        """Keeps and persists a variable's new snapshot, with its value when it got one.

        `can_wait`: see `Persist`; what else changes in the step decides too.
        """
        if variable.state.ended and variable.id in live.open_variables:
            self.ended.append((live, variable.id))
        live.put_variable(variable)
        touched = self._touch(variable.session_id, can_wait=can_wait)
        touched.variables[variable.id] = variable
        if value is not None:
            touched.values.append(value)

    def save_block(self, live: LiveSession, block: Block) -> None:
        """Keeps and persists a block's new snapshot."""
        live.put_block(block)
        self._touch(block.session_id).blocks[block.id] = block

    def add_call(self, live: LiveSession, call: Call) -> None:
        """Adds a call that a block unfolds into."""
        live.graph.add(call.id, call)
        live.put_call(call)
        self._touch(call.session_id).new_calls.append(call)

    def add_variable(self, live: LiveSession, variable: Variable, value: Value | None = None) -> None:
        """Adds a variable that a block unfolds into, with its value when it has one."""
        live.put_variable(variable)
        touched = self._touch(variable.session_id)
        touched.new_variables.append(variable)
        if value is not None:
            touched.values.append(value)

    def look(self, live: LiveSession, owner_id: str) -> None:
        """Has a call or block looked at, which may be able to go on."""
        self.looks.append((live, owner_id))

    def start_attempt(self, live: LiveSession, attempt: Attempt) -> None:
        """Keeps and persists a call's running attempt."""
        live.attempts[attempt.ref.call_id] = attempt
        self._touch(attempt.ref.session_id).attempts[attempt.ref] = attempt

    def end_attempt(self, live: LiveSession, call: Call, state: AttemptState) -> None:
        """Persists the end of a call's running attempt, if it has one."""
        attempt = live.attempts.pop(call.id, None)
        if attempt is not None:
            self.drop_orphan(attempt)
            ended = replace(attempt, state=state, ended_ms=self.now_ms)
            self._touch(call.session_id).attempts[ended.ref] = ended

    def cancel_attempt(self, live: LiveSession, call: Call, state: AttemptState, reason: str) -> None:
        """Ends a call's running attempt, if it has one, and tells the engine."""
        attempt = live.attempts.get(call.id)
        if attempt is not None:
            self.end_attempt(live, call, state)
            live.stopping[attempt.ref] = attempt.engine_id
            self.do(Cancel(attempt.ref, attempt.engine_id, reason))

    def drop_orphan(self, attempt: Attempt) -> None:
        """No engine has to claim this attempt any more."""
        refs = self.state.orphans.get(attempt.engine_id, {})
        refs.pop(attempt.ref, None)
        if not refs:
            self.state.orphans.pop(attempt.engine_id, None)

    def do(self, effect: Effect) -> None:
        """Commands something of a session, after what is persisted."""
        self._touch(effect.session_id).effects.append(effect)

    def tell_fleet(self, command: FleetCommand) -> None:
        """Commands something of no session."""
        self._last.append(command)

    def publish_end(self, live: LiveSession, variable: Variable) -> None:
        """Tells the bus that a variable failed or was cancelled."""
        self.do(PublishEnd(live.session.id, live.session.tenant, variable, made_by(live, variable)))

    def arm(self, kind: TimerKind, timer_id: str, at_ms: int) -> None:
        """Sets a timer."""
        self._last.append(Arm(Timer(kind, timer_id), at_ms))

    def forget(self, session_id: str) -> None:
        """Drops a session from memory."""
        del self.state.sessions[session_id]
        self.reconsidered.pop(session_id, None)
        self._last.append(Forget(session_id))

    def watch_unserved(self, model: str) -> None:
        """Starts the clock of the calls that ask for a model when no engine serves it."""
        if model not in self.state.unserved_since and not self.state.serving(model):
            self.state.unserved_since[model] = self.now_ms
            self.arm(TimerKind.NO_ENGINE, model, self.now_ms + self.policy.engine_wait_ms)

    def _touch(self, session_id: str, *, can_wait: bool = False) -> _Touched:
        touched = self._touched.setdefault(session_id, _Touched())
        touched.can_wait = touched.can_wait and can_wait
        return touched


def made_by(live: LiveSession, variable: Variable) -> int:
    """The attempt that made a variable, or would have; 0 when a client sets it."""
    producer = live.calls.get(variable.producer_call_id)
    return producer.attempt if producer is not None else 0
