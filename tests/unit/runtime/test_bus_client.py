"""The library's client: what waits for it ends, and who is not let in is told why."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
from typing import Any

import nats.errors
import pytest

from parrot_runtime.errors import Fault
from parrot_runtime.values import bus_client
from parrot_runtime.values.breaks import Breaks
from parrot_runtime.values.bus_client import BusClient, end
from parrot_runtime.values.connection import connect

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("lost", [0, 1, 3])
async def test_a_cancellation_that_is_lost_is_repeated(monkeypatch: pytest.MonkeyPatch, lost: int) -> None:
    monkeypatch.setattr(bus_client, "CANCEL_S", 0.001)
    seen = 0

    async def waits() -> None:
        nonlocal seen
        for _ in range(lost):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            seen += 1
        await asyncio.Event().wait()

    task = asyncio.create_task(waits())
    await asyncio.sleep(0)
    await end(task)
    assert task.cancelled()
    assert seen == lost


async def test_what_has_ended_by_itself_keeps_its_result() -> None:
    async def fails() -> None:
        raise OSError("gone")

    task = asyncio.create_task(fails())
    await asyncio.wait({task})
    await end(task)
    assert isinstance(task.exception(), OSError)


class Refused(BusClient):
    """A client whose tries to connect end in these errors, one after the other, until its time is over."""

    def __init__(self, errors: list[Exception]) -> None:
        super().__init__()
        self._errors = errors

    async def connect_within(self, timeout_s: float, **options: Any) -> None:
        for error in self._errors:
            await options["error_cb"](error)
        raise TimeoutError


EXPIRED = ssl.SSLError(1, "[SSL: SSLV3_ALERT_CERTIFICATE_EXPIRED] sslv3 alert certificate expired")
EXPIRED.reason = "SSLV3_ALERT_CERTIFICATE_EXPIRED"
GUESS = nats.errors.Error(bus_client.HANGS_UP)


@pytest.mark.parametrize("order", [*itertools.permutations([EXPIRED, GUESS, ConnectionResetError()])])
async def test_a_reason_that_was_given_is_told_rather_than_a_guess(order: tuple[Exception, ...]) -> None:
    with pytest.raises(Fault, match="this service's certificate has expired"):
        await connect(Refused([*order]), "tls://nats", "test", 1, "", Breaks())


async def test_the_last_of_several_reasons_is_told() -> None:
    later = nats.errors.Error("nats: 'Authorization Violation'")
    with pytest.raises(Fault, match="Authorization Violation"):
        await connect(Refused([EXPIRED, later, GUESS]), "tls://nats", "test", 1, "", Breaks())
