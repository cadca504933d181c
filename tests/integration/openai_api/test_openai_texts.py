"""Chats and completions as OpenAI's own client asks for them: what they say, and in which shape."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI
from tests.support.openai_stack import MODEL, SIM, OpenAIStack, ended, says, session_of

from parrot_proto.common.v1 import common_pb2

pytestmark = pytest.mark.anyio


async def test_a_chat_is_answered_in_the_models_format_and_its_session_closes(
    stack: OpenAIStack, client: AsyncOpenAI
) -> None:
    messages = says("default", "Be {{brief}}.")
    answer = await client.chat.completions.create(model=MODEL, messages=messages)
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "Hello there")
    assert (choice.finish_reason, answer.object, answer.model) == ("stop", "chat.completion", MODEL)
    assert stack.prompts()[-1] == (
        "<|im_start|>system\nBe {{brief}}.<|im_end|>\n<|im_start|>user\nscript:default<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 0
    assert answer._request_id == session_of(answer)
    assert await ended(stack, session_of(answer)) == common_pb2.SESSION_STATE_CLOSED


async def test_models_are_listed_and_looked_up(client: AsyncOpenAI) -> None:
    assert {MODEL, SIM} <= {model.id async for model in client.models.list()}
    assert (await client.models.retrieve(SIM)).id == SIM
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("other/model")


async def test_a_stream_adds_up_to_the_whole_and_tells_usage_when_asked(
    stack: OpenAIStack, client: AsyncOpenAI
) -> None:
    stack.upstream.define("words", [{"text": "w{n:03d} é", "repeat": 300}])
    messages = says("words")
    whole = await client.chat.completions.create(model=MODEL, messages=messages)
    stream = await client.chat.completions.create(
        model=MODEL, messages=messages, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    deltas = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(choice.delta.content or "" for choice in deltas) == whole.choices[0].message.content
    assert deltas[0].delta.role == "assistant"
    assert [choice.finish_reason for choice in deltas if choice.finish_reason] == ["stop"]
    assert [chunk.usage for chunk in chunks if chunk.usage] == [whole.usage]
    assert (chunks[-1].choices, {chunk.id for chunk in chunks}) == ([], {chunks[0].id})
    async with httpx.AsyncClient(base_url=stack.url) as http:
        body = {"model": MODEL, "messages": messages, "stream": True}
        answer = await http.post("/chat/completions", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.text.endswith("data: [DONE]\n\n")
    assert "usage" not in answer.text


async def test_why_an_answer_ended_is_told(stack: OpenAIStack, client: AsyncOpenAI) -> None:
    stack.upstream.define("cut", [{"text": "half of", "finish_reason": "length"}])
    stack.upstream.define("marked", [{"text": "one tw"}, {"text": "o STO"}, {"text": "P three"}])
    cut = await client.chat.completions.create(model=MODEL, messages=says("cut"))
    assert cut.choices[0].finish_reason == "length"
    for stop in ("STOP", ["nothing", "STOP"]):
        marked = await client.chat.completions.create(model=MODEL, messages=says("marked"), stop=stop)
        assert (marked.choices[0].message.content, marked.choices[0].finish_reason) == ("one two ", "stop")
    text = await client.completions.create(model=MODEL, prompt="script:marked", stop=" STOP")
    assert (text.choices[0].text, text.choices[0].finish_reason) == ("one two", "stop")


async def test_every_choice_has_a_seed_of_its_own_and_the_settings_that_were_sent(
    stack: OpenAIStack, client: AsyncOpenAI
) -> None:
    answer = await client.chat.completions.create(
        model=MODEL,
        messages=says("default"),
        n=3,
        seed=(1 << 63) - 2,
        temperature=0.5,
        top_p=0.25,
        presence_penalty=-1,
        frequency_penalty=1.5,
        max_completion_tokens=77,
        extra_body={"top_k": 9, "repetition_penalty": 1.25},
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    sent = stack.upstream.state.requests[-3:]
    assert {request["seed"] for request in sent} == {(1 << 63) - 2, (1 << 63) - 1, -(1 << 63)}
    for request in sent:
        assert (request["temperature"], request["top_p"], request["max_tokens"]) == (0.5, 0.25, 77)
        assert (request["presence_penalty"], request["frequency_penalty"]) == (-1, 1.5)
        assert (request["top_k"], request["repetition_penalty"]) == (9, 1.25)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3 * len("Hello there")
    assert answer.usage.prompt_tokens < 2 * len(stack.prompts()[-1])


async def test_a_seed_gives_the_same_answer_and_choices_differ(client: AsyncOpenAI) -> None:
    async def ask(seed: int) -> list[str | None]:
        answer = await client.chat.completions.create(model=SIM, messages=says("x"), n=2, seed=seed)
        return [choice.message.content for choice in answer.choices]

    first, again, later = await ask(5), await ask(5), await ask(6)
    assert first == again
    assert first[0] != first[1]
    assert first[1] == later[0]


async def test_logprobs_are_those_of_the_answers_tokens(client: AsyncOpenAI) -> None:
    asked: Any = {"model": SIM, "messages": says("x"), "logprobs": True, "top_logprobs": 3, "max_tokens": 20}
    whole = await client.chat.completions.create(**asked)
    (choice,) = whole.choices
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    spelt = b"".join(bytes(token.bytes or ()) for token in choice.logprobs.content)
    assert spelt.decode(errors="ignore") == (choice.message.content or "").rstrip("\ufffd")
    assert all(len(token.top_logprobs) == 3 and token.logprob <= 0 for token in choice.logprobs.content)
    stream = await client.chat.completions.create(**asked, stream=True)
    told = [c.logprobs.model_dump() async for chunk in stream for c in chunk.choices if c.logprobs]
    assert told == [choice.logprobs.model_dump()]
    text = await client.completions.create(model=SIM, prompt="x", logprobs=2, max_tokens=5)
    logprobs = text.choices[0].logprobs
    assert logprobs is not None
    assert (len(logprobs.tokens or ()), len(logprobs.token_logprobs or ())) == (5, 5)
    assert (logprobs.text_offset or [])[:2] == [0, 1]
    none = await client.chat.completions.create(model=SIM, messages=says("x"), max_tokens=2)
    assert none.choices[0].logprobs is None


async def test_completions_go_on_after_each_prompt(stack: OpenAIStack, client: AsyncOpenAI) -> None:
    one = await client.completions.create(model=MODEL, prompt="script:default <|im_end|>", echo=True)
    assert one.choices[0].text == "script:default <|im_end|>Hello there"
    assert stack.upstream.state.requests[-1]["max_tokens"] == 16
    prompts = ["script:default a", "script:default b"]
    many = await client.completions.create(model=MODEL, prompt=prompts, n=2, max_tokens=9)
    assert [choice.index for choice in many.choices] == [0, 1, 2, 3]
    assert sorted(stack.prompts()[-4:]) == sorted(2 * prompts)
    tokens = await client.completions.create(model=SIM, prompt=[list(b"abc"), list(b"de")], max_tokens=3)
    assert tokens.usage is not None
    assert tokens.usage.prompt_tokens == 5
    stream = await client.completions.create(model=MODEL, prompt=prompts, stream=True)
    texts = ["", ""]
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == ["Hello there", "Hello there"]
