"""Which sampling is one: every setting in its range, at every door."""

from __future__ import annotations

import json
from typing import Any

import pytest

from parrot_proto.common.v1 import common_pb2
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault
from parrot_runtime.sampling import check_sampling, guide_bytes

NAN = float("nan")
DEEP = json.dumps({"a": 0}).replace("0", '{"a":' * limits.SCHEMA_DEPTH + "0" + "}" * limits.SCHEMA_DEPTH)


def guide(**kind: Any) -> dict[str, Any]:
    return {"guide": common_pb2.Guide(**kind)}


def choice(*texts: str) -> dict[str, Any]:
    return guide(choice=common_pb2.Choice(texts=texts))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 2, "top_p": 1, "min_p": 1, "repetition_penalty": 10, "top_k": 0xFFFFFFFF},
        {"presence_penalty": -2, "frequency_penalty": 2, "logprobs": 20, "prompt_logprobs": 0},
        {"min_tokens": 5, "max_tokens": 5, "stop": ["a", "\0", "漢"], "stop_token_ids": [0, limits.TOKEN_ID]},
        {"min_tokens": 5},
        {"logit_bias": {0: -100, limits.TOKEN_ID: 100}},
        guide(json_schema='{"type":"object"}'),
        guide(json_schema="{}"),
        guide(regex=" "),
        guide(grammar='root ::= "a"'),
        choice("yes", "no"),
    ],
)
def test_what_is_in_range_is_taken(settings: dict[str, Any]) -> None:
    check_sampling(common_pb2.Sampling(**settings), "s")


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        *(({name: NAN}, name) for name in ("temperature", "top_p", "min_p", "presence_penalty")),
        *(({name: NAN}, name) for name in ("frequency_penalty", "repetition_penalty")),
        *(({name: float("inf")}, name) for name in ("temperature", "top_p", "repetition_penalty")),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"min_p": 1.1}, "min_p"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"repetition_penalty": -1}, "repetition_penalty"),
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop_token_ids": [1] * 65}, "stop_token_ids"),
        ({"stop_token_ids": [1 << 31]}, "stop_token_ids"),
        ({"logit_bias": dict.fromkeys(range(301), 1)}, "logit_bias"),
        ({"logit_bias": {1 << 31: 1}}, "logit_bias"),
        ({"logit_bias": {1: 101}}, "logit_bias"),
        ({"logit_bias": {1: NAN}}, "logit_bias"),
        (guide(), "guide"),
        (guide(regex=""), "guide.regex"),
        (guide(grammar=""), "guide.grammar"),
        (choice(), "guide.choice"),
        (choice("a", ""), "guide.choice[1]"),
        (choice(*["a"] * 513), "guide.choice"),
        *(
            (guide(json_schema=text), "guide.json_schema")
            for text in ("", "{", "[]", "true", '"a"', "[" * 9_999)
        ),
        (guide(json_schema='{"a":NaN}'), "guide.json_schema"),
        (guide(json_schema=DEEP), "guide.json_schema"),
    ],
)
def test_what_is_out_of_range_is_refused_with_its_path(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(Fault) as caught:
        check_sampling(common_pb2.Sampling(**settings), "s")
    assert (caught.value.kind, caught.value.field) == (errors.INVALID_SAMPLING, f"s.{field}")


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"stop": ["漢" * 342]}, "stop[0]"),
        (guide(regex="a" * (limits.GUIDE_BYTES + 1)), "guide.regex"),
        (guide(grammar="漢" * (limits.GUIDE_BYTES // 3 + 1)), "guide.grammar"),
        (guide(json_schema='{"a":"' + "a" * limits.GUIDE_BYTES + '"}'), "guide.json_schema"),
        (choice(*["a" * 200] * 400), "guide.choice"),
    ],
)
def test_what_is_too_large_is_refused_with_its_path(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(Fault) as caught:
        check_sampling(common_pb2.Sampling(**settings), "s")
    assert (caught.value.kind, caught.value.field) == (errors.TOO_LARGE, f"s.{field}")


@pytest.mark.parametrize("text", ['{"a":"\\ud800"}', '{"\\udc00":1}', '{"a":[["\\ud83d"]]}'])
def test_half_a_character_in_a_schema_is_refused(text: str) -> None:
    with pytest.raises(Fault) as caught:
        check_sampling(common_pb2.Sampling(**guide(json_schema=text)), "s")
    assert (caught.value.kind, caught.value.field) == (errors.INVALID_TEXT, "s.guide.json_schema")


def test_a_schema_as_deep_as_the_limit_is_taken() -> None:
    depth = limits.SCHEMA_DEPTH
    check_sampling(common_pb2.Sampling(**guide(json_schema='{"a":' * depth + "0" + "}" * depth)), "s")


def test_the_size_of_a_guide_counts_all_its_texts() -> None:
    assert guide_bytes(common_pb2.Sampling()) == 0
    assert guide_bytes(common_pb2.Sampling(**guide(regex="漢"))) == 3
    assert guide_bytes(common_pb2.Sampling(**choice("ab", "c"))) == 3
