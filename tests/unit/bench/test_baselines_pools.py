"""Requests at once, spread over pools of connections."""

from __future__ import annotations

import httpx
import pytest

from parrot_bench.pools import POOL_REQUESTS, Pools

pytestmark = pytest.mark.anyio

URL = "http://server/"


class Silent(httpx.AsyncBaseTransport):
    """A pool whose answers have no end until they are closed; a request for `/fail` fails."""

    def __init__(self, made: list[Silent]) -> None:
        made.append(self)
        self.asked = 0
        self.closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """An answer."""
        self.asked += 1
        if request.url.path == "/fail":
            raise httpx.ReadError("gone")
        return httpx.Response(200, stream=httpx.ByteStream(b"text"))

    async def aclose(self) -> None:
        """Notes it."""
        self.closed = True


async def test_requests_one_after_the_other_keep_to_one_pool() -> None:
    made: list[Silent] = []
    async with httpx.AsyncClient(transport=Pools(lambda: Silent(made))) as client:
        for _ in range(2 * POOL_REQUESTS):
            assert (await client.get(URL)).text == "text"
    assert [pool.asked for pool in made] == [2 * POOL_REQUESTS]
    assert made[0].closed


async def test_requests_at_once_get_pools_of_their_own_which_are_used_again() -> None:
    made: list[Silent] = []
    pools = Pools(lambda: Silent(made))
    request = httpx.Request("GET", URL)
    for _ in range(2):
        answers = [await pools.handle_async_request(request) for _ in range(3 * POOL_REQUESTS)]
        assert len(made) == 3
        for answer in answers:
            await answer.aclose()
    assert [pool.asked for pool in made] == [2 * POOL_REQUESTS] * 3


async def test_a_request_that_fails_and_a_body_that_is_closed_twice_leave_the_count_as_it_was() -> None:
    made: list[Silent] = []
    pools = Pools(lambda: Silent(made))
    for _ in range(2 * POOL_REQUESTS):
        with pytest.raises(httpx.ReadError):
            await pools.handle_async_request(httpx.Request("GET", f"{URL}fail"))
        answer = await pools.handle_async_request(httpx.Request("GET", URL))
        assert isinstance(answer.stream, httpx.AsyncByteStream)
        await answer.stream.aclose()
        await answer.stream.aclose()
    open_now = [await pools.handle_async_request(httpx.Request("GET", URL)) for _ in range(POOL_REQUESTS + 1)]
    assert len(made) == 2
    for answer in open_now:
        await answer.aclose()
