"""What the manager is to do. A session's commands are carried out in order; its `Persist` comes first."""

from __future__ import annotations

from dataclasses import dataclass

from parrot_manager.core.events import Timer
from parrot_manager.core.model import Attempt, Call, Ref, Session, Value, Variable


@dataclass(frozen=True, slots=True)
class Changes:
    """What changed in one session: the new snapshots, and the values that came with them."""

    session: Session | None = None
    calls: tuple[Call, ...] = ()
    variables: tuple[Variable, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    values: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Persist:
    """Store these changes, in one transaction; nothing after it happens before they are stored."""

    session_id: str
    changes: Changes


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send a call to an engine.

    Attributes:
        inputs: its input variables, each once.
        republish: those of them whose value must be put on the bus again first, with the attempt
            that made it (of no call, when a client set it).
    """

    session: Session
    call: Call
    engine_id: str
    engine_epoch: int
    inputs: tuple[Variable, ...]
    republish: tuple[tuple[Variable, int], ...] = ()

    @property
    def session_id(self) -> str:
        """The session it belongs to."""
        return self.session.id


@dataclass(frozen=True, slots=True)
class PublishValue:
    """Put a client's value on the bus."""

    session_id: str
    tenant: str
    value: Value


@dataclass(frozen=True, slots=True)
class PublishEnd:
    """Tell the bus that a variable failed or was cancelled."""

    session_id: str
    tenant: str
    variable: Variable
    attempt: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Look whether all outputs of an attempt nobody will report on are on the bus.

    Answered with `AttemptDone` or `AttemptLost`.
    """

    ref: Ref
    tenant: str
    output_ids: tuple[str, ...]
    restarted: bool

    @property
    def session_id(self) -> str:
        """The session it belongs to."""
        return self.ref.session_id


@dataclass(frozen=True, slots=True)
class Cancel:
    """Tell an engine to stop an attempt."""

    ref: Ref
    engine_id: str
    reason: str

    @property
    def session_id(self) -> str:
        """The session it belongs to."""
        return self.ref.session_id


@dataclass(frozen=True, slots=True)
class Arm:
    """Fire a timer at a time; arming again replaces."""

    timer: Timer
    at_ms: int


@dataclass(frozen=True, slots=True)
class Forget:
    """A session has left memory; drop what is kept beside it."""

    session_id: str


Effect = Dispatch | PublishValue | PublishEnd | Probe | Cancel
Command = Persist | Effect | Arm | Forget
