"""What breaks on the way of a chat or completion is told to OpenAI's own client, and never as an end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from tests.support.rig import BY_TEXT, Rig

pytestmark = pytest.mark.timeout(120)

SAID = "The harbour opens at dawn and "
PIECES = [{"text": piece} for piece in ("The harbour ", "opens ", "at ", "dawn ", "and ")]
BREAKS: dict[str, list[dict[str, Any]]] = {
    "reset": [*PIECES, {"reset": True}],
    "hang": [*PIECES, {"wait_s": 60}],
    "error": [*PIECES, {"error": {"message": "out of memory", "code": 500}}],
    "before": [{"status": 500, "body": {"error": {"message": "out of memory"}}}],
}

Ask = Callable[[OpenAI, str], object]


@pytest.fixture
def client(rig: Rig) -> Iterator[OpenAI]:
    """The official client, which is not to hide anything by asking again."""
    with OpenAI(base_url=f"{rig.urls[0]}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


def chat(client: OpenAI, script: str) -> object:
    messages: Any = [{"role": "user", "content": f"script:{script}"}]
    return client.chat.completions.create(model=BY_TEXT, messages=messages)


def streamed_chat(client: OpenAI, script: str) -> None:
    messages: Any = [{"role": "user", "content": f"script:{script}"}]
    stream = client.chat.completions.create(model=BY_TEXT, messages=messages, stream=True)
    read(("".join(c.delta.content or "" for c in chunk.choices), chunk) for chunk in stream)


def completion(client: OpenAI, script: str) -> object:
    return client.completions.create(model=BY_TEXT, prompt=f"script:{script}")


def streamed_completion(client: OpenAI, script: str) -> None:
    stream = client.completions.create(model=BY_TEXT, prompt=f"script:{script}", stream=True)
    read(("".join(choice.text for choice in chunk.choices), chunk) for chunk in stream)


def read(chunks: Iterator[tuple[str, Any]]) -> None:
    """Reads a stream to its end; what it tells before a break is what was said, and no end."""
    said = ""
    for text, chunk in chunks:
        said += text
        assert SAID.startswith(said)
        assert not any(choice.finish_reason for choice in chunk.choices)


@pytest.mark.parametrize("kind", BREAKS)
def test_the_official_client_raises(rig: Rig, client: OpenAI, kind: str) -> None:
    rig.upstreams[BY_TEXT].script(f"break-{kind}", *BREAKS[kind])

    def failure(ask: Ask) -> openai.APIError:
        with pytest.raises(openai.APIError) as raised:
            ask(client, f"break-{kind}")
        return raised.value

    with ThreadPoolExecutor() as pool:
        whole, streamed = (
            list(pool.map(failure, asks))
            for asks in ((chat, completion), (streamed_chat, streamed_completion))
        )
    for error in whole:
        assert isinstance(error, openai.InternalServerError)
        assert error.status_code in {502, 503, 504}
        assert error.code
    for error in streamed:
        assert not isinstance(error, openai.APIStatusError)
        assert error.code == whole[0].code
        body: Any = error.body
        assert isinstance(body["may_retry"], bool)


def test_a_broken_stream_ends_with_its_error_and_the_stored_state_agrees(rig: Rig) -> None:
    rig.upstreams[BY_TEXT].script("break-told", *BREAKS["error"])
    body = {
        "model": BY_TEXT,
        "stream": True,
        "messages": [{"role": "user", "content": "script:break-told"}],
    }
    lines = [line for line in rig.http.post("/v1/chat/completions", json=body).text.split("\n\n") if line]
    told = [line for line in lines if not line.startswith(":")]
    assert told[-1] == "data: [DONE]"
    assert '"error"' in told[-2]
    assert 'finish_reason":"' not in "".join(told)
    newest = rig.http.get("/v1/sessions", params={"limit": 1}).json()["sessions"][0]
    graph = rig.graph(newest["id"])
    (call,) = graph["calls"]
    assert (call["state"], graph["state"]) == ("failed", "closed")
    # Of this model a token is a byte.
    assert call["usage"]["output_tokens"] == len(SAID)


def test_text_is_kept_as_it_is_in_both_directions(rig: Rig, client: OpenAI) -> None:
    rig.upstreams[BY_TEXT].script("zero", {"text": "left\u0000right \U0001f600"})
    messages: Any = [{"role": "user", "content": "pre\u0000post \U0001f600 script:zero"}]
    answer = client.chat.completions.create(model=BY_TEXT, messages=messages)
    assert answer.choices[0].message.content == "left\u0000right \U0001f600"
    assert "pre\u0000post \U0001f600" in rig.upstreams[BY_TEXT].prompts()[-1]


def test_a_body_beyond_the_limit_is_refused_as_the_client_expects(rig: Rig, client: OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "x" * (4 * 1024 * 1024 + 1)}]
    with pytest.raises(openai.APIStatusError) as large:
        client.chat.completions.create(model=BY_TEXT, messages=messages)
    assert (large.value.status_code, large.value.code) == (413, "too_large")
    assert "4,194,304" in large.value.message
    httpx.get(f"{rig.urls[0]}/readyz").raise_for_status()
