"""What the manager is to do. A session's commands are carried out in order; its `Persist` comes first."""

from __future__ import annotations

from dataclasses import dataclass

from parrot_manager.core.blocks.model import Block
from parrot_manager.core.blocks.questions import Question
from parrot_manager.core.events import Timer
from parrot_manager.core.model import Attempt, Call, Ref, Session, Streamed, Value, Variable


@dataclass(frozen=True, slots=True)
class Changes:
    """What changed in one session: the new snapshots, and the values that came with them.

    Attributes:
        new_calls: calls that were not there before; like `new_variables`, they are added before the
            rest is brought up to date, and may be among the rest too, further on.
    """

    session: Session | None = None
    calls: tuple[Call, ...] = ()
    variables: tuple[Variable, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    values: tuple[Value, ...] = ()
    new_calls: tuple[Call, ...] = ()
    new_variables: tuple[Variable, ...] = ()
    blocks: tuple[Block, ...] = ()


@dataclass(frozen=True, slots=True)
class Persist:
    """Store these changes, in one transaction; nothing after it happens before they are stored.

    `can_wait`: a moment, for others to join them: nobody waits for these.
    """

    session_id: str
    changes: Changes
    can_wait: bool = False


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send a call to an engine.

    Attributes:
        inputs: its input variables, each once.
        republish: those of them whose value must be put on the bus again first, with the attempt
            that made it (of no call, when a client set it).
        pending: inputs that are still being made, with about how many tokens each will have.
        resume: outputs that go on behind what an earlier attempt streamed.
        made: outputs whose value an earlier attempt made: they are filled, not generated.
        shares: prefixes of the prompt that are to be shared contexts, shortest first.
        priority: lower ones run first.
        expected_output_tokens: of all outputs; 0: not known.
        step_ms: how long a step may take while its output is written; 0: as long as it likes.
        beside_share: by what share prompts that can wait may lengthen those steps on average; 0: as they
            like.
        reason: why it goes to this engine; for people.
    """

    session: Session
    call: Call
    engine_id: str
    engine_epoch: int
    inputs: tuple[Variable, ...]
    republish: tuple[tuple[Variable, int], ...] = ()
    pending: tuple[tuple[str, int], ...] = ()
    resume: tuple[Streamed, ...] = ()
    made: tuple[Variable, ...] = ()
    shares: tuple[Share, ...] = ()
    priority: int = 0
    expected_output_tokens: int = 0
    step_ms: int = 0
    beside_share: float = 0.0
    reason: str = ""

    @property
    def session_id(self) -> str:
        """The session it belongs to."""
        return self.session.id


@dataclass(frozen=True, slots=True)
class Share:
    """A prefix of a call's prompt that is kept as a shared context on the engine.

    Attributes:
        pieces: how many of the shape's pieces it holds.
        steps_to_next_use: calls that come before the next use.
    """

    pieces: int
    prefix_hash: str
    steps_to_next_use: float


@dataclass(frozen=True, slots=True)
class PublishValue:
    """Put a client's value on the bus."""

    session_id: str
    tenant: str
    value: Value


@dataclass(frozen=True, slots=True)
class PublishStored:
    """Put a value that is in the store on the bus, where nobody may have heard of it yet."""

    session_id: str
    tenant: str
    variable: Variable


@dataclass(frozen=True, slots=True)
class ReadValues:
    """Answer questions about values, which are in the store; answered with `ValuesRead`.

    Attributes:
        owner_id: the block or call that asks.
        ask: tells its questions apart.
    """

    session_id: str
    owner_id: str
    ask: int
    questions: tuple[Question, ...]


@dataclass(frozen=True, slots=True)
class PublishEnd:
    """Tell the bus that a variable failed or was cancelled."""

    session_id: str
    tenant: str
    variable: Variable
    attempt: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Look what the bus holds of an attempt nobody will report on.

    Answered with `AttemptDone` when it has all these outputs, otherwise with `AttemptLost`.

    Attributes:
        output_ids: those of its outputs that have no value yet.
        fence: the engine may still write: the bus must refuse that before it is looked at.
    """

    ref: Ref
    tenant: str
    engine_id: str
    output_ids: tuple[str, ...]
    restarted: bool = False
    fence: bool = False

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
class FreeContexts:
    """Tell an engine that nobody needs these shared contexts any more."""

    engine_id: str
    context_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExpectUses:
    """Tell an engine in how many steps its shared contexts are used next; negative: nobody waits."""

    engine_id: str
    uses: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Adopt:
    """Ask an engine which of these attempts it still runs; its answer is `EngineAdopted`."""

    engine_id: str
    refs: tuple[Ref, ...]


@dataclass(frozen=True, slots=True)
class Arm:
    """Fire a timer at a time; arming again replaces."""

    timer: Timer
    at_ms: int


@dataclass(frozen=True, slots=True)
class Forget:
    """A session has left memory; drop what is kept beside it."""

    session_id: str


Effect = Dispatch | PublishValue | PublishStored | ReadValues | PublishEnd | Probe | Cancel
FleetCommand = FreeContexts | ExpectUses | Adopt
"""Of no session; carried out at once."""
Command = Persist | Effect | FleetCommand | Arm | Forget
