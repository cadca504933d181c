"""Several programs read one stream behind one prefix: its KV is computed ahead once, for all of them."""

from __future__ import annotations

import pytest
from tests.integration.engine.harness import Session, programs_on, text_of
from tests.integration.engine.test_streaming_programs import consumer, producer, whole_value_first
from tests.support.eventually import eventually

from parrot_engine.backends.base import Backend
from parrot_engine.programs.tools import Features
from parrot_runtime.values.bus import Bus

pytestmark = pytest.mark.anyio

CALLS = ("c1", "c2", "c3")
TOKENS = 200
BLOCK = 64
"""More than what of a prefix no block of the cache holds yet, and what is left for the end."""


@pytest.mark.parametrize("shares", [True, False])
async def test_one_of_them_prefills_ahead_and_the_others_find_it(
    session: Session, bus: Bus, sim_backend: Backend, shares: bool
) -> None:
    async with programs_on(sim_backend, bus, Features(prefix_sharing=shares)) as (programs, reports):
        for name in CALLS:
            programs.start(consumer(session, output=f"of_{name}", call_id=name))
        await eventually(lambda: programs.paused == len(CALLS))
        programs.start(producer(session, max_tokens=TOKENS))
        ends = [(await reports.kind("done", name)).done for name in CALLS]
    static = sorted(done.timings.static_prefill_tokens for done in ends)
    ahead = sorted(done.timings.dynamic_prefill_tokens for done in ends)
    assert ahead[-1] > TOKENS - BLOCK
    if shares:
        assert static[:-1] == ahead[:-1] == [0, 0]
        others = [done for done in ends if not done.timings.dynamic_prefill_tokens]
        assert all(done.usage.cached_tokens > TOKENS - BLOCK for done in others)
    else:
        # How often a chunk is sent is the engine's to say, and of three who want to one may get none.
        assert static == [static[-1]] * len(CALLS)
    made = await text_of(bus, session, "x")
    said = {await text_of(bus, session, f"of_{name}") for name in CALLS}
    assert said == {await whole_value_first(bus, sim_backend, session, made)}


async def test_when_the_one_that_prefills_is_cancelled_another_one_goes_on(
    session: Session, bus: Bus, sim_backend: Backend
) -> None:
    async with programs_on(sim_backend, bus) as (programs, reports):
        refs = []
        for name in CALLS:
            program = consumer(session, output=f"of_{name}", call_id=name)
            refs.append(program.ref)
            programs.start(program)
        await eventually(lambda: programs.paused == len(CALLS) and sim_backend.stats().held_tokens > 0)
        programs.start(producer(session, max_tokens=TOKENS))
        programs.cancel(refs[0], "the client asked")
        ends = [(await reports.kind("done", name)).done for name in CALLS[1:]]
    assert max(done.timings.dynamic_prefill_tokens for done in ends) > TOKENS - BLOCK
    made = await text_of(bus, session, "x")
    said = {await text_of(bus, session, f"of_{name}") for name in CALLS[1:]}
    assert said == {await whole_value_first(bus, sim_backend, session, made)}
