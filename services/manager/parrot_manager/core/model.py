"""The things the manager keeps, as immutable snapshots. Times are Unix milliseconds; 0: not yet.

States have the numbers of `common.v1`, so that they travel and are stored as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import Final

from parrot_manager.core.conditions import Condition
from parrot_manager.core.criteria import Criteria, Objective
from parrot_manager.core.marks import NO_MARKS, NO_SESSION_MARKS, Marks, SessionMarks
from parrot_manager.core.shapes import Shape
from parrot_runtime.errors import KINDS, Kind, clip


class SessionState(IntEnum):
    """The life of a session."""

    OPEN = 1
    CLOSING = 2
    CLOSED = 3
    FAILED = 4
    CANCELLED = 5
    EXPIRED = 6

    @property
    def ended(self) -> bool:
        """Whether nothing more happens in it."""
        return self >= SessionState.CLOSED


class CallState(IntEnum):
    """The life of a call."""

    ACCEPTED = 1
    WAITING = 2
    READY = 3
    DISPATCHED = 4
    RUNNING = 5
    DONE = 6
    FAILED = 7
    CANCELLED = 8

    @property
    def ended(self) -> bool:
        """Whether it stays as it is."""
        return self >= CallState.DONE


class VariableState(IntEnum):
    """The life of a variable."""

    PENDING = 1
    STREAMING = 2
    READY = 3
    FAILED = 4
    CANCELLED = 5

    @property
    def ended(self) -> bool:
        """Whether it stays as it is."""
        return self >= VariableState.READY


class AttemptState(IntEnum):
    """The life of an attempt."""

    RUNNING = 1
    DONE = 2
    LOST = 3
    SUPERSEDED = 4
    FAILED = 5
    CANCELLED = 6


SANDBOX_MODEL: Final = "python"
"""What engines serve that run code in a sandbox. No prompt goes there, whatever model it asks for."""


class NativeKind(Enum):
    """Who runs the code of a call that no model makes the outputs of."""

    CLIENT = "client"
    SANDBOX = "sandbox"


class EngineState(Enum):
    """Whether an engine takes calls; one that is lost is no longer kept."""

    READY = "ready"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call or variable has no result; the fields are those of `common.v1.Failure`."""

    type: str
    message: str
    session_id: str = ""
    call_id: str = ""
    variable_id: str = ""
    may_retry: bool = False
    cause_type: str = ""
    cause_call_id: str = ""

    @classmethod
    def of(cls, kind: Kind, message: str, session_id: str = "", call_id: str = "") -> Failure:
        """A failure of a kind of the error table."""
        return cls(kind.type, clip(message), session_id, call_id, may_retry=kind.may_retry)

    @property
    def root_type(self) -> str:
        """The type of the failure this one follows from, or its own."""
        return self.cause_type or self.type

    @property
    def root_call_id(self) -> str:
        """The call at the root of it."""
        return self.cause_call_id or self.call_id

    @property
    def known(self) -> bool:
        """Whether the error table has its type."""
        return self.type in KINDS

    def about(self, variable_id: str) -> Failure:
        """The same failure, told of one variable."""
        return replace(self, variable_id=variable_id)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens a call used."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Where a call's time on its engine went; the fields are those of `common.v1.Timings`."""

    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    static_prefill_ms: float = 0.0
    dynamic_prefill_ms: float = 0.0
    static_prefill_tokens: int = 0
    dynamic_prefill_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Provenance:
    """What made a call's outputs; the fields are those of `common.v1.Provenance`."""

    engine_id: str = ""
    model: str = ""
    dtype: str = ""
    backend: str = ""
    backend_version: str = ""
    attention: str = ""
    tensor_parallel: int = 0
    batch_invariant: bool = False
    version: str = ""


NO_USAGE: Final = Usage()
NO_TIMINGS: Final = Timings()


@dataclass(frozen=True, slots=True)
class Edge:
    """A placeholder of a call, and the variable it stands for."""

    name: str
    variable_id: str


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """One try of a call."""

    session_id: str
    call_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Session:
    """One run of an application.

    Attributes:
        trace: W3C headers of the request that opened it.
        criteria: for outputs whose reader says nothing else; None: latency.
        lazy: calls run only when somebody reads what they lead to.
        ends_with_calls: it closes when all it was given has ended, if it was given anything.
        idempotency_key: the key it was opened with; empty: none.
        body_digest: of the request that opened it, when it had a key.
    """

    id: str
    tenant: str
    label: str
    state: SessionState
    created_ms: int
    deadline_ms: int
    ended_ms: int = 0
    trace: tuple[tuple[str, str], ...] = ()
    criteria: Criteria | None = None
    lazy: bool = False
    idempotency_key: str = ""
    body_digest: bytes = b""
    ends_with_calls: bool = False
    marks: SessionMarks = field(default=NO_SESSION_MARKS, compare=False)


@dataclass(frozen=True, slots=True)
class Call:
    """One semantic function call.

    Attributes:
        number: its place among the session's calls, from 1; the id is `c-<number>`.
        order: its place in topological order.
        spec: the call as it was submitted, opaque here; empty when it is not needed any more.
        attempt: the number of its last attempt; 0: none yet.
        provenance: of the attempt that is done, as are `timings`.
        usage: of the attempt that is done, or of the last one that failed by itself.
        value_retries: attempts that were spent because an input's value was not on the bus.
        shape: the prompt's pieces, derived from the spec; empty when that is.
        when: what must hold for it to run, derived from the spec too.
        objective: deduced; never stored.
        losses: attempts that were lost with their engines or failed in a way that may pass.
        placement: why its last attempt went where it went; for people.
        block_id: the block it is an instance of; empty: none.
        native: who runs its code; None: it has none, a model makes its outputs.
        native_timeout_ms: how long it waits for a worker of the client; derived from the spec.
        reserved_tokens: what it reserved of its tenant's quota. An instance reserved nothing, for its block
            did: it is what one is charged with of which nobody knows what it used.
    """

    session_id: str
    id: str
    number: int
    order: int
    name: str
    model: str
    inputs: tuple[Edge, ...]
    outputs: tuple[Edge, ...]
    spec: bytes = field(repr=False)
    accepted_ms: int
    state: CallState = CallState.ACCEPTED
    failure: Failure | None = None
    engine_id: str = ""
    attempt: int = 0
    usage: Usage = NO_USAGE
    timings: Timings = NO_TIMINGS
    provenance: Provenance | None = None
    ready_ms: int = 0
    dispatched_ms: int = 0
    ended_ms: int = 0
    value_retries: int = 0
    shape: Shape = field(default=(), compare=False, repr=False)
    when: Condition | None = field(default=None, compare=False)
    objective: Objective | None = field(default=None, compare=False)
    losses: int = 0
    placement: str = ""
    block_id: str = ""
    reserved_tokens: int = 0
    native: NativeKind | None = None
    native_timeout_ms: int = field(default=0, compare=False)
    marks: Marks = field(default=NO_MARKS, compare=False)

    @property
    def by_client(self) -> bool:
        """Whether workers of the client run it, and no engine does."""
        return self.native is NativeKind.CLIENT

    @property
    def ref(self) -> Ref:
        """Its last attempt."""
        return Ref(self.session_id, self.id, self.attempt)

    @property
    def input_ids(self) -> tuple[str, ...]:
        """Its input variables, each once."""
        return tuple(dict.fromkeys(edge.variable_id for edge in self.inputs))

    @property
    def needed_ids(self) -> tuple[str, ...]:
        """The variables it waits for: its inputs, and what its condition is about, each once."""
        asked = (self.when.variable_id,) if self.when is not None else ()
        return tuple(dict.fromkeys([*self.input_ids, *asked]))

    @property
    def output_ids(self) -> tuple[str, ...]:
        """Its output variables."""
        return tuple(edge.variable_id for edge in self.outputs)


@dataclass(frozen=True, slots=True)
class Variable:
    """A named text. Its value lives in the store and on the bus, never here.

    Attributes:
        producer_call_id: empty when a client sets it.
        published_ms: when its value was last put on the bus, as far as is known.
        criteria: what its readers want of it; None: nobody said.
        value_digest: of its value, when it is ready.
        producer_block_id: the block that makes it; empty: none.
        finish_reason: why the model's text ended there; empty: no model made it, or it has not ended.
    """

    session_id: str
    id: str
    name: str
    state: VariableState = VariableState.PENDING
    producer_call_id: str = ""
    size_bytes: int = 0
    failure: Failure | None = None
    ready_ms: int = 0
    published_ms: int = 0
    criteria: Criteria | None = None
    value_digest: bytes = b""
    producer_block_id: str = ""
    finish_reason: str = ""


@dataclass(frozen=True, slots=True)
class Value:
    """A value on its way through: `data` is UTF-8; `finish_reason`: see `Variable`."""

    variable_id: str
    data: bytes = field(repr=False)
    finish_reason: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of a call on one engine. `reason`: why it went there; for people."""

    ref: Ref
    engine_id: str
    state: AttemptState
    started_ms: int
    ended_ms: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of calls that was accepted under an idempotency key."""

    key: str
    digest: bytes
    call_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Streamed:
    """What the bus holds of an output that no final ends: UTF-8 from its start."""

    variable_id: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine last said of itself; fields are those of `engine.v1.Heartbeat`."""

    running: int = 0
    waiting: int = 0
    paused: int = 0
    kv_used_fraction: float = 0.0
    held_tokens: int = 0
    free_tokens: int = 0
    step_ms: float = 0.0
    prefill_token_ms: float = 0.0
    piece_token_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class SharedContext:
    """A context that outlives its program, on one engine."""

    context_id: str
    prefix_hash: str
    tokens: int
    in_kv: bool


@dataclass(frozen=True, slots=True)
class Engine:
    """A model server.

    Attributes:
        epoch: tells its attachments apart; a larger one is later.
        capacity: calls it runs at once.
        version: its backend's.
    """

    id: str
    epoch: int
    model: str
    capacity: int
    context_window_tokens: int = 0
    backend: str = ""
    version: str = ""
    dtype: str = ""
    attention: str = ""
    parrot_version: str = ""
    kv_tokens: int = 0
    block_tokens: int = 0
    tensor_parallel: int = 1
    state: EngineState = EngineState.READY
