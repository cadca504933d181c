"""What a tenant writes in a response's place, or a model says: it is told as it is, or is no response."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from tests.support.openai_stack import MODEL, OpenAIStack

pytestmark = pytest.mark.anyio

TOKEN = "00000000000000aa"
ITEM = {"id": "x", "type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
GOOD: dict[str, Any] = {
    "echo": {},
    "input": [ITEM],
    "history": [ITEM],
    "output_variable": "o",
    "own": False,
    "session_key": "",
    "stored": True,
    "background": False,
    "logprobs": False,
    "mode": "auto",
    "functions": ["f"],
    "any_text": True,
}
FORGED: dict[str, dict[str, Any]] = {
    "a function by no name": {"mode": "named", "functions": []},
    "calls of no function": {"mode": "auto", "functions": []},
    "functions that may not be called": {"mode": "none"},
    "an item without an id": {"input": [{**ITEM, "id": None}]},
    "an item with no member": {"input": [{}]},
    "an item before it without an id": {"history": [{"type": "message", "role": "user", "content": "x"}]},
    "an item of no kind": {"history": [{**ITEM, "type": "film"}]},
    "a call of nothing": {"history": [{"id": "x", "type": "function_call"}]},
    "a text that is none": {"input": [{**ITEM, "content": [{"type": "input_text", "text": 1}]}]},
    "an output of no name": {"output_variable": "no id!"},
}


async def forged(stack: OpenAIStack, http: httpx.AsyncClient, record: dict[str, Any], text: str) -> str:
    """The id of a response that a tenant makes up: its record, and a function's text as the model's."""
    sessions = f"{stack.gateways[0].url}/v1/sessions"
    session = (await http.post(sessions)).json()["id"]
    call = {
        "name": "n",
        "native": {"kind": "client", "timeout_s": 30},
        "placeholders": [{"name": "o", "in_out": "out", "semantic_var_id": "o"}],
    }
    variable = {
        "semantic_var_id": f"resp-{TOKEN}-request",
        "name": "request",
        "value": json.dumps(record),
    }
    added = await http.post(f"{sessions}/{session}/calls", json={"calls": [call], "variables": [variable]})
    path = f"{sessions}/{session}/calls/{added.json()['calls'][0]['id']}"
    await http.post(f"{path}/claim", json={"worker": "w"})
    done = await http.post(f"{path}/result", json={"worker": "w", "outputs": {"o": text}})
    assert done.status_code == 200, done.text
    return f"resp_{session[1:3]}{session[4:]}{TOKEN}"


@pytest.mark.parametrize("case", FORGED)
async def test_a_record_that_no_gateway_wrote_is_no_response(
    stack: OpenAIStack, http: httpx.AsyncClient, case: str
) -> None:
    response_id = await forged(stack, http, GOOD | FORGED[case], "said")
    path = f"/responses/{response_id}"
    answers = [
        await http.get(path),
        await http.get(path, params={"stream": "true"}),
        await http.get(f"{path}/input_items"),
        await http.post(f"{path}/cancel"),
        await http.delete(path),
    ]
    assert {answer.status_code for answer in answers} == {404}
    body = {"model": MODEL, "input": "on", "previous_response_id": response_id}
    gone_on = await http.post("/responses", json=body)
    assert gone_on.status_code == 400
    assert gone_on.json()["error"]["code"] == "previous_response_not_found"


async def test_a_text_however_deep_is_read_followed_and_gone_on_from(
    stack: OpenAIStack, http: httpx.AsyncClient
) -> None:
    text = '{"name":' + "[" * 2_000 + "]" * 2_000 + "}"
    response_id = await forged(stack, http, GOOD, text)
    path = f"/responses/{response_id}"

    found = (await http.get(path)).json()
    assert found["output"][0]["content"][0]["text"] == text
    stream = (await http.get(path, params={"stream": "true"})).text
    assert "response.completed" in stream
    assert [item["id"] for item in (await http.get(f"{path}/input_items")).json()["data"]] == ["x", "x"]
    body = {"model": MODEL, "input": "on", "previous_response_id": response_id}
    assert (await http.post("/responses", json=body)).status_code == 200
