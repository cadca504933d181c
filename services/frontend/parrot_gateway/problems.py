"""Failures as problem+json (RFC 9457), and the handlers that answer with them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from parrot_gateway.openai import errors as openai_errors
from parrot_gateway.prototype import errors as prototype_errors
from parrot_runtime import errors
from parrot_runtime.errors import Fault

TYPE_PREFIX: Final = "urn:parrot:problem:"
MEDIA_TYPE: Final = "application/problem+json"
_TAG: Final = re.compile(r"<[a-z_]+>")
"""Names of the shapes a part of a body may have; they stand in the path of an error, and are no field."""
FIELD_CHARS: Final = 200


def problem_of(fault: Fault) -> dict[str, Any]:
    """The problem document of a fault; members that say nothing are left out."""
    members = {
        "type": TYPE_PREFIX + fault.kind.type,
        "title": fault.kind.title,
        "status": fault.kind.http,
        "detail": fault.message,
        "field": fault.field,
        "session_id": fault.session_id,
        "call_id": fault.call_id,
        "semantic_var_id": fault.variable_id,
        "cause_type": fault.cause_type and TYPE_PREFIX + fault.cause_type,
        "cause_call_id": fault.cause_call_id,
        "may_retry": fault.kind.may_retry,
    }
    return {name: value for name, value in members.items() if value != ""}


def problem_response(
    fault: Fault, headers: dict[str, str] | None = None, more: Mapping[str, Any] | None = None
) -> Response:
    """The answer to a request that failed; `more`: further members of the document."""
    headers = dict(headers or {})
    if fault.retry_after_ms:
        headers["Retry-After"] = str(math.ceil(fault.retry_after_ms / 1000))
    return Response(
        json.dumps(problem_of(fault) | dict(more or {})),
        status_code=fault.kind.http,
        headers=headers,
        media_type=MEDIA_TYPE,
    )


def answer_of(path: str, fault: Fault, headers: dict[str, str] | None = None) -> Response:
    """The answer to a request of a path that failed, in the words of the API the path is of."""
    if openai_errors.is_openai(path):
        return openai_errors.error_response(fault, headers)
    if openai_errors.is_shared(path):
        headers = (headers or {}) | openai_errors.retry_header(fault)
        return problem_response(fault, headers, openai_errors.shared_members(fault))
    more = prototype_errors.members(fault) if prototype_errors.is_prototype(path) else None
    return problem_response(fault, headers, more)


def install(app: FastAPI) -> None:
    """Makes every failure of `app` a problem document."""

    @app.exception_handler(Fault)
    async def on_fault(request: Request, fault: Fault) -> Response:
        request.scope["parrot.fault"] = fault
        return answer_of(request.url.path, fault)

    @app.exception_handler(RequestValidationError)
    async def on_invalid(request: Request, error: RequestValidationError) -> Response:
        return await on_fault(request, invalid(error.errors()))

    @app.exception_handler(HTTPException)
    async def on_http(request: Request, error: HTTPException) -> Response:
        headers = dict(error.headers or {})
        if error.status_code == 405:
            headers["Allow"] = _allowed(request)
        fault = _fault_of_status(error.status_code, headers)
        request.scope["parrot.fault"] = fault
        return answer_of(request.url.path, fault, headers)


def invalid(found: Sequence[Any]) -> Fault:
    """The fault that a model's errors amount to; it names the first field, and counts the others."""
    first = found[0]
    field = field_path(first["loc"])
    kind = errors.INVALID_SAMPLING if "sampling" in first["loc"] else errors.INVALID_REQUEST
    more = f" ({len(found) - 1} more)" if len(found) > 1 else ""
    return Fault(kind, f"{field}: {_complaint(first)}{more}", field=field)


def field_path(location: Sequence[str | int]) -> str:
    """A field's path, such as `calls[2].placeholders[0].name`."""
    parts = (
        list(location[1:]) if location and location[0] in {"body", "query", "path", "header"} else location
    )
    named = [part for part in parts if isinstance(part, int) or not _TAG.fullmatch(part)]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in named)
    return path.removeprefix(".")[:FIELD_CHARS] or "body"


def _complaint(error: dict[str, Any]) -> str:
    if error["type"] == "missing":
        return "it is required"
    if error["type"] == "extra_forbidden":
        return "there is no such field"
    message = str(error["msg"]).removeprefix("Value error, ")
    return message[:1].lower() + message[1:]


def _allowed(request: Request) -> str:
    """The methods of every route of the path; the router names those of the first only."""
    methods: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            methods |= route.methods or set()
    return ", ".join(sorted(methods))


def _fault_of_status(status: int, headers: Mapping[str, str]) -> Fault:
    if status == 404:
        return Fault(errors.NOT_FOUND, "there is no such path; /docs lists them")
    if status == 405:
        return Fault(errors.METHOD_NOT_ALLOWED, f"this path takes {headers['Allow'] or 'another method'}")
    if status < 500:
        return Fault(errors.INVALID_REQUEST, "the request could not be read")
    return Fault(errors.INTERNAL, "an unexpected error; the gateway's log has it")
