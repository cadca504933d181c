"""A response as a stream of events, followed on the bus by any gateway, from any event on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import aclosing
from typing import Any, Final

from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from parrot_gateway.closing import GatewayClosing
from parrot_gateway.events import ALIVE, HEADERS
from parrot_gateway.gateway import Gateway
from parrot_gateway.openai.errors import error_body
from parrot_gateway.openai.responses.narration import Event, Narrator
from parrot_gateway.openai.responses.reading import Teller
from parrot_gateway.openai.responses.standing import Standing, standing_with, watched
from parrot_gateway.watch import Ended, Watch
from parrot_runtime import errors
from parrot_runtime.errors import Fault

FROM_THE_START: Final = -1
STOPPING: Final = "the server is stopping; the response goes on: read on after this number"
STOPPING_UNSTORED: Final = "the server is stopping; send the request again"

# JSON leaves these bare, and some readers end a line at them.
_LINE_ENDS: Final = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}


class ResponseStream(Response):
    """The events of a response. What it opened is closed when the client goes away."""

    media_type = "text/event-stream"

    def __init__(
        self,
        gateway: Gateway,
        standing: Standing,
        *,
        after: int = FROM_THE_START,
        on_end: Callable[[], Coroutine[Any, Any, None]] | None = None,
        on_leaving: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        """`after`: the number of the last event the reader has.

        `on_end` is called when the response has come to its end; `on_leaving`, when the client went before.
        """
        super().__init__(headers=HEADERS)
        self._gateway = gateway
        self._standing = standing
        self._after = after
        self._on_end = on_end
        self._on_leaving = on_leaving
        self._over = False
        self._told = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with (
                watched(self._gateway, self._standing) as watch,
                aclosing(self._blocks(watch)) as blocks,
            ):
                response = StreamingResponse(blocks, headers=HEADERS, media_type=self.media_type)
                await response(scope, receive, send)
        finally:
            if (ending := self._ending()) is not None:
                await asyncio.shield(ending)

    def _ending(self) -> Coroutine[Any, Any, None] | None:
        if self._told:
            return self._on_end() if self._on_end is not None else None
        return self._on_leaving() if self._on_leaving is not None and not self._over else None

    async def _blocks(self, watch: Watch) -> AsyncGenerator[bytes]:
        # Some proxies hold the headers back until there is a body.
        yield ALIVE
        narrator = Narrator(self._standing.told)
        try:
            async with aclosing(self._events(watch, narrator)) as events:
                async for event in events:
                    if event is None:
                        yield ALIVE
                    elif (rest := event.after(self._after)) is not None:
                        yield _block(rest)
        except GatewayClosing:
            why = STOPPING if self._standing.told.record.stored else STOPPING_UNSTORED
            yield self._interruption(narrator, Fault(errors.UNAVAILABLE, why))
        except Fault as fault:
            yield self._interruption(narrator, fault)
        # What is not stored can't be read on: it is as if its reader had gone.
        self._over = self._told or self._standing.told.record.stored

    async def _events(self, watch: Watch, narrator: Narrator) -> AsyncGenerator[Event | None]:
        """The response's events; None for each silence."""
        teller = Teller(narrator, self._standing.told.record)
        for event in narrator.begin():
            yield event
        closing, heartbeat_s = self._gateway.closing, self._gateway.settings.heartbeat_s
        while not isinstance(news := await closing.interruptible(watch.next(heartbeat_s)), Ended):
            if news is None:
                yield None
                continue
            for event in teller.text(news.text):
                yield event
        ended = await self._ended()
        self._told = True
        for event in self._last(ended, narrator, teller):
            yield event

    async def _ended(self) -> Standing:
        told = self._standing.told
        return await standing_with(self._gateway, told.response, told.record)

    def _last(self, ended: Standing, narrator: Narrator, teller: Teller) -> Iterator[Event]:
        told = ended.told
        if told.status in {"failed", "cancelled"}:
            # What was told of it before may be gone from the bus.
            narrator.skip_to(self._after)
        yield from teller.end(told, ended.logprobs)
        if told.status == "cancelled":
            yield self._error(narrator, Fault(errors.CANCELLED, "the response was cancelled"))
        elif told.status == "failed":
            yield self._error(narrator, told.failure or Fault(errors.INTERNAL, "the response failed"))
        elif self._after > narrator.last:
            yield self._error(narrator, beyond(self._after, narrator.last))

    def _error(self, narrator: Narrator, fault: Fault) -> Event:
        narrator.skip_to(self._after)
        return narrator.error(error_members(fault))

    def _interruption(self, narrator: Narrator, fault: Fault) -> bytes:
        # The reader may have more than was told again by now.
        narrator.skip_to(self._after)
        return _block(narrator.interrupted(error_members(fault)))


def beyond(after: int, last: int) -> Fault:
    """The refusal of a number that no event of the response has."""
    return Fault(
        errors.INVALID_REQUEST,
        f"starting_after is {after}, and the response's last event has the number {last}",
        field="starting_after",
    )


def error_members(fault: Fault) -> dict[str, Any]:
    """An error as the last event of a stream.

    OpenAI documents its members one by one, and its client raises only for the whole under `error`.
    """
    error = error_body(fault)["error"]
    return {"code": error["code"], "message": error["message"], "param": error["param"], "error": error}


def _block(event: Event) -> bytes:
    # Without an id: once the official client has seen one, it takes each comment for an event.
    line = json.dumps(event.data, ensure_ascii=False, separators=(",", ":")).translate(_LINE_ENDS)
    return f"event: {event.kind}\ndata: {line}\n\n".encode()
