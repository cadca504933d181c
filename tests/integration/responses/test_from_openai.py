"""A program for OpenAI's API, and the same as a graph: what that costs, and what it brings."""

from __future__ import annotations

import asyncio
import difflib
import os
import sys
from pathlib import Path

import pytest
from tests.support.openai_stack import MODEL, OpenAIStack

from parrot_manager.core.model import SessionState

pytestmark = pytest.mark.anyio

FOLDER = Path(__file__).parents[3] / "examples" / "from_openai"
CHANGED_LINES = 15


def code(name: str) -> list[str]:
    """A program's lines, without what it says of itself."""
    return (FOLDER / name).read_text().split('"""', 2)[2].splitlines()


async def run(stack: OpenAIStack, name: str) -> str:
    """What a program prints."""
    env = {**os.environ, "OPENAI_BASE_URL": stack.url, "MODEL": MODEL}
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(FOLDER / name), "the moon", stdout=asyncio.subprocess.PIPE, env=env
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()


def test_few_lines_change() -> None:
    diff = list(difflib.ndiff(code("before.py"), code("after.py")))
    assert sum(line.startswith("+ ") for line in diff) <= CHANGED_LINES
    assert sum(line.startswith("- ") for line in diff) <= CHANGED_LINES


async def test_both_send_the_model_the_same_and_the_graph_is_one_session(stack: OpenAIStack) -> None:
    known = set(stack.manager.shell.machine.state.sessions)
    begun = len(stack.prompts())
    assert await run(stack, "before.py") == "Hello there\n"
    one_by_one = stack.prompts()[begun:]
    known |= set(stack.manager.shell.machine.state.sessions)

    begun = len(stack.prompts())
    assert await run(stack, "after.py") == "Hello there\n"

    assert sorted(stack.prompts()[begun:]) == sorted(one_by_one)
    (session,) = [
        live for name, live in stack.manager.shell.machine.state.sessions.items() if name not in known
    ]
    assert len(session.calls) == 4
    assert [sorted(call.input_ids) for call in session.calls.values()] == [
        [],
        ["draft"],
        ["draft"],
        ["draft", "history", "style"],
    ]
    assert session.session.state is SessionState.CLOSED
