"""What is sent to the server for one output.

Beyond OpenAI's own fields the names are vLLM's, which other servers took over. A server that says
it is vLLM gets all of them, so that no default of its own comes in between; another one gets those
that are asked for, and refuses what it does not know.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Sequence
from typing import Any

from parrot_engine.backends.base import BackendError, UnsupportedError
from parrot_engine.sampling import Guide, Sampling


def completion_body(
    model: str, prompt: str | Sequence[int], sampling: Sampling, *, is_vllm: bool
) -> dict[str, Any]:
    """The body of a request for a streamed completion.

    Stop texts are not in it: what counts as one, and after how many tokens, is decided here.

    Args:
        prompt: text, or token ids.

    Raises:
        UnsupportedError: the sampling asks for what can't be had this way; says what.
        BackendError: what is resumed fits no choice.
    """
    has_ids = not isinstance(prompt, str)
    _check(sampling, has_ids=has_ids, is_vllm=is_vllm)
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt if isinstance(prompt, str) else list(prompt),
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if sampling.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    if sampling.logprobs is not None:
        body |= {"logprobs": sampling.logprobs, "return_tokens_as_token_ids": True}
    if sampling.guide is not None:
        body["structured_outputs"] = _guide(sampling.guide, sampling.resumed)
    if is_vllm and has_ids:
        body["return_token_ids"] = True
    return body | _beyond_openai(sampling, keep_defaults=is_vllm)


def cache_salt(tenant: str, *, cache: bool) -> dict[str, str]:
    """Keeps what vLLM caches of a prompt to its tenant, or, without `cache`, to this one request."""
    if not cache:
        return {"cache_salt": secrets.token_hex(32)}
    return {"cache_salt": hashlib.sha256(tenant.encode()).hexdigest()} if tenant else {}


def _check(sampling: Sampling, *, has_ids: bool, is_vllm: bool) -> None:
    if sampling.prompt_logprobs is not None:
        raise UnsupportedError("a server behind the OpenAI API streams no prompt_logprobs")
    if sampling.logprobs is not None and not (has_ids and is_vllm):
        raise UnsupportedError("logprobs take a server that names token ids (vLLM), and --openai-tokenizer")
    if (sampling.logit_bias or sampling.stop_token_ids) and not has_ids:
        raise UnsupportedError("logit_bias and stop_token_ids name tokens; they take --openai-tokenizer")


def _beyond_openai(sampling: Sampling, *, keep_defaults: bool) -> dict[str, Any]:
    fields: tuple[tuple[str, Any, Any], ...] = (
        ("top_k", sampling.top_k, 0),
        ("min_p", sampling.min_p, 0.0),
        ("repetition_penalty", sampling.repetition_penalty, 1.0),
        ("min_tokens", sampling.min_tokens, 0),
        ("ignore_eos", sampling.ignore_eos, False),
        ("stop_token_ids", list(sampling.stop_token_ids), []),
    )
    return {name: value for name, value, default in fields if keep_defaults or value != default}


def _guide(guide: Guide, resumed: str) -> dict[str, Any]:
    if guide.kind == "choice":
        rest = [choice.removeprefix(resumed) for choice in guide.choices if choice.startswith(resumed)]
        if not rest:
            raise BackendError(
                "the output's first part, which was streamed before, is of no choice of its guide"
            )
        return {"choice": rest}
    if resumed:
        raise UnsupportedError(
            f"a server behind the OpenAI API can't go on within a guide of kind {guide.kind}"
        )
    if guide.kind == "json_schema":
        try:
            return {"json": json.loads(guide.spec)}
        except (ValueError, RecursionError):
            raise BackendError("the guide's JSON schema is not JSON") from None
    return {guide.kind: guide.spec}
