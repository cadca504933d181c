"""One completion over OpenAI's API, and what it took."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

import httpx

from parrot_bench.graphs import Call

EXCERPT_CHARS: Final = 200
NO_ANSWER: Final = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What reading something raises that is no completion."""


class CompletionError(Exception):
    """A completion failed; says which call's, and how."""


@dataclass(frozen=True, slots=True)
class Completion:
    """An answer that is whole.

    Attributes:
        began_s: when it was sent; this and the others by `perf_counter`.
        first_s: when its first text came; None: it was not streamed.
        cached_tokens: of the prompt, with their KV there already; None: the server does not say.
    """

    text: str
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None
    began_s: float
    first_s: float | None
    ended_s: float


def to_the_end(call: Call) -> dict[str, Any]:
    """What has vLLM write no less than `max_tokens`: an end of text does not stop it, and is not sampled,
    just as in Parrot's calls."""
    return {"ignore_eos": True, "min_tokens": call.output_tokens}


def body_of(call: Call, prompt: str, model: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    """What is asked: so many tokens exactly, the likeliest each time."""
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": call.output_tokens,
        "temperature": 0,
        **to_the_end(call),
        **({"stream": True, "stream_options": {"include_usage": True}} if call.streamed else {}),
        **extra,
    }


@dataclass(frozen=True, slots=True)
class Api:
    """A server's.

    Attributes:
        url: `http://host:port/v1`.
        model: its name there.
    """

    client: httpx.AsyncClient
    url: str
    model: str

    async def complete(self, call: Call, prompt: str, extra: Mapping[str, Any]) -> Completion:
        """Asks for a completion, streamed where the call is.

        Args:
            extra: members of the request beside OpenAI's.

        Raises:
            CompletionError: it failed, or the answer is none.
        """
        body = body_of(call, prompt, self.model, extra)
        reading = _streamed if call.streamed else _whole
        try:
            return await reading(self.client, f"{self.url}/completions", body)
        except CompletionError as error:
            raise CompletionError(f"call {call.name}: {self.url}: {error}") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            why = f"{type(error).__name__} {error}".rstrip()
            raise CompletionError(f"call {call.name}: {self.url}: {why}") from error
        except NO_ANSWER as error:
            why = f"{error!r}"[:EXCERPT_CHARS]
            raise CompletionError(
                f"call {call.name}: {self.url}: its answer is no completion: {why}"
            ) from error


async def _whole(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> Completion:
    began_s = perf_counter()
    answer = await client.post(url, json=body)
    ended_s = perf_counter()
    _check(answer)
    found = answer.json()
    return _completion(found["choices"][0]["text"], found.get("usage"), began_s, None, ended_s)


async def _streamed(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> Completion:
    texts: list[str] = []
    usage: Mapping[str, Any] | None = None
    first_s: float | None = None
    began_s = perf_counter()
    async with client.stream("POST", url, json=body) as answer:
        if not answer.is_success:
            await answer.aread()
        _check(answer)
        ended = False
        async for line in answer.aiter_lines():
            if not line.startswith("data:"):
                continue
            data = line.removeprefix("data:").strip()
            ended = data == "[DONE]"
            if ended:
                break
            text, counted = _event(data)
            usage = counted or usage
            texts.append(text)
            first_s = perf_counter() if text and first_s is None else first_s
    ended_s = perf_counter()
    if not ended:
        raise CompletionError("its stream ended before its end")
    return _completion("".join(texts), usage, began_s, first_s or ended_s, ended_s)


def _event(data: str) -> tuple[str, Mapping[str, Any] | None]:
    """A stream's text and usage, of one event.

    Raises:
        CompletionError: it tells of a failure.
    """
    found = json.loads(data)
    if "error" in found:
        raise CompletionError(json.dumps(found["error"])[:EXCERPT_CHARS])
    choices = found["choices"]
    return (choices[0]["text"] or "") if choices else "", found.get("usage")


def _check(answer: httpx.Response) -> None:
    """Nothing.

    Raises:
        CompletionError: it is a refusal.
    """
    if not answer.is_success:
        said = " ".join(answer.text.split())[:EXCERPT_CHARS]
        raise CompletionError(f"it answered {answer.status_code}: {said or answer.reason_phrase}")


def _completion(
    text: object, usage: Mapping[str, Any] | None, began_s: float, first_s: float | None, ended_s: float
) -> Completion:
    if usage is None:
        raise CompletionError("it does not say how many tokens it wrote")
    if not isinstance(text, str):
        raise TypeError(f"its text is a {type(text).__name__}")
    details = usage.get("prompt_tokens_details") or {}
    return Completion(
        text,
        int(usage["prompt_tokens"]),
        int(usage["completion_tokens"]),
        details.get("cached_tokens"),
        began_s,
        first_s,
        ended_s,
    )
