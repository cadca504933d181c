"""The logprobs of a text's tokens, as they were recorded with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from parrot_gateway.gateway import Gateway
from parrot_gateway.openai.runs import Done, Run
from parrot_proto.values.v1 import values_pb2
from parrot_runtime.values.finals import Finals
from parrot_runtime.values.subjects import SessionSubjects


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token of the text, and the likeliest ones in its place."""

    data: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...]


async def logprobs_of(gateway: Gateway, run: Run, done: Done) -> list[TokenLogprob] | None:
    """Those of one choice's text; None: they are not known for all of it, as after an engine's death.

    Raises:
        Fault: `unavailable`, when the bus does not answer.
    """
    variable_id = run.choices[done.index].variable_id
    subject = SessionSubjects(gateway.tenant, run.session_id).final(variable_id)
    parts = await Finals(gateway.bus).read_rollout(subject)
    if not parts or parts[0].resumed_tokens:
        return None
    return _within([found for part in parts for found in _tokens(part)], len(done.text.encode()))


def chat_logprobs(tokens: list[TokenLogprob] | None) -> dict[str, Any] | None:
    """As a chat's choice has them."""
    if tokens is None:
        return None
    content = [
        {
            **_named(token.data, token.logprob),
            "top_logprobs": [_named(data, logprob) for data, logprob in token.top],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(tokens: list[TokenLogprob] | None, offset_chars: int) -> dict[str, Any] | None:
    """As a completion's choice has them; `offset_chars`: of its text that stands before the tokens."""
    if tokens is None:
        return None
    offsets, data = list[int](), b""
    for token in tokens:
        offsets.append(offset_chars + len(data.decode(errors="ignore")))
        data += token.data
    return {
        "tokens": [_text(token.data) for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [{_text(data): logprob for data, logprob in token.top} for token in tokens],
        "text_offset": offsets,
    }


def _tokens(part: values_pb2.Rollout) -> list[TokenLogprob]:
    found = zip(part.token_texts, part.logprobs, strict=False)
    return [
        TokenLogprob(data, said.logprob, tuple(zip(said.top_texts, said.top_logprobs, strict=False)))
        for data, said in found
    ]


def _within(tokens: list[TokenLogprob], size_bytes: int) -> list[TokenLogprob]:
    """Those that the text has something of: what ended it is in no text."""
    kept: list[TokenLogprob] = []
    at = 0
    for token in tokens:
        if at >= size_bytes:
            break
        kept.append(token)
        at += len(token.data)
    return kept


def _named(data: bytes, logprob: float) -> dict[str, Any]:
    return {"token": _text(data), "logprob": logprob, "bytes": list(data)}


def _text(data: bytes) -> str:
    return data.decode(errors="replace")
