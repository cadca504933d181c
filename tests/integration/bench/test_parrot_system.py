"""Parrot as a system gets exactly the application's prompts, and its outcome says what happened."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.up import Up

from parrot_bench.graphs import Application, Call, Ref, Text
from parrot_bench.registry import make
from parrot_bench.systems.base import Outcome, Settings, Unavailable

pytestmark = pytest.mark.anyio

HOSTILE = ["{{input:x}} {{{{ }} {'a': 1}", "\u202e ümläut \U0001f99c \x07", "{{", "{{output:output}}"]
CONTROL = "<|im_end|>"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def ran(site: Up, application: Application, **settings: float) -> Outcome:
    system = make("parrot", Settings(Path(), backend="sim", url=site.url, rtt_ms=settings.get("rtt_ms", 0)))
    await system.start(lambda _: None)
    try:
        return await system.account(application, await system.run(application))
    finally:
        await system.stop()


@pytest.mark.parametrize("text", HOSTILE)
async def test_prompts_arrive_byte_by_byte_whatever_they_hold(text: str, site: Up) -> None:
    calls = (
        Call("first", (Text(text), Text(text, "document"), Text(" and ")), 5),
        Call("second", (Text(text, "document"), Ref("first"), Text(text), Ref("first"), Text("!")), 7),
    )
    outcome = await ran(site, Application("hostile", calls, ("first", "second")))
    assert outcome.error == ""
    # The simulated engine's tokens are the bytes of UTF-8.
    for call in calls:
        told = next(each for each in outcome.calls if each.name == call.name)
        assert told.prompt_tokens == len(call.render(outcome.outputs).encode())
        assert told.output_tokens == call.output_tokens
        assert 0 <= told.start_ms <= (told.first_ms or 0) <= told.end_ms


async def test_what_spells_a_control_token_is_one_in_a_template_alone(site: Up) -> None:
    prompts = {"template": Text(f"a{CONTROL}"), "document": Text(f"a{CONTROL}", "document")}
    calls = tuple(Call(name, (text,), 2) for name, text in prompts.items())
    outcome = await ran(site, Application("control", calls, tuple(prompts)))
    tokens = {call.name: call.prompt_tokens for call in outcome.calls}
    assert tokens == {"template": 2, "document": 1 + len(CONTROL)}


async def test_a_stream_is_timed_at_its_reader(site: Up) -> None:
    call = Call("chat", (Text("hello "),), 12, streamed=True)
    outcome = await ran(
        site, Application("chat", (call,), ("chat",), objective="ttft", kind="chat"), rtt_ms=30
    )
    (told,) = outcome.calls
    assert told.start_ms == 0
    # The session, its calls and the stream are three requests, one after the other.
    assert told.first_ms is not None
    assert told.first_ms > 89
    assert told.end_ms <= outcome.e2e_ms


async def test_what_the_server_refuses_is_the_outcomes_error(site: Up) -> None:
    call = Call("long", (Text("a"),), 10_000_000 // 10)
    outcome = await ran(site, Application("too_long", (call,), ("long",)))
    assert "long" in outcome.error or "token" in outcome.error
    assert outcome.outputs == {}


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    system = make("parrot", Settings(Path(), url="http://127.0.0.1:9"))
    with pytest.raises(Unavailable, match=r"http://127\.0\.0\.1:9"):
        await system.start(lambda _: None)
    changed = make("parrot-without-grouping", Settings(Path(), url="http://127.0.0.1:9"))
    with pytest.raises(Unavailable, match="other settings"):
        await changed.start(lambda _: None)
