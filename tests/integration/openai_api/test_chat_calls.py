"""Chats as calls of a graph, over HTTP, on all of Parrot before a simulated and a scripted model."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.support.openai_stack import MODEL, OpenAIStack

pytestmark = pytest.mark.anyio

BLOCK_TOKENS = 32
"""What the simulated engine's memory is divided into; of its model a token is a byte."""
LONG = "You are careful, brief and kind. " * 40


def chat(*contents: tuple[str, str], reads: str = "", output: str, model: str = MODEL) -> dict[str, Any]:
    """A call whose messages are these."""
    inputs = [{"name": reads, "in_out": "in", "semantic_var_id": reads}] if reads else []
    sampling = {"max_tokens": 12, "temperature": 0}
    makes = {"name": "answer", "in_out": "out", "semantic_var_id": output, "sampling": sampling}
    messages = [{"role": role, "content": content} for role, content in contents]
    return {"model": model, "messages": messages, "placeholders": [*inputs, makes]}


async def run(http: httpx.AsyncClient, *calls: dict[str, Any], session: str = "") -> tuple[str, list[str]]:
    """The session, and the values of the calls' outputs."""
    session = session or (await http.post("/sessions")).json()["id"]
    answer = await http.post(f"/sessions/{session}/calls", json={"calls": list(calls)})
    assert answer.status_code == 201, answer.text
    names = [call["placeholders"][-1]["semantic_var_id"] for call in calls]
    values = []
    for name in names:
        found = (await http.get(f"/sessions/{session}/variables/{name}")).json()
        assert found["state"] == "ready", found
        values.append(found["value"])
    return session, values


async def test_a_chat_reads_what_another_answered(stack: OpenAIStack, http: httpx.AsyncClient) -> None:
    stack.upstream.define("topic", [{"text": "the sea <|im_end|>"}])
    calls = [
        chat(("user", "script:topic"), output="topic"),
        chat(("system", "Be brief."), ("user", "script:default of {{topic}}."), reads="topic", output="said"),
    ]
    _, values = await run(http, *calls)
    assert values == ["the sea <|im_end|>", "Hello there"]
    assert stack.prompts()[-1] == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nscript:default of the sea <|im_end|>."
        "<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_an_answer_goes_on_after_its_beginning(stack: OpenAIStack, http: httpx.AsyncClient) -> None:
    begun = chat(("user", "script:default"), ("assistant", "Well, {{answer}}"), output="said")
    await run(http, begun)
    assert stack.prompts()[-1].endswith("<|im_start|>assistant\nWell, ")


async def test_chats_with_one_system_prompt_compute_it_once(http: httpx.AsyncClient) -> None:
    def ask(question: str) -> dict[str, Any]:
        return chat(("system", LONG), ("user", question), output="said", model="sim")

    first, (one,) = await run(http, ask("Why?"))
    second, (other,) = await run(http, ask("How?"))
    assert one != other
    usages = [(await http.get(f"/sessions/{name}")).json()["calls"][0]["usage"] for name in (first, second)]
    assert usages[0]["cached_tokens"] < BLOCK_TOKENS
    assert usages[1]["cached_tokens"] > len(LONG) - BLOCK_TOKENS


async def test_a_conversation_that_grows_finds_what_it_began_with(http: httpx.AsyncClient) -> None:
    """Over OpenAI's API, where each request holds all that was said before."""
    said: list[dict[str, str]] = [{"role": "system", "content": LONG}]
    cached = []
    for question in ("Why is the sea salty?", "And the lakes?", "And the rain?"):
        said.append({"role": "user", "content": question})
        body = {"model": "sim", "messages": said, "max_tokens": 30, "temperature": 0}
        answer = (await http.post("/chat/completions", json=body)).json()
        said.append(answer["choices"][0]["message"])
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached[1] > len(LONG) - BLOCK_TOKENS
    assert cached[2] > cached[1]


async def test_a_chat_that_is_too_long_fails_with_the_reason(http: httpx.AsyncClient) -> None:
    session = (await http.post("/sessions")).json()["id"]
    body = {"calls": [chat(("user", "x" * 40_000), output="said", model="sim")]}
    await http.post(f"/sessions/{session}/calls", json=body)
    found = (await http.get(f"/sessions/{session}/variables/said")).json()
    assert (found["state"], found["error"]["type"].rpartition(":")[2]) == ("failed", "prompt_too_long")
