"""Which sampling is one: checked at the gateway and by the manager, with the names of the API."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, NoReturn

from parrot_proto.common.v1 import common_pb2
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault
from parrot_runtime.text import check_text, too_large

Rule = tuple[str, bool, str]


def check_sampling(sampling: common_pb2.Sampling, field: str) -> None:
    """Checks a sampling. What is unset is in order.

    Args:
        field: the path of the sampling in the request.

    Raises:
        Fault: `invalid_sampling`, `too_large` or `invalid_text`, with the path of the setting.
    """
    for name, holds, rule in (*_numbers(sampling), *_tokens(sampling)):
        if not holds:
            raise _refusal(f"{field}.{name}", f"must be {rule}")
    _check_stop(sampling.stop, f"{field}.stop")
    if sampling.HasField("guide"):
        _check_guide(sampling.guide, f"{field}.guide")


def guide_bytes(sampling: common_pb2.Sampling) -> int:
    """The size of a sampling's guide, in bytes of UTF-8."""
    guide = sampling.guide
    return sum(
        len(text.encode()) for text in (guide.json_schema, guide.regex, guide.grammar, *guide.choice.texts)
    )


def _numbers(sampling: common_pb2.Sampling) -> Iterable[Rule]:
    # Comparisons that NaN fails.
    yield "temperature", 0 <= sampling.temperature <= 2, "between 0 and 2"
    yield "top_p", 0 <= sampling.top_p <= 1, "above 0 and at most 1"
    yield "min_p", 0 <= sampling.min_p <= 1, "between 0 and 1"
    for name in ("presence_penalty", "frequency_penalty"):
        yield name, -2 <= getattr(sampling, name) <= 2, "between -2 and 2"
    yield "repetition_penalty", 0 <= sampling.repetition_penalty <= 10, "above 0 and at most 10"
    for name in ("logprobs", "prompt_logprobs"):
        yield name, getattr(sampling, name) <= limits.LOGPROBS, f"at most {limits.LOGPROBS}"


def _tokens(sampling: common_pb2.Sampling) -> Iterable[Rule]:
    enough = not sampling.max_tokens or sampling.min_tokens <= sampling.max_tokens
    yield "min_tokens", enough, "at most max_tokens"
    stops, biases = sampling.stop_token_ids, sampling.logit_bias
    yield "stop_token_ids", len(stops) <= limits.STOP_TOKEN_IDS, f"at most {limits.STOP_TOKEN_IDS} tokens"
    yield "logit_bias", len(biases) <= limits.LOGIT_BIASES, f"of at most {limits.LOGIT_BIASES} tokens"
    for name, ids in (("stop_token_ids", stops), ("logit_bias", biases)):
        yield name, all(token <= limits.TOKEN_ID for token in ids), f"of token ids up to {limits.TOKEN_ID:,}"
    yield "logit_bias", all(-100 <= bias <= 100 for bias in biases.values()), "between -100 and 100"


def _check_stop(stop: Iterable[str], field: str) -> None:
    texts = list(stop)
    if len(texts) > limits.STOP_TEXTS:
        raise _refusal(field, f"has {len(texts)} texts; the limit is {limits.STOP_TEXTS}")
    for place, text in enumerate(texts):
        check_text(text, f"{field}[{place}]", limit_bytes=limits.STOP_BYTES)
        if not text:
            raise _refusal(f"{field}[{place}]", "is empty, which would end every output at once")


def _check_guide(guide: common_pb2.Guide, field: str) -> None:
    kind = guide.WhichOneof("kind")
    if kind is None:
        raise _refusal(field, "says nothing; give json_schema, regex, grammar or choice")
    if kind == "choice":
        _check_choice(guide.choice, f"{field}.choice")
        return
    text = getattr(guide, kind)
    check_text(text, f"{field}.{kind}", limit_bytes=limits.GUIDE_BYTES)
    if not text:
        raise _refusal(f"{field}.{kind}", "is empty")
    if kind == "json_schema":
        _check_schema(text, f"{field}.{kind}")


def _check_choice(choice: common_pb2.Choice, field: str) -> None:
    if not 1 <= len(choice.texts) <= limits.GUIDE_CHOICES:
        raise _refusal(field, f"has {len(choice.texts)} texts; give 1 to {limits.GUIDE_CHOICES}")
    for place, text in enumerate(choice.texts):
        check_text(text, f"{field}[{place}]")
        if not text:
            raise _refusal(f"{field}[{place}]", "is empty")
    size = sum(len(text.encode()) for text in choice.texts)
    if size > limits.GUIDE_BYTES:
        raise too_large(field, size, limits.GUIDE_BYTES)


_NO_SCHEMA: Final = "is no JSON schema: an object, or a JSON text of one"
_KEPT: Final = 64


def _check_schema(text: str, field: str) -> None:
    kind, why = _schema_problem(text)
    if kind is not None:
        raise Fault(kind, f"{field} {why}", field=field)


# The calls of a batch share their functions' few schemas.
@lru_cache(_KEPT)
def _schema_problem(text: str) -> tuple[errors.Kind | None, str]:
    """What is wrong with a schema; no kind: nothing."""
    try:
        schema = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return errors.INVALID_SAMPLING, _NO_SCHEMA
    if not isinstance(schema, dict):
        return errors.INVALID_SAMPLING, _NO_SCHEMA
    level: list[Any] = [schema]
    for _ in range(limits.SCHEMA_DEPTH):
        if not all(map(_has_text, level)):
            return errors.INVALID_TEXT, "holds an escape of half a character (a lone surrogate)"
        level = [inner for found in level for inner in _inner(found) if isinstance(inner, (dict, list))]
        if not level:
            return None, ""
    return errors.INVALID_SAMPLING, f"is nested more than {limits.SCHEMA_DEPTH} levels deep"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _has_text(found: Any) -> bool:
    """Whether every text right in an object or list is one, keys included."""
    try:
        "".join(text for text in (*found, *_inner(found)) if isinstance(text, str)).encode()
    except UnicodeEncodeError:
        return False
    return True


def _inner(found: Any) -> Iterable[Any]:
    return found.values() if isinstance(found, dict) else found


def _refusal(field: str, why: str) -> Fault:
    return Fault(errors.INVALID_SAMPLING, f"{field} {why}", field=field)
