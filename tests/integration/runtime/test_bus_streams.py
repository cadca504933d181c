"""The streams that values live in: as each version needs them, and nothing is taken from a later one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from nats.js import JetStreamContext
from tests.support.nats import NatsServer, temporary_nats

from parrot_runtime.values import subjects
from parrot_runtime.values.bus import connected
from parrot_runtime.values.states import StateSubject
from parrot_runtime.values.subjects import SessionSubjects

pytestmark = pytest.mark.anyio


@pytest.fixture
def server() -> Iterator[NatsServer]:
    """A server of the test's own, whose streams it may change."""
    with temporary_nats() as started:
        yield started


async def with_subjects(js: JetStreamContext, wanted: list[str]) -> None:
    """The deltas' stream takes these subjects."""
    kept = (await js.stream_info(subjects.DELTA_STREAM)).config
    kept.subjects = wanted
    await js.update_stream(kept)


async def test_a_stream_of_before_learns_the_subjects_that_are_new(server: NatsServer) -> None:
    async with connected(server.url, "before", 5) as bus:
        await with_subjects(bus.js, [f"{subjects.DELTA_ROOT}.>", f"{subjects.DELTA_EPOCH_ROOT}.>"])
    async with connected(server.url, "now", 5) as bus:
        assert await StateSubject(bus).last(SessionSubjects("default", "s00-0000000000000001")) is None
        kept = (await bus.js.stream_info(subjects.DELTA_STREAM)).config
        assert f"{subjects.STATE_ROOT}.>" in (kept.subjects or ())


async def test_a_stream_of_a_later_version_keeps_the_subjects_nobody_knows_here(server: NatsServer) -> None:
    async with connected(server.url, "now", 5) as bus:
        known = (await bus.js.stream_info(subjects.DELTA_STREAM)).config.subjects or []
        await with_subjects(bus.js, [*known, "sv.later.>"])
    async with connected(server.url, "restarted", 5) as bus:
        kept = (await bus.js.stream_info(subjects.DELTA_STREAM)).config
        assert kept.subjects == [*known, "sv.later.>"]
