"""Baselines on vLLM's own server and the real model."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from parrot_bench.graphs import Application, Call, Ref, Text
from parrot_bench.systems import client, langchain
from parrot_bench.systems.base import Outcome, Settings, System

pytestmark = [pytest.mark.anyio, pytest.mark.vllm]

CHAIN = Application(
    "chain",
    (
        Call("first", (Text("The harbour master wrote down every ship that came in. " * 12),), 16),
        Call("second", (Text("Once more, in other words: "), Ref("first")), 12),
        Call("third", (Ref("second"), Text(" In short:"), Ref("first")), 8, streamed=True),
    ),
    ("third",),
)


async def started(system: System, stack: AsyncExitStack) -> System:
    """The system, which is stopped with the stack."""
    stack.push_async_callback(system.stop)
    await system.start(lambda line: None)
    return system


def check(outcome: Outcome) -> None:
    """It went as it should."""
    assert outcome.error == ""
    first, second, third = outcome.calls
    assert [call.output_tokens for call in outcome.calls] == [16, 12, 8]
    assert 0 <= first.start_ms < first.end_ms <= second.start_ms < second.end_ms <= third.start_ms
    assert third.first_ms is not None
    assert third.start_ms < third.first_ms < third.end_ms == outcome.e2e_ms
    assert outcome.outputs["third"]


@pytest.mark.timeout(240)
async def test_a_client_and_langchain_run_a_chain_on_one_server_and_get_the_same(tmp_path: Path) -> None:
    settings = Settings(tmp_path, dtype="float32", kv_cache_mib=512)
    async with AsyncExitStack() as stack:
        plain = await started(client.make("client", settings), stack)
        program = await started(langchain.make("langchain", settings), stack)
        assert plain.pids() == program.pids()
        cold, other, warm = [await system.run(CHAIN) for system in (plain, program, plain)]
    for outcome in (cold, other, warm):
        check(outcome)
    assert cold.outputs == other.outputs == warm.outputs
    # The server was used by both, but each finds only what it had computed itself.
    assert cold.calls[0].cached_tokens == 0
    assert (warm.calls[0].cached_tokens or 0) > 64
    assert cold.calls[0].prompt_tokens == other.calls[0].prompt_tokens > 100
