"""A completion's stream, piece by piece, and what it says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from parrot_engine.backends.base import BackendError, TokenLogprobs

DONE: Final = b"[DONE]"
LARGEST_ID: Final = 1 << 31
SHOWN_CHARS: Final = 500
"""Of what a server says in an error."""
_BY_ID: Final = "token_id:"


@dataclass(frozen=True, slots=True)
class Chunk:
    """One event of a completion's stream.

    Attributes:
        token_ids: None: the server names none.
        finish_reason: as the server says it; None: the output goes on.
        cached_tokens: of the prompt, when the server tells.
    """

    text: str = ""
    token_ids: tuple[int, ...] | None = None
    finish_reason: str | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    cached_tokens: int | None = None


def parse_chunk(event: bytes, top_logprobs: int) -> Chunk:
    """What an event says.

    Args:
        top_logprobs: how many alternatives were asked for.

    Raises:
        BackendError: it is an error, or no chunk of a completion.
    """
    try:
        message = json.loads(event)
    except (ValueError, RecursionError):
        raise BackendError("the server sent an event that is not JSON") from None
    if not isinstance(message, dict):
        raise BackendError("the server sent an event that is no completion chunk")
    if message.get("error"):
        raise BackendError(f"the server broke the output off: {error_text(message)}")
    try:
        return _chunk(message, top_logprobs)
    except (TypeError, ValueError, KeyError, AttributeError, IndexError):
        raise BackendError("the server sent an event that is no completion chunk") from None


def error_text(message: Any) -> str:
    """What a server's error says, cut to what may be shown."""
    error = message.get("error", message) if isinstance(message, dict) else message
    said = error.get("message", error) if isinstance(error, dict) else error
    text = said if isinstance(said, str) else json.dumps(said)
    text = whole_characters(" ".join(text.split()))
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}... ({len(text):,} characters)"


def whole_characters(text: str) -> str:
    """Joins the halves of characters that JSON escapes may spell; a half alone is U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class CharacterJoiner:
    """Joins a character whose halves come in two chunks."""

    def __init__(self) -> None:
        self._half = ""

    def push(self, text: str) -> str:
        """The text up to the last whole character."""
        text, self._half = self._half + text, ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return whole_characters(text)

    def finish(self) -> str:
        """What is left of a half."""
        return "\ufffd" if self._half else ""


def _chunk(message: Mapping[str, Any], top_logprobs: int) -> Chunk:
    choices = message["choices"]
    cached_tokens = _cached_tokens(message.get("usage"))
    if not choices:
        return Chunk(cached_tokens=cached_tokens)
    choice = choices[0]
    text, reason, token_ids = choice.get("text") or "", choice.get("finish_reason"), choice.get("token_ids")
    if not isinstance(text, str) or not isinstance(reason, str | None):
        raise TypeError("a text and a reason are texts")
    return Chunk(
        text,
        None if token_ids is None else tuple(map(_checked_id, token_ids)),
        reason,
        _logprobs(choice.get("logprobs"), top_logprobs),
        cached_tokens,
    )


def _cached_tokens(usage: Mapping[str, Any] | None) -> int | None:
    details = (usage or {}).get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens")
    return None if cached is None else int(cached)


def _logprobs(logprobs: Mapping[str, Any] | None, top: int) -> tuple[TokenLogprobs, ...]:
    """From OpenAI's lists of spelt tokens, each spelt `token_id:17`."""
    if not logprobs:
        return ()
    tops: Sequence[Mapping[str, float] | None] = logprobs.get("top_logprobs") or [None] * len(
        logprobs["tokens"]
    )
    return tuple(
        TokenLogprobs(_token_id(token), float(logprob), _likeliest(others or {}, top))
        for token, logprob, others in zip(logprobs["tokens"], logprobs["token_logprobs"], tops, strict=True)
    )


def _likeliest(tokens: Mapping[str, float], count: int) -> tuple[tuple[int, float], ...]:
    found = [(_token_id(token), float(logprob)) for token, logprob in tokens.items()]
    return tuple(sorted(found, key=lambda item: -item[1])[:count])


def _checked_id(token: int) -> int:
    if not isinstance(token, int) or not 0 <= token < LARGEST_ID:
        raise ValueError("a token id is a number, and not that large")
    return token


def _token_id(spelling: str) -> int:
    if not spelling.startswith(_BY_ID):
        raise ValueError("the token is not named by its id")
    return _checked_id(int(spelling.removeprefix(_BY_ID)))
