"""Runs as answers: whole, or as a stream of events that a client of OpenAI's reads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any, Final, Protocol

from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from parrot_gateway.closing import GatewayClosing
from parrot_gateway.connected import while_connected
from parrot_gateway.events import ALIVE, HEADERS
from parrot_gateway.gateway import Gateway
from parrot_gateway.openai.errors import error_body
from parrot_gateway.openai.runs import Done, Listener, News, Run, finish, leave, listening
from parrot_runtime import errors
from parrot_runtime.errors import Fault

DONE: Final = b"data: [DONE]\n\n"
STOPPING: Final = "the server is stopping; ask again"

# JSON leaves these bare, and some readers end a line at them.
_LINE_ENDS: Final = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}


class Narrator(Protocol):
    """Tells a run in the shape of one of OpenAI's APIs."""

    async def chunks(self, news: News) -> list[dict[str, Any]]:
        """The chunks of a stream that some news make."""
        ...

    def last_chunks(self) -> Iterable[dict[str, Any]]:
        """The chunks behind those of all choices."""
        ...

    async def whole(self, done: list[Done]) -> dict[str, Any]:
        """The whole answer; `done`: each choice's end, in order."""
        ...


async def whole_answer(request: Request, gateway: Gateway, run: Run, narrator: Narrator) -> Response:
    """The answer when all choices are whole.

    Raises:
        Fault: why one of them is not.
    """

    async def work() -> Response:
        done: dict[int, Done] = {}
        try:
            async with listening(gateway, run) as listener:
                while listener.open:
                    news = await listener.next(gateway.settings.heartbeat_s)
                    if isinstance(news, Done):
                        done[news.index] = news
            body = await narrator.whole([done[index] for index in sorted(done)])
        except GatewayClosing:
            await leave(gateway, run)
            raise Fault(errors.UNAVAILABLE, STOPPING, retry_after_ms=1000) from None
        except BaseException:
            await asyncio.shield(leave(gateway, run))
            raise
        await finish(gateway, run)
        return Response(_json(body), headers=_named(run), media_type="application/json")

    return await while_connected(request, work())


class RunStream(Response):
    """A run as a stream of events. Whoever leaves before its end leaves the run."""

    media_type = "text/event-stream"

    def __init__(self, gateway: Gateway, run: Run, narrator: Narrator) -> None:
        super().__init__(headers=HEADERS)
        self._told_headers = HEADERS | _named(run)
        self._gateway = gateway
        self._run = run
        self._narrator = narrator
        self._finished = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with (
                listening(self._gateway, self._run) as listener,
                aclosing(self._blocks(listener)) as blocks,
            ):
                response = StreamingResponse(blocks, headers=self._told_headers, media_type=self.media_type)
                await response(scope, receive, send)
        finally:
            ending = finish if self._finished else leave
            await asyncio.shield(ending(self._gateway, self._run))

    async def _blocks(self, listener: Listener) -> AsyncGenerator[bytes, None]:
        """The events up to the run's end, or to what breaks it off; a failure is the last of them."""
        # Some proxies hold the headers back until there is a body.
        yield ALIVE
        try:
            while listener.open:
                news = await listener.next(self._gateway.settings.heartbeat_s)
                if news is None:
                    yield ALIVE
                    continue
                for chunk in await self._narrator.chunks(news):
                    yield event(chunk)
            for chunk in self._narrator.last_chunks():
                yield event(chunk)
            self._finished = True
        except GatewayClosing:
            yield event(error_body(Fault(errors.UNAVAILABLE, STOPPING)))
        except Fault as fault:
            yield event(error_body(fault))
        yield DONE


def _named(run: Run) -> dict[str, str]:
    """What a client can name the request by."""
    return {"x-request-id": run.id}


def event(data: dict[str, Any]) -> bytes:
    """One event of a stream."""
    return f"data: {_json(data)}\n\n".encode()


def _json(data: dict[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).translate(_LINE_ENDS)
