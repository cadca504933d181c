"""A response, in the shape OpenAI's clients know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from parrot_gateway.openai.responses.ids import ResponseId
from parrot_gateway.openai.responses.record import Record
from parrot_proto.common.v1 import common_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]

_BAD_PROMPT: Final = frozenset({errors.PROMPT_TOO_LONG, errors.EMPTY_PROMPT})


@dataclass(frozen=True, slots=True)
class Told:
    """What is told of a response. Times are seconds since 1970.

    Attributes:
        model: the model that runs it; empty: as the client said.
        usage: None: it is not known yet.
        failure: why there is no text.
    """

    response: ResponseId
    record: Record
    created_at: int
    model: str = ""
    status: Status = "in_progress"
    completed_at: int | None = None
    output: Sequence[dict[str, Any]] = ()
    usage: common_pb2.Usage | None = None
    failure: Fault | None = None


def resource(told: Told) -> dict[str, Any]:
    """The response."""
    made: dict[str, Any] = {
        "id": str(told.response),
        "object": "response",
        "created_at": told.created_at,
        "status": told.status,
        "error": error_of(told.failure) if told.status == "failed" and told.failure is not None else None,
        "incomplete_details": {"reason": "max_output_tokens"} if told.status == "incomplete" else None,
        **told.record.echo,
        "output": list(told.output),
        "usage": _usage(told.usage) if told.usage is not None else None,
        "parrot": {"session_id": told.response.session_id, "output": told.record.output_variable},
    }
    if told.model:
        made["model"] = told.model
    if told.status == "completed":
        made["completed_at"] = told.completed_at
    return made


def error_of(fault: Fault) -> dict[str, Any]:
    """Why a response failed; the codes are OpenAI's, the type ours."""
    code = "server_error"
    if fault.kind in _BAD_PROMPT:
        code = "invalid_prompt"
    elif fault.kind.http == 429:
        code = "rate_limit_exceeded"
    return {"code": code, "message": fault.message, "type": fault.kind.type}


def _usage(usage: common_pb2.Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
    }
