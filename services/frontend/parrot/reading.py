"""How a variable's text is read: whole, or as it is generated."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from parrot.client import Client, slug
from parrot.errors import (
    CallFailed,
    Cancelled,
    ParrotError,
    ServerUnavailable,
    Skipped,
    WaitTimeout,
)
from parrot.following import follow
from parrot.sse import Event
from parrot.variable import SemanticVariable

HOLD_S = 30.0
"""How long the server is asked to hold a wait before it is asked again."""

Variable = SemanticVariable[Any]


async def wait(
    client: Client, path: str, variable: Variable, timeout_s: float | None, wanted: dict[str, Any]
) -> str:
    """The variable's text, waited for.

    Args:
        wanted: what the reader wants of it, as the query says it.

    Raises:
        WaitTimeout: it did not come in time.
        ParrotError: it has none, or the server can't be asked.
    """
    hold_s = HOLD_S if timeout_s is None else max(0.0, min(HOLD_S, timeout_s))
    try:
        # Who does not want to wait still wants an answer.
        async with asyncio.timeout(timeout_s if hold_s else None):
            while (text := settle(variable, await client.wait(path, hold_s, wanted))) is None and hold_s:
                pass
    except TimeoutError:
        text = None
    if text is None:
        raise _timed_out(variable, timeout_s)
    return text


async def stream(
    client: Client, path: str, variable: Variable, timeout_s: float | None, wanted: dict[str, Any]
) -> AsyncGenerator[str, None]:
    """The variable's text in pieces, over as many connections as it takes.

    Raises:
        As `wait`.
    """
    following = follow(client, f"{path}/stream", _Text(variable, timeout_s), timeout_s, wanted)
    async with aclosing(following) as pieces:
        async for piece in pieces:
            yield piece


def settle(variable: Variable, resource: dict[str, Any]) -> str | None:
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
    """What came of a stream so far. Offsets, in bytes of UTF-8, keep out gaps and repeats.

    Attributes:
        last_event_id: where to go on from; empty at the start.
        is_over: the text is whole.
    """

    def __init__(self, variable: Variable, timeout_s: float | None) -> None:
        self._variable = variable
        self._timeout_s = timeout_s
        self._pieces: list[str] = []
        self._bytes = 0
        self.last_event_id = ""
        self.is_over = False

    def begin(self) -> None:
        """Offsets tell what of a connection's text is new."""

    def take(self, event: Event) -> str | None:
        """The new text of an event; None when it brings none."""
        if event.event == "delta":
            piece = self._add(json.loads(event.data))
            self.last_event_id = event.id
            return piece or None
        if event.event == "done":
            self.is_over = True
            self._variable._resolve("".join(self._pieces))
        elif event.event == "error":
            problem = json.loads(event.data)
            if problem.get("state") in {"failed", "cancelled"}:
                raise _ended(self._variable, problem["state"], problem)
            raise ServerUnavailable(str(problem.get("detail", "the stream broke")))
        return None

    def late(self) -> WaitTimeout:
        """That the text is not whole in time."""
        return _timed_out(self._variable, self._timeout_s)

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


def _timed_out(variable: Variable, timeout_s: float | None) -> WaitTimeout:
    return WaitTimeout(f"{variable!r} did not come within {timeout_s:g} s; it may still come, ask again")


def _ended(variable: Variable, state: str, problem: dict[str, Any]) -> ParrotError:
    kind = slug(problem)
    root = str(problem.get("cause_type", "")).rpartition(":")[2]
    failed = CallFailed if state == "failed" else Skipped if "skipped" in {kind, root} else Cancelled
    error = failed(
        str(problem.get("detail", "")) or f"{variable.name or variable.id} was cancelled",
        type=kind if problem else state,
        call_id=str(problem.get("call_id", "")),
        cause=root,
        cause_call_id=str(problem.get("cause_call_id", "")),
    )
    variable._fail(error, "failed" if state == "failed" else "cancelled")
    return error
