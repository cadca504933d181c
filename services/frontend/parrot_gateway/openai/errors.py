"""Failures as OpenAI's clients expect them: `{"error": {"message", "type", "param", "code"}}`.

Beside these stand `may_retry`, whether the same request may succeed later, and where one failure follows
from another `cause`, that one's code. The official client retries some statuses by itself, 409 among
them; the header `x-should-retry`, which it obeys, keeps it to what may pass.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

from fastapi.responses import Response

from parrot_runtime import errors
from parrot_runtime.errors import Fault, Kind

ROOTS: Final = ("/v1/chat/", "/v1/completions", "/v1/responses")

SHARED: Final = "/v1/models"
"""What is of OpenAI's API and of ours."""

_RATES: Final = "rate_limit_error"
_CODES: Final[dict[str, str]] = {
    errors.PROMPT_TOO_LONG.type: "context_length_exceeded",
    errors.UNKNOWN_MODEL.type: "model_not_found",
    errors.QUEUE_FULL.type: "rate_limit_exceeded",
    "quota_exceeded": "rate_limit_exceeded",
    "rate_limited": "rate_limit_exceeded",
    "unauthenticated": "invalid_api_key",
}
_STATUSES: Final[dict[str, int]] = {errors.PROMPT_TOO_LONG.type: 400, errors.UNKNOWN_MODEL.type: 404}


def is_openai(path: str) -> bool:
    """Whether a path is of OpenAI's API, so that its failures have OpenAI's shape."""
    return path.startswith(ROOTS)


def is_shared(path: str) -> bool:
    """Whether a path is of both APIs, so that its failures have the members of both."""
    return path == SHARED or path.startswith(f"{SHARED}/")


def shared_members(fault: Fault) -> dict[str, Any]:
    """What OpenAI's clients read in a failure of a path that is of both."""
    body = error_body(fault)
    if fault.kind is errors.NOT_FOUND:
        body["error"]["code"] = code_of(errors.UNKNOWN_MODEL.type)
    return body


def code_of(slug: str) -> str:
    """OpenAI's word for a kind of failure, where it has one; else our own."""
    return _CODES.get(slug, slug)


def status_of(kind: Kind) -> int:
    """The HTTP status a failure has there."""
    return _STATUSES.get(kind.type, kind.http)


def type_of(kind: Kind) -> str:
    """OpenAI's coarse word for a failure."""
    status = status_of(kind)
    if status == 429:
        return _RATES
    return "server_error" if status >= 500 else "invalid_request_error"


def error_body(fault: Fault) -> dict[str, Any]:
    """The body of an answer, or the data of a stream's event, that tells of a failure."""
    error: dict[str, Any] = {
        "message": fault.message,
        "type": type_of(fault.kind),
        "param": fault.field or None,
        "code": code_of(fault.kind.type),
        "may_retry": fault.kind.may_retry,
    }
    if fault.cause_type:
        error["cause"] = code_of(fault.cause_type)
    return {"error": error}


def retry_header(fault: Fault) -> dict[str, str]:
    """What tells the official client whether to ask again."""
    return {"x-should-retry": "true" if fault.kind.may_retry else "false"}


def error_response(fault: Fault, headers: dict[str, str] | None = None) -> Response:
    """The answer to a request that failed."""
    headers = {**(headers or {}), **retry_header(fault)}
    if fault.retry_after_ms:
        headers["Retry-After"] = str(math.ceil(fault.retry_after_ms / 1000))
    return Response(
        json.dumps(error_body(fault)),
        status_code=status_of(fault.kind),
        headers=headers,
        media_type="application/json",
    )
