"""A service with another role's certificate ends, or says so, instead of trying for ever."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.certificates import Authority
from tests.support.services import service
from tests.support.tls_manager import manager

from parrot_runtime.values.bus import connected

pytestmark = pytest.mark.anyio


async def test_an_engine_with_a_gateway_s_certificate_ends_and_says_what_it_lacks(
    authority: Authority, nats_url: str
) -> None:
    async with (
        connected(nats_url, "manager", 5, role="manager"),
        manager(authority.issue("manager").tls()) as address,
    ):
        flags = ("--backend", "sim", "--manager-address", address, "--nats-url", nats_url)
        async with service("parrot_engine", *flags, *authority.issue("gateway").flags()) as engine:
            assert await asyncio.wait_for(engine.process.wait(), 60) == 1
    why = "the caller's certificate has the names gateway; Attach is for one with the name engine"
    assert engine.lines[-1] == f"parrot-engine: {why}\n"


async def test_a_gateway_that_speaks_no_tls_to_managers_that_do_says_so_before_its_time_is_up(
    authority: Authority, nats_url: str
) -> None:
    async with manager(authority.issue("manager").tls()) as address:
        flags = ("--port", "0", "--manager-address", address, "--nats-url", nats_url)
        async with service("parrot_gateway", *flags, "--connect-timeout-s", "120") as gateway:
            told = await gateway.said("not spoken to")
    assert told["reason"].startswith(f"{address}: it speaks TLS, and this one does not")
