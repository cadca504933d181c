"""HTTP with one server: one connection pool, safe retries, and problems turned into errors."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from parrot.errors import RequestRefused, ServerUnavailable, SessionError
from parrot.trace import Trace

if TYPE_CHECKING:
    import httpx

PROBLEM = "urn:parrot:problem:"
CONNECT_S = 5.0
ANSWER_S = 60.0
RETRY_S = 15.0
"""How long something that is safe to repeat is tried again."""
WAITS_AT_ONCE = 256
"""Waits and streams that hold a connection at once; others queue. A process may open about 1,000 files."""

_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_PASSING = {502, 503, 504}


class Backoff:
    """Pauses that double, from 0.1 s to 2 s, until `budget_s` has passed without `progress`."""

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s
        self.progress()

    def progress(self) -> None:
        """Starts anew."""
        self._pause_s = 0.1
        self._until = time.monotonic() + self._budget_s

    async def pause(self, cause: Exception, at_least_s: float = 0.0) -> None:
        """Waits before the next try.

        Raises:
            The cause, when there is to be no next try.
        """
        pause_s = max(self._pause_s, at_least_s)
        if time.monotonic() + pause_s > self._until:
            raise cause
        await asyncio.sleep(pause_s)
        self._pause_s = min(2 * self._pause_s, 2.0)


class Client:
    """Talks to one server. Lives on the background loop; `aclose` ends it."""

    def __init__(self, url: str, api_key: str, trace: Trace) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"the server's URL is {url!r}; it looks like http://127.0.0.1:8080")
        self.url = url.rstrip("/")
        self._https = parts.scheme == "https"
        self._loopback = parts.hostname in _LOOPBACK
        self._api_key = api_key
        self._trace = trace
        self._http: httpx.AsyncClient | None = None
        self._closed = False
        self._waits = asyncio.Semaphore(WAITS_AT_ONCE)

    async def aclose(self) -> None:
        """Closes every connection."""
        self._closed = True
        if self._http is not None:
            await self._http.aclose()

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        params: dict[str, Any] | None = None,
        hold_s: float = 0.0,
        retry_s: float = RETRY_S,
    ) -> Any:
        """The JSON of the server's answer; None when it has none.

        A GET is repeated when it fails in passing; anything else only when it was not sent.

        Args:
            hold_s: how long the server was asked to hold the request.
            retry_s: how long to go on trying.

        Raises:
            RequestRefused: the server answered with a problem.
            ServerUnavailable: it can't be reached, or did not answer.
            SessionError: the client was closed.
        """
        backoff = Backoff(retry_s)
        while True:
            try:
                return await self._once(method, path, body, params, hold_s)
            except _NotSent as error:
                await backoff.pause(error)
            except ServerUnavailable as error:
                if method != "GET":
                    raise
                await backoff.pause(error)
            except RequestRefused as error:
                if method != "GET" or error.status not in _PASSING:
                    raise
                await backoff.pause(error)

    async def wait(self, path: str, hold_s: float) -> Any:
        """The JSON of a GET that the server holds for up to `hold_s`.

        Raises:
            As `request`.
        """
        async with self._waits:
            return await self.request("GET", path, params={"wait_s": hold_s}, hold_s=hold_s)

    @asynccontextmanager
    async def events(
        self, path: str, last_event_id: str, silence_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The bytes of an event stream, which ends when nothing came for `silence_s`.

        Raises:
            RequestRefused: the server answered with a problem.
            ServerUnavailable: it can't be reached, or the stream broke.
        """
        import httpx

        headers = self._headers() | {"Accept": "text/event-stream"}
        if last_event_id:
            headers["Last-Event-ID"] = last_event_id
        timeout = httpx.Timeout(CONNECT_S, read=silence_s, pool=None)
        async with self._waits:
            try:
                async with self._open().stream(
                    "GET", self.url + path, headers=headers, timeout=timeout
                ) as response:
                    if response.is_error:
                        await response.aread()
                        raise _refusal(response)
                    yield response.aiter_bytes()
            except httpx.TransportError as error:
                raise self._unavailable(error) from error

    async def _once(
        self, method: str, path: str, body: object, params: dict[str, Any] | None, hold_s: float
    ) -> Any:
        import httpx

        timeout = httpx.Timeout(ANSWER_S, connect=CONNECT_S, read=ANSWER_S + hold_s, pool=None)
        try:
            response = await self._open().request(
                method, self.url + path, json=body, params=params, headers=self._headers(), timeout=timeout
            )
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise _NotSent(self._message(error)) from error
        except httpx.TransportError as error:
            raise self._unavailable(error) from error
        if response.is_error:
            raise _refusal(response)
        return response.json() if response.content else None

    def _open(self) -> httpx.AsyncClient:
        if self._closed:
            raise SessionError("the session was closed meanwhile")
        if self._http is None:
            import httpx

            self._http = httpx.AsyncClient(
                # Plain HTTP needs no certificates, which take 20 ms to load.
                verify=self._https,
                # A proxy of the environment can't reach this machine's own loopback.
                trust_env=not self._loopback,
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            )
        return self._http

    def _headers(self) -> dict[str, str]:
        headers = {"traceparent": self._trace.traceparent()}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        return headers

    def _unavailable(self, error: Exception) -> ServerUnavailable:
        return ServerUnavailable(self._message(error))

    def _message(self, error: Exception) -> str:
        return (
            f"the Parrot server at {self.url} can't be reached ({type(error).__name__}: {error}); "
            "is it running ('parrot up'), and is PARROT_URL right?"
        )


class _NotSent(ServerUnavailable):
    """The request did not leave this machine."""


def _refusal(response: httpx.Response) -> RequestRefused:
    try:
        problem = response.json()
    except (json.JSONDecodeError, UnicodeDecodeError):
        problem = None
    if not isinstance(problem, dict):
        # Not our server's words: a proxy's, or another server's.
        return RequestRefused(
            f"HTTP {response.status_code} from {response.request.url.host}, without a reason",
            type=f"http_{response.status_code}",
            status=response.status_code,
        )
    return RequestRefused(
        str(problem.get("detail", "")),
        type=slug(problem),
        title=str(problem.get("title", "")),
        field=str(problem.get("field", "")),
        status=response.status_code,
        may_retry=bool(problem.get("may_retry", False)),
    )


def slug(problem: dict[str, Any]) -> str:
    """The stable name of a problem's type."""
    return str(problem.get("type", "unknown")).removeprefix(PROBLEM)
