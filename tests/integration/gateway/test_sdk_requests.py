"""What the SDK asks of a server, and how often: once, whatever gets lost, over few connections."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import pytest
from tests.integration.gateway.test_sdk_session import answering, in_thread, say
from tests.support.eventually import eventually
from tests.support.fake_manager import FakeManager
from tests.support.gateway import RunningGateway
from tests.support.lossy import lossy

import parrot as P
from parrot import batch
from parrot_proto.manager.v1 import manager_pb2 as pb
from parrot_runtime import errors
from parrot_runtime.errors import Fault

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_background")]


async def test_what_was_done_unheard_is_done_once(fake: FakeManager, gateway: RunningGateway) -> None:
    async with lossy(gateway.url) as network, answering(fake):
        network.lose = 1
        async with P.Session(network.url) as session:
            assert len(fake.sessions) == network.lost == 1
            network.lose = 2
            assert await say("a").aget() == "y!"
            assert (len(fake.batches), network.lost) == (1, 3)
            network.lose = 1
            assert (await session.ainfo()).state == "open"
            network.lose = 1
        assert fake.sessions[session.id].session.state == 3
        assert network.lost == 5


async def test_a_value_that_was_set_unheard_is_no_conflict(
    fake: FakeManager, gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "BATCH_BYTES", 64)
    async with lossy(gateway.url) as network, answering(fake), P.Session(network.url):
        network.lose = 1
        assert await say(P.variable("long", "a" * 100)).aget() == "y!"
        assert network.lost == 1


async def test_a_server_that_is_busy_is_asked_again_when_it_says(
    fake: FakeManager, gateway: RunningGateway
) -> None:
    async with answering(fake), P.Session(gateway.url):
        fake.refuse = Fault(errors.QUEUE_FULL, "too much", retry_after_ms=1000)
        began = asyncio.get_running_loop().time()
        waiting = asyncio.create_task(say("a").aget())
        await eventually(lambda: fake.refused_batches > 0)
        fake.refuse = None
        assert await waiting == "y!"
        assert asyncio.get_running_loop().time() - began >= 1.0
        assert fake.refused_batches == 1


async def test_a_server_that_stays_busy_is_named_with_its_advice(
    fake: FakeManager, gateway: RunningGateway
) -> None:
    async with P.Session(gateway.url):
        fake.refuse = Fault(errors.QUEUE_FULL, "too much", retry_after_ms=60_000)
        with pytest.raises(P.RequestRefused, match="queue_full") as caught:
            await say("a").aget()
        assert (caught.value.retry_after_s, caught.value.may_retry, caught.value.status) == (60, True, 429)


async def test_an_application_says_how_long_it_waits_for_a_busy_server(
    fake: FakeManager, gateway: RunningGateway
) -> None:
    fake.refuse = Fault(errors.QUEUE_FULL, "too much", retry_after_ms=1000)
    async with P.Session(gateway.url, retry=0) as session:
        with pytest.raises(P.RequestRefused, match="queue_full"):
            await say("a").aget()
    assert fake.refused_batches == 1
    assert session.id


async def test_sessions_share_their_connections(fake: FakeManager, gateway: RunningGateway) -> None:
    async with lossy(gateway.url) as network, answering(fake):

        def program() -> None:
            for _ in range(5):
                with P.Session(network.url):
                    assert say("a").get() == "y!"

        await in_thread(program)
        assert network.connections == 1
        await asyncio.gather(*(in_thread(program) for _ in range(3)))
        assert network.connections <= 4


async def test_what_is_wanted_reaches_the_manager(fake: FakeManager, gateway: RunningGateway) -> None:
    async with answering(fake):
        async with P.Session(gateway.url, criteria=P.Deadline(60), lazy=True) as session:
            made = fake.sessions[session.id].session
            assert made.lazy
            assert made.criteria.kind == pb.OBJECTIVE_KIND_DEADLINE
            assert await say("a").aget(P.THROUGHPUT) == "y!"
            assert await say("b").aget(perf="ttft") == "y!"
            assert await say("c").aget(P.Deadline(5), timeout=30) == "y!"
            assert "".join([piece async for piece in say("d").astream(P.LATENCY)]) == "y!"
        kinds = [criteria.kind for criteria in fake.criteria if criteria.kind]
        assert set(kinds) == {
            pb.OBJECTIVE_KIND_THROUGHPUT,
            pb.OBJECTIVE_KIND_TTFT,
            pb.OBJECTIVE_KIND_DEADLINE,
            pb.OBJECTIVE_KIND_LATENCY,
        }


async def test_an_output_that_was_skipped_says_so(fake: FakeManager, gateway: RunningGateway) -> None:
    async with P.Session(gateway.url) as session:
        output, after = say("a"), say("b")
        await session.aflush()
        fault = Fault(errors.SKIPPED, "its condition does not hold", call_id="c-1")
        follows = Fault(errors.UPSTREAM_FAILED, "skipped", cause_type="skipped", cause_call_id="c-1")
        fake.cancel(session.id, output.id, fault)
        fake.cancel(session.id, after.id, follows)
        for variable in (output, after):
            with pytest.raises(P.Skipped) as caught:
                await variable.aget()
            assert caught.value.cause_call_id == "c-1"
            assert variable.state == "cancelled"


async def test_a_cancel_names_the_call_once(fake: FakeManager, gateway: RunningGateway) -> None:
    async with P.Session(gateway.url) as session, P.Session(gateway.url) as other:
        first, second = say("a", session=session), say("b", session=session)
        await session.acancel(first, first, subtree=False)
        calls = fake.sessions[session.id].calls
        assert [call.state for call in calls] == [8, 5]
        await session.variable(second.id).acancel()
        assert calls[1].state == 8
        with pytest.raises(P.SessionError, match="no call of this session"):
            await other.acancel(first)
        with pytest.raises(ValueError, match="the id of a call"):
            await session.acancel("c/1")


async def test_calls_can_be_sent_without_a_wait(fake: FakeManager, gateway: RunningGateway) -> None:
    async with P.Session(gateway.url) as session:
        output = say("a")
        session._flush_soon()
        await eventually(lambda: len(fake.batches) == 1)
        fake.refuse = Fault(errors.UNKNOWN_MODEL, "there is sim")
        refused = say("b")
        session._flush_soon()
        await eventually(lambda: refused.state == "failed")
        with pytest.raises(P.RequestRefused):
            await refused.aget()
        assert output.state == "pending"


FORKING = """
import os, sys
import parrot as P

say = P.define("say", "Say {{x}}: {{output:y}}")
with P.Session(sys.argv[1]):
    assert say("a").get() == "y!"
    child = os.fork()
    if not child:
        with P.Session(sys.argv[1]):
            os._exit(0 if say("b").get() == "y!" else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert say("c").get() == "y!"
"""


async def test_a_forked_process_has_connections_of_its_own(
    fake: FakeManager, gateway: RunningGateway
) -> None:
    async with answering(fake):
        done = await asyncio.create_subprocess_exec(sys.executable, "-c", FORKING, gateway.url)
        assert await done.wait() == 0
    assert len(fake.sessions) == 2


@pytest.mark.parametrize("read", [lambda v: v.get(), lambda v: next(v.stream())])
async def test_the_sdks_own_loop_refuses_to_wait_for_itself(
    gateway: RunningGateway, read: Callable[[P.SemanticVariable], str]
) -> None:
    async with P.Session(gateway.url) as session:
        output = say("a")
        errors_seen: list[BaseException] = []

        async def inside() -> None:
            try:
                read(output)
            except P.SessionError as error:
                errors_seen.append(error)

        from parrot.background import background

        await background().arun(inside())
        assert "must not wait" in str(errors_seen[0])
        assert session.id


@pytest.mark.parametrize(
    ("head", "body", "says"),
    [
        ("200 OK", "<html>", "something else than what a Parrot server says"),
        ("200 OK", "[1]", "something else than what a Parrot server says"),
        ("301 Moved", "<html>", "http_301: HTTP 301 .* without a reason"),
        ("404 Not Found", "<html>", "http_404"),
        ("429 Too Many\r\nRetry-After: 60", "", "http_429"),
    ],
)
async def test_a_server_that_is_none_of_ours_is_told_apart(head: str, body: str, says: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {head}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(P.RequestRefused, match=says):
            await P.Session(f"http://127.0.0.1:{port}").aopen()


async def test_a_stream_whose_server_is_gone_ends_by_its_timeout(
    fake: FakeManager, gateway: RunningGateway
) -> None:
    async with lossy(gateway.url) as network:
        session = await P.Session(network.url).aopen()
        output = say("a", session=session)
        await session.aflush()
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(P.WaitTimeout, match=r"did not come within 0\.3 s"):
        async for _ in output.astream(timeout=0.3):
            pass
    with pytest.raises(P.WaitTimeout):
        await output.aget(timeout=0.3)
    assert loop.time() - began < 5
