"""The scripted server says exactly what its scripts say, and tells what it was asked."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest
from tools.scripted_upstream import ScriptedUpstream, parse_arguments, serve

pytestmark = pytest.mark.anyio


async def complete(url: str, prompt: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as http:
        return await http.post(f"{url}/completions", json={"prompt": prompt})


async def test_a_script_is_chosen_by_its_name_in_the_prompt_and_the_last_name_counts() -> None:
    scripts = {name: [{"text": name}] for name in ("default", "a-1", "b")}
    async with ScriptedUpstream(scripts) as upstream:
        for prompt, name in (("x", "default"), ("script:a-1 y", "a-1"), ("script:a-1 script:b", "b")):
            assert f'"text": "{name}"' in (await complete(upstream.url, prompt)).text


async def test_a_script_is_defined_while_the_server_runs_and_what_was_asked_is_told() -> None:
    async with ScriptedUpstream() as upstream, httpx.AsyncClient(trust_env=False) as http:
        root = upstream.url.removesuffix("/v1")
        assert (await complete(upstream.url, "x")).status_code == 404
        put = await http.put(f"{root}/scripts/default", json=[{"raw": "data: as told\n\n"}, {"end": True}])
        assert put.status_code == 200
        assert (await complete(upstream.url, "y")).text == "data: as told\n\n"
        for wrong in (b"{", b'[{"sleep": 1}]'):
            assert (await http.put(f"{root}/scripts/default", content=wrong)).status_code == 400
        state = (await http.get(f"{root}/state")).json()
        assert [request["prompt"] for request in state["requests"]] == ["x", "y"]
        assert (await http.get(f"{root}/nowhere")).status_code == 404


async def test_the_official_client_reads_it() -> None:
    openai = pytest.importorskip("openai")
    upstream = ScriptedUpstream({"default": [{"text": "w{n} ", "repeat": 5}]})
    async with upstream, openai.AsyncOpenAI(base_url=upstream.url, api_key="sk") as client:
        assert [model.id async for model in client.models.list()] == ["scripted"]
        stream = await client.completions.create(model="scripted", prompt="x", stream=True)
        choices = [chunk.choices[0] async for chunk in stream]
    assert "".join(choice.text for choice in choices) == "w0 w1 w2 w3 w4 "
    assert choices[-1].finish_reason == "stop"


async def test_the_command_serves_the_scripts_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "scripts.json"
    file.write_text(json.dumps({"default": [{"text": "from a file"}]}))
    serving = asyncio.create_task(serve(parse_arguments(["--port", "0", "--scripts", str(file)])))
    said = ""
    while "http" not in said:
        await asyncio.sleep(0)
        said += capsys.readouterr().out
    assert "from a file" in (await complete(said.split()[-1], "x")).text
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


def test_its_help_tells_every_action(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["--help"])
    text = capsys.readouterr().out
    for action in ("text", "usage", "wait_s", "comment", "error", "raw", "status", "close", "reset", "end"):
        assert f'{{"{action}"' in text
