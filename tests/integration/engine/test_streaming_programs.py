"""Programs whose inputs are still being produced: prefilled while they wait, the same tokens at the end."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from pydoc_data.topics import topics
from typing import Any

import pytest
from tests.integration.engine.backends import until_audit
from tests.integration.engine.harness import Reports, Session, programs_on, text_of
from tests.support.engine import Pen
from tests.support.eventually import eventually

from parrot_engine.backends.base import Backend, BackendError, FillResult
from parrot_engine.backends.sim import SimBackend, SimOptions
from parrot_engine.programs.table import Programs
from parrot_engine.programs.tools import Features
from parrot_proto.common.v1 import common_pb2
from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime.values.bus import Bus, connected
from parrot_runtime.values.finals import FinalRecord, Finals
from parrot_runtime.values.reader import SessionFeed
from parrot_runtime.values.writer import DeltaWriter

pytestmark = pytest.mark.anyio

SYSTEM = "<|im_start|>system\nYou sum up what you are given.<|im_end|>\n<|im_start|>user\n"
ASK = "<|im_end|>\n<|im_start|>assistant\n"
COMBINATIONS = [Features(*switches) for switches in itertools.product((True, False), repeat=3)]


def producer(session: Session, variable_id: str = "x", **sampling: object) -> engine_pb2.RunProgram:
    return session.program(
        session.text("Write about the harbour."), session.output(variable_id, **sampling), call_id="p"
    )


def consumer(
    session: Session, variable_id: str = "x", output: str = "y", call_id: str = "c", **sampling: object
) -> engine_pb2.RunProgram:
    return session.program(
        session.text(SYSTEM),
        session.pending(variable_id),
        session.text(ASK),
        session.output(output, **sampling),
        call_id=call_id,
    )


async def feed_of(programs: Programs, session: Session) -> SessionFeed:
    """The session's feed, once a program reads it."""
    feeds = programs._tools.press.feeds
    await eventually(lambda: feeds.open_feed(session.names.session_id) is not None)
    feed = feeds.open_feed(session.names.session_id)
    assert feed is not None
    return feed


async def whole_value_first(bus: Bus, backend: Backend, session: Session, text: str) -> str:
    """What the consumer says when its input is there before it."""
    other = Session()
    await other.set(bus, "x", text)
    async with programs_on(backend, bus) as (programs, reports):
        programs.start(consumer(other))
        done = (await reports.kind("done", "c")).done
    assert done.timings.static_prefill_tokens == done.timings.dynamic_prefill_tokens == 0
    assert done.timings.streamed_tokens == 0
    return await text_of(bus, other, "y")


async def test_a_consumer_is_prefilled_while_its_producer_decodes(
    programs: Programs, reports: Reports, session: Session, bus: Bus, sim_backend: Backend
) -> None:
    programs.start(consumer(session))
    await eventually(lambda: programs.paused == 1 and sim_backend.stats().held_tokens > 0)
    programs.start(producer(session, max_tokens=200))
    done = (await reports.kind("done", "c")).done
    made = await text_of(bus, session, "x")
    static = len(sim_backend.tokenizer.encode_template(SYSTEM))
    assert done.timings.static_prefill_tokens == static
    assert len(made.encode()) - 40 <= done.timings.dynamic_prefill_tokens <= len(made.encode())
    assert done.timings.streamed_tokens == len(made.encode())
    assert done.usage.prompt_tokens == static + len(made.encode()) + len(
        sim_backend.tokenizer.encode_template(ASK)
    )
    assert done.usage.cached_tokens == 0, "what it computed ahead itself was not there before"
    assert await text_of(bus, session, "y") == await whole_value_first(bus, sim_backend, session, made)
    assert sim_backend.stats().contexts == 0


@pytest.mark.parametrize("features", COMBINATIONS, ids=str)
async def test_with_any_of_it_switched_off_the_tokens_are_the_same(
    features: Features, session: Session, bus: Bus, sim_backend: Backend
) -> None:
    async with programs_on(sim_backend, bus, features) as (programs, reports):
        programs.start(consumer(session))
        programs.start(producer(session, max_tokens=120))
        done = (await reports.kind("done", "c")).done
    made = await text_of(bus, session, "x")
    assert await text_of(bus, session, "y") == await whole_value_first(bus, sim_backend, session, made)
    assert (done.timings.dynamic_prefill_tokens > 0) == features.dynamic_prefill
    if not features.dynamic_prefill:
        assert (done.timings.static_prefill_tokens > 0) == features.static_prefill


async def test_across_two_engines_the_text_comes_by_the_bus(session: Session, bus: Bus) -> None:
    backends = [SimBackend(SimOptions(step_ms=3.0, context_window_tokens=4096)) for _ in range(2)]
    for backend in backends:
        await backend.start()
    async with (
        programs_on(backends[0], bus) as (first, _),
        programs_on(backends[1], bus) as (second, reports),
    ):
        second.start(consumer(session))
        first.start(producer(session, max_tokens=200))
        done = (await reports.kind("done", "c")).done
    made = await text_of(bus, session, "x")
    assert done.timings.dynamic_prefill_tokens > len(made.encode()) // 2
    assert await text_of(bus, session, "y") == await whole_value_first(bus, backends[0], session, made)
    for backend in backends:
        await backend.stop()


@pytest.mark.vllm
@pytest.mark.timeout(240)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_across_two_real_engines_the_input_is_prefilled_before_its_end_and_the_tokens_are_those_of_one(
    small_vllm_backend: Backend,
    other_small_vllm_backend: Backend,
    bus: Bus,
    nats_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: dict[str, tuple[str, str]] = {}
    backends = (small_vllm_backend, other_small_vllm_backend)
    # Other tests on the same engine may have left some.
    contexts = [backend.stats().contexts for backend in backends]
    async with (
        connected(nats_url, "other", 5) as other_bus,
        programs_on(small_vllm_backend, bus) as (first, first_reports),
        programs_on(other_small_vllm_backend, other_bus) as (second, second_reports),
    ):
        session = Session()
        second.start(consumer(session, max_tokens=24))
        await eventually(lambda: second.paused == 1)
        # The producer's value gets its end only when the other engine holds some of it.
        static = len(other_small_vllm_backend.tokenizer.encode_template(SYSTEM))
        publish = first._tools.press.finals.publish
        prefilled = asyncio.Event()

        async def publish_late(*arguments: Any, **settings: Any) -> None:
            await prefilled.wait()
            await publish(*arguments, **settings)

        monkeypatch.setattr(first._tools.press.finals, "publish", publish_late)
        first.start(producer(session, max_tokens=160))
        await eventually(lambda: other_small_vllm_backend.stats().held_tokens > static + 16, within_s=60)
        assert first_reports.kinds("p") == ["started", "streaming"]
        prefilled.set()
        done = (await second_reports.kind("done", "c")).done
        monkeypatch.undo()
        made["two"] = await text_of(bus, session, "x"), await text_of(bus, session, "y")

        session = Session()
        first.start(consumer(session, max_tokens=24))
        first.start(producer(session, max_tokens=160))
        await first_reports.until(lambda event: event.done.ref == session.ref("c"))
        made["one"] = await text_of(bus, session, "x"), await text_of(bus, session, "y")
    assert done.timings.static_prefill_tokens == static
    assert done.timings.dynamic_prefill_tokens > 16
    assert made["two"] == made["one"]
    for backend in backends:
        books = await until_audit(backend, lambda books: not books.request_blocks)
        assert not books.held_contexts
    assert [backend.stats().contexts for backend in backends] == contexts


async def test_in_one_engine_a_consumer_needs_no_delta_from_the_bus(
    programs: Programs, reports: Reports, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(*_: object, **__: object) -> None:
        """The bus never gets it."""

    monkeypatch.setattr(DeltaWriter, "append", lose)
    programs.start(consumer(session))
    await eventually(lambda: programs.paused == 1)
    programs.start(producer(session, max_tokens=200))
    done = (await reports.kind("done", "c")).done
    assert done.timings.dynamic_prefill_tokens > 100


async def test_a_consumer_that_comes_in_the_middle_misses_nothing(
    programs: Programs, reports: Reports, session: Session, bus: Bus, sim_backend: Backend
) -> None:
    pen = Pen(bus, session.names.session_id, "x")
    await pen.write("The harbour ", "opens at ", "dawn — ")
    programs.start(consumer(session))
    await eventually(lambda: programs.paused == 1)
    await pen.write("灯台 and ", "all.")
    await pen.end()
    await reports.kind("done", "c")
    assert await text_of(bus, session, "y") == await whole_value_first(bus, sim_backend, session, pen.text)


async def test_a_value_that_a_client_sets_comes_whole(
    programs: Programs, reports: Reports, session: Session, bus: Bus, sim_backend: Backend
) -> None:
    programs.start(consumer(session))
    await eventually(lambda: programs.paused == 1)
    await session.set(bus, "x", "set by a client")
    await reports.kind("done", "c")
    assert await text_of(bus, session, "y") == await whole_value_first(
        bus, sim_backend, session, "set by a client"
    )


async def test_a_pending_input_with_transforms_is_filled_transformed(
    programs: Programs, reports: Reports, session: Session, bus: Bus
) -> None:
    programs.start(
        session.program(
            session.text("A"), session.pending("x", "first_line", "strip"), session.output("y"), call_id="c"
        )
    )
    pen = Pen(bus, session.names.session_id, "x")
    await pen.write("\n one", " line \nand another")
    await pen.end()
    done = (await reports.kind("done", "c")).done
    assert done.usage.prompt_tokens == 1 + len("one line")


async def test_one_pending_input_in_two_holes_is_filled_twice(
    programs: Programs, reports: Reports, session: Session, bus: Bus
) -> None:
    programs.start(
        session.program(
            session.text("A"),
            session.pending("x"),
            session.text("B"),
            session.pending("x"),
            session.output("y"),
            call_id="c",
        )
    )
    pen = Pen(bus, session.names.session_id, "x")
    await pen.write("one ", "two")
    await pen.end()
    assert (await reports.kind("done", "c")).done.usage.prompt_tokens == 2 + 2 * len("one two")


async def test_an_output_before_a_pending_input_is_generated_at_once_and_no_place_is_kept_meanwhile(
    session: Session, bus: Bus
) -> None:
    backend = SimBackend(SimOptions(step_ms=1.0, capacity=1, context_window_tokens=4096))
    await backend.start()
    async with programs_on(backend, bus) as (programs, reports):
        programs.start(
            session.program(
                session.text("First "),
                session.output("a", max_tokens=20),
                session.text(" then "),
                session.pending("x"),
                session.output("b", max_tokens=20),
                call_id="c",
            )
        )
        await eventually(lambda: programs.paused == 1 and "streaming" in reports.kinds("c"))
        # The only place is free for the producer, though the consumer is under way.
        programs.start(producer(session, max_tokens=50))
        done = (await reports.kind("done", "c")).done
    assert [end.variable_id for end in done.outputs] == ["a", "b"]
    assert done.usage.output_tokens == 40
    audit = await backend.audit()
    assert audit.held_blocks == 0
    await backend.stop()


async def test_a_producer_that_fails_fails_its_consumer_with_the_cause(
    programs: Programs, reports: Reports, session: Session, bus: Bus, sim_backend: Backend
) -> None:
    programs.start(consumer(session))
    await eventually(lambda: programs.paused == 1)
    failed = FinalRecord("x", "p", 1, failure=common_pb2.Failure(type="engine_error"))
    await Finals(bus).publish(session.names.final("x"), failed)
    failure = await reports.failure("c")
    assert (failure.type, failure.cause_type, failure.cause_call_id) == (
        "upstream_failed",
        "engine_error",
        "p",
    )
    assert sim_backend.stats().contexts == 0


async def test_a_stream_that_was_rewritten_is_not_taken_for_its_value(
    programs: Programs, reports: Reports, session: Session, bus: Bus
) -> None:
    programs.start(consumer(session))
    pen = Pen(bus, session.names.session_id, "x")
    await pen.write("The harbour opens at dawn and closes ")
    await eventually(lambda: programs.paused == 1)
    await asyncio.wait_for(bus.client.flush(), 5)
    await pen.end(FinalRecord("x", "c-1", 2, text="Something else, which nobody streamed at all."))
    end = await reports.end("c")
    if end.WhichOneof("event") == "failed":
        assert end.failed.failure.type == "value_unavailable"
    else:
        # It had read nothing yet; then the value is what counts.
        assert end.done.usage.prompt_tokens == len(SYSTEM_TOKENS) + 45 + len(ASK_TOKENS)


async def test_an_input_that_outgrows_the_window_is_refused_while_it_grows(
    programs: Programs, reports: Reports, session: Session, bus: Bus, sim_backend: Backend
) -> None:
    programs.start(consumer(session))
    pen = Pen(bus, session.names.session_id, "x")
    await pen.write("x" * 3000)
    failure = await reports.failure("c")
    assert failure.type == "prompt_too_long"
    assert sim_backend.stats().contexts == 0


async def test_cancelling_a_paused_program_frees_what_it_held(
    programs: Programs, reports: Reports, session: Session, sim_backend: Backend
) -> None:
    programs.start(consumer(session))
    await eventually(lambda: sim_backend.stats().held_tokens > 0)
    programs.cancel(session.ref("c"), "the client asked")
    await reports.kind("cancelled", "c")
    audit = await sim_backend.audit()
    assert (audit.held_blocks, sim_backend.stats().contexts, programs.paused) == (0, 0, 0)


async def test_under_pressure_paused_programs_give_way_and_all_finish_with_the_same_text(
    bus: Bus, session: Session
) -> None:
    options = SimOptions(step_ms=1.0, kv_tokens=1024, context_window_tokens=1024, capacity=8)
    backend = SimBackend(options)
    await backend.start()
    async with programs_on(backend, bus) as (programs, reports):
        for number in range(12):
            programs.start(consumer(session, output=f"y{number}", call_id=f"c{number}", max_tokens=30))
        await eventually(lambda: programs.paused == 12)
        programs.start(producer(session, max_tokens=300))
        for number in range(12):
            await reports.kind("done", f"c{number}")
    made = await text_of(bus, session, "x")
    other = Session()
    await other.set(bus, "x", made)
    async with programs_on(backend, bus) as (programs, reports):
        programs.start(consumer(other, max_tokens=30))
        await reports.kind("done", "c")
    expected = await text_of(bus, other, "y")
    assert {await text_of(bus, session, f"y{number}") for number in range(12)} == {expected}
    audit = await backend.audit()
    assert (audit.held_blocks, audit.request_blocks) == (0, 0)
    await backend.stop()


SYSTEM_TOKENS = SimBackend().tokenizer.encode_template(SYSTEM)
ASK_TOKENS = SimBackend().tokenizer.encode_template(ASK)


@pytest.mark.vllm
@pytest.mark.timeout(240)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_on_the_real_model_the_tokens_are_the_same_with_any_of_it_switched_off(
    vllm_backend: Backend, bus: Bus
) -> None:
    text = "\n".join(topics["compound"].splitlines()[:12])
    pieces = [text[start : start + 37] for start in range(0, len(text), 37)]
    outputs = set()
    for features in COMBINATIONS:
        session = Session()
        pen = Pen(bus, session.names.session_id, "x")
        async with programs_on(vllm_backend, bus, features) as (programs, reports):
            programs.start(consumer(session, max_tokens=16))
            await eventually(lambda: programs.paused == 1)
            for start in range(0, len(pieces), 8):
                await pen.write(*pieces[start : start + 8])
            await pen.end()
            done = (await reports.kind("done", "c")).done
        assert done.usage.output_tokens == 16
        outputs.add(await text_of(bus, session, "y"))
    assert len(outputs) == 1
    assert (await vllm_backend.audit()).request_blocks == 0


@pytest.mark.vllm
@pytest.mark.timeout(240)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_on_the_real_engine_a_consumer_is_prefilled_while_its_producer_decodes(
    vllm_backend: Backend, bus: Bus, session: Session
) -> None:
    async with programs_on(vllm_backend, bus) as (programs, reports):
        programs.start(consumer(session, max_tokens=8))
        await eventually(lambda: programs.paused == 1)
        programs.start(producer(session, max_tokens=64))
        done = (await reports.kind("done", "c")).done
    assert done.timings.static_prefill_tokens == len(vllm_backend.tokenizer.encode_template(SYSTEM))
    assert done.timings.dynamic_prefill_tokens >= 16
    made = await text_of(bus, session, "x")
    other = Session()
    await other.set(bus, "x", made)
    async with programs_on(vllm_backend, bus, Features(prefix_sharing=False)) as (programs, reports):
        programs.start(consumer(other, max_tokens=8))
        await reports.kind("done", "c")
    assert await text_of(bus, session, "y") == await text_of(bus, other, "y")


async def test_a_long_session_keeps_no_variable_that_has_ended_and_that_nobody_reads(
    programs: Programs, reports: Reports, session: Session, bus: Bus
) -> None:
    programs.start(consumer(session, variable_id="last"))
    feed = await feed_of(programs, session)
    for number in range(20):
        programs.start(session.program(session.text("A"), session.output(f"x{number}"), call_id=f"p{number}"))
        await reports.kind("done", f"p{number}")
    await eventually(lambda: all(feed.forgotten(f"x{number}") for number in range(20)))
    assert set(feed._buffers) == {"last"}
    # What was forgotten can still be read, by whoever thought it pending.
    programs.start(consumer(session, variable_id="x3", output="z", call_id="late"))
    await reports.kind("done", "late")
    await session.set(bus, "last", "the end")
    await reports.kind("done", "c")


async def test_an_input_that_ended_while_another_one_was_waited_for_comes_at_once(
    programs: Programs, reports: Reports, session: Session, bus: Bus
) -> None:
    programs.start(
        session.program(session.pending("a"), session.pending("b"), session.output("y"), call_id="c")
    )
    feed = await feed_of(programs, session)
    pen = Pen(bus, session.names.session_id, "b")
    await pen.write("second")
    await pen.end()
    await eventually(lambda: feed.has_ended("b"))
    async with asyncio.timeout(4):
        await session.set(bus, "a", "first ")
        assert (await reports.kind("done", "c")).done.usage.prompt_tokens == len("first second")


async def test_a_chunk_that_could_not_be_computed_fails_the_program_and_leaves_no_hole_in_its_prompt(
    programs: Programs,
    reports: Reports,
    session: Session,
    sim_backend: SimBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill = sim_backend.fill
    failed = False

    async def fail_once(token_ids: Sequence[int], *arguments: Any, **settings: Any) -> FillResult:
        nonlocal failed
        if token_ids and not settings.get("lazy") and not failed:
            failed = True
            raise BackendError("out of blocks")
        return await fill(token_ids, *arguments, **settings)

    monkeypatch.setattr(sim_backend, "fill", fail_once)
    programs.start(consumer(session))
    await eventually(lambda: programs.paused == 1)
    programs.start(producer(session, max_tokens=100))
    failure = await reports.failure("c")
    assert (failure.type, "out of blocks" in failure.message) == ("engine_error", True)
    await reports.kind("done", "p")


@pytest.mark.parametrize("turns", range(4))
async def test_a_cancel_that_comes_with_news_is_not_lost(
    turns: int, programs: Programs, reports: Reports, session: Session, bus: Bus
) -> None:
    programs.start(consumer(session))
    feed = await feed_of(programs, session)
    await eventually(lambda: feed.buffer("x").cursors == 2)
    feed.offer("x", 1, 0, "The harbour opens at dawn. ")
    for _ in range(turns):
        await asyncio.sleep(0)
    programs.cancel(session.ref("c"), "the client asked")
    await reports.kind("cancelled", "c")
    assert programs.attempts() == []
