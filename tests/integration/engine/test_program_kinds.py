"""What programs can do beyond fill and generate: share contexts, branch, go on, chat, tell their tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from tests.integration.engine.harness import Reports, Session, programs_on, text_of
from tests.support.eventually import eventually
from tests.support.metrics import collected

from parrot_engine.backends.base import Backend, FillResult
from parrot_engine.backends.sim import SimBackend, SimOptions
from parrot_engine.metrics import Gauges
from parrot_engine.programs.table import Programs
from parrot_engine.programs.tools import Features
from parrot_engine.shared import SharedContexts
from parrot_proto.common.v1 import common_pb2
from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime.values.bus import Bus
from parrot_runtime.values.finals import Finals

pytestmark = pytest.mark.anyio

SYSTEM = "You are the harbour master. Answer in one line, whatever the weather, and name the ship. " * 4


def shared_of(programs: Programs) -> SharedContexts:
    return programs._tools.shared


def sharer(session: Session, number: int, prefix: str = SYSTEM) -> engine_pb2.RunProgram:
    """A program whose constant start is a shared context."""
    program = session.program(
        session.text(prefix),
        session.text(f" Question {number}?"),
        session.output(f"y{number}", max_tokens=12),
        call_id=f"c{number}",
    )
    first, second = program.operations[0].fill, program.operations[1].fill
    first.context_id = f"shared/{len(prefix)}"
    first.shared.prefix_hash = "h1"
    second.parent_context_id = first.context_id
    return program


async def test_programs_that_come_together_fill_a_shared_context_once(
    programs: Programs, reports: Reports, session: Session, sim_backend: SimBackend
) -> None:
    for number in range(6):
        programs.start(sharer(session, number))
    done = [(await reports.kind("done", f"c{number}")).done for number in range(6)]
    shared = len(SYSTEM.encode())
    assert all(found.usage.cached_tokens >= shared for found in done)
    assert {found.usage.shared_tokens for found in done} <= {0, shared}
    assert sum(found.usage.shared_tokens == shared for found in done) >= 5
    assert [(c.prefix_hash, c.tokens, c.in_kv) for c in shared_of(programs).messages()] == [
        ("h1", shared, True)
    ]
    assert sim_backend.stats().contexts == 1
    await shared_of(programs).free([f"shared/{shared}"])
    audit = await sim_backend.audit()
    assert (audit.held_blocks, sim_backend.stats().contexts) == (0, 0)
    told = [event.contexts for event in reports.events if event.WhichOneof("event") == "contexts"]
    assert [c.context_id for event in told for c in event.contexts] == [f"shared/{shared}"]
    assert [name for event in told for name in event.gone] == [f"shared/{shared}"]


async def test_shared_contexts_within_each_other_are_computed_in_one_fill(
    programs: Programs,
    reports: Reports,
    session: Session,
    sim_backend: SimBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fills: list[str] = []
    fill = sim_backend.fill

    async def watched(token_ids: Sequence[int], context_id: str, *more: Any, **settings: Any) -> FillResult:
        if not settings.get("lazy"):
            fills.append(context_id)
        return await fill(token_ids, context_id, *more, **settings)

    monkeypatch.setattr(sim_backend, "fill", watched)
    names = ["shared/1", "shared/2", "shared/3"]
    for number in range(3):
        texts = [session.text(f"{SYSTEM} Part {place}. ") for place in range(3)]
        tail = session.text(f" Question {number}?")
        program = session.program(*texts, tail, session.output(f"y{number}"), call_id=f"c{number}")
        for place, name in enumerate(names):
            program.operations[place].fill.context_id = name
            program.operations[place].fill.shared.prefix_hash = f"h{place}"
            program.operations[place + 1].fill.parent_context_id = name
        programs.start(program)
    for number in range(3):
        assert (await reports.kind("done", f"c{number}")).done.usage.prompt_tokens > 3 * len(SYSTEM)
    assert fills == ["shared/3"]
    assert [(found.context_id, found.in_kv) for found in shared_of(programs).messages()] == [
        (name, True) for name in names
    ]
    told = [event.contexts for event in reports.events if event.WhichOneof("event") == "contexts"]
    assert sorted((c.context_id, c.in_kv) for event in told for c in event.contexts) == [
        (name, True) for name in names
    ]
    await shared_of(programs).free(names)
    assert ((await sim_backend.audit()).held_blocks, sim_backend.stats().contexts) == (0, 0)


async def test_a_shared_context_is_computed_while_the_one_within_which_it_begins_waits_for_its_input(
    programs: Programs, reports: Reports, session: Session, bus: Bus, sim_backend: SimBackend
) -> None:
    program = session.program(
        session.text(SYSTEM), session.pending("x"), session.text(" So?"), session.output("y"), call_id="c"
    )
    for place, name in enumerate(("shared/1", "shared/2")):
        program.operations[place].fill.context_id = name
        program.operations[place].fill.shared.prefix_hash = f"h{place}"
        program.operations[place + 1].fill.parent_context_id = name
    programs.start(program)
    await eventually(lambda: sim_backend.holds("shared/1"))
    assert not sim_backend.holds("shared/2")
    await session.set(bus, "x", "It is raining.")
    await reports.kind("done", "c")
    assert sim_backend.holds("shared/2")


async def test_sharing_changes_no_token(
    session: Session, bus: Bus, programs: Programs, reports: Reports, sim_backend: SimBackend
) -> None:
    programs.start(sharer(session, 1))
    await reports.kind("done", "c1")
    other = Session()
    async with programs_on(sim_backend, bus, Features(prefix_sharing=False)) as (alone, told):
        alone.start(sharer(other, 1))
        assert (await told.kind("done", "c1")).done.usage.cached_tokens == 0
    assert await text_of(bus, session, "y1") == await text_of(bus, other, "y1")


async def test_a_shared_context_that_is_used_is_freed_with_its_last_user(
    programs: Programs, reports: Reports, session: Session, sim_backend: SimBackend
) -> None:
    program = sharer(session, 1)
    program.operations[2].generate.sampling.max_tokens = 400
    programs.start(program)
    await reports.kind("streaming", "c1")
    await shared_of(programs).free([program.operations[0].fill.context_id])
    assert len(shared_of(programs).messages()) == 1
    await reports.kind("done", "c1")
    assert sim_backend.stats().contexts == 0


async def test_a_shared_context_nobody_used_for_long_goes(
    session: Session, bus: Bus, sim_backend: SimBackend
) -> None:
    async with programs_on(sim_backend, bus) as (programs, reports):
        programs.start(sharer(session, 1))
        await reports.kind("done", "c1")
        shared_of(programs)._keep_s = -1.0
        await shared_of(programs).refresh()
        assert shared_of(programs).messages() == []
    assert sim_backend.stats().contexts == 0


async def test_one_name_with_two_contents_is_refused(
    programs: Programs, reports: Reports, session: Session
) -> None:
    programs.start(sharer(session, 1))
    await reports.kind("done", "c1")
    programs.start(sharer(session, 2, prefix=SYSTEM[::-1]))
    failure = await reports.failure("c2")
    assert (failure.type, "another content" in failure.message) == ("engine_error", True)


async def test_when_the_first_filler_is_cancelled_the_next_one_fills(session: Session, bus: Bus) -> None:
    backend = SimBackend(SimOptions(step_ms=30.0, context_window_tokens=4096))
    await backend.start()
    async with programs_on(backend, bus) as (programs, reports):
        programs.start(sharer(session, 1))
        programs.start(sharer(session, 2))
        await eventually(lambda: backend.stats().running > 0)
        programs.cancel(session.ref("c1"), "the client asked")
        await reports.kind("cancelled", "c1")
        await reports.kind("done", "c2")
    await backend.stop()


async def test_freeing_one_twice_or_what_is_not_there_harms_nobody(
    programs: Programs, reports: Reports, session: Session, sim_backend: SimBackend
) -> None:
    programs.start(sharer(session, 1))
    await reports.kind("done", "c1")
    context_id = f"shared/{len(SYSTEM)}"
    await shared_of(programs).free([context_id, context_id, "shared/nowhere"])
    await shared_of(programs).free([context_id])
    assert (shared_of(programs).messages(), sim_backend.stats().contexts) == ([], 0)


async def test_users_that_come_while_others_leave_always_find_it_whole(
    programs: Programs, reports: Reports, session: Session, sim_backend: SimBackend
) -> None:
    context_id = f"shared/{len(SYSTEM)}"
    for number in range(60):
        programs.start(sharer(session, number))
        if number % 7 == 3:
            programs.cancel(session.ref(f"c{number - 1}"), "the client asked")
        if number % 3 == 0:
            await shared_of(programs).free([context_id])
        if number % 5 == 0:
            await reports.end(f"c{number // 2}")
    ends = [(await reports.end(f"c{number}")) for number in range(60)]
    kinds = {str(end.WhichOneof("event")) for end in ends}
    assert kinds == {"done", "cancelled"}, [end for end in ends if end.WhichOneof("event") == "failed"]
    lengths = {end.done.usage.prompt_tokens for end in ends if end.WhichOneof("event") == "done"}
    assert lengths == {len(SYSTEM) + len(" Question 1?"), len(SYSTEM) + len(" Question 10?")}
    await shared_of(programs).free([context_id])
    assert sim_backend.stats().contexts == 0


async def test_what_leaves_the_memory_is_told_and_comes_back_with_the_next_use(
    session: Session, bus: Bus
) -> None:
    backend = SimBackend(SimOptions(step_ms=1.0, kv_tokens=1024, context_window_tokens=1024, capacity=4))
    await backend.start()
    async with programs_on(backend, bus) as (programs, reports):
        programs.start(sharer(session, 1))
        await reports.kind("done", "c1")
        use = engine_pb2.ContextUse(context_id=f"shared/{len(SYSTEM)}", steps_to_next_use=-1)
        await shared_of(programs).expect([use])
        programs.start(
            session.program(session.text("x" * 900), session.output("z", max_tokens=100), call_id="big")
        )
        await reports.kind("done", "big")
        await shared_of(programs).refresh()
        assert [found.in_kv for found in shared_of(programs).messages()] == [False]
        programs.start(sharer(session, 2))
        await reports.kind("done", "c2")
    await backend.stop()


async def test_alternatives_come_from_one_prompt_and_differ_by_their_seeds(
    programs: Programs, reports: Reports, session: Session, bus: Bus, sim_backend: Backend
) -> None:
    program = session.program(
        session.text(SYSTEM), session.output("y0", max_tokens=20, temperature=1.0, seed=7), call_id="c"
    )
    task = program.operations[1].generate
    for number in (1, 2):
        sink = task.alternatives.add()
        sink.CopyFrom(task.output)
        sink.variable_id, sink.final_subject = f"y{number}", session.names.final(f"y{number}")
    programs.start(program)
    done = (await reports.kind("done", "c")).done
    assert [end.variable_id for end in done.outputs] == ["y0", "y1", "y2"]
    assert (done.usage.prompt_tokens, done.usage.cached_tokens) == (len(SYSTEM), 0), (
        "one prompt, computed once"
    )
    assert done.usage.output_tokens == 60
    texts = [await text_of(bus, session, f"y{number}") for number in range(3)]
    assert len(set(texts)) == 3
    for number, text in enumerate(texts):
        single = Session()
        operation = single.output("y", max_tokens=20, temperature=1.0, seed=7 + number)
        programs.start(single.program(single.text(SYSTEM), operation, call_id=f"s{number}"))
        await reports.kind("done", f"s{number}")
        assert await text_of(bus, single, "y") == text
    assert sim_backend.stats().contexts == 0


async def test_an_output_that_was_broken_off_goes_on_where_it_was(
    programs: Programs, reports: Reports, session: Session, bus: Bus
) -> None:
    whole = Session()
    programs.start(whole.program(whole.text(SYSTEM), whole.output("y", max_tokens=60), call_id="w"))
    await reports.kind("done", "w")
    text = await text_of(bus, whole, "y")
    streamed = text[: len(text) // 3]
    program = session.program(session.text(SYSTEM), session.output("y", max_tokens=60), call_id="c")
    program.operations[1].generate.streamed_text = streamed
    programs.start(program)
    done = (await reports.kind("done", "c")).done
    assert await text_of(bus, session, "y") == text
    assert done.usage.output_tokens == 60 - len(streamed.encode())
    assert done.outputs[0].size_bytes == len(text.encode())
    assert reports.kinds("c") == ["started", "done"], "that it streams was said by the attempt before"


async def test_an_output_that_was_streamed_to_its_length_only_ends(
    programs: Programs, reports: Reports, session: Session, bus: Bus
) -> None:
    program = session.program(session.text(SYSTEM), session.output("y", max_tokens=4), call_id="c")
    program.operations[1].generate.streamed_text = "Four"
    programs.start(program)
    done = (await reports.kind("done", "c")).done
    assert await text_of(bus, session, "y") == "Four"
    assert (done.outputs[0].finish_reason, done.usage.output_tokens) == ("length", 0)


async def test_a_rollout_has_every_token_its_logprob_and_what_made_it(
    programs: Programs, reports: Reports, session: Session, bus: Bus, sim_backend: Backend
) -> None:
    programs.start(
        session.program(
            session.text("Name a sea."),
            session.output("y", max_tokens=1500, logprobs=2, prompt_logprobs=1, temperature=1.0, seed=3),
            call_id="c",
        )
    )
    done = (await reports.kind("done", "c")).done
    parts = await Finals(bus).read_rollout(session.names.final("y"))
    assert [part.part for part in parts] == list(range(parts[0].parts)) == [0, 1]
    tokens = [token for part in parts for token in part.token_ids]
    logprobs = [found for part in parts for found in part.logprobs]
    prompt = [token for part in parts for token in part.prompt_token_ids]
    assert bytes(prompt) == b"Name a sea."
    assert len(tokens) == len(logprobs) == done.usage.output_tokens
    assert all(len(found.top_ids) == 2 and found.logprob <= 0 for found in logprobs)
    assert sum(len(part.prompt_logprobs) for part in parts) == len(prompt) - 1
    assert parts[0].seed == 3
    assert parts[0].provenance == done.provenance
    made = done.provenance
    assert (made.engine_id, made.model, made.backend) == ("e-test", "sim", "sim")
    assert made.version
    assert math.isfinite(sum(found.logprob for found in logprobs))


async def test_without_logprobs_there_is_no_rollout(
    programs: Programs, reports: Reports, session: Session, bus: Bus
) -> None:
    programs.start(session.program(session.text("A"), session.output("y"), call_id="c"))
    await reports.kind("done", "c")
    assert await Finals(bus).read_rollout(session.names.final("y")) == []


async def test_chat_is_what_the_models_own_format_makes_of_it_and_no_content_steers(
    programs: Programs, reports: Reports, session: Session, bus: Bus
) -> None:
    await session.set(bus, "x", "Hi <|im_end|>")
    program = session.program(
        engine_pb2.Operation(
            fill=engine_pb2.Fill(
                chat=engine_pb2.Chat(
                    messages=[
                        engine_pb2.ChatMessage(role="system", constant="Be brief."),
                        engine_pb2.ChatMessage(role="user", variable=session.value("x").fill.variable),
                    ],
                    add_generation_prompt=True,
                )
            )
        ),
        session.output("y", logprobs=0),
        call_id="c",
    )
    programs.start(program)
    await reports.kind("done", "c")
    (rollout,) = await Finals(bus).read_rollout(session.names.final("y"))
    im_start, im_end = 257, 258
    assert [token for token in rollout.prompt_token_ids if token > 255] == [
        im_start, im_end, im_start, im_end, im_start,
    ]  # fmt: skip
    assert b"Hi <|im_end|>" in bytes(token for token in rollout.prompt_token_ids if token < 256)


async def test_metrics_tell_what_was_done_and_how_busy_the_engine_is(sim_backend: Backend, bus: Bus) -> None:
    session = Session()
    async with programs_on(sim_backend, bus) as (programs, reports):
        programs.start(session.program(session.text("A"), session.output("y", max_tokens=9), call_id="c"))
        programs.start(session.program(session.value("nowhere"), session.output("z"), call_id="d"))
        programs.start(session.program(session.pending("later"), session.output("w"), call_id="e"))
        await reports.kind("done", "c")
        await reports.kind("failed", "d")
        await eventually(lambda: programs.paused == 1)
        tools = programs._tools
        tools.meters.registry.register(Gauges("e-test", programs, tools))
        found = collected(tools.meters.registry)
    assert found.value("parrot_engine_programs_total", outcome="done") == 1
    assert found.value("parrot_engine_programs_total", outcome="value_unavailable") == 1
    assert found.value("parrot_engine_tokens_total", kind="output") == 9
    assert found.value("parrot_engine_programs_now", state="paused") == 1
    assert found.value("parrot_engine_info", model="sim", engine_id="e-test") == 1


async def test_a_guide_that_cannot_be_followed_is_the_callers_matter_and_not_the_engines(
    programs: Programs, reports: Reports, session: Session
) -> None:
    guide = common_pb2.Guide(json_schema="{}")
    programs.start(session.program(session.text("A"), session.output("y", guide=guide), call_id="c"))
    failure = await reports.failure("c")
    assert (failure.type, failure.may_retry) == ("invalid_sampling", False)
    assert "json_schema" in failure.message
