"""A machine with its outside played by the test: what is commanded is recorded, and done when told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from parrot_manager.core import admission, commands, events
from parrot_manager.core.machine import Machine
from parrot_manager.core.model import (
    Call,
    Edge,
    Engine,
    Failure,
    Ref,
    Session,
    Streamed,
    Value,
    Variable,
)
from parrot_manager.core.scheduling import APP_CENTRIC, Fleet, Placement, QueuedCall
from parrot_manager.core.state import Policy
from parrot_manager.core.submissions import NewCall, NewValue
from parrot_runtime import errors

C = TypeVar("C", bound=commands.Command)


class Eager(Fleet):
    """A fleet that sends every call ahead of its inputs if it may, to any engine."""

    def __init__(self) -> None:
        super().__init__()
        self._ahead: dict[tuple[str, str], QueuedCall] = {}

    def ready(self, call: QueuedCall) -> None:
        self.withdraw(*call.key)
        if call.pending:
            self._ahead[call.key] = call
        else:
            super().ready(call)

    def withdraw(self, session_id: str, call_id: str) -> None:
        self._ahead.pop((session_id, call_id), None)
        super().withdraw(session_id, call_id)

    def dispatched(self, placement: Placement, ref: Ref, now_ms: int) -> None:
        if self._ahead.pop(placement.call.key, None) is not None:
            super().adopt(placement.engine_id, ref, placement.call)
        else:
            super().dispatched(placement, ref, now_ms)

    def asked_models(self) -> list[str]:
        return sorted({*super().asked_models(), *(call.model for call in self._ahead.values())})

    def queued(self, model: str) -> list[QueuedCall]:
        ahead = [call for call in self._ahead.values() if call.model == model]
        return sorted([*super().queued(model), *ahead])

    def place(self, now_ms: int) -> list[Placement]:
        engine_id = next((name for name, load in self.engines.items() if load.serves("")), "")
        ahead = list(self._ahead.values()) if engine_id else []
        return [
            Placement(call, engine_id, pending=tuple((item.variable_id, 10) for item in call.pending))
            for call in ahead
        ] + super().place(now_ms)


PLAIN = Policy(scheduling=replace(APP_CENTRIC, streaming_edges=False))
"""A call goes to an engine when its inputs are there, not before."""
SESSION = "s00-0000000000000001"
TENANT = "default"


@dataclass
class Rig:
    """The machine, a clock, and all it has commanded."""

    machine: Machine = field(default_factory=lambda: Machine(PLAIN))
    now_ms: int = 1_000
    said: list[commands.Command] = field(default_factory=list)

    def tell(self, event: events.Event) -> list[commands.Command]:
        """Feeds an event; the commands it caused."""
        told = self.machine.step(event, self.now_ms)
        self.machine.state.check_integrity()
        self.said += told
        return told

    def open(self, session_id: str = SESSION, timeout_ms: int = 0) -> str:
        """Opens a session."""
        self.tell(
            admission.admit_session(
                self.machine.policy,
                self.now_ms,
                session_id=session_id,
                tenant=TENANT,
                label="",
                timeout_ms=timeout_ms,
            )
        )
        return session_id

    def submit(
        self,
        calls: Sequence[NewCall],
        values: Sequence[str] = (),
        session_id: str = SESSION,
        wanted: Sequence[events.Wanted] = (),
    ) -> list[commands.Command]:
        """Submits a batch, values named by their variables."""
        event = self.admit(calls, values, session_id)
        return self.tell(replace(event, wanted=tuple(wanted)))

    def admit(
        self, calls: Sequence[NewCall], values: Sequence[str] = (), session_id: str = SESSION
    ) -> events.CallsAccepted:
        """Only checks a batch."""
        given = [NewValue(name, name, b"value") for name in values]
        return admission.admit_calls(self.machine.state, TENANT, session_id, calls, given, now_ms=self.now_ms)

    def close(self, session_id: str = SESSION) -> list[commands.Command]:
        """Ends a session."""
        event = admission.admit_close(self.machine.state, TENANT, session_id)
        return self.tell(event) if event is not None else []

    def engine(
        self,
        name: str = "e-1",
        capacity: int = 4,
        model: str = "m",
        epoch: int = 1,
        claimed: tuple[Ref, ...] = (),
    ) -> None:
        """Attaches an engine."""
        self.tell(events.EngineJoined(Engine(name, epoch, model, capacity), claimed))

    def done(self, ref: Ref) -> list[commands.Command]:
        """An attempt made all its outputs."""
        call = self.call(ref.call_id, ref.session_id)
        self.tell(events.SlotFreed(call.engine_id, ref))
        return self.tell(events.AttemptDone(ref, tuple(Value(v, b"made") for v in call.output_ids)))

    def failed(self, ref: Ref, kind: errors.Kind = errors.PROMPT_TOO_LONG) -> list[commands.Command]:
        """An attempt failed."""
        self.tell(events.SlotFreed(self.call(ref.call_id, ref.session_id).engine_id, ref))
        return self.tell(events.AttemptFailed(ref, Failure.of(kind, "it broke")))

    def lost(
        self, ref: Ref, streamed: dict[str, bytes] | None = None, made: Sequence[str] = ()
    ) -> list[commands.Command]:
        """The bus was looked at for what an attempt left."""
        texts = tuple(Streamed(name, data) for name, data in (streamed or {}).items())
        values = tuple(Value(name, b"made") for name in made)
        return self.tell(events.AttemptLost(ref, streamed=texts, values=values))

    def die(self, engine_id: str = "e-1", epoch: int = 1) -> list[commands.Command]:
        """An engine is gone."""
        return self.tell(events.EngineLost(engine_id, epoch))

    def fire(self, kind: events.TimerKind, timer_id: str) -> list[commands.Command]:
        """A timer rings at the time it was last armed for."""
        armed = [
            c for c in self.said if isinstance(c, commands.Arm) and c.timer == events.Timer(kind, timer_id)
        ]
        self.now_ms = max(self.now_ms, armed[-1].at_ms)
        return self.tell(events.TimerFired(events.Timer(kind, timer_id)))

    def call(self, call_id: str, session_id: str = SESSION) -> Call:
        """A call as it is."""
        return self.machine.state.sessions[session_id].calls[call_id]

    def variable(self, variable_id: str, session_id: str = SESSION) -> Variable:
        """A variable as it is."""
        return self.machine.state.sessions[session_id].variables[variable_id]

    def session(self, session_id: str = SESSION) -> Session:
        """A session as it is."""
        return self.machine.state.sessions[session_id].session


def only(kind: type[C], told: Sequence[commands.Command]) -> list[C]:
    """The commands of one kind."""
    return [command for command in told if isinstance(command, kind)]


def new(name: str, inputs: str = "", outputs: str = "", model: str = "m") -> NewCall:
    """A call whose placeholders are its variables."""
    return NewCall(name, model, _edges(inputs), _edges(outputs), b"spec")


def _edges(names: str) -> tuple[Edge, ...]:
    return tuple(Edge(name, name) for name in names.split())
