"""What strangers may do at the door: pages of other machines nothing, wrong keys no harm to good ones."""

from __future__ import annotations

import asyncio

import pytest

from parrot_gateway.doors.door import Keyless
from parrot_gateway.doors.keys import ASKED_AT_ONCE, KEPT, MOST_WAITING, Holder, KeyRing
from parrot_runtime import errors
from parrot_runtime.api_keys import KeyParts, new_api_key, parts_of
from parrot_runtime.errors import Fault

pytestmark = pytest.mark.anyio


async def enters(method: str, origin: str, *origins: str, host: str = "127.0.0.1:8080") -> bool:
    """Whether a page's request comes in where no keys are asked for."""
    headers = [(b"host", host.encode()), (b"origin", origin.encode())]
    try:
        await Keyless("default", origins).admit({"type": "http", "method": method, "headers": headers})
    except Fault as fault:
        return (fault.kind, fault.field) != (errors.FOREIGN_ORIGIN, "Origin")
    return True


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "http://localhost.evil.example",
        "http://127.0.0.1.nip.io:8080",
        "http://203.0.113.7",
        "http://10.0.0.8:8080",
        "null",
        "http://[",
        "",
        "localhost",
    ],
)
async def test_without_keys_a_page_of_another_machine_changes_nothing(method: str, origin: str) -> None:
    assert not await enters(method, origin, "https://app.example", host="10.0.0.7:8080")


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost:3000",
        "http://127.0.0.1",
        "http://[::1]:8080",
        "http://app.localhost",
        "http://10.0.0.7:8080",
    ],
)
async def test_without_keys_this_machines_own_pages_may_act(origin: str) -> None:
    assert await enters("POST", origin, host="10.0.0.7:8080")


async def test_without_keys_a_page_that_is_named_may_act_and_any_may_be_told_no() -> None:
    assert await enters("POST", "https://app.example", "https://app.example")
    assert await enters("POST", "https://evil.example", "*")
    assert await enters("GET", "https://evil.example")


async def test_a_flood_of_wrong_keys_keeps_no_good_key_out() -> None:
    good, strangers = new_api_key(), asyncio.Event()
    now_s = 0.0

    async def ask(parts: KeyParts) -> Holder:
        if parts == parts_of(good):
            return Holder("a")
        await strangers.wait()
        raise Fault(errors.UNAUTHENTICATED, "no")

    ring = KeyRing(ask, 5.0, lambda: now_s)
    assert await ring.holder(good) == Holder("a")
    strangers.set()
    room = ASKED_AT_ONCE + MOST_WAITING
    for _ in range(KEPT // room + 1):
        await asyncio.gather(*(ring.holder(new_api_key()) for _ in range(room)), return_exceptions=True)
    strangers.clear()
    flood = [asyncio.create_task(ring.holder(new_api_key())) for _ in range(room)]
    await asyncio.sleep(0)
    with pytest.raises(Fault) as refused:
        await ring.holder(new_api_key())
    assert refused.value.kind is errors.UNAVAILABLE

    # Long past being believed, and so asked about again.
    now_s = 3600.0
    assert await ring.holder(good) == Holder("a")
    strangers.set()
    await asyncio.gather(*flood, return_exceptions=True)
    await ring.close()
