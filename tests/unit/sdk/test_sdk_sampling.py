"""Sampling and transforms as an application says them: checked where they are made, sent as they are."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from tests.unit.sdk.test_sdk_function import call

import parrot as P
from parrot.batch import BATCH_BYTES, requests
from parrot.nodes import Call


def test_settings_at_the_servers_default_are_not_sent() -> None:
    assert P.SamplingConfig().to_wire() == {"max_tokens": 512, "temperature": 1.0}


def test_every_setting_is_sent_under_the_servers_name() -> None:
    config = P.SamplingConfig(
        temperature=0,
        top_p=0.5,
        max_gen_length=9,
        ignore_tokenizer_eos=True,
        stop_str="\n",
        top_k=3,
        seed=0,
        min_tokens=1,
        min_p=0.1,
        presence_penalty=-2,
        frequency_penalty=0.5,
        repetition_penalty=1.1,
        logit_bias={50256: -100, 0: 0.5},
        stop_token_ids=[2],
        logprobs=0,
        prompt_logprobs=5,
        guide=P.Guide(choice=["yes", "no"]),
    )
    assert config.to_wire() == {
        "temperature": 0,
        "top_p": 0.5,
        "max_tokens": 9,
        "ignore_eos": True,
        "stop": ["\n"],
        "top_k": 3,
        "seed": 0,
        "min_tokens": 1,
        "min_p": 0.1,
        "presence_penalty": -2,
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.1,
        "logit_bias": {"50256": -100, "0": 0.5},
        "stop_token_ids": [2],
        "logprobs": 0,
        "prompt_logprobs": 5,
        "guide": {"choice": ["yes", "no"]},
    }
    assert json.loads(json.dumps(config.to_wire())) == config.to_wire()


def test_a_config_is_a_value() -> None:
    schema: dict[str, Any] = {"type": "object"}
    bias = {1: 2.0}
    config = P.SamplingConfig(guide=P.Guide(json_schema=schema), logit_bias=bias, stop_token_ids=[1])
    before = config.to_wire()
    schema["type"] = "array"
    bias[3] = 4.0
    assert config.to_wire() == before
    assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301 - our own
    assert len({config, config}) == 1


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"min_p": 1.5}, ValueError),
        ({"min_p": "1"}, TypeError),
        ({"presence_penalty": -2.1}, ValueError),
        ({"frequency_penalty": float("inf")}, ValueError),
        ({"frequency_penalty": 10**400}, ValueError),
        ({"repetition_penalty": -1}, ValueError),
        ({"repetition_penalty": float("nan")}, ValueError),
        ({"logprobs": 21}, ValueError),
        ({"logprobs": True}, TypeError),
        ({"prompt_logprobs": -1}, ValueError),
        ({"logit_bias": {"5": 1}}, TypeError),
        ({"logit_bias": {-1: 1}}, ValueError),
        ({"logit_bias": {1: 101}}, ValueError),
        ({"logit_bias": dict.fromkeys(range(301), 1)}, ValueError),
        ({"logit_bias": 5}, TypeError),
        ({"stop_token_ids": 5}, TypeError),
        ({"stop_token_ids": [1 << 31]}, ValueError),
        ({"stop_token_ids": [1] * 65}, ValueError),
        ({"guide": {"regex": "a"}}, TypeError),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(settings: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(settings))):
        P.SamplingConfig(**settings)


@pytest.mark.parametrize(
    ("guide", "wire"),
    [
        ({"json_schema": {"b": ["漢"], "a": {}}}, {"json_schema": '{"b":["漢"],"a":{}}'}),
        ({"json_schema": ' {"a": 1} '}, {"json_schema": ' {"a": 1} '}),
        ({"regex": "[0-9]+"}, {"regex": "[0-9]+"}),
        ({"grammar": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}),
        ({"choice": ("yes", "no")}, {"choice": ["yes", "no"]}),
    ],
)
def test_a_guide_is_sent_as_it_is(guide: dict[str, Any], wire: dict[str, Any]) -> None:
    assert P.Guide(**guide).to_wire() == wire


RING: dict[str, Any] = {}
RING["a"] = RING


@pytest.mark.parametrize(
    ("guide", "error", "says"),
    [
        ({}, ValueError, "one of json_schema, regex, grammar and choice"),
        ({"regex": "a", "grammar": "b"}, ValueError, "one of json_schema"),
        ({"regex": ""}, ValueError, "regex has 1 to 65,536 bytes"),
        ({"regex": "漢" * 21_846}, ValueError, "regex has 1 to 65,536 bytes"),
        ({"grammar": 5}, TypeError, "grammar is a str"),
        ({"regex": "\ud800"}, P.InvalidText, "regex holds a lone surrogate"),
        ({"json_schema": 5}, TypeError, "a mapping or a JSON text"),
        ({"json_schema": "[]"}, ValueError, "no JSON object"),
        ({"json_schema": "{"}, ValueError, "is no JSON"),
        ({"json_schema": "[" * 100_000}, ValueError, "is no JSON"),
        ({"json_schema": {"a": float("nan")}}, ValueError, "has no JSON text"),
        ({"json_schema": {"a": {1, 2}}}, TypeError, "set"),
        ({"json_schema": RING}, ValueError, "has no JSON text"),
        ({"json_schema": {"a": "\ud800"}}, P.InvalidText, "json_schema"),
        ({"choice": "yes"}, TypeError, "a list of texts"),
        ({"choice": []}, ValueError, "give 1 to 512"),
        ({"choice": ["a", ""]}, ValueError, "is empty"),
        ({"choice": ["a", 5]}, TypeError, "a text of choice"),
    ],
)
def test_a_guide_that_is_none_is_refused(guide: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        P.Guide(**guide)


def test_transforms_travel_with_their_placeholders() -> None:
    @P.semantic_function
    def pick(
        answer: P.Input(transforms=["json:answers[0]", "strip"]),  # type: ignore[valid-type]
        plain: P.Input(),  # type: ignore[valid-type]
        word: P.Output(transforms="first_line"),  # type: ignore[valid-type]
    ) -> None:
        """Of {{answer}} and {{plain}}: {{word}}"""

    _, wire = call(pick, "a", "b")
    assert {p["name"]: p.get("transforms") for p in wire["placeholders"]} == {
        "answer": ["json:answers[0]", "strip"],
        "plain": None,
        "word": ["first_line"],
    }


@pytest.mark.parametrize(
    ("given", "error"),
    [(5, TypeError), ([5], TypeError), (["strip"] * 17, ValueError), (["\ud800"], P.InvalidText)],
)
def test_transforms_are_texts(given: Any, error: type[Exception]) -> None:
    for annotation in (P.Input, P.Output):
        with pytest.raises(error):
            annotation(transforms=given)


def test_guides_and_transforms_count_towards_a_request() -> None:
    guide = P.SamplingConfig(guide=P.Guide(regex="漢" * 20_000)).to_wire()
    names = tuple("regex:" + "a" * 1_000 for _ in range(16))
    fitting = BATCH_BYTES // (60_000 + 16_000)
    calls = [
        Call("f", "", "t", {}, {"y": P.variable()}, {"y": guide}, {"y": names}) for _ in range(fitting + 1)
    ]
    assert len(list(requests(calls, []))) == 2
