"""What the server knows of a session: its graph, states, and where the time went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class CallInfo:
    """One call. Times are milliseconds; those it has not reached are None.

    Attributes:
        state: accepted, waiting, ready, dispatched, running, done, failed or cancelled.
        inputs: the variable's id by placeholder.
        outputs: the same.
        error: the type of its failure; empty when it has none.
        engine: the engine it runs on, or ran on.
        prompt_tokens: of its prompt.
        cached_tokens: those of them whose KV was there already.
        queue_ms: from its arrival at the engine to its first step.
        static_prefill_ms: spent on its constant text before its inputs were there.
        dynamic_prefill_ms: spent on its inputs while they were still being produced.
        provenance: what made its outputs, by name (engine, model, dtype, backend, ...), so that they can
            be compared with another's; None until it is done.
        block_id: the block it is an instance of; empty: none.
        placement: why it went to its engine, for people.
        e2e_ms: from its acceptance to its end.
    """

    id: str
    name: str
    model: str
    state: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    error: str
    engine: str
    attempt: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    queue_ms: float
    prefill_ms: float
    decode_ms: float
    static_prefill_ms: float
    dynamic_prefill_ms: float
    static_prefill_tokens: int
    dynamic_prefill_tokens: int
    provenance: Mapping[str, Any] | None
    accepted_unix_ms: int
    ready_unix_ms: int | None
    dispatched_unix_ms: int | None
    ended_unix_ms: int | None
    block_id: str
    placement: str

    @property
    def e2e_ms(self) -> int | None:
        """From its acceptance to its end."""
        return None if self.ended_unix_ms is None else self.ended_unix_ms - self.accepted_unix_ms


@dataclass(frozen=True, slots=True)
class VariableInfo:
    """One variable.

    Attributes:
        state: pending, streaming, ready, failed or cancelled.
        producer_call_id: the call that makes it; empty when a client set it.
        producer_block_id: the block that makes it; empty: none.
    """

    id: str
    name: str
    state: str
    size_bytes: int
    producer_call_id: str
    consumer_call_ids: tuple[str, ...]
    producer_block_id: str


@dataclass(frozen=True, slots=True)
class BlockInfo:
    """One block: a part of the graph that unfolds as values come.

    Attributes:
        kind: map, loop or select.
        state: waiting, running, done, failed or cancelled.
        inputs: the variables of the session it waits for, by their places in it.
        outputs: the variable's id by output.
        instances: items of a map, or rounds of a loop that have begun.
        error: the type of its failure, such as "skipped"; empty when it has none.
    """

    id: str
    name: str
    kind: str
    state: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    instances: int
    error: str
    accepted_unix_ms: int
    unfolded_unix_ms: int | None
    ended_unix_ms: int | None


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session and its graph.

    Attributes:
        state: open, closing, closed, failed, cancelled or expired.
        trace_id: 32 hex digits; empty when it has no trace.
    """

    id: str
    label: str
    state: str
    created_unix_ms: int
    deadline_unix_ms: int
    ended_unix_ms: int | None
    trace_id: str
    calls: tuple[CallInfo, ...]
    variables: tuple[VariableInfo, ...]
    blocks: tuple[BlockInfo, ...] = ()


_PARTS: Final = frozenset({"calls", "variables", "blocks"})


def session_info(data: Mapping[str, Any]) -> SessionInfo:
    """The session that the server's answer describes."""
    return SessionInfo(
        **{name: data[name] for name in SessionInfo.__slots__ if name not in _PARTS},
        calls=tuple(_call(call) for call in data["calls"]),
        variables=tuple(_variable(variable) for variable in data["variables"]),
        blocks=tuple(_block(block) for block in data.get("blocks", ())),
    )


def _call(data: Mapping[str, Any]) -> CallInfo:
    fields = {**data, **data["usage"], **data["timings"]}
    return CallInfo(**{name: fields[name] for name in CallInfo.__slots__} | _edges_and_error(data))


def _block(data: Mapping[str, Any]) -> BlockInfo:
    return BlockInfo(**{name: data[name] for name in BlockInfo.__slots__} | _edges_and_error(data))


def _edges_and_error(data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "inputs": {edge["name"]: edge["semantic_var_id"] for edge in data["inputs"]},
        "outputs": {edge["name"]: edge["semantic_var_id"] for edge in data["outputs"]},
        "error": (data["error"] or {}).get("type", "").rpartition(":")[2],
    }


def _variable(data: Mapping[str, Any]) -> VariableInfo:
    fields = {**data, "consumer_call_ids": tuple(data["consumer_call_ids"])}
    return VariableInfo(**{name: fields[name] for name in VariableInfo.__slots__})
