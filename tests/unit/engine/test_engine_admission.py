"""The budget of an engine: who may run, who may hold, and that nobody waits for ever."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from parrot_engine.admission import PAUSED_SHARE, Admission, Claim
from parrot_engine.programs.pace import (
    CHUNK_COST_STEPS,
    LEAST_TOKENS,
    MOST_TOKENS,
    QUIET_TOKENS,
    Chunk,
    Pace,
    next_chunk,
)

pytestmark = pytest.mark.anyio

BUDGET = 1000


@pytest.fixture
async def tasks() -> AsyncIterator[list[asyncio.Task[None]]]:
    made: list[asyncio.Task[None]] = []
    yield made
    for task in made:
        task.cancel()
    await asyncio.gather(*made, return_exceptions=True)


class Run:
    """A program that runs until it is told to end."""

    def __init__(self, admission: Admission, need: int, priority: int = 0, slots: int = 1) -> None:
        self.dropped = 0
        self.claim = admission.enter(priority, self._drop)
        self.running = asyncio.Event()
        self.end = asyncio.Event()
        self.task = asyncio.create_task(self._run(admission, need, slots))

    def _drop(self) -> None:
        self.dropped += 1

    async def _run(self, admission: Admission, need: int, slots: int) -> None:
        try:
            async with admission.run(self.claim, need, slots):
                self.running.set()
                await self.end.wait()
        finally:
            admission.leave(self.claim)


async def settle() -> None:
    """Lets every task run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


async def started(runs: list[Run]) -> list[bool]:
    await settle()
    return [run.running.is_set() for run in runs]


async def finish(*runs: Run) -> None:
    for run in runs:
        run.end.set()
    await asyncio.gather(*(run.task for run in runs))


def paused(admission: Admission, tokens: int, priority: int = 0) -> tuple[Claim, list[Claim]]:
    """A paused program that holds `tokens`, and where it notes that it lost them."""
    lost: list[Claim] = []
    claim = admission.enter(priority, lambda: lost.append(claim))
    assert admission.hold(claim, tokens)
    return claim, lost


async def test_running_programs_fit_the_budget_together() -> None:
    admission = Admission(8, BUDGET)
    runs = [Run(admission, 400) for _ in range(4)]
    assert await started(runs) == [True, True, False, False]
    await finish(runs[0])
    assert await started(runs[1:]) == [True, True, False]
    await finish(*runs[1:])


async def test_no_more_outputs_run_than_there_are_slots() -> None:
    admission = Admission(3, BUDGET)
    runs = [Run(admission, 1), Run(admission, 1, slots=2), Run(admission, 1)]
    assert await started(runs) == [True, True, False]
    await finish(*runs)


async def test_more_alternatives_than_slots_run_alone() -> None:
    admission = Admission(2, BUDGET)
    wide, other = Run(admission, 1, slots=5), Run(admission, 1)
    assert await started([wide, other]) == [True, False]
    await finish(wide, other)


async def test_nobody_overtakes_so_a_large_program_is_not_starved() -> None:
    admission = Admission(8, BUDGET)
    first, large, small = Run(admission, 600), Run(admission, 900), Run(admission, 10)
    assert await started([first, large, small]) == [True, False, False]
    await finish(first)
    assert await started([large, small]) == [True, True]
    await finish(large, small)


async def test_lower_priorities_go_first() -> None:
    admission = Admission(1, BUDGET)
    first, late, urgent = Run(admission, 1), Run(admission, 1, priority=5), Run(admission, 1, priority=-5)
    await started([first])
    await finish(first)
    assert await started([late, urgent]) == [False, True]
    await finish(urgent, late)


async def test_a_program_that_exceeds_the_budget_runs_alone() -> None:
    admission = Admission(8, BUDGET)
    small, huge = Run(admission, 10), Run(admission, 5 * BUDGET)
    assert await started([small, huge]) == [True, False]
    await finish(small)
    assert await started([huge]) == [True]
    await finish(huge)


async def test_what_paused_programs_hold_is_taken_from_the_last_in_order_and_only_as_far_as_needed() -> None:
    admission = Admission(8, BUDGET)
    kept, kept_lost = paused(admission, 300)
    _, early_lost = paused(admission, 300)
    late, late_lost = paused(admission, 250, priority=3)
    run = Run(admission, 400)
    assert await started([run]) == [True]
    assert (len(kept_lost), len(early_lost), len(late_lost)) == (0, 0, 1)
    assert (late.held_tokens, late.dropped) == (0, True)
    more = Run(admission, 300)
    assert await started([more]) == [True]
    assert (len(kept_lost), len(early_lost), len(late_lost)) == (0, 1, 1)
    assert kept.held_tokens == 300
    await finish(run, more)


async def test_what_was_taken_is_given_back_only_when_there_is_room_for_all_of_it() -> None:
    admission = Admission(8, BUDGET)
    claim, lost = paused(admission, 500)
    run = Run(admission, 700)
    await started([run])
    assert len(lost) == 1
    assert not admission.hold(claim, 500)
    await finish(run)
    assert admission.hold(claim, 508)
    assert (claim.held_tokens, claim.dropped) == (508, False)


async def test_paused_programs_leave_room_for_what_comes_next() -> None:
    admission = Admission(8, BUDGET)
    claim = admission.enter(0, lambda: None)
    assert admission.hold(claim, int(PAUSED_SHARE * BUDGET))
    assert not admission.hold(claim, int(PAUSED_SHARE * BUDGET) + 1)


async def test_nothing_more_is_held_while_somebody_waits_for_memory() -> None:
    admission = Admission(8, BUDGET)
    claim, _ = paused(admission, 10)
    first, second = Run(admission, 600), Run(admission, 600)
    await started([first, second])
    assert not admission.hold(claim, 11)
    await finish(first, second)
    assert admission.hold(claim, 11)


async def test_a_wait_for_a_slot_does_not_stop_paused_programs() -> None:
    admission = Admission(1, BUDGET)
    claim, _ = paused(admission, 10)
    first, second = Run(admission, 10), Run(admission, 10)
    await started([first, second])
    assert admission.hold(claim, 500)
    await finish(first, second)


async def test_what_a_program_held_is_part_of_what_it_needs() -> None:
    admission = Admission(8, BUDGET)
    run = Run(admission, 800)
    await finish(run)
    claim, lost = paused(admission, 700)
    async with admission.run(claim, 950):
        assert (claim.held_tokens, claim.need_tokens, lost) == (0, 950, [])
    assert claim.need_tokens == 0


async def test_shared_contexts_count_once_and_only_while_one_who_uses_them_runs() -> None:
    admission = Admission(8, BUDGET)
    claims = [admission.enter(0, lambda: None) for _ in range(3)]
    for claim in claims:
        claim.shared = {"prefix": 600, "nested": 100}
    other = Run(admission, 900)
    assert await started([other]) == [True], "users that are paused reserve nothing"
    await finish(other)
    async with admission.run(claims[0], 100), admission.run(claims[1], 100):
        late = Run(admission, 101)
        assert await started([late]) == [False]
    assert await started([late]) == [True]
    await finish(late)


async def test_a_paused_program_holds_its_own_tokens_beside_a_shared_context() -> None:
    admission = Admission(8, BUDGET)
    claims = [admission.enter(0, lambda: None) for _ in range(8)]
    for claim in claims:
        claim.shared = {"prefix": 400}
    assert [admission.hold(claim, 100) for claim in claims] == [True] * 5 + [False] * 3


async def test_without_a_budget_only_slots_count() -> None:
    admission = Admission(2, 0)
    claim = admission.enter(0, lambda: None)
    assert admission.hold(claim, 1 << 40)
    runs = [Run(admission, 1 << 40) for _ in range(3)]
    assert await started(runs) == [True, True, False]
    await finish(*runs)


async def test_a_wait_that_is_cancelled_leaves_its_place_to_the_next() -> None:
    admission = Admission(1, BUDGET)
    runs = [Run(admission, 1) for _ in range(3)]
    await started(runs)
    runs[1].task.cancel()
    await finish(runs[0])
    assert await started([runs[2]]) == [True]
    await finish(runs[2])
    assert (admission.running, admission.waiting, admission.programs) == (0, 0, 0)


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_happens_everybody_gets_to_run_and_all_is_given_back(seed: int) -> None:
    chance = random.Random(seed)
    admission = Admission(chance.randint(1, 5), BUDGET)

    async def live() -> None:
        claim = admission.enter(chance.randint(0, 2), lambda: None)
        try:
            for _ in range(chance.randint(1, 4)):
                for _ in range(chance.randint(0, 3)):
                    admission.hold(claim, chance.randint(1, BUDGET))
                    await asyncio.sleep(0)
                async with admission.run(claim, chance.randint(1, BUDGET * 2), chance.randint(1, 3)):
                    reserved = sum(other.need_tokens for other in admission._claims)
                    assert reserved <= BUDGET or admission.running == 1
                    for _ in range(chance.randint(0, 5)):
                        await asyncio.sleep(0)
                if chance.random() < 0.1:
                    raise asyncio.CancelledError
        finally:
            admission.leave(claim)

    lives = [asyncio.create_task(live()) for _ in range(60)]
    for doomed in chance.sample(lives, 15):
        for _ in range(chance.randint(0, 3)):
            await asyncio.sleep(0)
        doomed.cancel()
    await asyncio.gather(*lives, return_exceptions=True)
    assert (admission.running, admission.waiting, admission.programs) == (0, 0, 0)


def test_chunks_shrink_towards_the_expected_end_and_are_small_where_none_is_known() -> None:
    assert next_chunk(0, 0) == next_chunk(5000, 0) == next_chunk(1001, 1000) == Chunk(LEAST_TOKENS)
    found = [next_chunk(made, 1000) for made in range(1000 - QUIET_TOKENS)]
    sizes = [chunk.tokens for chunk in found if chunk is not None]
    assert len(sizes) == len(found)
    assert sizes[0] == MOST_TOKENS
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == LEAST_TOKENS


@pytest.mark.parametrize("expected", [1, 3, 32, 1000])
def test_the_last_chunk_is_sent_when_it_still_ends_before_its_producer(expected: int) -> None:
    late = {
        expected - made: next_chunk(made, expected)
        for made in range(max(0, expected - QUIET_TOKENS), expected + 1)
    }
    assert {left for left, chunk in late.items() if chunk is not None} <= {3, 4}
    assert all(chunk == Chunk(1, at_once=True) for chunk in late.values() if chunk is not None)
    assert expected < 3 or late[3] is not None


def test_chunks_of_all_programs_together_keep_to_their_share_of_the_batch() -> None:
    pace = Pace(lambda: 50.0)
    sent = sum(pace.take(ms / 1000) for ms in range(10_000))
    cost_ms = sent * CHUNK_COST_STEPS * 50.0
    assert 0.9 * 0.02 <= cost_ms / 10_000 <= 0.02 * 1.05


def test_what_chunks_that_can_not_wait_take_of_the_batch_is_made_up_for() -> None:
    pace = Pace(lambda: 50.0)
    assert all(pace.take(0.0, at_once=True) for _ in range(50))
    sent = 50 + sum(pace.take(ms / 1000) for ms in range(30_000))
    cost_ms = sent * CHUNK_COST_STEPS * 50.0
    assert 0.9 * 0.02 <= cost_ms / 30_000 <= 0.02 * 1.05
