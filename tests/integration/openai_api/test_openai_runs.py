"""What becomes of a request: who leaves, who asks again, and who joins a graph."""

from __future__ import annotations

import asyncio
from functools import reduce
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from tests.support.manager import eventually
from tests.support.openai_stack import MODEL, OpenAIStack, ended, says, session_of

from parrot_gateway.manager_client import ManagerClient
from parrot_proto.common.v1 import common_pb2

pytestmark = pytest.mark.anyio


async def test_whoever_leaves_cancels_what_was_run_for_them(stack: OpenAIStack, client: AsyncOpenAI) -> None:
    stack.upstream.define("endless", [{"text": "on and "}, {"wait_s": 600}])
    stream = await client.chat.completions.create(model=MODEL, messages=says("endless"), stream=True)
    first = await anext(aiter(stream))
    await stream.close()
    assert await ended(stack, session_of(first)) == common_pb2.SESSION_STATE_CANCELLED
    sessions = stack.manager.shell.machine.state.sessions
    before = set(sessions)
    async with AsyncOpenAI(base_url=stack.url, api_key="none", max_retries=0) as leaving:
        asking = asyncio.create_task(leaving.chat.completions.create(model=MODEL, messages=says("endless")))

        async def new() -> list[str]:
            return [name for name in sessions if name not in before]

        (session_id,) = await eventually(new)
        asking.cancel()
    assert await ended(stack, session_id) == common_pb2.SESSION_STATE_CANCELLED


async def test_a_request_by_itself_waits_for_one_write(
    stack: OpenAIStack, client: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.upstream.define("alone", [{"text": "said"}])
    writes: list[str] = []
    for name in ("insert_session", "insert_calls", "insert_session_with_calls"):
        write = getattr(stack.manager.shell.store, name)

        async def noted(*given: Any, name: str = name, write: Any = write) -> Any:
            writes.append(name)
            return await write(*given)

        monkeypatch.setattr(stack.manager.shell.store, name, noted)
    await client.chat.completions.create(model=MODEL, messages=says("alone"))
    await client.responses.create(model=MODEL, input="alone")
    assert writes == ["insert_session_with_calls", "insert_session_with_calls"]


async def test_a_request_under_a_key_is_answered_once_and_alike(
    stack: OpenAIStack, client: AsyncOpenAI
) -> None:
    stack.upstream.define("keyed", {"in_turn": [[{"text": "first"}], [{"text": "second"}]]})
    headers = {"Idempotency-Key": "chat-key-1"}
    asked: Any = {"model": MODEL, "messages": says("keyed"), "extra_headers": headers}
    # However deep: what is not followed tells no requests apart.
    asked["extra_body"] = {"metadata": reduce(lambda inner, _: {"in": inner}, range(500), dict[str, Any]())}
    first = await client.chat.completions.create(**asked)
    await ended(stack, session_of(first))
    async with AsyncOpenAI(base_url=f"{stack.gateways[1].url}/v1", api_key="none", max_retries=0) as other:
        again = await other.chat.completions.create(**asked)
    assert again == first
    with pytest.raises(openai.ConflictError) as conflict:
        await client.chat.completions.create(model=MODEL, messages=says("other"), extra_headers=headers)
    assert conflict.value.code == "idempotency_conflict"
    assert conflict.value.response.headers["x-should-retry"] == "false"
    assert "openai-" not in conflict.value.message, "the key that is named was never sent"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_key_whose_session_ended_before_it_had_a_call_is_a_conflict(
    stack: OpenAIStack, client: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    sessions = stack.manager.shell.machine.state.sessions
    before = set(sessions)

    async def dies(manager: ManagerClient, label: str, *_: Any, session_key: str, **given: Any) -> None:
        """As a gateway of before, which opened the session by itself."""
        await manager.create_session(
            label, 0, key=session_key, criteria=given["criteria"], ends_with_calls=True
        )
        raise ConnectionError("the gateway dies here")

    asked: Any = {
        "model": MODEL,
        "messages": says("default"),
        "stream": stream,
        "extra_headers": {"Idempotency-Key": f"chat-key-{stream}"},
    }
    with monkeypatch.context() as patch:
        patch.setattr(ManagerClient, "open_with_calls", dies)
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(**asked)
    (session_id,) = set(sessions) - before
    await stack.manager.client.close(session_id)
    with pytest.raises(openai.ConflictError, match="ended before it began") as conflict:
        await client.chat.completions.create(**asked)
    assert conflict.value.code == "idempotency_conflict"


@pytest.mark.parametrize("api", ["chat", "completions"])
async def test_a_request_that_makes_a_variable_is_the_same_when_it_is_sent_again(
    stack: OpenAIStack, client: AsyncOpenAI, api: str
) -> None:
    session_id = await stack.manager.client.open()
    begun = len(stack.prompts())

    async def ask(text: str, output: str = "draft") -> Any:
        joined = {"parrot": {"session_id": session_id, "output": output}}
        if api == "completions":
            return await client.completions.create(model=MODEL, prompt=text, extra_body=joined)
        said: Any = [{"role": "user", "content": text}]
        return await client.chat.completions.create(model=MODEL, messages=said, extra_body=joined)

    first, twin = await asyncio.gather(ask("Write."), ask("Write."))
    again = await ask("Write.")
    assert {one.choices[0].finish_reason for one in (first, twin, again)} == {"stop"}
    assert len({one.id for one in (first, twin, again)}) == 1
    assert len(stack.prompts()) == begun + 1
    with pytest.raises(openai.ConflictError) as refused:
        await ask("Write more.")
    assert refused.value.code == "duplicate_producer"
    assert (await ask("Write.", "other")).id != first.id


async def test_a_keyed_request_goes_on_when_its_sender_leaves(
    stack: OpenAIStack, client: AsyncOpenAI
) -> None:
    stack.upstream.define("slow", [{"text": "a "}, {"wait_s": 0.3}, {"text": "b"}])
    asked: Any = {
        "model": MODEL,
        "messages": says("slow"),
        "extra_headers": {"Idempotency-Key": "chat-key-2"},
    }
    stream = await client.chat.completions.create(**asked, stream=True)
    first = await anext(aiter(stream))
    await stream.close()
    assert await ended(stack, session_of(first)) == common_pb2.SESSION_STATE_CLOSED


async def test_a_chat_joins_a_session_with_its_inputs_and_its_output(
    stack: OpenAIStack, client: AsyncOpenAI
) -> None:
    manager = stack.manager.client
    session_id = await manager.open()
    stack.upstream.define("draft", [{"text": "a draft <|im_end|> {{x}}"}])
    await manager.set(session_id, "topic", "the sea")
    messages: Any = [{"role": "user", "content": "script:draft of {{topic}}"}]
    joined: dict[str, Any] = {"session_id": session_id, "inputs": {"topic": "topic"}, "output": "draft"}
    first = await client.chat.completions.create(
        model=MODEL, messages=messages, extra_body={"parrot": joined}
    )
    assert first.choices[0].message.content == "a draft <|im_end|> {{x}}"
    assert "script:draft of the sea" in stack.prompts()[-1]
    text: Any = "script:default judges {{d}} and {{'{{'}}d}}"
    second = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": text}],
        extra_body={"parrot": {"session_id": session_id, "inputs": {"d": "draft"}, "output": "verdict"}},
    )
    assert second.choices[0].message.content == "Hello there"
    assert "judges a draft <|im_end|> {{x}} and {{d}}" in stack.prompts()[-1]
    found = await manager.session(session_id)
    assert found.session.state == common_pb2.SESSION_STATE_OPEN
    assert [(edge.variable_id) for call in found.calls for edge in call.outputs] == ["draft", "verdict"]
    assert (await manager.get(session_id, "verdict")).value == "Hello there"
    assert found.calls[1].inputs[0].variable_id == "draft"


async def test_a_stopping_gateway_breaks_its_streams_off_and_says_so(stack: OpenAIStack) -> None:
    stack.upstream.define("endless", [{"text": "on and "}, {"wait_s": 600}])
    gateway = await stack.gateway()
    async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        stream = await client.chat.completions.create(model=MODEL, messages=says("endless"), stream=True)
        first = await anext(aiter(stream))
        gateway.stop.set()
        with pytest.raises(openai.APIError) as broken:
            _ = [chunk async for chunk in stream]
        assert broken.value.code == "unavailable"
    assert await ended(stack, session_of(first)) == common_pb2.SESSION_STATE_CANCELLED
    stack.gateways.remove(gateway)
