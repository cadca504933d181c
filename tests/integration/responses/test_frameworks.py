"""Programs written for OpenAI's API run as they are: only where the API is differs, by the environment."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.openai_stack import OpenAIStack

pytestmark = pytest.mark.anyio

PROGRAMS = Path(__file__).parent / "programs"
SEA = json.dumps({"name": "North", "depth_m": 95})


def call(function: str, **arguments: str) -> list[dict[str, Any]]:
    """A script that calls a function, in pieces."""
    told = json.dumps({"name": function, "arguments": arguments})
    return [{"text": "<tool_call>\n"}, {"text": told}, {"text": "\n</tool_call>"}]


@pytest.fixture
def scripted(stack: OpenAIStack) -> OpenAIStack:
    """What the model says to each of the programs."""
    scripts: dict[str, Any] = {
        "hello": [{"text": "Hello"}, {"text": " there"}],
        "many": [{"text": "w{n:03d} ", "repeat": 50}],
        "look": call("look", at="the sea"),
        "told": [{"text": "It is wet."}],
        "sea": [{"text": SEA}],
        "agent": {"in_turn": [call("look", at="the sea"), [{"text": "It is wet."}]]},
        "handoff": {"in_turn": [call("transfer_to_seer"), call("look", at="the sea"), [{"text": "Wet."}]]},
    }
    for name, script in scripts.items():
        stack.upstream.define(name, script)
    return stack


async def run(stack: OpenAIStack, program: str, *arguments: str) -> list[str]:
    """The lines a program prints, run as its users run it."""
    env = {
        **os.environ,
        "OPENAI_BASE_URL": stack.url,
        "OPENAI_API_KEY": "none",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "LANGSMITH_TRACING": "false",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(PROGRAMS / program),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=env,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode().splitlines()


WORDS = "".join(f"w{n:03d} " for n in range(50))


async def test_a_langchain_program_runs_as_it_is_on_either_api_and_joins_a_graph(
    scripted: OpenAIStack,
) -> None:
    said = [
        "chain: Hello there",
        "batch: ['Hello there', 'Hello there']",
        f"stream: {WORDS}",
        "calls: [('look', {'at': 'the sea'})]",
        "told: It is wet.",
        "typed: name='North' depth_m=95",
        "usage: True",
    ]
    told = await run(scripted, "langchain_chain.py", "chat", "responses")
    assert told == ["chat", *said, "responses", *said, "joined: Hello there"]
    assert any("the sea is wet" in prompt for prompt in scripted.prompts())
    assert "A title for It is wet." in scripted.prompts()[-1]


async def test_a_langgraph_program_runs_as_it_is(scripted: OpenAIStack) -> None:
    assert await run(scripted, "langgraph_agent.py") == [
        "4 messages: It is wet.",
        "6 messages: It is wet.",
        "updates ['think']",
    ]


async def test_an_openai_agents_program_runs_as_it_is(scripted: OpenAIStack) -> None:
    assert await run(scripted, "agents_sdk.py") == [
        "tool: It is wet.",
        "handoff: Seer Wet.",
        "typed: name='North' depth_m=95",
        "session: Hello there",
        "previous: Hello there",
        f"stream: {WORDS}",
    ]
    last = [prompt for prompt in scripted.prompts() if "Two?" in prompt]
    assert all("One?" in prompt and "Hello there" in prompt for prompt in last)
