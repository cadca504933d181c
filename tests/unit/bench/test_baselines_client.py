"""A client's own execution of a graph, against a server that writes as many tokens as it is asked for."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from tests.support.counting_upstream import CountingUpstream, marked

from parrot_bench.graphs import Application, Call, Ref, Segment, Text
from parrot_bench.serving import Endpoints
from parrot_bench.systems import client, langchain
from parrot_bench.systems.base import Outcome, Settings, System, Unavailable

pytestmark = pytest.mark.anyio

FACTORIES: Final = dict.fromkeys(client.PLANS, client.make) | {"langchain": langchain.make}
BOTH = pytest.mark.parametrize("name", ["client", "langchain"])


def call(name: str, *reads: str, tokens: int = 3, text: str = "", streamed: bool = False) -> Call:
    """A call that marks its name, and reads others."""
    segments: list[Segment] = [Text(f"#{name} {text}"), *(Ref(read) for read in reads)]
    return Call(name, tuple(segments), tokens, streamed)


def application(*calls: Call, **more: Any) -> Application:
    """An application after its last call."""
    return Application("app", calls, (calls[-1].name,), **more)


MAP_REDUCE = application(
    *(call(f"map_{n}") for n in range(16)), call("reduce", *(f"map_{n}" for n in range(16)))
)


@pytest.fixture
async def upstream() -> AsyncIterator[CountingUpstream]:
    """A server."""
    async with CountingUpstream() as server:
        yield server


@asynccontextmanager
async def system(name: str, folder: Path, *upstreams: CountingUpstream) -> AsyncIterator[System]:
    """A baseline on servers that run."""
    settings = Settings(
        folder, engines=len(upstreams), endpoints=tuple(upstream.url for upstream in upstreams)
    )
    made = FACTORIES[name](name, settings)
    await made.start(lambda line: None)
    try:
        yield made
    finally:
        await made.stop()


async def run(name: str, folder: Path, upstream: CountingUpstream, application: Application) -> Outcome:
    """An application on a baseline."""
    async with system(name, folder, upstream) as made, asyncio.timeout(20):
        return await made.run(application)


def words(name: str, count: int = 3) -> str:
    """What the server writes."""
    return "".join(f"{name}.{number} " for number in range(count))


@BOTH
async def test_a_call_gets_the_exact_outputs_that_it_reads(
    name: str, tmp_path: Path, upstream: CountingUpstream
) -> None:
    outcome = await run(
        name, tmp_path, upstream, application(call("a"), call("b", "a", "a"), call("c", "b", "a"))
    )
    prompts = {marked(request): request["prompt"] for request in upstream.state.requests}
    assert prompts == {
        "a": "#a ",
        "b": "#b " + words("a") * 2,
        "c": "#c " + words("b") + words("a"),
    }
    assert outcome.error == ""
    assert outcome.outputs == {"c": words("c")}
    assert [each.name for each in outcome.calls] == ["a", "b", "c"]


@BOTH
async def test_all_that_is_ready_is_sent_at_once_and_what_reads_it_only_then(
    name: str, tmp_path: Path, upstream: CountingUpstream
) -> None:
    all_there = asyncio.Event()

    async def hold(request: dict[str, Any]) -> None:
        if upstream.state.open == 16:
            all_there.set()
        await all_there.wait()

    upstream.hold = hold
    outcome = await run(name, tmp_path, upstream, MAP_REDUCE)
    assert outcome.error == ""
    assert marked(upstream.state.requests[-1]) == "reduce"
    assert outcome.e2e_ms >= max(each.end_ms for each in outcome.calls if each.name == "reduce")


@BOTH
async def test_nothing_bounds_how_many_are_sent_at_once(
    name: str, tmp_path: Path, upstream: CountingUpstream
) -> None:
    count, all_there = 150, asyncio.Event()

    async def hold(request: dict[str, Any]) -> None:
        if upstream.state.open == count:
            all_there.set()
        await all_there.wait()

    upstream.hold = hold
    calls = [call(f"c{number}") for number in range(count)]
    outcome = await run(name, tmp_path, upstream, Application("app", tuple(calls), ("c0",)))
    assert outcome.error == ""
    assert len(outcome.calls) == count


@BOTH
async def test_a_branch_does_not_wait_for_another(
    name: str, tmp_path: Path, upstream: CountingUpstream
) -> None:
    other_done = asyncio.Event()

    async def hold(request: dict[str, Any]) -> None:
        if marked(request) == "revise_1":
            other_done.set()
        if marked(request) == "code_2":
            await other_done.wait()

    upstream.hold = hold
    files = [
        made
        for number in (1, 2)
        for made in (
            call(f"code_{number}", "design"),
            call(f"review_{number}", f"code_{number}"),
            call(f"revise_{number}", f"code_{number}", f"review_{number}"),
        )
    ]
    app = application(call("design"), *files, call("join", "revise_1", "revise_2"))
    assert (await run(name, tmp_path, upstream, app)).error == ""


@BOTH
async def test_just_so_many_tokens_are_asked_for_and_counted(
    name: str, tmp_path: Path, upstream: CountingUpstream
) -> None:
    outcome = await run(name, tmp_path, upstream, application(call("a", tokens=7), call("b", "a", tokens=1)))
    for bound in ("max_tokens", "min_tokens"):
        assert [request[bound] for request in upstream.state.requests] == [7, 1]
    assert all(request["ignore_eos"] and request["temperature"] == 0 for request in upstream.state.requests)
    assert [each.output_tokens for each in outcome.calls] == [7, 1]


@BOTH
async def test_only_what_the_application_streams_is_streamed(
    name: str, tmp_path: Path, upstream: CountingUpstream
) -> None:
    app = application(call("whole"), call("read", "whole", tokens=5, streamed=True))
    outcome = await run(name, tmp_path, upstream, app)
    streamed = {marked(request): bool(request.get("stream")) for request in upstream.state.requests}
    assert streamed == {"whole": False, "read": True}
    whole, read = outcome.calls
    assert whole.first_ms is None
    assert read.first_ms is not None
    assert whole.end_ms <= read.start_ms <= read.first_ms <= read.end_ms
    assert read.output_tokens == 5
    assert outcome.outputs == {"read": words("read", 5)}


FEWER = [{"text": "one "}, {"text": "two ", "finish_reason": "stop"}]
FAILURES: Final[dict[str, tuple[Any, str]]] = {
    "fewer": (FEWER, "2 tokens instead of 3|did not end by its length"),
    "refused": (
        [{"status": 503, "body": {"error": {"message": "the queue is full"}}}],
        "503.*the queue is full",
    ),
    "model-less": ([{"status": 400, "body": {"error": {"message": "no such model"}}}], "400.*no such model"),
    "closed": ([{"text": "one "}, {"close": True}], r"Error|error"),
    "no-json": ([{"raw": "data: {oops\n\n"}], "."),
    "no-object": ([{"raw": "data: []\n\n"}], "."),
    "deep": ([{"raw": "data: " + "[" * 100_000 + "\n\n"}], "."),
    "no-choices": ([{"raw": 'data: {"choices": null}\n\n'}], "."),
    "error-within": ([{"error": {"message": "out of memory"}}], "."),
}


@BOTH
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("failure", FAILURES)
async def test_a_failure_is_the_outcome_which_names_its_call(
    name: str, streamed: bool, failure: str, tmp_path: Path, upstream: CountingUpstream
) -> None:
    script, said = FAILURES[failure]
    upstream.define("bad", script)
    app = application(
        call("good"), call("broken", "good", text="script:bad ", streamed=streamed), call("after", "broken")
    )
    outcome = await run(name, tmp_path, upstream, app)
    assert "broken" in outcome.error
    assert "\n" not in outcome.error
    assert re.search(said, outcome.error), outcome.error
    assert [each.name for each in outcome.calls] == ["good"]
    assert all(marked(request) != "after" for request in upstream.state.requests)


async def test_an_answer_that_does_not_count_its_tokens_is_none(
    tmp_path: Path, upstream: CountingUpstream
) -> None:
    upstream.define(
        "bad", [{"text": "a"}, {"text": "b"}, {"text": "c", "finish_reason": "length"}, {"usage": None}]
    )
    for streamed in (False, True):
        outcome = await run(
            "client", tmp_path, upstream, application(call("a", text="script:bad", streamed=streamed))
        )
        assert "how many tokens" in outcome.error


@BOTH
async def test_what_runs_beside_a_failure_is_given_up(
    name: str, tmp_path: Path, upstream: CountingUpstream
) -> None:
    both_there = asyncio.Event()

    async def hold(request: dict[str, Any]) -> None:
        if upstream.state.open == 2:
            both_there.set()
        await both_there.wait()
        if marked(request) == "long":
            await asyncio.Event().wait()

    upstream.hold = hold
    upstream.define("bad", [{"status": 500, "body": "broken"}])
    app = application(call("long"), call("bad", text="script:bad"), call("join", "long", "bad"))
    async with system(name, tmp_path, upstream) as made, asyncio.timeout(20):
        outcome = await made.run(app)
        await upstream.until_idle()
    assert "500" in outcome.error
    assert upstream.state.left_early == 1


async def test_a_server_that_goes_is_an_outcome_too(tmp_path: Path) -> None:
    for name in ("client", "langchain"):
        async with CountingUpstream() as upstream:
            leaving = system(name, tmp_path, upstream)
            made = await leaving.__aenter__()
        outcome = await made.run(application(call("a")))
        await leaving.__aexit__(None, None, None)
        assert "call a" in outcome.error


@BOTH
async def test_a_run_that_is_cancelled_leaves_nothing_open(
    name: str, tmp_path: Path, upstream: CountingUpstream
) -> None:
    there = asyncio.Event()

    async def hold(request: dict[str, Any]) -> None:
        if upstream.state.open == 16:
            there.set()
        await asyncio.Event().wait()

    upstream.hold = hold
    async with system(name, tmp_path, upstream) as made, asyncio.timeout(20):
        running = asyncio.create_task(made.run(MAP_REDUCE))
        await there.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await upstream.until_idle()
    assert upstream.state.left_early == 16


async def test_only_a_client_with_priorities_sends_them(tmp_path: Path, upstream: CountingUpstream) -> None:
    batch = application(call("batch"), objective="throughput")
    chat = application(call("chat"), objective="ttft")
    async with system("client-priority", tmp_path, upstream) as made:
        for app in (batch, chat):
            await made.run(app)
    first, second = upstream.state.requests
    assert second["priority"] < first["priority"]
    await run("client", tmp_path, upstream, chat)
    assert "priority" not in upstream.state.requests[-1]


async def test_systems_on_the_same_servers_do_not_warm_one_another(
    tmp_path: Path, upstream: CountingUpstream
) -> None:
    for name in ("client", "client-priority", "langchain"):
        await run(name, tmp_path, upstream, application(call("a")))
    salts = [request["cache_salt"] for request in upstream.state.requests]
    assert len(set(salts)) == 3


@pytest.mark.parametrize("name", ["client-round-robin", "client-prefix-aware", "client", "langchain"])
async def test_several_engines_share_the_calls(name: str, tmp_path: Path, upstream: CountingUpstream) -> None:
    async with CountingUpstream() as second:
        there = asyncio.Event()

        async def hold(request: dict[str, Any]) -> None:
            if upstream.state.open + second.state.open == 16:
                there.set()
            await there.wait()

        upstream.hold = second.hold = hold
        async with system(name, tmp_path, upstream, second) as made, asyncio.timeout(20):
            outcome = await made.run(MAP_REDUCE)
        engines = {each.engine for each in outcome.calls}
        maps = [
            sum(marked(request) != "reduce" for request in server.state.requests)
            for server in (upstream, second)
        ]
    assert outcome.error == ""
    assert engines == {"0", "1"}
    assert maps == [8, 8]


@pytest.mark.parametrize(
    ("name", "urls", "more", "why"),
    [
        ("client", (), {"backend": "sim"}, "needs vLLM"),
        ("langchain", (), {"backend": "sim"}, "needs vLLM"),
        ("client-round-robin", ("http://127.0.0.1:9/v1",), {}, "--engines 2"),
        ("client-prefix-aware", (), {}, "--engines 2"),
        ("client", ("http://127.0.0.1:9/v1",) * 2, {}, "--engines 2"),
        ("client-round-robin", ("http://127.0.0.1:9/v1",), {"engines": 2}, "--engines 1"),
        ("langchain", ("http://127.0.0.1:9/v1",), {"engines": 3}, "--engines 1"),
        ("client-ngram", ("http://127.0.0.1:9/v1",), {}, "ngram"),
        ("client-small-batch", ("http://127.0.0.1:9/v1",), {}, "steps-of"),
        ("client", ("http://127.0.0.1:9/v1",), {}, "names no model"),
        ("client", ("http://[oops/v1",), {}, "names no model"),
        ("client", ("nowhere",), {}, "names no model"),
    ],
)
async def test_a_system_that_cannot_run_says_why_and_can_be_stopped(
    name: str, urls: tuple[str, ...], more: dict[str, Any], why: str, tmp_path: Path
) -> None:
    made = FACTORIES[name](name, Settings(tmp_path, endpoints=urls, **more))
    with pytest.raises(Unavailable, match=why):
        await made.start(lambda line: None)
    await made.stop()
    await made.stop()
    assert made.pids() == frozenset()


async def test_a_start_that_fails_late_leaves_nothing_started(
    tmp_path: Path, upstream: CountingUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[str] = []

    @asynccontextmanager
    async def endpoints(*_: object) -> AsyncIterator[Endpoints]:
        served.append("up")
        yield Endpoints((upstream.url,), "counting")
        served.append("down")

    def connect(self: langchain.LangChain, http: object) -> None:
        raise ValueError("no such setting")

    monkeypatch.setattr(client, "endpoints", endpoints)
    monkeypatch.setattr(langchain.LangChain, "connect", connect)
    with pytest.raises(ValueError, match="no such setting"):
        await langchain.make("langchain", Settings(tmp_path)).start(lambda line: None)
    assert served == ["up", "down"]


async def test_a_system_can_be_started_again(tmp_path: Path, upstream: CountingUpstream) -> None:
    made = client.make("client", Settings(tmp_path, endpoints=(upstream.url,)))
    for _ in range(2):
        await made.start(lambda line: None)
        assert (await made.run(application(call("a")))).error == ""
        await made.stop()
