"""What a stopping gateway answers is the last of its connection, so that nobody asks it again and again."""

from __future__ import annotations

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from parrot_gateway.closing import Closing
from parrot_gateway.metrics import GatewayMetrics
from parrot_gateway.observing import Observed

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("path", ["/", "/nowhere", "/broken"])
async def test_an_answer_of_a_stopping_gateway_ends_its_connection(path: str) -> None:
    async def fine(_: Request) -> PlainTextResponse:
        return PlainTextResponse("fine")

    async def broken(_: Request) -> PlainTextResponse:
        raise ZeroDivisionError

    closing = Closing()
    routes = [Route("/", fine), Route("/broken", broken)]
    app = Observed(Starlette(routes=routes), GatewayMetrics(), closing)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url="http://gateway"
    ) as http:
        assert "connection" not in (await http.get(path)).headers
        closing.begin()
        assert (await http.get(path)).headers["connection"] == "close"
