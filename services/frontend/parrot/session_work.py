"""What a session does, as coroutines of the background loop. `parrot.session` is their face."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing
from typing import Any

from parrot import criteria as wishes
from parrot import reading, trace, watching
from parrot.background import background
from parrot.client import Client
from parrot.criteria import Criteria
from parrot.errors import ParrotError, SessionError
from parrot.info import SessionInfo, session_info
from parrot.nodes import Node
from parrot.outbox import Outbox
from parrot.text import check_id, check_text
from parrot.variable import SemanticVariable
from parrot.watching import SessionEvent

DEFAULT_URL = "http://127.0.0.1:8080"
OPEN_RETRY_S = 1.0
"""How long a server that can't be reached is tried for when a session is opened."""

Variable = SemanticVariable[Any]

_log = logging.getLogger("parrot")


class SessionWork:
    """A session: its id, what it has yet to send, and how it is asked.

    Attributes:
        label: for people.
        keep: leave it running at the block's end.
        lazy: calls run only when somebody reads what they lead to.
    """

    def __init__(
        self, url: str | None, api_key: str | None, label: str, timeout_s: float | None, retry_s: float
    ) -> None:
        self._trace = trace.start()
        self._client = Client(
            url or os.environ.get("PARROT_URL") or DEFAULT_URL,
            api_key if api_key is not None else os.environ.get("PARROT_API_KEY", ""),
            self._trace,
            _checked(retry_s),
        )
        self.label = check_text(label, "the label")
        self.keep = False
        self.lazy = False
        self._criteria: Criteria | None = None
        self._timeout_s = timeout_s
        self._id = ""
        self._theirs = False
        """Somebody else opened it, and ends it."""
        self._ended = False
        self._beside: dict[str, Any] = {}
        """What others keep with a session, and for as long as it lives, by names of theirs."""
        self._outbox: Outbox

    def __repr__(self) -> str:
        return f"<Session {self._id or 'not open'} at {self._client.url}>"

    @property
    def id(self) -> str:
        """Its id on the server.

        Raises:
            SessionError: it was not opened.
        """
        self._check_opened()
        return self._id

    def _add(self, node: Node) -> None:
        self._check_open()
        self._outbox.add(node)

    def _flush_soon(self) -> None:
        """Sends what was collected, without waiting for it. From any thread; its outputs get its errors."""
        background().start(self._outbox.flush())

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Has a coroutine run until its end, or the session's. On the background loop only."""
        self._outbox.spawn(work)

    def _check_opened(self) -> None:
        if not self._id:
            raise SessionError("the session is not open; use it as 'with P.Session() as session:'")

    def _check_open(self) -> None:
        if self._ended:
            raise SessionError(
                f"{self!r} has ended; read what you need inside its block, or open it with keep=True"
            )
        self._check_opened()

    async def _opened(self) -> None:
        """Opens it; one that was attached to is open."""
        if not self._id or self._ended:
            await self._open()

    async def _open(self) -> None:
        if self._id:
            raise SessionError(f"{self!r} was opened before; make a new one")
        body: dict[str, Any] = {}
        if self.label:
            body["label"] = self.label
        if self._timeout_s is not None:
            body["timeout_s"] = self._timeout_s
        if self._criteria is not None:
            body["criteria"] = wishes.to_wire(self._criteria)
        if self.lazy:
            body["lazy"] = True
        answer = await self._client.request("POST", "/v1/sessions", body=body, connect_s=OPEN_RETRY_S)
        self._id = check_id(str((answer or {}).get("id", "")), "what the server calls the session")

    async def _end(self, *, failed: bool) -> None:
        """The end of a `with` block. What goes wrong here must not hide what went wrong inside."""
        try:
            if self._theirs or (self.keep and not failed):
                await self._outbox.flush()
            else:
                await self._close()
        except ParrotError as error:
            if not failed:
                raise
            _log.warning("the session %s was not closed: %s", self._id, error)

    async def _close(self) -> None:
        if self._ended or not self._id:
            return
        self._ended = True
        self._outbox.stop()
        await self._client.request("DELETE", f"/v1/sessions/{self._id}")

    async def _cancel(self, what: tuple[Variable | str, ...], *, subtree: bool) -> None:
        if not what:
            await self._close()
            return
        self._check_open()
        await self._outbox.flush()
        found = [
            check_id(each, "the id of a call") if isinstance(each, str) else await self._producer_of(each)
            for each in what
        ]
        for node_id in dict.fromkeys(filter(None, found)):
            await self._client.request(
                "POST",
                f"/v1/sessions/{self._id}/calls/{node_id}/cancel",
                params={"subtree": "true"} if subtree else None,
            )

    async def _producer_of(self, variable: Variable) -> str:
        """The id of the call or block that makes it; empty: it has ended already."""
        if variable._session is not self:
            raise SessionError(f"{variable!r} is made by no call of this session")
        if variable._text is not None or variable._error is not None:
            return ""
        if not variable._producer_id:
            self._check_made(variable)
            found = await self._client.wait(self._path(variable), 0.0)
            variable._producer_id = found["producer_call_id"] or found["producer_block_id"]
        return variable._producer_id

    async def _info(self) -> SessionInfo:
        self._check_opened()
        if not self._ended:
            await self._outbox.flush()
        return session_info(await self._client.request("GET", f"/v1/sessions/{self._id}"))

    async def _events(self, timeout_s: float | None) -> AsyncIterator[SessionEvent]:
        self._check_opened()
        if not self._ended:
            await self._outbox.flush()
        path = f"/v1/sessions/{self._id}/events"
        async with aclosing(watching.events(self._client, path, timeout_s)) as events:
            async for event in events:
                yield event

    async def _wait(self, variable: Variable, timeout_s: float | None, wanted: dict[str, Any]) -> str:
        await self._before_reading(variable)
        return await reading.wait(self._client, self._path(variable), variable, timeout_s, wanted)

    async def _stream(
        self, variable: Variable, timeout_s: float | None, wanted: dict[str, Any]
    ) -> AsyncIterator[str]:
        await self._before_reading(variable)
        path = self._path(variable)
        async with aclosing(reading.stream(self._client, path, variable, timeout_s, wanted)) as pieces:
            async for piece in pieces:
                yield piece

    def _path(self, variable: Variable) -> str:
        return f"/v1/sessions/{self._id}/variables/{variable.id}"

    async def _before_reading(self, variable: Variable) -> None:
        if variable._error is not None:
            raise variable._error
        self._check_open()
        await self._outbox.flush()
        if variable._error is not None:
            raise variable._error
        self._check_made(variable)

    def _check_made(self, variable: Variable) -> None:
        if variable._state == "new":
            missing = self._outbox.missing_for(variable) or variable
            raise SessionError(f"{variable!r} can't be made before someone sets {missing!r}")


def _checked(retry_s: float) -> float:
    if isinstance(retry_s, bool) or not isinstance(retry_s, (int, float)):
        raise TypeError(f"retry is a number of seconds, not {type(retry_s).__name__}")
    if not 0 <= retry_s < math.inf:
        raise ValueError(f"retry is {retry_s}; it is 0 seconds or more")
    return retry_s
