"""The users shipped in deploy/nats: each may do what its service does, and no more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager

import pytest
from nats.aio.client import Client
from tests.support.certificates import Authority
from tests.support.guarded_nats import ROLES, guarded_nats, password_url, tls_url
from tests.support.manager import eventually
from tests.support.nats import NatsServer

from parrot_runtime.errors import Fault
from parrot_runtime.values.bus import connected
from parrot_runtime.values.bus_client import is_forbidden

pytestmark = pytest.mark.anyio
SCOPE = "00.default.session"
PUBLISHED = {
    f"sv.delta.{SCOPE}": {"engine"},
    f"sv.final.{SCOPE}.v": {"engine", "manager"},
    f"sv.state.{SCOPE}": {"manager"},
    "sv.epoch.delta.00.e-1": {"manager"},
    "sv.epoch.final.00.e-1": {"manager"},
    f"live.sv.delta.{SCOPE}": set(),
    "_INBOX_gateway.forged": set(),
    "$JS.API.STREAM.INFO.PARROT_DELTAS": {"gateway", "manager", "engine"},
    f"$JS.API.DIRECT.GET.PARROT_FINALS.sv.final.{SCOPE}.v": {"gateway", "manager", "engine"},
    "$JS.API.STREAM.CREATE.PARROT_FINALS": {"manager"},
    "$JS.API.STREAM.UPDATE.PARROT_FINALS": {"manager"},
    "$JS.API.STREAM.PURGE.PARROT_FINALS": {"manager"},
    "$JS.API.STREAM.DELETE.PARROT_FINALS": set(),
    "$JS.API.STREAM.MSG.DELETE.PARROT_FINALS": set(),
    "$JS.API.STREAM.CREATE.OTHER": set(),
    "$SYS.REQ.SERVER.PING": set(),
}
"""Who may publish what."""
HEARD = {
    "live.sv.>": {"gateway", "manager", "engine"},
    "_INBOX_gateway.>": {"gateway"},
    "_INBOX_manager.>": {"manager"},
    "_INBOX_engine.>": {"engine"},
    "_INBOX.>": set(),
    "sv.>": set(),
    ">": set(),
    "$JS.API.>": set(),
}
"""Who may listen where."""


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with guarded_nats("passwords.conf") as made:
        yield made


@asynccontextmanager
async def user(url: str) -> AsyncIterator[tuple[Client, list[str]]]:
    """A connection, and what the server refused to it."""
    refused: list[str] = []

    async def on_error(error: Exception) -> None:
        if is_forbidden(error):
            refused.append(str(error))

    client = Client()
    await client.connect(url, error_cb=on_error)
    try:
        yield client, refused
    finally:
        await client.close()


def not_named(subjects: Iterable[str], refused: list[str]) -> set[str]:
    """Those of which no refusal came."""
    named = " ".join(refused).lower()
    return {subject for subject in subjects if f'"{subject.lower()}"' not in named}


@pytest.mark.parametrize("role", ROLES)
async def test_a_user_publishes_what_its_service_does_and_no_more(server: NatsServer, role: str) -> None:
    async with user(password_url(server, role)) as (client, refused):
        for subject in PUBLISHED:
            await client.publish(subject, b"{}")
        may = {subject for subject, roles in PUBLISHED.items() if role in roles}

        async def as_it_is_to_be() -> bool:
            await client.flush()
            return not_named(PUBLISHED, refused) == may

        await eventually(as_it_is_to_be)


@pytest.mark.parametrize("role", ROLES)
async def test_a_user_hears_what_its_service_does_and_no_more(server: NatsServer, role: str) -> None:
    async with user(password_url(server, role)) as (client, refused):
        for subject in HEARD:
            await client.subscribe(subject)
        may = {subject for subject, roles in HEARD.items() if role in roles}

        async def as_it_is_to_be() -> bool:
            await client.flush()
            return not_named(HEARD, refused) == may

        await eventually(as_it_is_to_be)


async def test_nobody_else_is_let_in(server: NatsServer) -> None:
    strangers = (server.url, password_url(server, "engine").replace("of-engine", "of-gateway"))
    for url in strangers:
        with pytest.raises(Fault, match="Authorization Violation"):
            async with connected(url, "stranger", 1):
                raise AssertionError("it was let in")


async def test_an_engine_waits_for_the_streams_that_a_manager_makes() -> None:
    with guarded_nats("passwords.conf") as fresh:
        with pytest.raises(Fault, match="is a manager running"):
            async with connected(password_url(fresh, "engine"), "engine", 1, role="engine"):
                raise AssertionError("there are no streams")
        async with connected(password_url(fresh, "manager"), "manager", 5, role="manager"):
            pass
        async with connected(password_url(fresh, "engine"), "engine", 5, role="engine") as bus:
            await bus.js.publish(f"sv.delta.{SCOPE}", b"x")


async def test_a_certificate_s_name_is_its_user(authority: Authority) -> None:
    with guarded_nats("certificates.conf", authority.issue("127.0.0.1", "nats")) as fresh:
        url = tls_url(fresh)
        files = {role: authority.issue(role).tls() for role in (*ROLES, "operator")}
        async with connected(url, "manager", 5, tls=files["manager"], role="manager") as bus:
            await bus.js.publish(f"sv.state.{SCOPE}", b"x")
        async with connected(url, "engine", 5, tls=files["engine"], role="engine") as bus:
            await bus.js.publish(f"sv.delta.{SCOPE}", b"x")
            with pytest.raises(TimeoutError):
                await bus.js.publish(f"sv.state.{SCOPE}", b"x", timeout=0.5)
        with pytest.raises(Fault, match=r"Authorization Violation|does a user of its go by this certificate"):
            async with connected(url, "operator", 1, tls=files["operator"]):
                raise AssertionError("it was let in")


async def test_users_are_asked_for_later_without_a_loss() -> None:
    """They are the server's own account's, as everybody was before: what the streams hold stays."""
    with guarded_nats("passwords.conf") as server:
        guarded = "include ./passwords.conf\n"
        server.reload("")

        async def open_again() -> bool:
            try:
                async with connected(server.url, "manager", 1) as bus:
                    await bus.js.publish(f"sv.final.{SCOPE}.v", b"kept")
            except Fault:
                return False
            return True

        await eventually(open_again)
        server.stop()
        server.reload(guarded)
        server.start()
        async with connected(password_url(server, "gateway"), "gateway", 5, role="gateway") as bus:
            found = await bus.last("PARROT_FINALS", f"sv.final.{SCOPE}.v")
            assert found is not None
            assert found.data == b"kept"
