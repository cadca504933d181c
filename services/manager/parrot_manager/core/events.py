"""What happens to the manager. An event is a fact: what a client asks becomes one when the store has it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from parrot_manager.core.model import (
    NO_TIMINGS,
    NO_USAGE,
    Attempt,
    Call,
    Engine,
    Failure,
    Provenance,
    Ref,
    Session,
    Timings,
    Usage,
    Value,
    Variable,
)


class TimerKind(Enum):
    """What a timer is for."""

    SESSION_DEADLINE = "session_deadline"
    NO_ENGINE = "no_engine"
    FORGET = "forget"


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer: `id` is the session's, or the model's for `NO_ENGINE`."""

    kind: TimerKind
    id: str


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A session was stored."""

    session: Session


@dataclass(frozen=True, slots=True)
class SessionRestored:
    """A session was found in the store at start, with all it holds."""

    session: Session
    calls: tuple[Call, ...]
    variables: tuple[Variable, ...]
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class SessionClosing:
    """The wish to end a session was stored."""

    session_id: str


@dataclass(frozen=True, slots=True)
class CallsAccepted:
    """A batch was stored: its calls, the variables they produce, and those that came with a value."""

    session_id: str
    calls: tuple[Call, ...]
    variables: tuple[Variable, ...]
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class EngineJoined:
    """An engine attached. `claimed`: attempts it says it still runs."""

    engine: Engine
    claimed: tuple[Ref, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineDraining:
    """An engine takes nothing new."""

    engine_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class EngineLost:
    """An engine's attachment ended, for whatever reason."""

    engine_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class SlotFreed:
    """An engine no longer runs an attempt, however that ended."""

    engine_id: str
    ref: Ref


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """An engine took an attempt up."""

    ref: Ref


@dataclass(frozen=True, slots=True)
class AttemptStreaming:
    """The first text of an output is on the bus."""

    ref: Ref
    variable_id: str


@dataclass(frozen=True, slots=True)
class AttemptDone:
    """An attempt made every output; the values were read from the bus."""

    ref: Ref
    values: tuple[Value, ...]
    usage: Usage = NO_USAGE
    timings: Timings = NO_TIMINGS
    provenance: Provenance | None = None


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """An attempt failed by itself."""

    ref: Ref
    failure: Failure


@dataclass(frozen=True, slots=True)
class AttemptLost:
    """An attempt will never report, and its outputs are not on the bus.

    Attributes:
        restarted: the manager lost sight of it, by starting anew; otherwise its engine is lost.
        streamed: some of its text is on the bus, so that somebody may have read it.
    """

    ref: Ref
    restarted: bool = False
    streamed: bool = False


@dataclass(frozen=True, slots=True)
class AttemptUndelivered:
    """The engine was gone before the program reached it."""

    ref: Ref


@dataclass(frozen=True, slots=True)
class TimerFired:
    """An armed timer's time has come."""

    timer: Timer


@dataclass(frozen=True, slots=True)
class DrainStarted:
    """The manager is about to stop: nothing is dispatched from here on."""


Event = (
    SessionOpened
    | SessionRestored
    | SessionClosing
    | CallsAccepted
    | EngineJoined
    | EngineDraining
    | EngineLost
    | SlotFreed
    | AttemptStarted
    | AttemptStreaming
    | AttemptDone
    | AttemptFailed
    | AttemptLost
    | AttemptUndelivered
    | TimerFired
    | DrainStarted
)
