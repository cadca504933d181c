"""What happens to the manager. An event is a fact: what a client asks becomes one when the store has it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from parrot_manager.core.blocks.model import Block
from parrot_manager.core.blocks.questions import Answer
from parrot_manager.core.criteria import Criteria
from parrot_manager.core.marks import NO_MARKS, Marks
from parrot_manager.core.model import (
    NO_TIMINGS,
    NO_USAGE,
    Attempt,
    Batch,
    Call,
    Engine,
    Failure,
    Load,
    Provenance,
    Ref,
    Session,
    SharedContext,
    Streamed,
    Timings,
    Usage,
    Value,
    Variable,
)
from parrot_manager.core.native_events import CallClaimed, ClaimRenewed, NativeDone, NativeFailed


class TimerKind(Enum):
    """What a timer is for."""

    SESSION_DEADLINE = "session_deadline"
    NO_ENGINE = "no_engine"
    RETRY = "retry"
    ADOPT = "adopt"
    OBJECTIVES = "objectives"
    FORGET = "forget"
    CLAIM = "claim"


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer. `id`: the session's; for `NO_ENGINE` the model's; for `RETRY`, `CLAIM` `<session>/<call>`."""

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
    batches: tuple[Batch, ...] = ()
    blocks: tuple[Block, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionReleased:
    """The session's shard is another manager's now: it leaves memory as it is, and nothing is told."""

    session_id: str


@dataclass(frozen=True, slots=True)
class SessionClosing:
    """The wish to end a session was stored.

    Attributes:
        settled_ms: when the last of what has ended in it was stored, `asked_ms` when the wish came; 0: not
            known.
    """

    session_id: str
    settled_ms: float = 0.0
    asked_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class CallsAccepted:
    """A batch was stored: its calls, the variables they produce, and those that came with a value."""

    session_id: str
    calls: tuple[Call, ...]
    variables: tuple[Variable, ...]
    values: tuple[Value, ...]
    batch: Batch | None = None
    wanted: tuple[Wanted, ...] = ()
    blocks: tuple[Block, ...] = ()


@dataclass(frozen=True, slots=True)
class Wanted:
    """A variable is read, or will be, and how; None: as the session says."""

    variable_id: str
    criteria: Criteria | None = None


@dataclass(frozen=True, slots=True)
class VariablesWanted:
    """Somebody reads variables; nothing of it is stored yet."""

    session_id: str
    wanted: tuple[Wanted, ...]


@dataclass(frozen=True, slots=True)
class CallsCancelled:
    """A client cancels calls, and what depends on them.

    Attributes:
        subtree: producers that nothing else needs go too.
    """

    session_id: str
    call_ids: tuple[str, ...]
    subtree: bool = False


@dataclass(frozen=True, slots=True)
class EngineJoined:
    """An engine attached. `claimed`: attempts it says it still runs."""

    engine: Engine
    claimed: tuple[Ref, ...] = ()
    contexts: tuple[SharedContext, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineReported:
    """An engine said how loaded it is."""

    engine_id: str
    epoch: int
    load: Load


@dataclass(frozen=True, slots=True)
class ContextsChanged:
    """Shared contexts of an engine came, changed, or are gone."""

    engine_id: str
    epoch: int
    contexts: tuple[SharedContext, ...]
    gone: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EngineAdopted:
    """An engine answered which of a taken-over shard's attempts it still runs."""

    engine_id: str
    epoch: int
    running: tuple[Ref, ...]
    unknown: tuple[Ref, ...]


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
    """An engine no longer runs an attempt, however that ended.

    Attributes:
        usage: what it took, with `timings`, if it was done; None: it came to nothing.
    """

    engine_id: str
    ref: Ref
    usage: Usage | None = None
    timings: Timings = NO_TIMINGS


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
    """An attempt made every output; the values were read from the bus.

    Attributes:
        marks: those of it that are known outside the machine.
    """

    ref: Ref
    values: tuple[Value, ...]
    usage: Usage = NO_USAGE
    timings: Timings = NO_TIMINGS
    provenance: Provenance | None = None
    marks: Marks = NO_MARKS


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """An attempt failed by itself.

    Attributes:
        blind: what it left could not be looked at either, so that nothing of it can be kept.
        usage: of what it had made until then, as far as its engine said.
        marks: as of `AttemptDone`.
    """

    ref: Ref
    failure: Failure
    blind: bool = False
    usage: Usage = NO_USAGE
    marks: Marks = NO_MARKS


@dataclass(frozen=True, slots=True)
class AttemptLost:
    """An attempt will never report, and its outputs are not on the bus.

    Attributes:
        restarted: the manager lost sight of it, by starting anew; otherwise its engine is lost.
        streamed: what the bus holds of its outputs that have no final, where it holds anything.
        values: of those of its outputs that have one.
    """

    ref: Ref
    restarted: bool = False
    streamed: tuple[Streamed, ...] = ()
    values: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class AttemptUndelivered:
    """The engine was gone before the program reached it."""

    ref: Ref


@dataclass(frozen=True, slots=True)
class ValuesRead:
    """A `ReadValues` is answered, each question in its order."""

    session_id: str
    owner_id: str
    ask: int
    answers: tuple[Answer, ...]


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
    | SessionReleased
    | SessionClosing
    | CallsAccepted
    | VariablesWanted
    | CallsCancelled
    | CallClaimed
    | ClaimRenewed
    | NativeDone
    | NativeFailed
    | EngineJoined
    | EngineReported
    | ContextsChanged
    | EngineAdopted
    | EngineDraining
    | EngineLost
    | SlotFreed
    | AttemptStarted
    | AttemptStreaming
    | AttemptDone
    | AttemptFailed
    | AttemptLost
    | AttemptUndelivered
    | ValuesRead
    | TimerFired
    | DrainStarted
)
