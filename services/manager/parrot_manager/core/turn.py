"""One step of the machine in progress: what it touches, and what it will command."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from parrot_manager.core.commands import (
    Arm,
    Cancel,
    Changes,
    Command,
    Dispatch,
    Effect,
    Forget,
    Persist,
    PublishEnd,
)
from parrot_manager.core.events import Timer, TimerKind
from parrot_manager.core.model import (
    Attempt,
    AttemptState,
    Call,
    CallState,
    Ref,
    Session,
    Value,
    Variable,
)
from parrot_manager.core.scheduler import Placement, QueuedCall, schedule
from parrot_manager.core.state import LiveSession, Policy, State


@dataclass(slots=True)
class _Touched:
    """What changed in one session, by id, and what is to be done about it afterwards."""

    session: Session | None = None
    calls: dict[str, Call] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    attempts: dict[Ref, Attempt] = field(default_factory=dict)
    values: list[Value] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)

    def commands(self, session_id: str) -> list[Command]:
        changes = Changes(
            self.session,
            tuple(self.calls.values()),
            tuple(self.variables.values()),
            tuple(self.attempts.values()),
            tuple(self.values),
        )
        persist: list[Command] = [Persist(session_id, changes)] if changes != Changes() else []
        return persist + list[Command](self.effects)


class Turn:
    """Changes the state and collects commands. Every change of an entity goes through here."""

    def __init__(self, state: State, policy: Policy, now_ms: int) -> None:
        self.state = state
        self.policy = policy
        self.now_ms = now_ms
        self._touched: dict[str, _Touched] = {}
        self._last: list[Command] = []

    def commands(self) -> list[Command]:
        """All commands of the step: each session's in order, its `Persist` first."""
        found: list[Command] = []
        for session_id, touched in self._touched.items():
            found += touched.commands(session_id)
        return found + self._last

    def save_session(self, session: Session) -> None:
        """Keeps and persists a session's new snapshot."""
        self.state.sessions[session.id].session = session
        self._touch(session.id).session = session

    def save_call(self, live: LiveSession, call: Call) -> None:
        """Keeps and persists a call's new snapshot."""
        live.put_call(call)
        self._touch(call.session_id).calls[call.id] = call

    def save_variable(self, live: LiveSession, variable: Variable, value: Value | None = None) -> None:
        """Keeps and persists a variable's new snapshot, with its value when it got one."""
        live.put_variable(variable)
        touched = self._touch(variable.session_id)
        touched.variables[variable.id] = variable
        if value is not None:
            touched.values.append(value)

    def end_attempt(self, live: LiveSession, call: Call, state: AttemptState) -> None:
        """Persists the end of a call's running attempt, if it has one."""
        attempt = live.attempts.pop(call.id, None)
        if attempt is not None:
            ended = replace(attempt, state=state, ended_ms=self.now_ms)
            self._touch(call.session_id).attempts[ended.ref] = ended

    def cancel_attempt(self, live: LiveSession, call: Call, state: AttemptState, reason: str) -> None:
        """Ends a call's running attempt, if it has one, and tells the engine."""
        attempt = live.attempts.get(call.id)
        if attempt is not None:
            self.end_attempt(live, call, state)
            self.do(Cancel(attempt.ref, attempt.engine_id, reason))

    def do(self, effect: Effect) -> None:
        """Commands something of a session, after what is persisted."""
        self._touch(effect.session_id).effects.append(effect)

    def publish_end(self, live: LiveSession, variable: Variable) -> None:
        """Tells the bus that a variable failed or was cancelled."""
        self.do(PublishEnd(live.session.id, live.session.tenant, variable, _made_by(live, variable)))

    def arm(self, kind: TimerKind, timer_id: str, at_ms: int) -> None:
        """Sets a timer."""
        self._last.append(Arm(Timer(kind, timer_id), at_ms))

    def forget(self, session_id: str) -> None:
        """Drops an ended session from memory."""
        del self.state.sessions[session_id]
        self._last.append(Forget(session_id))

    def queue(self, live: LiveSession, call: Call) -> None:
        """Makes a call ready: it goes to an engine as soon as one has room."""
        ready = replace(call, state=CallState.READY, ready_ms=call.ready_ms or self.now_ms)
        live.missing.pop(call.id, None)
        live.put_call(ready)
        item = QueuedCall(
            live.session.created_ms, live.session.id, call.order, call.id, call.model, self.now_ms
        )
        live.queued[call.id] = item
        self.state.ready.add(item)
        self.watch_unserved(call.model)

    def watch_unserved(self, model: str) -> None:
        """Starts the clock of the calls that ask for a model when no engine serves it."""
        if model not in self.state.unserved_since and not self.state.serving(model):
            self.state.unserved_since[model] = self.now_ms
            self.arm(TimerKind.NO_ENGINE, model, self.now_ms + self.policy.engine_wait_ms)

    def unqueue(self, live: LiveSession, call_id: str) -> None:
        """Takes a call out of the ready queue, if it is there."""
        item = live.queued.pop(call_id, None)
        if item is not None:
            self.state.ready.discard(item)

    def place(self) -> None:
        """Dispatches what the engines have room for."""
        if self.state.draining:
            return
        for placement in schedule(self.state.ready, self.state.engines.values()):
            self._dispatch(placement)

    def _dispatch(self, placement: Placement) -> None:
        live = self.state.sessions[placement.call.session_id]
        load = self.state.engines[placement.engine_id]
        self.unqueue(live, placement.call.call_id)
        ready = live.calls[placement.call.call_id]
        call = replace(
            ready,
            state=CallState.DISPATCHED,
            engine_id=placement.engine_id,
            attempt=ready.attempt + 1,
            dispatched_ms=self.now_ms,
        )
        attempt = Attempt(call.ref, placement.engine_id, AttemptState.RUNNING, self.now_ms)
        load.running[call.ref] = None
        live.attempts[call.id] = attempt
        self._touch(call.session_id).attempts[call.ref] = attempt
        republish = self._stale_inputs(live, call)
        inputs = tuple(live.variables[name] for name in call.input_ids)
        self.save_call(live, call)
        self.do(Dispatch(live.session, call, load.engine.id, load.engine.epoch, inputs, republish))

    def _stale_inputs(self, live: LiveSession, call: Call) -> tuple[tuple[Variable, int], ...]:
        """Inputs that the bus may have lost; they count as published from here on."""
        oldest = self.now_ms - self.policy.republish_after_ms
        stale = [
            variable
            for variable in map(live.variables.__getitem__, call.input_ids)
            if call.value_retries or not variable.published_ms or variable.published_ms <= oldest
        ]
        for variable in stale:
            live.put_variable(replace(variable, published_ms=self.now_ms))
        return tuple((variable, _made_by(live, variable)) for variable in stale)

    def _touch(self, session_id: str) -> _Touched:
        return self._touched.setdefault(session_id, _Touched())


def _made_by(live: LiveSession, variable: Variable) -> int:
    """The attempt that made a variable, or would have; 0 when a client sets it."""
    producer = live.calls.get(variable.producer_call_id)
    return producer.attempt if producer is not None else 0
