"""Whoever waits for the bus may leave at any moment: the connection is everybody's, and stays."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from parrot_runtime.ids import new_session_id
from parrot_runtime.values.bus import connected
from parrot_runtime.values.reader import Feeds

pytestmark = pytest.mark.anyio


async def test_leaving_while_a_feed_is_being_opened_does_not_end_the_connection(nats_url: str) -> None:
    async with connected(nats_url, "leaver", 5) as bus:
        feeds = Feeds(bus)

        async def read() -> None:
            async with feeds.session("default", new_session_id()):
                await asyncio.Event().wait()

        # Cancelled after every number of turns of the loop there may be until the feed is open.
        for turns in range(40):
            reading = asyncio.create_task(read())
            for _ in range(turns):
                await asyncio.sleep(0)
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading
            # What was asked for is answered, whoever left.
            await asyncio.wait_for(bus.js.account_info(), 5)
        await bus.flush()
        assert bus.client.stats["reconnects"] == 0
        assert bus.client.is_connected
