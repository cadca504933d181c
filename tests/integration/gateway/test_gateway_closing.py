"""A gateway that stops answers whoever waits with what is known: never with an end whose value is missing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from tests.support.eventually import eventually
from tests.support.fake_manager import FakeManager

from parrot_gateway import session_events
from parrot_gateway.closing import Closing
from parrot_gateway.gateway import DEFAULT_TENANT, Gateway
from parrot_gateway.manager_client import ManagerClient
from parrot_gateway.managers import Managers
from parrot_gateway.routes.variables import _await_end
from parrot_gateway.session_news import renderer
from parrot_gateway.settings import GatewaySettings
from parrot_runtime.values.bus import Bus
from parrot_runtime.values.reader import Feeds
from parrot_runtime.values.session_log import SessionLogs

pytestmark = pytest.mark.anyio


@pytest.fixture
async def gateway_here(manager: tuple[FakeManager, str], nats_url: str, bus: Bus) -> AsyncIterator[Gateway]:
    """A gateway without HTTP."""
    managers = Managers([manager[1]], 1.0)
    client = ManagerClient(managers, DEFAULT_TENANT)
    logs = SessionLogs(bus, renderer, session_events.stored_values(client))
    settings = GatewaySettings.load(["--nats-url", nats_url])
    yield Gateway(settings, client, bus, Feeds(bus), Closing(), logs)
    await managers.close()


@pytest.fixture
async def session_id(http: httpx.AsyncClient) -> str:
    """A session with one call, whose output is `y`."""
    found = str((await http.post("/v1/sessions")).json()["id"])
    output = {"name": "y", "in_out": "out", "semantic_var_id": "y"}
    await http.post(f"/v1/sessions/{found}/calls", json={"prompt": "a {{y}}", "placeholders": [output]})
    return found


async def waited(gateway: Gateway, session_id: str) -> dict[str, Any]:
    response = await _await_end(gateway, session_id, "y", 30.0, None)
    found: dict[str, Any] = json.loads(bytes(response.body))
    return found


async def test_what_had_ended_is_told_with_its_value_while_the_gateway_stops(
    gateway_here: Gateway, fake: FakeManager, session_id: str
) -> None:
    fake.finish(session_id, "y", "abc")
    gateway_here.closing.begin()
    found = await waited(gateway_here, session_id)
    assert (found["state"], found["value"]) == ("ready", "abc")


async def test_what_has_not_ended_is_told_as_it_is_when_the_gateway_stops(
    gateway_here: Gateway, session_id: str
) -> None:
    waiting = asyncio.create_task(waited(gateway_here, session_id))
    await eventually(lambda: gateway_here.closing._waits)
    gateway_here.closing.begin()
    found = await waiting
    assert (found["state"], found["value"]) == ("pending", None)
