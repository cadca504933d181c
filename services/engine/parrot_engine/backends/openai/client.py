"""The connection to the server: its models, and one completion's stream at a time."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import httpx

from parrot_engine.backends.base import BackendError
from parrot_engine.backends.openai.chunks import DONE, Chunk, error_text, parse_chunk
from parrot_engine.backends.openai.sse import read_events

CONNECT_S: Final = 10.0
ERROR_BYTES: Final = 64 << 10
MODELS_BYTES: Final = 4 << 20
USAGE_S: Final = 2.0
"""How long an output that has ended waits for the server to say what it took."""
DRAIN_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class OpenAIOptions:
    """Which server, and how much is expected of it.

    Attributes:
        base_url: what the API's paths are put behind, `http://host:8000/v1`.
        api_key_file: holds the key; None: none is sent.
        tokenizer_dir: the model's tokenizer: prompts are sent as token ids. None: as text.
        context_window_tokens: 0: what the server says.
        start_timeout_s: how long a server may take to answer at all.
        silence_timeout_s: how long a server may say nothing within an answer.
        retry_within_s: how long a request that is refused for load is tried again.
        retry_first_s: the pause before the first retry; each next one is twice as long.
        health_every_s: how often the server is asked whether it is there.
        dead_after_s: how long it may be gone before it counts as dead.
    """

    base_url: str
    model: str
    model_name: str = ""
    api_key_file: Path | None = None
    tokenizer_dir: Path | None = None
    context_window_tokens: int = 0
    capacity: int = 64
    start_timeout_s: float = 30.0
    silence_timeout_s: float = 120.0
    retry_within_s: float = 10.0
    retry_first_s: float = 0.25
    health_every_s: float = 5.0
    dead_after_s: float = 30.0


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A model as the server describes it; `window_tokens` is 0 where it does not tell."""

    window_tokens: int
    owner: str

    @property
    def is_vllm(self) -> bool:
        return self.owner == "vllm"


class UnreachableError(BackendError):
    """The server did not answer, or could not; it may later."""


class BusyError(UnreachableError):
    """The server is there and has no time."""


class OpenAIClient:
    """Speaks to one server. Close it at the end."""

    def __init__(self, options: OpenAIOptions) -> None:
        """Raises BackendError when the key can't be read or the address is none."""
        self._options = options
        if not options.base_url.startswith(("http://", "https://")):
            raise BackendError(
                f"{options.base_url!r} is no address of a server; --openai-base-url takes one like "
                "http://host:8000/v1"
            )
        timeout = httpx.Timeout(options.silence_timeout_s, connect=CONNECT_S, pool=None)
        try:
            self._http = httpx.AsyncClient(
                base_url=options.base_url.rstrip("/") + "/",
                headers={"Accept-Encoding": "identity"} | _authorization(options.api_key_file),
                timeout=timeout,
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=options.capacity),
                trust_env=False,
            )
        except httpx.InvalidURL as error:
            raise BackendError(f"{options.base_url!r} is no address of a server: {error}") from None

    async def close(self) -> None:
        """Ends every connection."""
        await self._http.aclose()

    async def model(self) -> RemoteModel:
        """The model that is served.

        Raises:
            UnreachableError: the server does not answer.
            BackendError: it does not serve the model, or refuses to tell.
        """
        try:
            async with asyncio.timeout(CONNECT_S), self._http.stream("GET", "models") as response:
                if response.status_code != httpx.codes.OK:
                    why = f"{self._options.base_url} does not list its models: {await _said(response)}"
                    raise _models_error(response.status_code)(why)
                body = await _read(response, MODELS_BYTES)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            raise UnreachableError(f"{self._options.base_url} does not answer: {_cause(error)}") from error
        return self._find(body)

    async def stream(self, body: Mapping[str, Any], top_logprobs: int) -> AsyncGenerator[Chunk, None]:
        """A completion's chunks, to its end; closing it closes the connection.

        Raises:
            BackendError: the server refused, or the stream ended before the output did.
        """
        finished = False
        response = await self._open(body)
        try:
            async with aclosing(_data(response)) as data, aclosing(read_events(data)) as events:
                while (event := await _next(events, USAGE_S if finished else None)) not in {None, DONE}:
                    chunk = parse_chunk(event, top_logprobs)
                    finished = finished or chunk.finish_reason is not None
                    yield chunk
                if event == DONE:
                    # Read to its end, an answer leaves its connection to the next one.
                    await _next(events, DRAIN_S)
        except httpx.HTTPError as error:
            # What may still come behind an output's end is not worth the output.
            if not finished:
                raise BackendError(f"the server broke the output off: {_cause(error)}") from error
        finally:
            await response.aclose()
        if not finished:
            raise BackendError("the server ended the stream before the output's end")

    def _find(self, body: bytes) -> RemoteModel:
        options = self._options
        try:
            models = {str(model["id"]): model for model in json.loads(body)["data"]}
        except (ValueError, TypeError, KeyError, RecursionError):
            raise BackendError(f"{options.base_url}/models does not answer with a list of models") from None
        model = models.get(options.model)
        if model is None:
            served = ", ".join(list(models)[:10]) or "none"
            raise BackendError(f"{options.base_url} does not serve {options.model}; it serves: {served}")
        window = model.get("max_model_len")
        return RemoteModel(window if isinstance(window, int) else 0, str(model.get("owned_by", "")))

    async def _open(self, body: Mapping[str, Any]) -> httpx.Response:
        """An answer that is a stream of events; a server that is busy is asked again for a while."""
        deadline = time.monotonic() + self._options.retry_within_s
        pause_s = self._options.retry_first_s
        while True:
            answer = await self._ask(body)
            if isinstance(answer, httpx.Response):
                return answer
            # Spread out, so that outputs that were refused together do not come back together.
            wait_s = max(pause_s * random.uniform(0.5, 1.0), answer.retry_after_s)  # noqa: S311
            if not answer.may_pass or time.monotonic() + wait_s > deadline:
                raise BackendError(f"the server refused: {answer.why}")
            await asyncio.sleep(wait_s)
            pause_s *= 2

    async def _ask(self, body: Mapping[str, Any]) -> httpx.Response | _Refusal:
        request = self._http.build_request("POST", "completions", json=body)
        try:
            response = await self._http.send(request, stream=True)
        except httpx.ReadTimeout as error:
            raise BackendError(f"the server did not answer: {_cause(error)}") from error
        except httpx.HTTPError as error:
            # Nothing came, so nothing is lost by asking again: a server may close a connection that
            # was idle in the very moment in which it is used again.
            return _Refusal(f"no answer: {_cause(error)}", may_pass=True)
        try:
            refusal = await _refusal_of(response)
        except BaseException:
            await response.aclose()
            raise
        if refusal is None:
            return response
        await response.aclose()
        return refusal


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why a request was not taken.

    Attributes:
        may_pass: asking again may help; nothing was generated.
        retry_after_s: when the server wants to be asked again.
    """

    why: str
    may_pass: bool
    retry_after_s: float = 0.0


async def _refusal_of(response: httpx.Response) -> _Refusal | None:
    """None for an answer that is a stream of events."""
    status, kind = response.status_code, response.headers.get("Content-Type", "")
    if status == httpx.codes.OK:
        is_stream = kind.startswith("text/event-stream")
        why = f"it answered with {kind or 'no content type'}, not with a stream of events"
        return None if is_stream else _Refusal(why, may_pass=False)
    try:
        why = await _said(response)
    except httpx.HTTPError as error:
        why = f"{status} ({_cause(error)})"
    return _Refusal(why, _may_pass(status), _retry_after_s(response))


async def _said(response: httpx.Response) -> str:
    """A refusal's status, and what the server says to it."""
    body = await _read(response, ERROR_BYTES)
    try:
        said = error_text(json.loads(body))
    except (ValueError, RecursionError):
        said = error_text(body.decode(errors="replace"))
    return f"{response.status_code} {said}"


def _data(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """Its body as it comes. httpx declares less than it returns: this can be closed."""
    return cast(AsyncGenerator[bytes, None], response.aiter_bytes())


async def _read(response: httpx.Response, most_bytes: int) -> bytes:
    """An answer's body, or its first `most_bytes`."""
    body = b""
    async with aclosing(_data(response)) as data:
        async for piece in data:
            body += piece
            if len(body) >= most_bytes:
                break
    return body[:most_bytes]


async def _next(events: AsyncIterator[bytes], timeout_s: float | None) -> bytes | None:
    """The next event; None: that was all, or it did not come in time."""
    try:
        return await asyncio.wait_for(anext(events, None), timeout_s)
    except TimeoutError:
        return None


def _models_error(status: int) -> type[BackendError]:
    if status == httpx.codes.TOO_MANY_REQUESTS:
        return BusyError
    return UnreachableError if _may_pass(status) else BackendError


def _may_pass(status: int) -> bool:
    return status == httpx.codes.TOO_MANY_REQUESTS or status >= httpx.codes.INTERNAL_SERVER_ERROR


def _retry_after_s(response: httpx.Response) -> float:
    """In seconds; a date, which clocks may disagree about, does not count."""
    try:
        return max(0.0, float(response.headers.get("Retry-After", 0)))
    except ValueError:
        return 0.0


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _authorization(key_file: Path | None) -> dict[str, str]:
    if key_file is None:
        return {}
    try:
        key = key_file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise BackendError(f"the API key in {key_file} can't be read: {error}") from None
    if not key or not key.isascii() or not key.isprintable():
        raise BackendError(f"{key_file} must hold an API key in one line of printable ASCII")
    return {"Authorization": f"Bearer {key}"}
