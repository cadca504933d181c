"""A machine with a store, an engine whose functions are plain code, and whoever answers questions."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from parrot_manager.core import admission, commands, events
from parrot_manager.core.blocks.definitions import NewBlock
from parrot_manager.core.blocks.model import Block
from parrot_manager.core.blocks.questions import answer
from parrot_manager.core.machine import Machine
from parrot_manager.core.model import Attempt, Call, Edge, Engine, Failure, Ref, Session, Value, Variable
from parrot_manager.core.state import Policy
from parrot_manager.core.submissions import NewCall, NewValue
from parrot_runtime import errors
from tests.support.machine import PLAIN, SESSION, TENANT

Function = Callable[[list[str]], str | None]
"""From the values of a call's inputs to its output; None: it fails."""


@dataclass
class Rows:
    """What a store would hold of one session."""

    session: Session
    calls: dict[str, Call] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    attempts: dict[Ref, Attempt] = field(default_factory=dict)
    blocks: dict[str, Block] = field(default_factory=dict)
    values: dict[str, bytes] = field(default_factory=dict)

    def accept(self, event: events.CallsAccepted) -> None:
        """Adds a batch."""
        self._add(event.calls, event.variables, event.values)
        self.blocks.update((block.id, bare(block)) for block in event.blocks)

    def commit(self, changes: commands.Changes) -> None:
        """Adds what is new, then brings the rest up to date; what has ended never changes."""
        if changes.session is not None:
            self.session = changes.session
        self._add(changes.new_calls, changes.new_variables, changes.values)
        for call in changes.calls:
            assert not self.calls[call.id].state.ended, f"{call.id} has ended and changes"
            self.calls[call.id] = replace(call, spec=self.calls[call.id].spec, shape=(), when=None)
        for variable in changes.variables:
            assert not self.variables[variable.id].state.ended, f"{variable.id} has ended and changes"
            self.variables[variable.id] = replace(variable, published_ms=0)
        for value in changes.values:
            assert self.values.setdefault(value.variable_id, value.data) is value.data, "committed twice"
        for block in changes.blocks:
            assert not self.blocks[block.id].state.ended, f"{block.id} has ended and changes"
            self.blocks[block.id] = bare(block)
        self.attempts.update((attempt.ref, attempt) for attempt in changes.attempts)

    def _add(self, calls: Sequence[Call], variables: Sequence[Variable], values: Sequence[Value]) -> None:
        data = {value.variable_id: value.data for value in values}
        for call in calls:
            assert call.id not in self.calls, f"{call.id} is there already"
            self.calls[call.id] = replace(call, spec=b"" if call.block_id else call.spec, shape=(), when=None)
        for variable in variables:
            assert variable.id not in self.variables, f"{variable.id} is there already"
            self.variables[variable.id] = replace(variable, published_ms=0)
            if variable.state.name == "READY":
                self.values[variable.id] = data[variable.id]


def bare(block: Block) -> Block:
    """A block as its row has it."""
    return replace(block, plan=None, when=None)


@dataclass
class Stage:
    """Everything around the machine; `pick` says what happens next: a number below its argument."""

    functions: dict[str, Function]
    pick: Callable[[int], int] = lambda bound: 0
    capacity: int = 4
    lazy: bool = False
    policy: Policy = PLAIN
    now_ms: int = 1_000
    epoch: int = 0
    running: list[Ref] = field(default_factory=list)
    reading: list[commands.ReadValues] = field(default_factory=list)
    probing: list[commands.Probe] = field(default_factory=list)
    dispatched: list[commands.Dispatch] = field(default_factory=list)
    cancelled: list[Ref] = field(default_factory=list)
    ends_told: dict[str, str] = field(default_factory=dict)
    known_calls: dict[bytes, NewCall] = field(default_factory=dict)
    known_blocks: dict[bytes, NewBlock] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.machine = Machine(self.policy)
        event = admission.admit_session(
            self.machine.policy,
            self.now_ms,
            session_id=SESSION,
            tenant=TENANT,
            label="",
            timeout_ms=600_000,
            lazy=self.lazy,
        )
        self.rows = Rows(event.session)
        self.tell(event)
        self.join()

    def tell(self, event: events.Event) -> None:
        """Feeds an event, and does or keeps what is commanded."""
        told = self.machine.step(event, self.now_ms)
        self.machine.state.check_integrity()
        for command in told:
            self._do(command)

    def submit(
        self,
        calls: Sequence[NewCall] = (),
        blocks: Sequence[NewBlock] = (),
        values: dict[str, str] | None = None,
        wanted: Sequence[str] = (),
    ) -> events.CallsAccepted:
        """Submits a batch, which is stored."""
        event = self.admit(calls, blocks, values, wanted)
        self.rows.accept(event)
        self.tell(event)
        return event

    def admit(
        self,
        calls: Sequence[NewCall],
        blocks: Sequence[NewBlock] = (),
        values: dict[str, str] | None = None,
        wanted: Sequence[str] = (),
    ) -> events.CallsAccepted:
        """Only checks a batch."""
        given = [NewValue(name, name, text.encode()) for name, text in (values or {}).items()]
        event = admission.admit_calls(
            self.machine.state,
            TENANT,
            SESSION,
            calls,
            given,
            now_ms=self.now_ms,
            blocks=blocks,
            wanted=[events.Wanted(name) for name in wanted],
        )
        self.known_calls.update((call.spec, call) for call in calls)
        self.known_blocks.update((block.spec, block) for block in blocks)
        return event

    def act(self) -> bool:
        """Something that is under way goes on; False: nothing is."""
        under_way: list[Callable[[], None]] = [lambda ref=ref: self.finish(ref) for ref in self.running]  # type: ignore[misc]
        under_way += [lambda command=command: self.answer(command) for command in self.reading]  # type: ignore[misc]
        under_way += [lambda probe=probe: self.give_up(probe) for probe in self.probing]  # type: ignore[misc]
        if under_way:
            under_way[self.pick(len(under_way))]()
            self.now_ms += 10
        return bool(under_way)

    def settle(self) -> None:
        """Until nothing is under way any more."""
        for _ in range(100_000):
            if not self.act():
                return
        raise AssertionError("it does not come to rest")

    def finish(self, ref: Ref) -> None:
        """An attempt makes its output, or fails."""
        self.running.remove(ref)
        self.tell(events.SlotFreed("e-1", ref))
        call = self.rows.calls[ref.call_id]
        texts = [self.rows.values[edge.variable_id].decode() for edge in call.inputs]
        made = self.functions[call.name](texts)
        if made is None:
            self.tell(events.AttemptFailed(ref, Failure.of(errors.PROMPT_TOO_LONG, "it broke")))
        else:
            self.tell(events.AttemptDone(ref, tuple(Value(v, made.encode()) for v in call.output_ids)))

    def answer(self, command: commands.ReadValues) -> None:
        """Questions are answered with what the store holds."""
        self.reading.remove(command)
        answers = tuple(
            answer(question, {name: self.rows.values[name] for name in question.variable_ids})
            for question in command.questions
        )
        self.tell(events.ValuesRead(command.session_id, command.owner_id, command.ask, answers))

    def give_up(self, probe: commands.Probe) -> None:
        """The bus holds nothing of an attempt."""
        self.probing.remove(probe)
        self.tell(events.AttemptLost(probe.ref, probe.restarted))

    def restart(self) -> None:
        """The manager dies, and another takes the session up from its rows; its engine runs nothing."""
        self.machine = Machine(self.policy)
        self.running.clear()
        self.reading.clear()
        self.probing.clear()
        rows = self.rows
        blocks = [self._with_plan(block) for block in rows.blocks.values()]
        calls = [self._with_spec(call) for call in rows.calls.values()]
        attempts = tuple(attempt for attempt in rows.attempts.values() if not attempt.ended_ms)
        variables = tuple(rows.variables.values())
        self.tell(
            events.SessionRestored(rows.session, tuple(calls), variables, attempts, blocks=tuple(blocks))
        )
        self.join()

    def join(self) -> None:
        """An engine attaches."""
        self.epoch += 1
        self.tell(events.EngineJoined(Engine("e-1", self.epoch, "m", self.capacity)))

    def close(self) -> None:
        """The client ends the session."""
        event = admission.admit_close(self.machine.state, TENANT, SESSION)
        if event is not None:
            self.tell(event)

    def expire(self) -> None:
        """The session's deadline passes."""
        self.now_ms = self.rows.session.deadline_ms
        timer = events.Timer(events.TimerKind.SESSION_DEADLINE, SESSION)
        self.tell(events.TimerFired(timer))

    def cancel(self, *node_ids: str, subtree: bool = False) -> None:
        """The client cancels calls or blocks."""
        self.tell(admission.admit_cancel(self.machine.state, TENANT, SESSION, node_ids, subtree=subtree))

    def text(self, variable_id: str) -> str:
        """A variable's value."""
        return self.rows.values[variable_id].decode()

    def state(self, variable_id: str) -> str:
        """A variable's state, in words; skipped ones say so."""
        variable = self.rows.variables[variable_id]
        why = variable.failure
        return "skipped" if why is not None and why.type == "skipped" else variable.state.name.lower()

    def failure(self, variable_id: str) -> Failure:
        """Why a variable has no value."""
        why = self.rows.variables[variable_id].failure
        assert why is not None
        return why

    def _do(self, command: commands.Command) -> None:
        if isinstance(command, commands.Persist):
            self.rows.commit(command.changes)
        elif isinstance(command, commands.Dispatch):
            self._check_dispatch(command)
            self.dispatched.append(command)
            self.running.append(command.call.ref)
        elif isinstance(command, commands.ReadValues):
            for question in command.questions:
                assert all(name in self.rows.values for name in question.variable_ids), "not stored yet"
            assert command.owner_id not in {other.owner_id for other in self.reading}, "asked twice"
            self.reading.append(command)
        elif isinstance(command, commands.Probe):
            self.probing.append(command)
        elif isinstance(command, commands.Cancel):
            self._cancel(command.ref)
        else:
            self._hear(command)

    def _cancel(self, ref: Ref) -> None:
        self.cancelled.append(ref)
        if ref in self.running:
            self.running.remove(ref)
            self.tell(events.SlotFreed("e-1", ref))

    def _hear(self, command: commands.Command) -> None:
        """Readers on the bus hear of an end."""
        if isinstance(command, commands.PublishEnd):
            self.ends_told[command.variable.id] = command.variable.state.name
        elif isinstance(command, commands.PublishValue):
            self.ends_told[command.value.variable_id] = "READY"
        elif isinstance(command, commands.PublishStored):
            self.ends_told[command.variable.id] = "READY"

    def _check_dispatch(self, command: commands.Dispatch) -> None:
        stored = self.rows.calls[command.call.id]
        assert stored.state is command.call.state, "a dispatch is not stored"
        assert command.call.spec, "a call goes out without its spec"
        assert all(name in self.rows.values for name in command.call.input_ids)

    def _with_plan(self, block: Block) -> Block:
        known = self.known_blocks[block.spec]
        return replace(block, plan=known.plan, when=known.when)

    def _with_spec(self, call: Call) -> Call:
        if call.block_id or call.state.ended:
            return replace(call, spec=b"")
        known = self.known_calls[call.spec]
        return replace(call, shape=known.shape, when=known.when)


def new(name: str, inputs: str = "", outputs: str = "", **more: object) -> NewCall:
    """A call whose placeholders are its variables."""
    spec = f"{name}|{inputs}|{outputs}|{more}".encode()
    return NewCall(name, "m", edges(inputs), edges(outputs), spec, **more)  # type: ignore[arg-type]


def edges(names: str) -> tuple[Edge, ...]:
    """Edges named as their variables."""
    return tuple(Edge(name, name) for name in names.split())


def joined(texts: list[str]) -> str:
    """The function that shows what it was given."""
    return "+".join(texts)


def listed(*items: str) -> Function:
    """A function that makes a JSON list."""
    return lambda texts: json.dumps(items)
