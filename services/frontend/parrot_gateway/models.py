"""The shapes of the HTTP API: what clients send, and what they get."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Discriminator, Field, Tag

from parrot_gateway.sampling import SamplingSettings
from parrot_gateway.sent import Sent, TextList
from parrot_runtime import limits

SESSION_S = 86_400


def _direction(given: object) -> object:
    if isinstance(given, bool):
        return "in" if given else "out"
    return {"input": "in", "output": "out"}.get(given, given) if isinstance(given, str) else given


CriteriaKind = Literal["latency", "throughput", "deadline", "ttft"]


class NewCriteria(Sent):
    """What is wanted of outputs."""

    kind: CriteriaKind = Field(
        description="latency: the whole soon; throughput: sometime, at little cost; deadline: the whole by a "
        "time; ttft: the first token soon"
    )
    deadline_unix_ms: int = Field(default=0, ge=0, description="for a deadline: when")


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


class NewPlaceholder(Sent):
    """What stands in for a hole of the template."""

    name: str = Field(description="the hole's name", examples=["task"])
    in_out: Annotated[
        Literal["in", "out"],
        BeforeValidator(_direction, json_schema_input_type=Literal["in", "out", "input", "output"] | bool),
    ] = Field(description='"in" or "out"; "input" and true read as "in", "output" and false as "out"')
    semantic_var_id: str | None = Field(
        default=None,
        description="in: the variable to read; out: the id of the variable to make, by default a new one",
    )
    value: str | None = Field(default=None, description="in: a text, instead of a variable")
    transforms: TextList = Field(
        default_factory=list,
        description="applied to the whole text, in order: strip, first_line, lower, upper, "
        "split:<separator>:<index>, regex:<pattern> (RE2; the group named value, or the first, or all of "
        "the match), json:<path>, join:<separator>. An output that has some is not streamed.",
        examples=[["strip"], ["regex:(?s)```json\\n(.*?)```", "json:answers[0].text"]],
    )
    sampling: SamplingSettings | None = Field(default=None, description="out: how it is generated")


class NewCall(Sent):
    """A semantic function call."""

    prompt: str = Field(
        description="the template: {{name}}, {{input:name}} or {{output:name}} is a hole, "
        "{{'{{'}} stands for two literal braces",
        examples=["Summarize: {{input:text}}\nSummary: {{output:summary}}"],
    )
    placeholders: list[NewPlaceholder] = Field(description="one for each name in the template")
    name: str = Field(default="", description="the function's name; for people and statistics")
    model: str = Field(default="", description="the model to use; empty: any")


class NewValue(Sent):
    """A variable that gets its value with a batch."""

    semantic_var_id: str
    value: str
    name: str = ""


class NewBatch(Sent):
    """Calls that are accepted together, or not at all."""

    calls: list[NewCall]
    variables: list[NewValue] = Field(default_factory=list)


def _shape(given: object) -> str:
    return "single" if isinstance(given, dict) and "prompt" in given and "calls" not in given else "batch"


NewCalls = Annotated[
    Annotated[NewBatch, Tag("batch")] | Annotated[NewCall, Tag("single")], Discriminator(_shape)
]


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
    """A session with its calls and variables."""

    calls: list[CallResource]
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


class AcceptedCalls(BaseModel):
    """The calls of a request, in its order."""

    calls: list[AcceptedCall]


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
