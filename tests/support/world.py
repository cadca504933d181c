"""All that may happen around the machine, in any order, with the invariants checked as it goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from parrot_manager.core import admission, commands, events
from parrot_manager.core.machine import Machine
from parrot_manager.core.model import (
    Attempt,
    Call,
    Edge,
    Engine,
    Failure,
    Ref,
    Session,
    Streamed,
    Value,
    Variable,
    VariableState,
)
from parrot_manager.core.state import Policy
from parrot_manager.core.submissions import NewCall, NewValue
from parrot_runtime import errors

TENANT = "default"
Pick = Callable[[int], int]
"""A number from 0 up to, and without, its argument."""


@dataclass
class Stored:
    """What a store would hold; checks that what has ended never changes."""

    sessions: dict[str, Session] = field(default_factory=dict)
    calls: dict[tuple[str, str], Call] = field(default_factory=dict)
    variables: dict[tuple[str, str], Variable] = field(default_factory=dict)
    attempts: dict[Ref, Attempt] = field(default_factory=dict)
    commits: dict[tuple[str, str], int] = field(default_factory=dict)

    def apply(self, changes: commands.Changes) -> None:
        if changes.session is not None:
            assert not self.sessions[changes.session.id].state.ended
            self.sessions[changes.session.id] = changes.session
        for call in changes.calls:
            key = (call.session_id, call.id)
            assert not self.calls[key].state.ended, "a call that has ended changes"
            self.calls[key] = replace(call, spec=self.calls[key].spec)
        for variable in changes.variables:
            name = (variable.session_id, variable.id)
            assert not self.variables[name].state.ended, "a variable that has ended changes"
            self.variables[name] = variable
        for value in changes.values:
            committed = [v for v in changes.variables if v.id == value.variable_id]
            assert len(committed) == 1
            key = (committed[0].session_id, value.variable_id)
            self.commits[key] = self.commits.get(key, 0) + 1
            assert self.commits[key] == 1, "a variable is committed twice"
        for attempt in changes.attempts:
            self.attempts[attempt.ref] = attempt


@dataclass
class World:
    """Clients, engines, a store and a clock around a machine, driven by `pick`."""

    pick: Pick
    machine: Machine = field(default_factory=lambda: Machine(Policy()))
    now_ms: int = 10_000_000
    stored: Stored = field(default_factory=Stored)
    engines: dict[str, dict[Ref, None]] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    probes: list[commands.Probe] = field(default_factory=list)
    ended: list[Ref] = field(default_factory=list)
    timers: dict[events.Timer, int] = field(default_factory=dict)
    history: list[list[tuple[events.Event, int, list[commands.Command]]]] = field(
        default_factory=lambda: [[]]
    )
    serial: int = 0

    def tell(self, event: events.Event) -> None:
        """Feeds an event and does what is commanded."""
        told = self.machine.step(event, self.now_ms)
        self.history[-1].append((event, self.now_ms, told))
        self.machine.state.check_integrity()
        stored: set[str] = set()
        for command in told:
            if isinstance(command, commands.Persist):
                stored.add(command.session_id)
                self.stored.apply(command.changes)
            elif isinstance(command, commands.Dispatch):
                assert command.session_id in stored, "a dispatch is not stored"
                self._dispatched(command)
            elif isinstance(command, commands.Probe):
                self.probes.append(command)
            elif isinstance(command, commands.Arm):
                self.timers[command.timer] = command.at_ms

    def act(self) -> None:
        """Something happens."""
        actions: list[Callable[[], object]] = [
            self.open,
            self.submit,
            self.submit,
            self.join,
            self.lose,
            self.finish,
            self.finish,
            self.finish,
            self.fail,
            self.stream,
            self.repeat,
            self.answer_probe,
            self.close,
            self.ring,
            self.restart,
            self.drain_engine,
        ]
        actions[self.pick(len(actions))]()
        self.now_ms += self.pick(3_000)

    def settle(self) -> None:
        """From here on everything goes well, or runs into its deadline."""
        while self.probes:
            self.answer_probe()
        self.join()
        for _ in range(10_000):
            if not self.finish() and not self._ring_next():
                return
        raise AssertionError("it does not come to rest")

    def open(self) -> None:
        self.serial += 1
        event = admission.admit_session(
            self.machine.policy,
            self.now_ms,
            session_id=f"s00-{self.serial:016x}",
            tenant=TENANT,
            label="",
            timeout_ms=600_000,
        )
        self.stored.sessions[event.session.id] = event.session
        self.tell(event)

    def submit(self) -> None:
        """A random batch, its inputs from all there is; its producers may come after its consumers."""
        live = [s for s in self.machine.state.sessions.values() if not s.session.state.ended]
        if not live:
            return
        session = live[self.pick(len(live))]
        known = list(session.variables)
        batch: list[NewCall] = []
        for _ in range(1 + self.pick(4)):
            self.serial += 1
            inputs = {known[self.pick(len(known))] for _ in range(self.pick(3)) if known}
            outputs = [f"v{self.serial}-{n}" for n in range(1 + self.pick(2))]
            batch.append(
                NewCall("f", ["", "m", "n"][self.pick(3)], _edges(sorted(inputs)), _edges(outputs), b"spec")
            )
            known += outputs
        values = [NewValue(f"given-{self.serial}", "", b"x")] if self.pick(2) else []
        if self.pick(2):
            batch.reverse()
        try:
            event = admission.admit_calls(
                self.machine.state, TENANT, session.session.id, batch, values, now_ms=self.now_ms
            )
        except errors.Fault as fault:
            if fault.kind is errors.UNKNOWN_MODEL:
                return
            raise
        for call in event.calls:
            self.stored.calls[call.session_id, call.id] = call
        for variable in event.variables:
            self.stored.variables[variable.session_id, variable.id] = variable
        self.tell(event)

    def join(self) -> None:
        """Two engines, one a model, are there afterwards."""
        for name, model in (("e-m", "m"), ("e-n", "n")):
            if name not in self.engines:
                self.epochs[name] = self.epochs.get(name, 0) + 1
                self.engines[name] = {}
                self.tell(events.EngineJoined(Engine(name, self.epochs[name], model, 1 + self.pick(3))))

    def lose(self) -> None:
        for name in list(self.engines):
            if self.pick(2):
                self.ended += self.engines.pop(name)
                self.tell(events.EngineLost(name, self.epochs[name]))

    def drain_engine(self) -> None:
        for name in list(self.engines):
            if not self.pick(4):
                self.tell(events.EngineDraining(name, self.epochs[name]))

    def finish(self) -> bool:
        """An attempt is done; False when none can be."""
        ref = self._end_one()
        if ref is not None:
            self.tell(events.AttemptDone(ref, self._made(ref)))
        return ref is not None

    def fail(self) -> None:
        ref = self._end_one()
        if ref is not None:
            kind = [errors.ENGINE_ERROR, errors.VALUE_UNAVAILABLE, errors.PROMPT_TOO_LONG][self.pick(3)]
            self.tell(events.AttemptFailed(ref, Failure.of(kind, "it broke")))

    def stream(self) -> None:
        running = [ref for refs in self.engines.values() for ref in refs]
        if running:
            ref = running[self.pick(len(running))]
            self.tell(events.AttemptStarted(ref))
            self.tell(events.AttemptStreaming(ref, self._outputs(ref)[0]))

    def repeat(self) -> None:
        """An engine says again, or much too late, what became of an attempt."""
        if self.ended:
            ref = self.ended[self.pick(len(self.ended))]
            self.tell(events.SlotFreed("e-m", ref))
            if not any(probe.ref == ref for probe in self.probes):
                late = [
                    events.AttemptUndelivered(ref) if self._over(ref) else events.AttemptStarted(ref),
                    events.AttemptDone(ref, self._made(ref)),
                    events.AttemptFailed(ref, Failure.of(errors.ENGINE_ERROR, "late")),
                    events.AttemptLost(ref) if self._over(ref) else events.AttemptStarted(ref),
                ]
                self.tell(late[self.pick(len(late))])

    def answer_probe(self) -> None:
        if self.probes:
            probe = self.probes.pop(self.pick(len(self.probes)))
            made = tuple(Value(name, b"made") for name in probe.output_ids)
            found = made[: self.pick(len(made) + 1)]
            if len(found) == len(made):
                self.tell(events.AttemptDone(probe.ref, made))
            else:
                streamed = tuple(Streamed(value.variable_id, b"ma") for value in made[len(found) :])
                self.tell(events.AttemptLost(probe.ref, probe.restarted, streamed, found))

    def close(self) -> None:
        live = [s.session.id for s in self.machine.state.sessions.values()]
        if live and not self.pick(4):
            event = admission.admit_close(self.machine.state, TENANT, live[self.pick(len(live))])
            if event is not None:
                self.tell(event)

    def ring(self) -> None:
        if not self.pick(3):
            self._ring_next()

    def restart(self) -> None:
        """The manager dies and starts anew on its store; its engines are gone."""
        if self.pick(4):
            return
        self.machine = Machine(Policy())
        self.history.append([])
        self.probes.clear()
        self.timers.clear()
        for refs in self.engines.values():
            self.ended += refs
        self.engines.clear()
        for session in self.stored.sessions.values():
            self.tell(
                events.SessionRestored(
                    session,
                    tuple(c for c in self.stored.calls.values() if c.session_id == session.id),
                    tuple(v for v in self.stored.variables.values() if v.session_id == session.id),
                    tuple(a for a in self.stored.attempts.values() if a.ref.session_id == session.id),
                )
            )

    def _dispatched(self, command: commands.Dispatch) -> None:
        running = self.engines[command.engine_id]
        running[command.call.ref] = None
        engine = self.machine.state.engines[command.engine_id].engine
        ahead = sum(self._lacks_inputs(ref) for ref in running)
        assert len(running) - ahead <= engine.capacity, "an engine gets more than it can take"
        assert command.call.model in {"", engine.model}
        open_inputs = {variable.id for variable in command.inputs if variable.state.name != "READY"}
        assert open_inputs == {name for name, _ in command.pending}, "an input is nowhere"

    def _lacks_inputs(self, ref: Ref) -> bool:
        """Whether an attempt waits, on its engine, for what another makes, or was to make."""
        call = self.stored.calls[ref.session_id, ref.call_id]
        inputs = [self.stored.variables[ref.session_id, name] for name in call.input_ids]
        return any(variable.state is not VariableState.READY for variable in inputs)

    def _end_one(self) -> Ref | None:
        busy = [
            (name, ref)
            for name, refs in self.engines.items()
            for ref in refs
            if self._over(ref) or not self._lacks_inputs(ref)
        ]
        if not busy:
            return None
        name, ref = busy[self.pick(len(busy))]
        del self.engines[name][ref]
        self.ended.append(ref)
        self.tell(events.SlotFreed(name, ref))
        return ref

    def _ring_next(self) -> bool:
        if not self.timers:
            return False
        timer, at_ms = min(self.timers.items(), key=lambda item: item[1])
        del self.timers[timer]
        if timer.kind is not events.TimerKind.FORGET:
            self.now_ms = max(self.now_ms, at_ms)
            self.tell(events.TimerFired(timer))
        return True

    def _outputs(self, ref: Ref) -> tuple[str, ...]:
        return self.stored.calls[ref.session_id, ref.call_id].output_ids

    def _made(self, ref: Ref) -> tuple[Value, ...]:
        return tuple(Value(name, b"made") for name in self._outputs(ref))

    def _over(self, ref: Ref) -> bool:
        return ref not in self.stored.attempts or bool(self.stored.attempts[ref].ended_ms)


def _edges(names: Any) -> tuple[Edge, ...]:
    return tuple(Edge(name, name) for name in names)
