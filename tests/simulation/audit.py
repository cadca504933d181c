"""The promises that are checked at every step, by records of its own and not by the machine's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

from parrot_manager.core import commands, events
from parrot_manager.core.commands import Changes
from parrot_manager.core.events import CallsAccepted, Timer, TimerKind
from parrot_manager.core.model import Attempt, AttemptState, Ref, Variable, VariableState
from parrot_manager.core.scheduling import ANY_MODEL
from tests.simulation.violations import promise

if TYPE_CHECKING:
    from parrot_manager.core.machine import Machine
    from parrot_manager.core.scheduling import EngineLoad
    from tests.simulation.kernel import Clock, Entry

IDLE_MS = 1_500
"""How long a call may be ready while an engine of its model has room."""
AMPLE_TOKENS = 100_000
"""An engine with so much memory takes as many calls as it has places for."""
EVERY = 8
"""What the machine keeps twice is compared every so many steps."""


class Audit:
    """What was promised so far, and to whom.

    Attributes:
        moves: how often a manager met what another life of it, or of its link to an engine, had begun.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._accepted: dict[tuple[str, str], int] = {}
        self._ended: dict[tuple[str, str], object] = {}
        self._values: dict[tuple[str, str], bytes] = {}
        self._attempts: dict[tuple[str, str], Attempt] = {}
        self._inputs: dict[tuple[str, str], tuple[str, ...]] = {}
        self._done: dict[tuple[str, str], int] = {}
        self._running: dict[tuple[str, str], dict[Ref, None]] = {}
        self._ahead: dict[tuple[str, str], dict[Ref, list[str]]] = {}
        self._claims: dict[tuple[str, str], str] = {}
        self._claiming: dict[tuple[str, str], dict[str, None]] = {}
        self._forsaken: set[tuple[str, str]] = set()
        self._completed: dict[tuple[str, str], None] = {}
        self._steps = 0
        self.moves = 0

    def accepted(self, session_id: str, call_ids: Sequence[str]) -> None:
        """A client was told that its calls are accepted."""
        for call_id in call_ids:
            self._accepted[session_id, call_id] = self._clock.now_ms

    @property
    def promised(self) -> list[tuple[str, str]]:
        """The calls that were accepted: session and call."""
        return list(self._accepted)

    def unfinished(self, session_id: str) -> list[str]:
        """The accepted calls of a session that have no stored end."""
        return [
            call for name, call in self._accepted if name == session_id and (name, call) not in self._ended
        ]

    def claiming(self, session_id: str, call_id: str, worker: str) -> None:
        """A worker asks for a call: from now on it may be its own without its having heard of it."""
        self._claiming.setdefault((session_id, call_id), {})[worker] = None

    def claim_refused(self, session_id: str, call_id: str, worker: str) -> None:
        """A worker was told that a call is not its own, or not any more."""
        self._claiming[session_id, call_id].pop(worker, None)

    def claimed(self, session_id: str, call_id: str, worker: str) -> None:
        """A worker was told that a call is its own."""
        first = self._claims.setdefault((session_id, call_id), worker)
        promise(first == worker, "claimed twice", f"{session_id} {call_id}: by {first} and {worker}")

    def forsaken(self, session_id: str, worker: str) -> None:
        """A worker dies or stands still: what may be its own may fail."""
        for key, workers in self._claiming.items():
            if key[0] == session_id and worker in workers:
                self._forsaken.add(key)

    def may_be_lost(self, session_id: str, call_id: str) -> bool:
        """Whether a worker that may have had a call was away."""
        return (session_id, call_id) in self._forsaken

    def completed(self, session_id: str, call_id: str) -> None:
        """A worker was told that what it made is stored."""
        self._completed[session_id, call_id] = None

    @property
    def told_completed(self) -> list[tuple[str, str]]:
        """The calls whose workers were told so: session and call."""
        return list(self._completed)

    def removed(self, accepted: CallsAccepted) -> None:
        """A batch was taken back from the store."""
        for call in accepted.calls:
            known = (call.session_id, call.id) in self._accepted
            promise(not known, "accepted call lost", f"{call.session_id} {call.id} was taken back")

    def inserted(self, accepted: CallsAccepted) -> None:
        """The store has a batch, heard of or not."""
        for call in accepted.calls:
            self._inputs[call.session_id, call.id] = call.input_ids
        for variable in accepted.variables:
            if variable.state is VariableState.READY:
                self._end((accepted.session_id, f"variable {variable.id}"), variable.state)

    def committed(self, session_id: str, changes: Changes) -> None:
        """The store has changes."""
        for call in changes.new_calls:
            self._inputs[session_id, call.id] = call.input_ids
        self._note_ends(session_id, changes)
        for variable in changes.variables:
            if variable.state is VariableState.READY and variable.producer_call_id:
                self._check_inputs(session_id, variable)
        for value in changes.values:
            before = self._values.setdefault((session_id, value.variable_id), value.data)
            where = f"{session_id} {value.variable_id}"
            promise(before == value.data, "committed twice", f"{where}: {before!r} and {value.data!r}")
        for attempt in changes.attempts:
            self._attempts[session_id, attempt.ref.call_id] = attempt
            if attempt.state is AttemptState.DONE:
                ref = attempt.ref
                first = self._done.setdefault((session_id, ref.call_id), ref.attempt)
                promise(first == ref.attempt, "committed twice", f"{ref} after attempt {first}")

    def _note_ends(self, session_id: str, changes: Changes) -> None:
        for call in changes.calls:
            if call.state.ended:
                why = call.failure.type if call.failure is not None else ""
                self._end((session_id, call.id), (call.state, why))
        for block in changes.blocks:
            if block.state.ended:
                self._end((session_id, block.id), block.state)
        for variable in (*changes.new_variables, *changes.variables):
            if variable.state.ended:
                self._end((session_id, f"variable {variable.id}"), variable.state)

    def _check_inputs(self, session_id: str, variable: Variable) -> None:
        """What is made of inputs is not committed before they are."""
        for name in self._inputs.get((session_id, variable.producer_call_id), ()):
            there = self._ended.get((session_id, f"variable {name}")) is VariableState.READY
            where = f"{session_id} {variable.id} of {variable.producer_call_id}, which reads {name}"
            promise(there, "committed before its inputs", where)

    def _end(self, key: tuple[str, str], state: object) -> None:
        before = self._ended.setdefault(key, state)
        promise(before == state, "ended twice", f"{key}: {before} and {state}")

    def stored_end(self, session_id: str, name: str) -> str:
        """How something ended, by the store's word; empty: it has not."""
        stored = self._ended.get((session_id, name))
        state = stored[0] if isinstance(stored, tuple) else stored
        return state.name.lower() if isinstance(state, IntEnum) else ""

    def restored(self) -> None:
        """A session came to a manager that did not see what happened in it before."""
        self.moves += 1

    def manager_started(self, manager: str) -> None:
        """A manager knows nothing yet."""
        self._running = {key: refs for key, refs in self._running.items() if key[0] != manager}
        self._ahead = {key: refs for key, refs in self._ahead.items() if key[0] != manager}

    def stepped(
        self,
        manager: str,
        machine: Machine,
        event: events.Event,
        told: Sequence[commands.Command],
        holds: Callable[[str], bool],
    ) -> None:
        """A machine has taken a step. `holds`: whether its manager holds a session, by the store's word."""
        self._note_engines(manager, machine, event)
        stored: dict[str, commands.Persist] = {}
        for command in told:
            if isinstance(command, commands.Persist):
                stored[command.session_id] = command
                self._note_values(manager, command)
            elif isinstance(command, commands.Dispatch):
                self._dispatched(manager, machine, command, stored.get(command.session_id))
            elif isinstance(command, commands.Cancel) and holds(command.session_id):
                self._check_stranger(machine, command.ref)
        self._steps += 1
        if self._steps % EVERY == 0:
            machine.state.check_integrity()
        self._check_idle(manager, machine)
        self._check_groups(manager, machine, told)

    def armed(self, machine: Machine, event: events.Event, timers: Mapping[Timer, Entry]) -> None:
        """A step's commands were carried out: whoever waits in its session has a deadline."""
        session_id = getattr(event, "session_id", "") or getattr(
            getattr(event, "ref", None), "session_id", ""
        )
        live = machine.state.sessions.get(session_id)
        if live is not None:
            ended = live.session.state.ended
            kind = TimerKind.FORGET if ended else TimerKind.SESSION_DEADLINE
            promise(Timer(kind, session_id) in timers, "wait without a deadline", f"{session_id}: no {kind}")

    def _note_values(self, manager: str, persist: commands.Persist) -> None:
        """Calls that were sent ahead of their inputs run once those are there."""
        for variable in persist.changes.variables:
            if variable.state is VariableState.READY:
                for (name, engine_id), ahead in self._ahead.items():
                    if name == manager:
                        self._arrive(manager, engine_id, ahead, persist.session_id, variable.id)

    def _arrive(
        self, manager: str, engine_id: str, ahead: dict[Ref, list[str]], session_id: str, variable_id: str
    ) -> None:
        for ref, lacking in list(ahead.items()):
            if ref.session_id == session_id and variable_id in lacking:
                lacking.remove(variable_id)
                if not lacking:
                    del ahead[ref]
                    self._running.setdefault((manager, engine_id), {})[ref] = None

    def _note_engines(self, manager: str, machine: Machine, event: events.Event) -> None:
        if isinstance(event, events.SlotFreed):
            self._running.setdefault((manager, event.engine_id), {}).pop(event.ref, None)
            self._ahead.setdefault((manager, event.engine_id), {}).pop(event.ref, None)
        elif isinstance(event, events.EngineLost):
            self._running.pop((manager, event.engine_id), None)
            self._ahead.pop((manager, event.engine_id), None)
        elif isinstance(event, events.SessionReleased):
            self._note_released(manager, event.session_id)
        elif isinstance(event, events.EngineJoined):
            self.moves += bool(event.contexts)
            self._running[manager, event.engine.id] = {}
            self._adopt(manager, machine, event.engine.id, event.claimed)
        elif isinstance(event, events.EngineAdopted):
            self._adopt(manager, machine, event.engine_id, event.running)

    def _adopt(self, manager: str, machine: Machine, engine_id: str, refs: Sequence[Ref]) -> None:
        """Attempts that an engine runs for the machine; some of them wait there for their inputs."""
        for ref in refs:
            live = machine.state.sessions.get(ref.session_id)
            attempt = live.attempts.get(ref.call_id) if live is not None else None
            if live is None or attempt is None or attempt.ref != ref:
                continue
            lacking = [
                name for name in live.calls[ref.call_id].input_ids if not live.variables[name].state.ended
            ]
            if lacking:
                self._ahead.setdefault((manager, engine_id), {})[ref] = lacking
            else:
                self._running.setdefault((manager, engine_id), {})[ref] = None

    def _note_released(self, manager: str, session_id: str) -> None:
        """What an engine runs of it is another manager's to count."""
        for kept in (self._running, self._ahead):
            for (name, _), refs in kept.items():
                if name == manager:
                    for ref in [ref for ref in refs if ref.session_id == session_id]:
                        del refs[ref]

    def _dispatched(
        self, manager: str, machine: Machine, command: commands.Dispatch, stored: commands.Persist | None
    ) -> None:
        ref, call = command.call.ref, command.call
        attempts = stored.changes.attempts if stored is not None else ()
        kept = any(attempt.ref == ref for attempt in attempts)
        promise(kept, "dispatch not stored", f"{ref}")
        engine = machine.state.engines[command.engine_id].engine
        promise(call.model in (ANY_MODEL, engine.model), "wrong model", f"{ref} on {engine}")
        pending = dict(command.pending)
        for variable in command.inputs:
            there = variable.state is VariableState.READY or variable.id in pending
            promise(there, "input missing", f"{ref} lacks {variable.id}")
        if pending:
            self._ahead.setdefault((manager, command.engine_id), {})[ref] = list(pending)
        else:
            running = self._running.setdefault((manager, command.engine_id), {})
            running[ref] = None
            promise(
                len(running) <= engine.capacity, "over capacity", f"{command.engine_id} runs {list(running)}"
            )

    def _check_stranger(self, machine: Machine, ref: Ref) -> None:
        """An attempt is not stopped for being unknown which the store says is running."""
        if ref.session_id in machine.state.sessions:
            return
        attempt = self._attempts.get((ref.session_id, ref.call_id))
        running = attempt is not None and attempt.ref == ref and attempt.state is AttemptState.RUNNING
        promise(not running, "stopped unheard", f"{ref} runs, and its session is being taken over")

    def _check_groups(self, manager: str, machine: Machine, told: Sequence[commands.Command]) -> None:
        """Of a group, nobody is left behind where there is room for it."""
        placed = [command.call for command in told if isinstance(command, commands.Dispatch)]
        begun = {
            (call.session_id, call.objective.group): None
            for call in placed
            if call.objective is not None and call.objective.group
        }
        fleet = machine.state.fleet
        for call in [call for model in fleet.asked_models() for call in fleet.queued(model)] if begun else ():
            if call.group in begun and not call.pending:
                roomy = [
                    load.engine.id
                    for load in fleet.engines.values()
                    if load.serves(call.model)
                    and load.engine.id not in call.avoid
                    and self._room(manager, load) > 0
                ]
                promise(not roomy, "group half placed", f"{call.key} of {call.group} is left beside {roomy}")

    def _room(self, manager: str, load: EngineLoad) -> int:
        """Places for calls: where memory is short, only an engine that runs nothing has one for sure."""
        key = manager, load.engine.id
        running = len(self._running.get(key, {})) + load.foreign
        if load.engine.kv_tokens < AMPLE_TOKENS and (running or self._ahead.get(key)):
            return 0
        return load.engine.capacity - running

    def _check_givers(self, manager: str, machine: Machine, load: EngineLoad) -> None:
        """No call waits beside an engine where others only wait for what it is to make."""
        key = manager, load.engine.id
        ahead = self._ahead.get(key)
        if not ahead or self._running.get(key) or load.foreign:
            return
        for call in [*machine.state.fleet.queued(load.engine.model), *machine.state.fleet.queued(ANY_MODEL)]:
            makes = machine.state.sessions[call.session_id].calls[call.call_id].output_ids
            waiting = [
                ref
                for ref, lacking in ahead.items()
                if ref.session_id == call.session_id and any(name in lacking for name in makes)
            ]
            fits = call.pending or not load.serves(call.model) or load.engine.id in call.avoid
            waited_ms = self._clock.now_ms - call.ready_ms
            where = (
                f"{call.key} waits for {waited_ms} ms beside {load.engine.id}, where {waiting} wait for it"
            )
            promise(bool(fits) or not waiting or waited_ms <= IDLE_MS, "starved", where)

    def _check_idle(self, manager: str, machine: Machine) -> None:
        """A call does not wait while there is room for it."""
        fleet = machine.state.fleet
        if machine.state.draining or not fleet.queued_calls():
            return
        for load in fleet.engines.values():
            self._check_givers(manager, machine, load)
            if self._room(manager, load) <= 0:
                continue
            for call in [*fleet.queued(load.engine.model), *fleet.queued(ANY_MODEL)]:
                waited_ms = self._clock.now_ms - call.ready_ms
                fits = call.pending or not load.serves(call.model) or load.engine.id in call.avoid
                promise(
                    bool(fits) or waited_ms <= IDLE_MS,
                    "starved",
                    f"{call.key} waits for {waited_ms} ms beside {load.engine.id}",
                )
