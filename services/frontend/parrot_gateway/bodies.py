"""How a request's body is read: bounded, strict JSON, and text throughout.

Lone surrogates can come into a JSON text only as escapes, so a body without such an escape is not
searched for them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, NoReturn

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute

from parrot_gateway.problems import field_path
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault
from parrot_runtime.text import check_text, too_large

DRAINED_BYTES: Final = 2 * limits.BODY_BYTES
"""How much of a body that is too large is still read, so that its sender gets to read the answer."""

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_JSON_TYPE = re.compile(r"application/([a-z0-9.+-]+\+)?json\s*(;|\Z)", re.IGNORECASE)


class StrictRoute(APIRoute):
    """A route whose body is read by `read_json`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, with the body read before."""
        handle = super().get_route_handler()
        takes_body = self.body_field is not None

        async def handle_strictly(request: Request) -> Response:
            if takes_body:
                raw = await read_body(request)
                # Where starlette keeps what it read; FastAPI takes it from there.
                request._body = raw
                if raw:
                    request._json = parse(raw, request.headers.get("content-type", ""))
            return await handle(request)

        return handle_strictly


def parse(raw: bytes, content_type: str = "application/json") -> Any:
    """The JSON value in `raw`.

    Raises:
        Fault: `invalid_request`: not called JSON, no JSON, NaN or an infinity, nested too deeply;
            `invalid_text`: not UTF-8, or a lone surrogate in it.
    """
    if not _JSON_TYPE.match(content_type):
        raise Fault(
            errors.INVALID_REQUEST, "send the body with Content-Type: application/json", field="Content-Type"
        )
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise Fault(
            errors.INVALID_TEXT, f"the body is not UTF-8, from byte {error.start} on", field="body"
        ) from None
    value = _loads(text)
    if _SURROGATE_ESCAPE.search(raw):
        for path, found in _texts(value):
            check_text(found, field_path(path))
    return value


def _loads(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        message = f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        raise Fault(errors.INVALID_REQUEST, message, field="body") from None
    except RecursionError:
        raise Fault(errors.INVALID_REQUEST, "the body is nested too deeply", field="body") from None
    except ValueError:
        # An integer with thousands of digits, or a number that is none.
        raise Fault(
            errors.INVALID_REQUEST, "the body holds a number that is too large, or none", field="body"
        ) from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("beyond a double")
    return value


def _texts(value: Any) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Every text in a JSON value, keys included, with its path."""
    todo: list[tuple[tuple[str | int, ...], Any]] = [((), value)]
    while todo:
        path, found = todo.pop()
        if isinstance(found, str):
            yield path, found
        elif isinstance(found, list):
            todo.extend(((*path, index), item) for index, item in enumerate(found))
        elif isinstance(found, dict):
            for key, item in found.items():
                yield path, key
                todo.append(((*path, key), item))


async def read_body(request: Request) -> bytes:
    """A request's body, as far as it may be large.

    Raises:
        Fault: `too_large`.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > DRAINED_BYTES:
        raise too_large("body", int(declared), limits.BODY_BYTES)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= limits.BODY_BYTES:
            chunks.append(chunk)
        elif size > DRAINED_BYTES:
            break
    if size > limits.BODY_BYTES:
        raise too_large("body", size, limits.BODY_BYTES)
    return b"".join(chunks)
