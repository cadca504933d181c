"""For how long the SDK asks again: the budget begins with the first failure."""

from __future__ import annotations

import pytest

from parrot.client import Backoff
from parrot.errors import ParrotError, RequestRefused, ServerUnavailable

pytestmark = pytest.mark.anyio
BUDGET_S = 15.0


class Clock:
    """Time that passes when somebody sleeps, or when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("parrot.client.time.monotonic", made.monotonic)
    monkeypatch.setattr("parrot.client.asyncio.sleep", made.sleep)
    return made


def broken() -> ServerUnavailable:
    return ServerUnavailable("broken")


def busy() -> RequestRefused:
    return RequestRefused("busy", type="unavailable", status=503)


async def fails(backoff: Backoff, clock: Clock, *, after_s: float, cause: ParrotError) -> float:
    """For how long tries that fail `after_s` each are made again."""
    start = clock.now
    while True:
        clock.now += after_s
        try:
            await backoff.pause(cause)
        except ParrotError:
            return clock.now - start


@pytest.mark.parametrize("cause", [broken(), busy()])
async def test_a_try_that_fails_after_a_long_wait_is_followed_by_another(
    clock: Clock, cause: ParrotError
) -> None:
    backoff = Backoff(BUDGET_S)
    clock.now += 2 * BUDGET_S
    await backoff.pause(cause)


async def test_what_fails_at_once_is_tried_for_the_budget_and_no_longer(clock: Clock) -> None:
    assert BUDGET_S - 3 < await fails(Backoff(BUDGET_S), clock, after_s=0.0, cause=broken()) <= BUDGET_S


async def test_a_connection_that_held_for_long_and_broke_begins_the_budget_anew(clock: Clock) -> None:
    backoff = Backoff(BUDGET_S, held=True)
    for _ in range(10):
        clock.now += 2 * BUDGET_S
        await backoff.pause(broken())


@pytest.mark.parametrize("cause", [busy(), ServerUnavailable("no answer", silent=True)])
async def test_a_server_that_keeps_refusing_or_saying_nothing_is_given_up(
    clock: Clock, cause: ParrotError
) -> None:
    took = await fails(Backoff(BUDGET_S, held=True), clock, after_s=2 * BUDGET_S, cause=cause)
    assert took < 5 * BUDGET_S


async def test_a_request_that_is_not_held_and_breaks_again_and_again_is_given_up(clock: Clock) -> None:
    took = await fails(Backoff(BUDGET_S), clock, after_s=2 * BUDGET_S, cause=broken())
    assert took < 5 * BUDGET_S


async def test_no_budget_means_no_second_try(clock: Clock) -> None:
    for cause in (broken(), busy()):
        with pytest.raises(ParrotError):
            await Backoff(0.0).pause(cause)


async def test_progress_begins_the_budget_anew(clock: Clock) -> None:
    backoff = Backoff(BUDGET_S)
    await backoff.pause(busy())
    clock.now += 2 * BUDGET_S
    backoff.progress()
    await backoff.pause(busy())
