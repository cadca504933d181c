"""A server that does what it should not is an error with its cause, never an end that it did not send."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.eventually import eventually
from tools.scripted_upstream import ScriptedUpstream

from parrot_engine.backends.base import BackendDeadError, BackendError, Step, UnsupportedError
from parrot_engine.backends.openai import OpenAIBackend, OpenAIOptions
from parrot_engine.sampling import Guide, Sampling

pytestmark = pytest.mark.anyio

HARBOUR = ["The ", "harbour ", "opens ", "at ", "dawn and "]
FIVE = [{"text": text} for text in HARBOUR]
PLAIN = Sampling(max_tokens=1000)
FAST = OpenAIOptions(
    base_url="",
    model="scripted",
    start_timeout_s=5,
    silence_timeout_s=0.2,
    retry_within_s=1,
    retry_first_s=0.001,
    health_every_s=0.01,
    dead_after_s=0.05,
)


@asynccontextmanager
async def backend_on(upstream: ScriptedUpstream, **changes: Any) -> AsyncIterator[OpenAIBackend]:
    options = replace(FAST, base_url=upstream.url, **{"health_every_s": 60.0} | changes)
    backend = OpenAIBackend(options)
    await backend.start()
    try:
        yield backend
    finally:
        await backend.stop()


@pytest.fixture
async def upstream() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream() as made:
        yield made


@pytest.fixture
async def backend(upstream: ScriptedUpstream) -> AsyncIterator[OpenAIBackend]:
    async with backend_on(upstream) as made:
        yield made


async def output(
    backend: OpenAIBackend, sampling: Sampling = PLAIN, prompt: str = "Tell", context_id: str = "c"
) -> list[Step]:
    await backend.fill(backend.tokenizer.encode_template(prompt), context_id)
    async with aclosing(backend.generate(sampling, context_id)) as steps:
        return [step async for step in steps]


async def until_failed(backend: OpenAIBackend, sampling: Sampling = PLAIN) -> tuple[list[Step], BackendError]:
    """The steps before the error, and the error."""
    steps: list[Step] = []
    await backend.fill(b"Tell", "c")
    with pytest.raises(BackendError) as raised:  # noqa: PT012
        async with aclosing(backend.generate(sampling, "c")) as generated:
            async for step in generated:
                steps.append(step)  # noqa: PERF401  (what came before the error is wanted)
    return steps, raised.value


def text_of(steps: list[Step]) -> str:
    return "".join(step.text for step in steps)


async def test_what_the_server_streams_is_the_output(
    upstream: ScriptedUpstream, backend: OpenAIBackend
) -> None:
    upstream.define("default", [{"text": "w{n:03d} ", "repeat": 500}])
    steps = await output(backend)
    assert text_of(steps) == "".join(f"w{number:03d} " for number in range(500))
    assert [step.finish_reason for step in steps] == [None] * (len(steps) - 1) + ["stop"]
    assert steps[-1].context_tokens == len("Tell") + 2500
    assert (await backend.fill((), "c")).context_tokens == len("Tell") + 2500


@pytest.mark.parametrize("count", [5, 0], ids=["after five chunks", "before the first"])
@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ({"reset": True}, "broke the output off: Read"),
        ({"close": True}, "broke the output off: RemoteProtocolError"),
        ({"end": True}, "ended the stream before"),
        ({"raw": "data: [DONE]\n\n"}, "ended the stream before"),
        ({"wait_s": 60}, "broke the output off: ReadTimeout"),
        ({"error": {"message": "out of memory", "code": 500}}, "out of memory"),
        ({"error": "x" * 20_000}, "20,000 characters"),
        ({"raw": "data: {oops\n\n"}, "not JSON"),
        ({"raw": 'data: "text"\n\n'}, "no completion chunk"),
        ({"raw": 'data: {"id": 1}\n\n'}, "no completion chunk"),
        ({"raw": 'data: {"choices": [{"text": 5}]}\n\n'}, "no completion chunk"),
        ({"raw": 'data: {"choices": {"text": "x"}}\n\n'}, "no completion chunk"),
        ({"raw": f"data: {'[' * 100_000}\n\n"}, "not JSON"),
        ({"raw": "data: \xff\xfe\n\n"}, "not JSON"),
        ({"finish_reason": "content_filter", "text": ""}, "content_filter"),
        ({"finish_reason": ["stop"], "text": ""}, "no completion chunk"),
    ],
    ids=lambda value: json.dumps(value)[:30] if isinstance(value, dict) else "",
)
async def test_a_stream_that_breaks_is_an_error_with_its_cause_and_no_end(
    upstream: ScriptedUpstream, backend: OpenAIBackend, count: int, fault: dict[str, Any], cause: str
) -> None:
    upstream.define("default", [*FIVE[:count], fault])
    steps, error = await until_failed(backend)
    assert text_of(steps) == "".join(HARBOUR[:count])
    assert all(step.finish_reason is None for step in steps)
    assert cause in str(error)
    assert len(str(error)) < 1000
    assert not isinstance(error, BackendDeadError)
    # The context is as it was, and others are not touched.
    assert (await backend.fill((), "c")).context_tokens == len("Tell")
    upstream.define("default", [{"text": "fine"}])
    assert text_of(await output(backend, context_id="d")) == "fine"


@pytest.mark.parametrize(
    "behind", [{"reset": True}, {"close": True}, {"end": True}, {"wait_s": 60}, {"comment": "bye"}]
)
async def test_an_output_that_has_ended_stays_so_whatever_comes_behind(
    upstream: ScriptedUpstream, behind: dict[str, Any]
) -> None:
    upstream.define("default", [{"text": "all of it"}, {"text": "", "finish_reason": "length"}, behind])
    async with backend_on(upstream) as backend:
        steps = await output(backend)
    assert (text_of(steps), steps[-1].finish_reason) == ("all of it", "length")


@pytest.mark.parametrize("refusal", [{"status": 429}, {"status": 500}, {"status": 503, "body": "busy"}])
async def test_a_server_that_is_busy_is_asked_again(
    upstream: ScriptedUpstream, backend: OpenAIBackend, refusal: dict[str, Any]
) -> None:
    upstream.define("default", {"in_turn": [[refusal], [refusal], FIVE]})
    assert text_of(await output(backend)) == "".join(HARBOUR)
    assert len(upstream.state.requests) == 3


async def test_a_server_that_stays_busy_is_an_error_within_the_bound(
    upstream: ScriptedUpstream, backend: OpenAIBackend
) -> None:
    upstream.define("default", [{"status": 503, "body": {"error": {"message": "overloaded"}}}])
    steps, error = await until_failed(backend)
    assert steps == []
    assert "503 overloaded" in str(error)
    assert len(upstream.state.requests) > 3


async def test_a_server_that_wants_to_be_asked_much_later_is_not_waited_for(
    upstream: ScriptedUpstream, backend: OpenAIBackend
) -> None:
    upstream.define("default", [{"status": 429, "headers": {"Retry-After": "3600"}, "body": "later"}])
    _, error = await until_failed(backend)
    assert "429 later" in str(error)
    assert len(upstream.state.requests) == 1


@pytest.mark.parametrize(
    ("refusal", "cause"),
    [
        ({"status": 400, "body": {"error": {"message": "the prompt is too long"}}}, "400 the prompt is too"),
        ({"status": 401, "body": {"message": "no such key"}}, "401 no such key"),
        ({"status": 404, "body": "x" * 100_000}, "characters"),
        ({"status": 307, "headers": {"Location": "http://127.0.0.1:1/"}}, "307"),
        ({"status": 200, "body": {"choices": [{"text": "whole"}]}}, "application/json"),
        ({"status": 204}, "204"),
    ],
    ids=lambda value: str(value["status"]) if isinstance(value, dict) else "",
)
async def test_a_refusal_for_good_is_not_tried_again(
    upstream: ScriptedUpstream, backend: OpenAIBackend, refusal: dict[str, Any], cause: str
) -> None:
    upstream.define("default", [refusal])
    steps, error = await until_failed(backend)
    assert steps == []
    assert cause in str(error)
    assert len(str(error)) < 1000
    assert len(upstream.state.requests) == 1


async def test_closing_an_output_closes_the_connection(
    upstream: ScriptedUpstream, backend: OpenAIBackend
) -> None:
    upstream.define("default", [*FIVE, {"wait_s": 60}])
    await backend.fill(b"Tell", "c")
    async with aclosing(backend.generate(PLAIN, "c")) as steps:
        await anext(steps)
        assert backend.stats().running == upstream.state.open == 1
    assert backend.stats().running == 0
    await eventually(lambda: (upstream.state.open, upstream.state.left_early) == (0, 1))
    await backend.free_context("c")


async def test_cancelling_while_the_server_thinks_closes_the_connection(
    upstream: ScriptedUpstream, backend: OpenAIBackend
) -> None:
    upstream.define("default", [{"wait_s": 60}])
    reader = asyncio.create_task(output(backend))
    await eventually(lambda: upstream.state.open == 1)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    await eventually(lambda: upstream.state.left_early == 1)
    await backend.free_context("c")


async def test_a_stop_text_across_chunks_ends_the_output_and_lets_the_server_go(
    upstream: ScriptedUpstream, backend: OpenAIBackend
) -> None:
    upstream.define("default", [*FIVE, {"wait_s": 60}])
    steps = await output(backend, Sampling(max_tokens=100, stop=("ns at", "never")))
    assert (text_of(steps), steps[-1].finish_reason) == ("The harbour ope", "stop_text")
    assert steps[-1].context_tokens == len("Tell" + "The harbour ope")
    assert "stop" not in upstream.state.requests[0]
    await eventually(lambda: upstream.state.left_early == 1)


async def test_a_stop_text_before_min_tokens_does_not_count(
    upstream: ScriptedUpstream, backend: OpenAIBackend
) -> None:
    upstream.define("default", [*FIVE, *FIVE])
    steps = await output(backend, Sampling(max_tokens=100, min_tokens=4, stop=("harbour", "opens")))
    assert text_of(steps) == "".join(HARBOUR) + "The "
    assert upstream.state.requests[0]["min_tokens"] == 4


@pytest.mark.parametrize(
    ("chunks", "text"),
    [
        (["漢", "字", "é", "🦜"], "漢字é🦜"),
        (["a\u2028b", "\x85c\x0bd\x1ce\r\nf"], "a\u2028b\x85c\x0bd\x1ce\r\nf"),
        (["left\0right"], "left\0right"),
        (["tail \ud83d", "\ude00 head"], "tail 😀 head"),
        (["tail \ud83d", " head"], "tail \ufffd head"),
        (["tail \ud83d"], "tail \ufffd"),
        (["\udc00 head", "\ud83d\ud83d", "\ude00"], "\ufffd head\ufffd😀"),
        (["data: [DONE]\n\n", "data: x"], "data: [DONE]\n\ndata: x"),
        ([""], ""),
    ],
)
async def test_every_text_comes_whole_and_is_text(
    upstream: ScriptedUpstream, backend: OpenAIBackend, chunks: list[str], text: str
) -> None:
    upstream.define("default", [{"text": chunk} for chunk in chunks])
    steps = await output(backend)
    assert text_of(steps) == text
    assert all(step.text.encode() is not None for step in steps)
    assert steps[-1].context_tokens == len(f"Tell{text}".encode())


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
async def test_events_end_as_the_standard_says(
    upstream: ScriptedUpstream, backend: OpenAIBackend, line_end: str
) -> None:
    first = json.dumps({"choices": [{"text": "one \u2028 two", "finish_reason": "stop"}]}, ensure_ascii=False)
    lines = [": a comment", "event: x", "id: 7", f"data:{first}", "", "data: [DONE]", "", ""]
    upstream.define("default", [*({"raw": character} for character in line_end.join(lines)), {"end": True}])
    assert text_of(await output(backend)) == "one \u2028 two"


async def test_a_comment_is_a_sign_of_life(upstream: ScriptedUpstream, backend: OpenAIBackend) -> None:
    alive = [{"comment": "alive"}, {"wait_s": 0.1}]
    upstream.define("default", [*alive * 5, *FIVE])
    assert text_of(await output(backend)) == "".join(HARBOUR)


async def test_an_output_of_megabytes_comes_whole(upstream: ScriptedUpstream, backend: OpenAIBackend) -> None:
    upstream.define("default", [{"text": "lorem-ipsum {n} " * 100, "repeat": 1000}])
    text = text_of(await output(backend))
    assert text == "".join(f"lorem-ipsum {number} " * 100 for number in range(1000))


async def test_what_is_asked_for_is_sent_and_what_is_not_is_left_out(
    upstream: ScriptedUpstream, backend: OpenAIBackend
) -> None:
    upstream.define("default", FIVE)
    await output(backend)
    await output(
        backend,
        Sampling(max_tokens=7, temperature=0.5, top_p=0.9, top_k=3, min_p=0.1, seed=-1, frequency_penalty=1),
        context_id="d",
    )
    plain, full = upstream.state.requests
    assert plain["prompt"] == "Tell"
    assert {"top_k", "min_p", "seed", "logit_bias", "ignore_eos", "cache_salt"}.isdisjoint(plain)
    assert (plain["temperature"], plain["top_p"], plain["stream"]) == (0, 1, True)
    wanted = {"max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "seed": -1}
    assert full.items() >= (wanted | {"frequency_penalty": 1}).items()


@pytest.mark.parametrize(
    ("guide", "sent"),
    [
        (Guide("json_schema", '{"type": "object"}'), {"json": {"type": "object"}}),
        (Guide("regex", "a+"), {"regex": "a+"}),
        (Guide("grammar", "root ::= x"), {"grammar": "root ::= x"}),
        (Guide("choice", choices=("yes", "no")), {"choice": ["yes", "no"]}),
    ],
    ids=lambda value: value.kind if isinstance(value, Guide) else "",
)
async def test_a_guide_is_sent_as_structured_outputs(
    upstream: ScriptedUpstream, backend: OpenAIBackend, guide: Guide, sent: dict[str, Any]
) -> None:
    upstream.define("default", FIVE)
    await output(backend, Sampling(max_tokens=7, guide=guide))
    assert upstream.state.requests[0]["structured_outputs"] == sent


async def test_a_choice_that_was_begun_goes_on_and_another_guide_is_refused(
    upstream: ScriptedUpstream, backend: OpenAIBackend
) -> None:
    upstream.define("default", [{"text": "llow"}])
    choice = Guide("choice", choices=("yellow", "yes", "no"))
    await output(backend, Sampling(max_tokens=7, guide=choice, resumed="ye"), prompt="Tell ye")
    assert upstream.state.requests[0]["structured_outputs"] == {"choice": ["llow", "s"]}
    with pytest.raises(BackendError, match="no choice"):
        await output(backend, Sampling(max_tokens=7, guide=choice, resumed="blue"))
    with pytest.raises(UnsupportedError, match="regex"):
        await output(backend, Sampling(max_tokens=7, guide=Guide("regex", "a+"), resumed="a"))
    assert len(upstream.state.requests) == 1


@pytest.mark.parametrize(
    "asked", [{"logprobs": 1}, {"prompt_logprobs": 1}, {"logit_bias": {5: 1.0}}, {"stop_token_ids": (5,)}]
)
async def test_what_text_prompts_can_not_have_is_said(
    upstream: ScriptedUpstream, backend: OpenAIBackend, asked: dict[str, Any]
) -> None:
    with pytest.raises(UnsupportedError, match=next(iter(asked))):
        await output(backend, Sampling(max_tokens=1, **asked))
    assert upstream.state.requests == []


async def test_a_vllm_server_keeps_what_it_caches_apart_by_tenant(upstream: ScriptedUpstream) -> None:
    async with ScriptedUpstream({"default": FIVE}, owner="vllm") as vllm, backend_on(vllm) as backend:
        for context_id, tenant, cache in (
            ("a", "t1", True),
            ("b", "t1", True),
            ("c", "t2", True),
            ("d", "", True),
            ("e", "t1", False),
            ("f", "t1", False),
        ):
            await backend.fill(b"Tell", context_id, private_to=tenant)
            async with aclosing(backend.generate(PLAIN, context_id, cache=cache)) as steps:
                assert text_of([step async for step in steps]) == "".join(HARBOUR)
        salts = [request.get("cache_salt") for request in vllm.state.requests]
    assert salts[0] == salts[1] != salts[2]
    assert salts[3] is None
    assert len(set(salts)) == 5
    assert "t1" not in salts


async def test_the_cached_tokens_that_the_server_tells_are_reported(
    upstream: ScriptedUpstream, backend: OpenAIBackend
) -> None:
    usage = {"prompt_tokens": 4, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 3}}
    upstream.define("default", [*FIVE, {"text": "", "finish_reason": "stop"}, {"usage": usage}])
    steps = await output(backend)
    assert (steps[-1].prompt_tokens, steps[-1].cached_tokens) == (4, 3)


def with_key(path: Path, key: str) -> Path:
    file = path / "key"
    file.write_text(key, encoding="utf-8")
    return file


async def test_a_key_is_read_from_its_file(tmp_path: Path) -> None:
    async with ScriptedUpstream({"default": FIVE}) as upstream:
        async with backend_on(upstream, api_key_file=with_key(tmp_path, " sk-1\n")) as backend:
            assert text_of(await output(backend)) == "".join(HARBOUR)
        assert upstream.state.keys == {"Bearer sk-1"}


@pytest.mark.parametrize("key", ["", "\n", "two\nlines", "clé", "a\0b"])
async def test_a_file_without_a_key_is_named(tmp_path: Path, upstream: ScriptedUpstream, key: str) -> None:
    with pytest.raises(BackendError, match="key"):
        async with backend_on(upstream, api_key_file=with_key(tmp_path, key)):
            pass
    with pytest.raises(BackendError, match="can't be read"):
        async with backend_on(upstream, api_key_file=tmp_path / "nowhere"):
            pass


@pytest.mark.parametrize(
    ("change", "answer", "cause"),
    [
        ({"model": "other"}, None, "it serves: scripted"),
        ({}, {"status": 401, "body": "no"}, "401 no"),
        ({}, {"status": 200, "body": "<html>"}, "list of models"),
        ({}, {"status": 200, "body": {"data": [{"id": "scripted"}]}}, "--context-window-tokens"),
        ({"base_url": "localhost:80"}, None, "--openai-base-url"),
        ({"base_url": ""}, None, "--openai-base-url"),
        ({"base_url": "http://127.0.0.1:1/v1", "start_timeout_s": 0.01}, None, "does not answer"),
        ({"tokenizer_dir": Path("/nowhere")}, None, "tokenizer"),
    ],
)
async def test_a_server_that_can_not_be_used_is_said_at_the_start(
    upstream: ScriptedUpstream, change: dict[str, Any], answer: dict[str, Any] | None, cause: str
) -> None:
    if answer is not None:
        upstream.define("models", [answer])
    backend = OpenAIBackend(replace(FAST, **{"base_url": upstream.url} | change))
    with pytest.raises(BackendError, match=cause):
        await backend.start()
    await backend.stop()


async def test_a_server_that_comes_up_late_is_waited_for(upstream: ScriptedUpstream) -> None:
    listed = {"data": [{"id": "scripted", "max_model_len": 100}]}
    upstream.define("models", {"in_turn": [[{"status": 503}], [{"status": 200, "body": listed}]]})
    async with backend_on(upstream) as backend:
        assert backend.info.context_window_tokens == 100


async def test_a_server_that_is_gone_is_dead_and_one_that_stumbles_is_not(
    upstream: ScriptedUpstream,
) -> None:
    async with backend_on(upstream, health_every_s=0.005, dead_after_s=0.3) as backend:
        dying = asyncio.create_task(backend.wait_dead())
        listed = [{"status": 200, "body": {"data": [{"id": "scripted", "max_model_len": 100}]}}]
        stumbles: list[Any] = [[{"status": 503}], listed, [{"status": 500}], [{"status": 500}], listed]
        upstream.define("models", {"in_turn": stumbles})
        upstream.define("default", [{"reset": True}])
        await until_failed(backend)
        await eventually(lambda: upstream.turns_left("models") == 1)
        assert not dying.done()
        upstream.define("models", [{"status": 503, "body": "gone"}])
        assert "503 gone" in await asyncio.wait_for(dying, 5)
        with pytest.raises(BackendDeadError):
            await output(backend)


async def test_a_server_that_is_only_busy_is_not_dead(upstream: ScriptedUpstream) -> None:
    async with backend_on(upstream, health_every_s=0.001, dead_after_s=0.0) as backend:
        dying = asyncio.create_task(backend.wait_dead())
        upstream.define("models", {"in_turn": [[{"status": 429}]] * 20})
        await eventually(lambda: upstream.turns_left("models") == 1)
        assert not dying.done()
        dying.cancel()


async def test_what_runs_when_the_backend_stops_breaks(upstream: ScriptedUpstream) -> None:
    upstream.define("default", [*FIVE, {"wait_s": 60}])
    async with backend_on(upstream, silence_timeout_s=60) as backend:
        running = asyncio.create_task(output(backend))
        await eventually(lambda: backend.stats().running == upstream.state.open == 1)
        await backend.stop()
        with pytest.raises(BackendError):
            await asyncio.wait_for(running, 5)


async def test_a_stopped_backend_says_so() -> None:
    async with ScriptedUpstream({"default": FIVE}) as upstream, backend_on(upstream) as backend:
        await backend.stop()
        with pytest.raises(BackendDeadError):
            await output(backend)
        await backend.stop()


def described(make: Callable[[], object]) -> str:
    with pytest.raises(ValueError, match="action") as raised:
        make()
    return str(raised.value)


def test_a_script_with_an_action_that_does_not_exist_is_refused() -> None:
    assert "wait_s" in described(lambda: ScriptedUpstream({"default": [{"sleep": 1}]}))
    assert "list of actions" in described(lambda: ScriptedUpstream({"default": "text"}))
