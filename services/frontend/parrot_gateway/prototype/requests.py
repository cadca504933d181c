"""How the prototype's clients send: with bodies on any method."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from fastapi import Request
from fastapi.responses import Response

from parrot_gateway.bodies import StrictRoute, parse, read_body
from parrot_runtime import errors
from parrot_runtime.errors import Fault

_BODILESS: Final = frozenset({"GET", "DELETE"})


class PrototypeRoute(StrictRoute):
    """A route that takes a GET's or DELETE's body for its query."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, with the body read before."""
        handle = super().get_route_handler()

        async def handle_compatibly(request: Request) -> Response:
            if request.method in _BODILESS:
                await _body_as_query(request)
            return await handle(request)

        return handle_compatibly


async def _body_as_query(request: Request) -> None:
    """Adds a JSON body's members to the query, where that does not have them.

    Raises:
        Fault: the body is no JSON object of texts and numbers.
    """
    raw = await read_body(request)
    if not raw:
        return
    members = parse(raw, request.headers.get("content-type", ""))
    if not isinstance(members, dict):
        raise Fault(errors.INVALID_REQUEST, "the body is no JSON object", field="body")
    query = dict(parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True))
    for name, value in members.items():
        if isinstance(value, (str, int)) and not isinstance(value, bool):
            query.setdefault(name, str(value))
        elif value is not None:
            raise Fault(errors.INVALID_REQUEST, f"{name}: it is a text or an integer", field=name[:200])
    request.scope["query_string"] = urlencode(query).encode()
