"""Functions in a sandbox: they make texts of texts, one beside the other, and what is wrong is told."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
from tests.support.manager import eventually
from tests.support.sandboxes import (
    MEMORY_BYTES,
    MIB,
    all_gone,
    function,
    made,
    processes_of,
    refused,
    running_sandbox,
)

from parrot_engine.backends.base import BackendError, UnsupportedError
from parrot_engine.sampling import Sampling
from parrot_engine.sandbox.backend import SandboxBackend, SandboxOptions
from parrot_engine.sandbox.slots import Function
from parrot_runtime import errors
from parrot_runtime.errors import Fault

pytestmark = pytest.mark.anyio


@pytest.fixture
async def sandbox() -> AsyncIterator[SandboxBackend]:
    """A sandbox."""
    async with running_sandbox() as made_sandbox:
        yield made_sandbox


async def test_a_function_makes_texts_of_texts(sandbox: SandboxBackend) -> None:
    source = (
        "import json, re\n\ndef f(text, n):\n    return json.dumps(re.findall('[a-z]+', text) * int(n))\n"
    )
    assert await made(sandbox, source, text="one, two", n="2") == '["one", "two", "one", "two"]'
    text = "漢 😀 \0 {{x}} \\ \" ' \n"
    assert await made(sandbox, "def f(text):\n    return text", text=text) == text


async def test_several_outputs_are_a_dict(sandbox: SandboxBackend) -> None:
    asked = Function(
        "def halves(text):\n    n = len(text) // 2\n    return {'b': text[n:], 'a': text[:n]}",
        "halves",
        {"text": "abcd"},
        ("a", "b"),
        1,
        MEMORY_BYTES,
    )
    assert await sandbox.run(asked) == {"a": "ab", "b": "cd"}


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("def f():\n    return 5", "it returns int; it has to return a str"),
        ("def f():\n    return {'in': 'x'}", "it returns dict"),
        ("def f():\n    return {'out': 5}", "it returns dict"),
        ("def f():\n    return [[0] * 10 for _ in range(10)]", "it returns list"),
        ("class A: pass\n\ndef f():\n    return A()", "it has to return a str"),
        ("def f():\n    pass", "it returns NoneType"),
        ("def f():\n    x = 1\n    raise ValueError('no such thing')", "ValueError: no such thing (line 3)"),
        ("def f():\n    return 1 / 0", "ZeroDivisionError"),
        ("def g():\n    return ''", "name 'f' is not defined"),
        ("def f(x):\n    return x", "TypeError"),
        ("def f(:\n    return ''", "SyntaxError"),
        ("(" * 50_000, "SyntaxError"),
        ("def f():\n    return f()", "RecursionError"),
    ],
)
async def test_what_is_wrong_with_a_function_is_told(sandbox: SandboxBackend, source: str, why: str) -> None:
    fault = await refused(sandbox, function(source))
    assert fault.kind is errors.NATIVE_FAILED
    assert fault.message.startswith("the function f: ")
    assert why in fault.message


async def _run(sandbox: SandboxBackend, functions: int) -> bool:
    """Whether so many run: each in a process of its own, beside the one that looks after it."""
    return sandbox.stats().running == functions and len(processes_of(sandbox)) >= 2 * functions


async def test_whoever_does_not_wait_stops_the_function(sandbox: SandboxBackend) -> None:
    running = asyncio.create_task(sandbox.run(function("def f():\n    while True:\n        pass")))
    await eventually(lambda: _run(sandbox, 1))
    before = processes_of(sandbox)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await eventually(lambda: all_gone(before))
    assert await made(sandbox, "def f():\n    return 'next'") == "next"


async def test_a_process_that_dies_fails_its_function_alone(sandbox: SandboxBackend) -> None:
    endless = function("def f():\n    while True:\n        pass")
    running = [asyncio.create_task(sandbox.run(endless)) for _ in range(2)]
    await eventually(lambda: _run(sandbox, 2))
    first = sandbox._slots[0]._process
    assert first is not None
    os.kill(first.pid, 9)
    done, _ = await asyncio.wait(running, timeout=20, return_when=asyncio.FIRST_COMPLETED)
    failure = done.pop().exception()
    assert isinstance(failure, Fault)
    assert "took the sandbox's process down" in failure.message
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    assert await made(sandbox, "def f():\n    return 'next'") == "next"


async def test_functions_run_side_by_side_and_more_wait(sandbox: SandboxBackend) -> None:
    source = "def f(n):\n    return str(sum(range(int(n))))"
    texts = await asyncio.gather(*(made(sandbox, source, n=str(n)) for n in range(1, 9)))
    assert texts == [str(sum(range(n))) for n in range(1, 9)]
    assert len({process.pid for process in processes_of(sandbox)}) <= 4


async def test_a_sandbox_takes_no_prompts(sandbox: SandboxBackend) -> None:
    with pytest.raises(UnsupportedError):
        await sandbox.fill([1], "c")
    with pytest.raises(UnsupportedError):
        sandbox.generate(Sampling(max_tokens=1), "c")


async def test_a_sandbox_that_can_not_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parrot_engine.sandbox.slots.sys.executable", "/bin/false")
    made_sandbox = SandboxBackend(SandboxOptions(capacity=1, timeout_s=1, memory_bytes=MIB))
    with pytest.raises(BackendError, match="does not start"):
        await made_sandbox.start()
