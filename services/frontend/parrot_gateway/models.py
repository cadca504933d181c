"""The shapes of the HTTP API: what clients send, and what they get."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from parrot_gateway.sent import NewCriteria, Sent
from parrot_runtime import limits

SESSION_S = 86_400


class NewSession(Sent):
    """A session to be made."""

    label: str = Field(
        default="", description="for people; 200 characters at most", examples=["nightly summary"]
    )
    timeout_s: float | None = Field(
        default=None,
        gt=0,
        le=SESSION_S,
        description="seconds until it is ended; the server's default is 3600",
    )
    criteria: NewCriteria | None = Field(
        default=None, description="for outputs whose reader says nothing else; latency by default"
    )
    lazy: bool = Field(default=False, description="calls run only when somebody reads what they lead to")


class VariableValue(Sent):
    """The value of a variable that no call makes."""

    value: str = Field(description=f"at most {limits.VALUE_BYTES:,} bytes of UTF-8")
    name: str = Field(default="", description="for people")


class Problem(BaseModel):
    """Why something could not be done (RFC 9457); members that say nothing are absent."""

    type: str = Field(examples=["urn:parrot:problem:too_large"])
    title: str
    status: int
    detail: str = Field(description="what happened, and how to mend it")
    field: str = Field(
        default="", description="the field of the request", examples=["calls[2].placeholders[0].value"]
    )
    session_id: str = ""
    call_id: str = ""
    semantic_var_id: str = ""
    cause_type: str = Field(default="", description="the type of the failure that this one follows from")
    cause_call_id: str = ""
    may_retry: bool = Field(description="the same request may succeed later")


ProblemMembers = Annotated[dict[str, Any] | None, Field(description="a Problem; null when nothing failed")]


class Criteria(BaseModel):
    """What is wanted of outputs."""

    kind: str
    deadline_unix_ms: int | None


class SessionResource(BaseModel):
    """A session. Times are milliseconds since 1970; null when not reached."""

    id: str
    label: str
    state: str
    created_unix_ms: int
    deadline_unix_ms: int
    ended_unix_ms: int | None
    trace_id: str
    criteria: Criteria | None
    lazy: bool


class Edge(BaseModel):
    """Which variable stands in a hole."""

    name: str
    semantic_var_id: str


class Usage(BaseModel):
    """Tokens a call used; cached ones are among the prompt's."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


class Timings(BaseModel):
    """Where a call's time on its engine went.

    The first three follow one another and sum to it. The others lie before or beside them: prompt
    that was computed before all inputs were there.
    """

    queue_ms: float
    prefill_ms: float
    decode_ms: float
    static_prefill_ms: float = Field(description="constant segments, before the inputs were there")
    dynamic_prefill_ms: float = Field(description="inputs, while they were still being produced")
    static_prefill_tokens: int
    dynamic_prefill_tokens: int


class Provenance(BaseModel):
    """What made an output, so that it can be compared with what something else would have made."""

    engine: str
    model: str
    dtype: str
    backend: str
    backend_version: str
    attention: str = Field(description="the attention kernel, as the backend calls it")
    tensor_parallel: int
    batch_invariant: bool = Field(description="its tokens do not depend on what else was in the batch")
    parrot_version: str


class Objective(BaseModel):
    """What a call is run for, as the graph has it."""

    kind: str
    group: str = Field(description="the calls that are to finish together; empty: none")
    reason: str
    latest_finish_unix_ms: int | None = Field(description="so that the application's end comes in time")


class CallResource(BaseModel):
    """A call and how far it came."""

    id: str
    name: str
    model: str
    state: str
    inputs: list[Edge]
    outputs: list[Edge]
    error: ProblemMembers
    engine: str
    attempt: int
    usage: Usage
    timings: Timings
    provenance: Provenance | None = Field(description="null until the call is done")
    accepted_unix_ms: int
    ready_unix_ms: int | None
    dispatched_unix_ms: int | None
    ended_unix_ms: int | None
    objective: Objective | None
    placement: str = Field(description="why its last attempt went where it went")
    block_id: str = Field(description="the block it is an instance of; empty: none")
    native: str = Field(
        description='who runs its code: "client", whose worker is the engine then, or "sandbox"; empty: it '
        "has none, and a model makes its outputs"
    )


class BlockResource(BaseModel):
    """A block and how far it came. Its instances are calls with its `block_id`."""

    id: str
    name: str
    kind: Literal["map", "loop", "select"]
    state: str = Field(description="waiting, running, done, failed or cancelled, which a skipped one is too")
    inputs: list[Edge] = Field(description="variables of the session it depends on, with where it says so")
    outputs: list[Edge]
    instances: int = Field(description="items of a map, or rounds of a loop that have begun")
    error: ProblemMembers
    accepted_unix_ms: int
    unfolded_unix_ms: int | None = Field(description="when its first instance came")
    ended_unix_ms: int | None


class VariableSummary(BaseModel):
    """A variable without its text."""

    id: str
    name: str
    state: str
    producer_call_id: str
    consumer_call_ids: list[str]
    size_bytes: int
    error: ProblemMembers
    ready_unix_ms: int | None
    criteria: Criteria | None = Field(description="the strictest its readers said")
    producer_block_id: str = Field(description="the block that makes it; empty: none")


class VariableResource(VariableSummary):
    """A variable; `value` is null until it is ready."""

    value: str | None


class SessionGraph(SessionResource):
    """A session with its calls, blocks and variables."""

    calls: list[CallResource]
    blocks: list[BlockResource]
    variables: list[VariableSummary]


class PlaceholderResource(BaseModel):
    """A placeholder, and the variable that stands for it."""

    name: str
    in_out: Literal["in", "out"]
    semantic_var_id: str


class AcceptedCall(BaseModel):
    """A call that was accepted."""

    id: str
    name: str
    placeholders: list[PlaceholderResource]


class AcceptedBlock(BaseModel):
    """A block that was accepted."""

    id: str
    name: str
    kind: Literal["map", "loop", "select"]
    outputs: list[Edge]


class AcceptedCalls(BaseModel):
    """The calls and blocks of a request, each in its order."""

    calls: list[AcceptedCall]
    blocks: list[AcceptedBlock]


class CancelledCalls(BaseModel):
    """The calls that a request cancelled: those it named, and those that depend on them."""

    call_ids: list[str]


class ModelResource(BaseModel):
    """A model that can be asked for."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "parrot"
    context_window_tokens: int
    engines: int


class ModelList(BaseModel):
    """The models served now, in the shape OpenAI's clients know."""

    object: Literal["list"] = "list"
    data: list[ModelResource]


class EngineResource(BaseModel):
    """An engine."""

    id: str
    model: str
    state: str
    running: int
    capacity: int
    backend: str
    backend_version: str
    dtype: str
    attention: str
    parrot_version: str


class EngineList(BaseModel):
    """The engines the manager knows."""

    engines: list[EngineResource]


class Health(BaseModel):
    """That the process answers."""

    status: Literal["ok", "ready"]
