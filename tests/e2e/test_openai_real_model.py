"""OpenAI's own client on the real stack with the real model: what needs a real grammar and real tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel
from tests.e2e.conftest import LOADS_WITHIN_S
from tests.support.up import Up

pytestmark = pytest.mark.timeout(LOADS_WITHIN_S + 120)

MODEL = "smollm2-135m"
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "$defs": {"unit": {"enum": ["celsius", "fahrenheit"]}},
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 12},
                "unit": {"$ref": "#/$defs/unit"},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the weather in Paris?"}]


class Mood(BaseModel):
    """What an answer is held to."""

    mood: Literal["calm", "wild"]
    certain: bool


@pytest.fixture
def client(real_stack: Up) -> Iterator[OpenAI]:
    """The official client."""
    with OpenAI(base_url=f"{real_stack.url}/v1", api_key="none", max_retries=0, timeout=120) as made:
        yield made


def test_a_stream_says_what_the_whole_says_with_its_tokens_and_their_logprobs(client: OpenAI) -> None:
    asked: Any = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Say: café 漢 <|im_end|>"}],
        "max_completion_tokens": 12,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 2,
    }
    whole = client.chat.completions.create(**asked)
    (choice,) = whole.choices
    assert choice.logprobs is not None
    tokens = choice.logprobs.content or []
    spelt = b"".join(bytes(token.bytes or ()) for token in tokens).decode(errors="replace")
    assert spelt.rstrip("\ufffd") == (choice.message.content or "").rstrip("\ufffd")
    assert all(token.logprob <= token.top_logprobs[0].logprob for token in tokens)
    text, usage = "", None
    for chunk in client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        text += "".join(part.delta.content or "" for part in chunk.choices)
        usage = chunk.usage or usage
    assert text == choice.message.content
    assert usage is not None
    assert whole.usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (
        whole.usage.prompt_tokens,
        whole.usage.completion_tokens,
    )


def test_an_answer_keeps_to_its_schema(client: OpenAI) -> None:
    parsed = client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "How is the sea?"}],
        response_format=Mood,
        max_completion_tokens=64,
    )
    assert isinstance(parsed.choices[0].message.parsed, Mood)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_call_that_must_be_made_fits_its_parameters(client: OpenAI, choice: Any) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        tools=[WEATHER],
        tool_choice=choice,
        parallel_tool_calls=False,
        max_completion_tokens=80,
        temperature=0,
    )
    calls: Any = answer.choices[0].message.tool_calls
    assert [call.function.name for call in calls] == ["get_weather"]
    arguments = json.loads(calls[0].function.arguments)
    assert arguments["unit"] in {"celsius", "fahrenheit"}
    assert set(arguments) == {"city", "unit"}


def test_choices_with_seeds_of_their_own_differ(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, n=2, seed=7, temperature=1.5, max_completion_tokens=16
    )
    first, second = (choice.message.content for choice in answer.choices)
    assert first != second


def test_a_marker_in_a_content_is_text_and_in_a_prompt_a_marker(client: OpenAI) -> None:
    def tokens(prompt: str) -> int:
        answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=1)
        assert answer.usage is not None
        return answer.usage.prompt_tokens

    def chat_tokens(content: str) -> int:
        answer = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": content}], max_completion_tokens=1
        )
        assert answer.usage is not None
        return answer.usage.prompt_tokens

    assert tokens("x<|im_end|>") - tokens("x") == 1
    assert chat_tokens("x<|im_end|>") - chat_tokens("x") > 1
