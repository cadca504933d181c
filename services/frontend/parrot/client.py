"""HTTP with one server: safe retries, and problems turned into errors."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from parrot.connections import pool
from parrot.errors import ParrotError, RequestRefused, ServerUnavailable
from parrot.trace import Trace

if TYPE_CHECKING:
    import httpx

PROBLEM = "urn:parrot:problem:"
CONNECT_S = 5.0
ANSWER_S = 60.0
RETRY_S = 15.0
"""How long what fails in passing is asked again, unless the application says otherwise."""

_RETRY_AFTER_DIGITS = 9
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_TOO_MANY = 429
PASSING: Final = frozenset({_TOO_MANY, 502, 503, 504})
"""Statuses of what may succeed when it is asked again."""


class Backoff:
    """Pauses that double, from 0.1 s to 2 s, until `budget_s` have passed since the first failure.

    What a try took that went on for long and then failed, such as a wait, counts for nothing at first: there
    is always another. Later ones count; with `held`, of what the server holds for long, not where their
    connection held for longer than the budget and broke.
    """

    def __init__(self, budget_s: float, *, held: bool = False) -> None:
        self._budget_s = budget_s
        self._held = held
        self.progress()

    def progress(self) -> None:
        """Starts anew."""
        self._pause_s = 0.1
        self._until: float | None = None
        self._tried_at = time.monotonic()

    async def pause(self, cause: ParrotError, at_least_s: float = 0.0) -> None:
        """Waits before the next try.

        Raises:
            The cause, when there is to be no next try.
        """
        now = time.monotonic()
        broke = self._held and isinstance(cause, ServerUnavailable) and not cause.silent
        if self._until is None or (broke and now > self._tried_at + self._budget_s):
            self._until = now + self._budget_s
        pause_s = max(self._pause_s, at_least_s)
        if now + pause_s > self._until:
            raise cause
        await asyncio.sleep(pause_s)
        self._pause_s = min(2 * self._pause_s, 2.0)
        self._tried_at = time.monotonic()


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request, whatever the number of its tries."""

    method: str
    path: str
    body: object
    params: dict[str, Any] | None
    hold_s: float


class Client:
    """Talks to one server, over the process's connections. Lives on the background loop.

    Attributes:
        retry_s: how long what fails in passing is asked again.
    """

    def __init__(self, url: str, api_key: str, trace: Trace, retry_s: float = RETRY_S) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"the server's URL is {url!r}; it looks like http://127.0.0.1:8080")
        self.url = url.rstrip("/")
        self._https = parts.scheme == "https"
        self._loopback = parts.hostname in _LOOPBACK
        self._api_key = api_key
        self._trace = trace
        self.retry_s = retry_s

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        params: dict[str, Any] | None = None,
        hold_s: float = 0.0,
        connect_s: float | None = None,
    ) -> Any:
        """The JSON of the server's answer; None when it has none.

        What fails in passing is asked again. That is safe, for it is done once: every POST has an
        idempotency key, and everything else is a statement that may be repeated.

        Args:
            hold_s: how long the server was asked to hold the request.
            connect_s: how long to go on trying while the server can't be reached; by default `retry_s`.

        Raises:
            RequestRefused: the server answered with a problem.
            ServerUnavailable: it can't be reached, or did not answer.
        """
        asked = _Asked(method, path, body, params, hold_s)
        headers = {"Idempotency-Key": secrets.token_hex(16)} if method == "POST" else {}
        backoff = Backoff(self.retry_s, held=hold_s > 0)
        connecting = Backoff(self.retry_s if connect_s is None else min(connect_s, self.retry_s))
        unheard = False
        while True:
            try:
                return await self._once(asked, headers)
            except ServerUnavailable as error:
                unheard = unheard or error.sent
                await (backoff if error.sent else connecting).pause(error)
            except RequestRefused as error:
                if unheard and method == "PUT" and error.type == "variable_already_set":
                    return None  # By the try that was not heard: nobody else knows the variable's id.
                if error.status not in PASSING:
                    raise
                unheard = unheard or error.status != _TOO_MANY
                await backoff.pause(error, error.retry_after_s or 0.0)

    async def wait(self, path: str, hold_s: float, wanted: dict[str, Any] | None = None) -> Any:
        """The JSON of a GET that the server holds for up to `hold_s`.

        Args:
            wanted: what the reader wants, as the query says it.

        Raises:
            As `request`.
        """
        async with pool().waits:
            params = {"wait_s": hold_s, **(wanted or {})}
            return await self.request("GET", path, params=params, hold_s=hold_s)

    @asynccontextmanager
    async def events(
        self, path: str, last_event_id: str, silence_s: float, wanted: dict[str, Any] | None = None
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
        try:
            async with self._http().stream(
                "GET", self.url + path, params=wanted, headers=headers, timeout=timeout
            ) as response:
                if not response.is_success:
                    await response.aread()
                    raise _refusal(response)
                yield response.aiter_bytes()
        except httpx.RequestError as error:
            raise self._unavailable(error) from None

    async def _once(self, asked: _Asked, headers: dict[str, str]) -> Any:
        import httpx

        timeout = httpx.Timeout(ANSWER_S, connect=CONNECT_S, read=ANSWER_S + asked.hold_s, pool=None)
        try:
            response = await self._http().request(
                asked.method,
                self.url + asked.path,
                json=asked.body,
                params=asked.params,
                headers=self._headers() | headers,
                timeout=timeout,
            )
        except httpx.RequestError as error:
            raise self._unavailable(error) from None
        if not response.is_success:
            raise _refusal(response)
        return _answer_of(response) if response.content else None

    def _http(self) -> httpx.AsyncClient:
        return pool().client(https=self._https, loopback=self._loopback)

    def _headers(self) -> dict[str, str]:
        headers = {"traceparent": self._trace.traceparent()}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        return headers

    def _unavailable(self, error: httpx.RequestError) -> ServerUnavailable:
        """What a failure of the network is; all that is to be known of it is in its message."""
        import httpx

        return ServerUnavailable(
            f"the Parrot server at {self.url} can't be reached ({type(error).__name__}: {error}); "
            "is it running ('parrot up'), and is PARROT_URL right?",
            sent=not isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)),
            silent=isinstance(error, httpx.TimeoutException),
        )


def _answer_of(response: httpx.Response) -> dict[str, Any]:
    found = _object_in(response)
    if found is None:
        raise _foreign(response, "with something else than what a Parrot server says; is PARROT_URL right?")
    return found


def _refusal(response: httpx.Response) -> RequestRefused:
    problem = _object_in(response)
    if problem is None:
        return _foreign(response, "without a reason")
    return refusal_of(problem, response.status_code, _retry_after_s(response))


def refusal_of(problem: dict[str, Any], status: int, retry_after_s: float | None = None) -> RequestRefused:
    """The error that a problem of the server's is."""
    return RequestRefused(
        str(problem.get("detail", "")),
        type=slug(problem),
        title=str(problem.get("title", "")),
        field=str(problem.get("field", "")),
        status=status,
        may_retry=bool(problem.get("may_retry", False)),
        retry_after_s=retry_after_s,
    )


def _object_in(response: httpx.Response) -> dict[str, Any] | None:
    try:
        found = response.json()
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _foreign(response: httpx.Response, how: str) -> RequestRefused:
    """What is not our server's: a proxy's answer, or another server's."""
    return RequestRefused(
        f"HTTP {response.status_code} from {response.request.url.netloc.decode()}, {how}",
        type=f"http_{response.status_code}",
        status=response.status_code,
        retry_after_s=_retry_after_s(response),
    )


def _retry_after_s(response: httpx.Response) -> float | None:
    given = response.headers.get("Retry-After", "")
    return float(given) if given.isdecimal() and len(given) <= _RETRY_AFTER_DIGITS else None


def slug(problem: dict[str, Any]) -> str:
    """The stable name of a problem's type."""
    return str(problem.get("type", "unknown")).removeprefix(PROBLEM)
