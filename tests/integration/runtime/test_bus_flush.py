"""Whoever waits for the bus may leave at any moment: the connection is everybody's, and stays."""

from __future__ import annotations

import asyncio
import contextlib

import nats.errors
import pytest
from tests.support.passing import Proxy

from parrot_runtime.ids import new_session_id
from parrot_runtime.values import bus as bus_module
from parrot_runtime.values.bus import FLUSH_S, connected
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


class Swallowing(Proxy):
    """Passes on what is said to the server, until that is lost on the way.

    Attributes:
        asked: is set when the question that is lost has come.
    """

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.asked: asyncio.Event | None = None
        self._cut = asyncio.Event()

    def cut(self) -> None:
        """Ends the connection on which something was lost."""
        self._cut.set()

    async def there(self, client: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        while data := await client.read(65_536):
            if self.asked is not None and not self.asked.is_set():
                self.asked.set()
                await self._cut.wait()
                return
            server.write(data)
            await server.drain()


async def test_a_question_that_went_with_the_connection_is_asked_again(nats_url: str) -> None:
    async with Swallowing(nats_url).listening() as way, connected(way.url, "asker", 5) as bus:
        way.asked = asyncio.Event()
        flushing = asyncio.create_task(bus.flush())
        await asyncio.wait_for(way.asked.wait(), 10)
        await asyncio.sleep(0)
        assert not flushing.done()
        way.cut()
        # The library alone would wait until its time is over, and give up.
        await asyncio.wait_for(flushing, FLUSH_S)
        assert bus.client.stats["reconnects"] == 1


async def test_a_server_that_says_nothing_is_given_up(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus_module, "FLUSH_S", 0.2)
    async with Swallowing(nats_url).listening() as way, connected(way.url, "asker", 5) as bus:
        way.asked = asyncio.Event()
        with pytest.raises(nats.errors.FlushTimeoutError):
            await bus.flush()
        way.cut()
