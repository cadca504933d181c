"""Sessions: one run of an application, whose calls form a graph on the server."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Self

from parrot import reading, trace
from parrot.background import background
from parrot.batch import Call, Pending, Request, requests
from parrot.client import Client
from parrot.errors import ParrotError, SessionError
from parrot.info import SessionInfo, session_info
from parrot.variable import SemanticVariable, check_text

DEFAULT_URL = "http://127.0.0.1:8080"
OPEN_RETRY_S = 1.0

_ambient: ContextVar[Session | None] = ContextVar("parrot_session", default=None)
_log = logging.getLogger("parrot")


def current(name: str) -> Session:
    """The session whose `with` block this is in.

    Raises:
        SessionError: there is none.
    """
    session = _ambient.get()
    if session is None:
        raise SessionError(
            f"{name} was called outside of any session; call it inside 'with P.Session():', or pass "
            "session=... (a new thread does not inherit the session of the one that started it)"
        )
    return session


class Session:
    """One run of an application: `with P.Session() as session:`, or `async with`.

    Calls made inside join it. They are collected, and travel in one request when the first of their
    outputs is waited for. Leaving the block ends the session: what is unfinished then is cancelled,
    and outputs that were never asked for are never computed. With `keep`, all is sent and the server
    finishes it after the block was left without an error.

    A session may be used from several threads and event loops; in threads it is passed to calls as
    `session=`.

    Args:
        url: the server; by default PARROT_URL, else http://127.0.0.1:8080.
        api_key: by default PARROT_API_KEY.
        label: for people; 200 characters at most.
        timeout: seconds after which the server ends the session; by default the server's own.
        keep: leave it running at the block's end.

    Raises:
        ValueError: `url` is not an HTTP URL.
        InvalidText: `label` holds a lone surrogate.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        label: str | None = None,
        timeout: float | None = None,
        *,
        keep: bool = False,
    ) -> None:
        self._trace = trace.start()
        self._client = Client(
            url or os.environ.get("PARROT_URL") or DEFAULT_URL,
            api_key if api_key is not None else os.environ.get("PARROT_API_KEY", ""),
            self._trace,
        )
        self.label = check_text(label or "", "the label")
        self.keep = keep
        self._timeout = timeout
        self._id = ""
        self._ended = False
        self._lock = threading.Lock()
        self._pending = Pending()
        self._sending = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._token: Token[Session | None] | None = None

    def __repr__(self) -> str:
        return f"<Session {self._id or 'not open'} at {self._client.url}>"

    @property
    def id(self) -> str:
        """Its id on the server.

        Raises:
            SessionError: it was not opened.
        """
        if not self._id:
            raise SessionError("the session is not open; use it as 'with P.Session() as session:'")
        return self._id

    @property
    def url(self) -> str:
        """The server's URL."""
        return self._client.url

    @property
    def trace_id(self) -> str:
        """The trace of all its requests, 32 hex digits."""
        return self._trace.trace_id

    def open(self) -> Self:
        """Makes the session on the server; for where a `with` block does not fit. `close` ends it.

        Raises:
            ServerUnavailable: the server can't be reached.
            RequestRefused: it refused.
        """
        background().run(self._open())
        return self

    def close(self) -> None:
        """Ends the session on the server; what is unfinished is cancelled. Does nothing twice.

        Raises:
            ServerUnavailable: the server can't be reached; it ends the session at its deadline.
        """
        background().run(self._close())

    def flush(self) -> None:
        """Sends the calls collected so far, without waiting for a result.

        Raises:
            RequestRefused: the server refused them; none of them was accepted.
            ServerUnavailable: the server can't be reached.
        """
        background().run(self._flush())

    async def aflush(self) -> None:
        """As `flush`, awaited."""
        await background().arun(self._flush())

    def info(self) -> SessionInfo:
        """The session's graph as the server has it: states, tokens used, times.

        Raises:
            ServerUnavailable: the server can't be reached.
        """
        return background().run(self._info())

    async def ainfo(self) -> SessionInfo:
        """As `info`, awaited."""
        return await background().arun(self._info())

    def __enter__(self) -> Self:
        background().run(self._open())
        self._token = _ambient.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._leave()
        background().run(self._end(failed=error is not None))

    async def __aenter__(self) -> Self:
        await background().arun(self._open())
        self._token = _ambient.set(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._leave()
        await background().arun(self._end(failed=error is not None))

    def _leave(self) -> None:
        if self._token is not None:
            _ambient.reset(self._token)
            self._token = None

    def _add(self, call: Call) -> None:
        with self._lock:
            self._check_open()
            self._pending.add(call, self)

    def _check_open(self) -> None:
        if self._ended:
            raise SessionError(
                f"{self!r} has ended; read what you need inside its block, or open it with keep=True"
            )
        if not self._id:
            raise SessionError("the session is not open; use it as 'with P.Session() as session:'")

    async def _open(self) -> None:
        if self._id:
            raise SessionError(f"{self!r} was opened before; make a new one")
        body: dict[str, Any] = {}
        if self.label:
            body["label"] = self.label
        if self._timeout is not None:
            body["timeout_s"] = self._timeout
        try:
            answer = await self._client.request("POST", "/v1/sessions", body=body, retry_s=OPEN_RETRY_S)
        except ParrotError:
            await self._client.aclose()
            raise
        self._id = answer["id"]

    async def _end(self, *, failed: bool) -> None:
        """The end of a `with` block. What goes wrong here must not hide what went wrong inside."""
        try:
            if self.keep and not failed:
                await self._flush()
                await self._finish()
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
        try:
            await self._client.request("DELETE", f"/v1/sessions/{self._id}")
        finally:
            await self._finish()

    async def _finish(self) -> None:
        self._ended = True
        await self._client.aclose()

    async def _flush(self) -> None:
        """Sends what is pending. A wait that is given up does not leave a request half sent."""
        if self._pending.empty and not self._sending.locked():
            return
        task = asyncio.create_task(self._send())
        self._tasks.add(task)
        task.add_done_callback(self._sent)
        await asyncio.shield(task)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # Its outputs have it, should nobody be waiting here any more.

    async def _send(self) -> None:
        async with self._sending:
            with self._lock:
                calls, values = self._pending.take()
            batch = list(requests(calls, values))
            for index, request in enumerate(batch):
                try:
                    await self._client.request(
                        request.method, f"/v1/sessions/{self._id}{request.path}", body=request.body
                    )
                except ParrotError as error:
                    _refuse(batch[index:], error)
                    raise
                self._accept(request)

    def _accept(self, request: Request) -> None:
        with self._lock:
            self._pending.confirm(request.values)
        for call in request.calls:
            for output in call.outputs.values():
                output._state = "pending"

    async def _info(self) -> SessionInfo:
        with self._lock:
            self._check_open()
        await self._flush()
        return session_info(await self._client.request("GET", f"/v1/sessions/{self._id}"))

    async def _wait(self, variable: SemanticVariable, timeout_s: float | None) -> str:
        await self._before_reading(variable)
        return await reading.wait(self._client, self._path(variable), variable, timeout_s)

    async def _stream(self, variable: SemanticVariable, timeout_s: float | None) -> AsyncIterator[str]:
        await self._before_reading(variable)
        async for piece in reading.stream(self._client, self._path(variable), variable, timeout_s):
            yield piece

    def _path(self, variable: SemanticVariable) -> str:
        return f"/v1/sessions/{self._id}/variables/{variable.id}"

    async def _before_reading(self, variable: SemanticVariable) -> None:
        if variable._error is not None:
            raise variable._error
        with self._lock:
            self._check_open()
        await self._flush()
        if variable._error is not None:
            raise variable._error
        if variable._state == "new":
            missing = self._pending.missing_for(variable) or variable
            raise SessionError(f"{variable!r} can't be made before someone sets {missing!r}")


def _refuse(batch: list[Request], error: ParrotError) -> None:
    for request in batch:
        for call in request.calls:
            for output in call.outputs.values():
                output._fail(error)
