"""Where a session's time went, as the real manager, engine and bus record it."""

from __future__ import annotations

import math
from random import Random

import pytest
from tests.support.timed import Delays, TimedSystem, chain, function, timed_system

from parrot_engine.backends.sim import SimOptions
from parrot_proto.manager.v1 import manager_pb2 as pb
from parrot_runtime.critical_path import Analysis, Stage, analyse

pytestmark = pytest.mark.anyio

FAST = SimOptions(step_ms=1.0, prefill_tokens_per_s=200_000)
DELAY_MS = 50.0


def check_sum(found: Analysis) -> None:
    """All of the time is told of, and nothing twice."""
    assert math.isclose(math.fsum(found.stages.values()), found.total_ms, abs_tol=0.01)


async def test_any_graphs_time_is_explained_whole(nats_url: str) -> None:
    random = Random(8)
    async with timed_system(nats_url, Delays(), FAST) as system:
        for _ in range(20):
            found = await system.traced(graph(random))
            check_sum(found)
            # The manager keeps whole ms of what it decides.
            assert found.stages.get(Stage.UNEXPLAINED, 0.0) <= 0.01 * found.total_ms


@pytest.mark.parametrize(
    ("delay", "stage", "times"),
    [
        ("network", Stage.NETWORK, 2 * 3),
        ("admission", Stage.ADMISSION, 1),
        ("queue", Stage.QUEUE, 3),
        ("prefill", Stage.STATIC_PREFILL, 3),
        ("decode", Stage.DECODE, 3),
        ("transforms", Stage.TRANSFORMS, 3),
        ("commit", Stage.COMMIT, 4),
    ],
)
async def test_a_delay_is_told_of_as_its_stages(nats_url: str, delay: str, stage: Stage, times: int) -> None:
    async with timed_system(nats_url, Delays(**{delay: DELAY_MS}), FAST) as system:
        found = await system.traced(chain(3))
        check_sum(found)
        # Whatever else the machine does makes it longer.
        assert found.stages[stage] >= 0.95 * times * DELAY_MS


async def test_what_the_client_takes_is_the_clients(nats_url: str) -> None:
    async with timed_system(nats_url, Delays(), FAST) as system:
        found = await system.traced(chain(2), chain(2, start=2), pause_ms=DELAY_MS)
        assert found.stages[Stage.CLIENT] >= 0.95 * DELAY_MS
        check_sum(found)


async def test_what_is_prefilled_behind_an_input_that_streamed_in_is_dynamic_prefill(nats_url: str) -> None:
    slow = SimOptions(step_ms=4.0, prefill_tokens_per_s=4_000)
    async with timed_system(nats_url, Delays(prefill=DELAY_MS), slow) as system:
        found = await streamed(system)
        assert found.stages[Stage.DYNAMIC_PREFILL] >= 0.95 * DELAY_MS
        assert found.stages[Stage.STATIC_PREFILL] >= 0.95 * DELAY_MS
        check_sum(found)


async def streamed(system: TimedSystem) -> Analysis:
    """The path of a producer and a consumer that was sent ahead of its end."""
    text = "All of these words are there before the input is. " * 60
    calls = [function("p", [], "x", tokens=200), function("c", ["x"], "y", tokens=5, text=text)]
    # What a consumer of this kind takes is known after the first.
    for _ in range(5):
        session = await system.run(calls)
        times = await system.times(session)
        if times.calls[1].sent_ahead:
            return analyse(times, 0.0)
    raise AssertionError(f"never sent ahead: {times.calls}")


def graph(random: Random) -> list[pb.NewCall]:
    """Some calls, each of which reads some of those before."""
    calls: list[pb.NewCall] = []
    for number in range(random.randint(1, 8)):
        reads = random.sample(range(number), min(number, random.randint(0, 2)))
        names = [f"v{read}" for read in sorted(reads)]
        calls.append(function(f"f{number}", names, f"v{number}", tokens=random.randint(1, 30)))
    return calls
