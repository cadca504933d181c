"""The SDK against a real gateway: one request for many calls, reading in every way, errors that raise."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
from tests.support.engine import Pen
from tests.support.eventually import eventually
from tests.support.fake_manager import FakeManager
from tests.support.gateway import RunningGateway, running_gateway
from tests.support.nats import free_port

import parrot as P
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.values.bus import Bus

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_background")]
T = TypeVar("T")
TEXT = "w000 é 漢字 😀 \0 end"


@P.semantic_function
def say(x: P.Input, y: P.Output) -> None:
    """Say {{x}}: {{y}}"""


@P.semantic_function
def split(x: P.SemanticVariable) -> None:
    """{{input:x}} a: {{output:a}} b: {{output:b}}"""


async def in_thread(work: Callable[[], T]) -> T:
    """A synchronous program's result, while the gateway runs in this loop."""
    return await asyncio.to_thread(work)


async def batch_of(fake: FakeManager, count: int = 1) -> Any:
    """The last batch, once there are `count`."""
    await eventually(lambda: len(fake.batches) >= count)
    return fake.batches[-1]


@asynccontextmanager
async def answering(fake: FakeManager) -> AsyncIterator[None]:
    """Gives every output the text "<name>!" as soon as it is asked for."""

    async def answer() -> None:
        done = 0
        while True:
            for batch in fake.batches[done:]:
                done += 1
                for call in batch.calls:
                    for segment in call.segments:
                        if segment.WhichOneof("piece") == "output":
                            fake.finish(
                                batch.session_id, segment.output.variable_id, segment.output.name + "!"
                            )
            await asyncio.sleep(0.001)  # The client's thread sends them.

    task = asyncio.create_task(answer())
    try:
        yield
    finally:
        task.cancel()


async def test_calls_made_before_the_first_wait_travel_in_one_request(
    fake: FakeManager, gateway: RunningGateway
) -> None:
    doc = P.variable("doc", "long text")

    def program() -> tuple[str, ...]:
        with P.Session(gateway.url, label="test"):
            firsts = [say(doc) for _ in range(3)]
            a, b = split(firsts[0])
            last = say(b, y=P.variable("last"))
            return (*(v.get() for v in firsts), a.get(), b.get(), last.get(), last.name)

    async with answering(fake):
        assert await in_thread(program) == ("y!", "y!", "y!", "a!", "b!", "y!", "last")
    (batch,) = fake.batches
    assert [call.name for call in batch.calls] == ["say", "say", "say", "split", "say"]
    assert [value.value for value in batch.values] == ["long text"]
    assert {call.segments[1].input.variable_id for call in batch.calls[:3]} == {doc.id}


async def test_asynchronous_programs_need_no_threads_of_their_own(
    fake: FakeManager, gateway: RunningGateway
) -> None:
    async with answering(fake), P.Session(gateway.url) as session:
        outputs = [say(str(number)) for number in range(20)]
        assert await asyncio.gather(*(output.aget() for output in outputs)) == ["y!"] * 20
        info = await session.ainfo()
        assert (info.state, len(info.calls), info.trace_id) == ("open", 20, session.trace_id)
        assert (info.calls[0].state, info.calls[0].e2e_ms, info.calls[0].output_tokens) == ("done", 40, 3)
        assert info.calls[0].dynamic_prefill_ms == 2.5
        assert info.calls[0].provenance is not None
        assert info.calls[0].provenance["dtype"] == "float32"
    assert len(fake.batches) == 1
    assert set(fake.traces) == {session.trace_id}
    assert fake.sessions[session.id].session.state == 3


async def test_a_synchronous_program_runs_beside_a_running_loop(
    fake: FakeManager, gateway: RunningGateway
) -> None:
    def notebook() -> str:
        async def cell() -> str:
            with P.Session(gateway.url):
                return str(say("a").get())

        return asyncio.run(cell())

    async with answering(fake):
        assert await in_thread(notebook) == "y!"


async def test_threads_share_a_session_that_is_passed_to_them(
    fake: FakeManager, gateway: RunningGateway
) -> None:
    def program() -> list[str]:
        found: list[str] = []
        with P.Session(gateway.url) as session:

            def work() -> None:
                with pytest.raises(P.SessionError, match="outside of any session"):
                    say("a")
                found.append(say("a", session=session).get())

            threads = [threading.Thread(target=work) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return found

    async with answering(fake):
        assert await in_thread(program) == ["y!"] * 8


async def test_a_stream_yields_the_text_as_it_is_written(
    fake: FakeManager, gateway: RunningGateway, bus: Bus
) -> None:
    async with P.Session(gateway.url) as session:
        output = say("a")
        stream = output.astream()
        first = asyncio.ensure_future(anext(stream))
        await batch_of(fake)
        fake.stream(session.id, output.id)
        pen = Pen(bus, session.id, output.id)
        text = ""
        for char in TEXT:
            await pen.write(char)
            text += await (first if not text else anext(stream))
        await pen.end()
        fake.finish(session.id, output.id, TEXT)
        assert [piece async for piece in stream] == []
        assert text == TEXT
        assert (await output.aget(), output.state) == (TEXT, "ready")
        assert [piece async for piece in output.astream()] == [TEXT]


async def test_a_stream_survives_its_gateway_without_gap_or_repeat(
    fake: FakeManager, manager: tuple[FakeManager, str], nats_url: str, bus: Bus
) -> None:
    port = str(free_port())
    pieces: list[str] = []
    read = asyncio.Event()
    loop = asyncio.get_running_loop()
    found: list[tuple[str, str]] = []

    def program() -> str:
        with P.Session(f"http://127.0.0.1:{port}") as session:
            output = say("a")
            found.append((session.id, output.id))
            for piece in output.stream():
                pieces.append(piece)
                loop.call_soon_threadsafe(read.set)
            return str(output.get())

    async with running_gateway(manager[1], nats_url, "--port", port, "--recheck-s", "0.1"):
        running = asyncio.create_task(in_thread(program))
        await batch_of(fake)
        fake.stream(*found[0])
        pen = Pen(bus, *found[0])
        await pen.write("one ", "two ")
        await read.wait()
    await pen.write("three ", "four")
    async with running_gateway(manager[1], nats_url, "--port", port):
        await pen.end()
        fake.finish(*found[0], pen.text)
        assert await running == "one two three four"
    assert "".join(pieces) == "one two three four"


async def test_failures_raise_in_whoever_reads(fake: FakeManager, gateway: RunningGateway) -> None:
    fault = Fault(
        errors.UPSTREAM_FAILED, "c-1 failed", call_id="c-2", cause_type="engine_lost", cause_call_id="c-1"
    )
    async with P.Session(gateway.url) as session:
        output = say("a")
        waiting = asyncio.create_task(output.aget())
        await batch_of(fake)
        fake.fail(session.id, output.id, fault)
        with pytest.raises(P.CallFailed, match="c-1 failed") as caught:
            await waiting
        error = caught.value
        assert (error.type, error.call_id, error.cause, error.cause_call_id) == (
            "upstream_failed",
            "c-2",
            "engine_lost",
            "c-1",
        )
        assert output.state == "failed"
        with pytest.raises(P.CallFailed):
            await anext(output.astream())


async def test_a_refused_batch_raises_at_each_of_its_outputs(
    fake: FakeManager, gateway: RunningGateway
) -> None:
    fake.refuse = Fault(errors.UNKNOWN_MODEL, "there is sim", field="calls[0].model")
    async with P.Session(gateway.url):
        first, second = say("a"), say("b")
        for output in (first, second):
            with pytest.raises(P.RequestRefused) as caught:
                await output.aget()
            error = caught.value
            assert (error.type, error.field, error.status) == ("unknown_model", "calls[0].model", 400)
        with pytest.raises(P.SessionError, match="was not accepted: unknown_model"):
            say(first)
        fake.refuse = None
        async with answering(fake):
            assert await say("c").aget() == "y!"


async def test_a_wait_ends_at_its_timeout_and_can_be_taken_up_again(
    fake: FakeManager, gateway: RunningGateway
) -> None:
    async with P.Session(gateway.url) as session:
        output = say("a")
        with pytest.raises(P.WaitTimeout):
            await output.aget(timeout=0.05)
        with pytest.raises(P.WaitTimeout):
            async for _ in output.astream(timeout=0.05):
                pass
        with pytest.raises(P.WaitTimeout):
            await output.aget(timeout=0)
        assert output.state == "pending"
        fake.finish(session.id, output.id, TEXT)
        assert await output.aget(timeout=0) == TEXT


async def test_a_call_waits_for_a_variable_that_is_set_later(
    fake: FakeManager, gateway: RunningGateway
) -> None:
    async with answering(fake), P.Session(gateway.url):
        question = P.variable("question")
        held, free = say(question), say("a")
        assert await free.aget() == "y!"
        with pytest.raises(P.SessionError, match="question"):
            await held.aget()
        question.set("why?")
        assert await held.aget() == "y!"
    assert [len(batch.calls) for batch in fake.batches] == [1, 1]


async def test_leaving_the_block_cancels_what_is_unfinished(
    fake: FakeManager, gateway: RunningGateway
) -> None:
    async with P.Session(gateway.url) as session:
        sent = say("a")
        await session.aflush()
        unsent = say("b")
    assert [len(batch.calls) for batch in fake.batches] == [1]
    assert fake.sessions[session.id].session.state == 5
    for output in (sent, unsent):
        with pytest.raises(P.SessionError, match="has ended"):
            await output.aget()


async def test_a_session_that_is_kept_goes_on_unless_the_block_failed(
    fake: FakeManager, gateway: RunningGateway
) -> None:
    async with P.Session(gateway.url, keep=True) as session:
        say("a")
    assert len(fake.batches) == 1
    assert fake.sessions[session.id].session.state == 1
    with pytest.raises(ZeroDivisionError):
        async with P.Session(gateway.url, keep=True) as session:
            1 / 0  # noqa: B018
    assert fake.sessions[session.id].session.state == 3


async def test_a_server_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARROT_URL", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(P.ServerUnavailable, match="parrot up"):
        await in_thread(lambda: P.Session(retry=0.2).open())


async def test_a_server_that_goes_away_ends_every_wait(
    fake: FakeManager, manager: tuple[FakeManager, str], nats_url: str
) -> None:
    async with running_gateway(manager[1], nats_url) as gateway:
        session = P.Session(gateway.url, retry=0.3)
        await in_thread(session.open)
        output = say("a", session=session)
        waiting = asyncio.create_task(output.aget())
        streaming = asyncio.ensure_future(anext(output.astream()))
        await batch_of(fake)
        gateway.stop.set()
        await gateway.task
        for task in (waiting, streaming):
            with pytest.raises(P.ServerUnavailable):
                await task
    with pytest.raises(P.ServerUnavailable):
        await in_thread(session.close)


async def test_the_key_is_sent_and_a_session_opens_once(gateway: RunningGateway) -> None:
    session = P.Session(gateway.url, api_key="k")
    assert session._client._headers()["Authorization"] == "Bearer k"
    with pytest.raises(P.SessionError, match="not open"):
        say("a", session=session)
    await in_thread(session.open)
    with pytest.raises(P.SessionError, match="opened before"):
        await in_thread(session.open)
    await in_thread(session.close)
    await in_thread(session.close)
