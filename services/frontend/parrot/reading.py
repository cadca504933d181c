"""How a variable's text is read: whole, or as it is generated."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from parrot.client import RETRY_S, Backoff, Client, slug
from parrot.errors import CallFailed, Cancelled, ParrotError, RequestRefused, ServerUnavailable, WaitTimeout
from parrot.sse import Event, Parser
from parrot.variable import SemanticVariable

HOLD_S = 30.0
"""How long the server is asked to hold a wait before it is asked again."""
SILENCE_S = 45.0
"""After so long without a byte, three heartbeats, a stream is dead."""

_PASSING = {502, 503, 504}


async def wait(client: Client, path: str, variable: SemanticVariable, timeout_s: float | None) -> str:
    """The variable's text, waited for.

    Raises:
        WaitTimeout: it did not come in time.
        ParrotError: it has none, or the server can't be asked.
    """
    hold_s = HOLD_S if timeout_s is None else max(0.0, min(HOLD_S, timeout_s))
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                text = settle(variable, await client.wait(path, hold_s))
                if text is not None:
                    return text
    except TimeoutError:
        raise _timed_out(variable, timeout_s) from None


async def stream(
    client: Client, path: str, variable: SemanticVariable, timeout_s: float | None
) -> AsyncIterator[str]:
    """The variable's text in pieces, over as many connections as it takes.

    Raises:
        As `wait`.
    """
    loop = asyncio.get_running_loop()
    deadline = None if timeout_s is None else loop.time() + timeout_s
    text = _Text(variable)
    backoff = Backoff(RETRY_S)
    while True:
        try:
            async with client.events(f"{path}/stream", text.last_event_id, SILENCE_S) as blocks:
                parser = Parser()
                while (block := await _block(blocks, deadline, variable, timeout_s)) is not None:
                    for event in parser.feed(block):
                        piece = text.take(event)
                        if piece:
                            backoff.progress()
                            yield piece
                        if text.whole:
                            return
            broken: ParrotError = ServerUnavailable("the stream ended before the text did")
        except ServerUnavailable as error:
            broken = error
        except RequestRefused as error:
            if error.status not in _PASSING:
                raise
            broken = error
        await backoff.pause(broken)


def settle(variable: SemanticVariable, resource: dict[str, Any]) -> str | None:
    """Notes the end that the server's answer tells of; the text, or None while there is no end.

    Raises:
        CallFailed: it failed.
        Cancelled: it was cancelled.
    """
    state = resource["state"]
    if state == "ready":
        text = str(resource["value"])
        variable._resolve(text)
        return text
    if state in {"failed", "cancelled"}:
        raise _ended(variable, state, resource.get("error") or {})
    return None


class _Text:
    """What came of a stream so far. Offsets, in bytes of UTF-8, keep out gaps and repeats."""

    def __init__(self, variable: SemanticVariable) -> None:
        self._variable = variable
        self._pieces: list[str] = []
        self._bytes = 0
        self.whole = False

    @property
    def last_event_id(self) -> str:
        """Where to go on from; empty at the start."""
        return f"{self._variable.id}:{self._bytes}" if self._bytes else ""

    def take(self, event: Event) -> str:
        """The new text of an event; empty when it brings none."""
        if event.event == "delta":
            return self._add(json.loads(event.data))
        if event.event == "done":
            self.whole = True
            self._variable._resolve("".join(self._pieces))
        elif event.event == "error":
            problem = json.loads(event.data)
            if problem.get("state") in {"failed", "cancelled"}:
                raise _ended(self._variable, problem["state"], problem)
            raise ServerUnavailable(str(problem.get("detail", "the stream broke")))
        return ""

    def _add(self, delta: dict[str, Any]) -> str:
        skip = self._bytes - int(delta["offset"])
        data = str(delta["text"]).encode()
        if skip < 0:
            raise ServerUnavailable("the stream left out text")
        piece = data[skip:].decode()
        if piece:
            self._bytes += len(data) - skip
            self._pieces.append(piece)
        return piece


async def _block(
    blocks: AsyncIterator[bytes],
    deadline: float | None,
    variable: SemanticVariable,
    timeout_s: float | None,
) -> bytes | None:
    try:
        async with asyncio.timeout_at(deadline):
            return await anext(blocks, None)
    except TimeoutError:
        raise _timed_out(variable, timeout_s) from None


def _timed_out(variable: SemanticVariable, timeout_s: float | None) -> WaitTimeout:
    return WaitTimeout(f"{variable!r} did not come within {timeout_s:g} s; it may still come, ask again")


def _ended(variable: SemanticVariable, state: str, problem: dict[str, Any]) -> ParrotError:
    detail = str(problem.get("detail", ""))
    if state == "cancelled":
        error: ParrotError = Cancelled(f"{variable.name or variable.id} was cancelled. {detail}".strip())
        variable._fail(error, "cancelled")
        return error
    error = CallFailed(
        detail,
        type=slug(problem),
        call_id=str(problem.get("call_id", "")),
        cause=str(problem.get("cause_type", "")).rpartition(":")[2],
        cause_call_id=str(problem.get("cause_call_id", "")),
    )
    variable._fail(error)
    return error
