"""The whole system with every door shut: certificates on every way, and for nobody a right too many."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from tests.support.certificates import Authority
from tests.support.guarded_nats import guarded_nats, tls_url
from tests.support.manager import eventually
from tests.support.nats import NatsServer, free_port
from tests.support.roles import with_roles
from tests.support.services import Service, service
from tests.support.tls_postgres import TlsPostgres, needs_tls_postgres, tls_postgres

from parrot_manager.store import schema
from parrot_runtime.values.bus import connected
from parrot_runtime.values.subjects import FINAL_STREAM, SessionSubjects

pytestmark = [pytest.mark.anyio, needs_tls_postgres]
FAST = ("--upkeep-interval-s", "0.2", "--purge-after-s", "0", "--drain-s", "1")


@dataclass(frozen=True, slots=True)
class System:
    """A gateway's address, a key for it, and the services by name."""

    url: str
    key: str
    services: dict[str, Service]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def nats(authority: Authority) -> Iterator[NatsServer]:
    with guarded_nats("certificates.conf", authority.issue("127.0.0.1", "nats")) as server:
        yield server


@pytest.fixture(scope="module")
def postgres(authority: Authority) -> Iterator[TlsPostgres]:
    with tls_postgres(authority.issue("127.0.0.1", "postgres")) as server:
        yield server


async def parrot(authority: Authority, *arguments: str) -> str:
    """What the command prints for an operator with a certificate."""
    files = authority.issue("operator").settings()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "parrot_cli",
        *arguments,
        env={f"PARROT_{name.upper()}": path for name, path in files.items()},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    printed, said = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, said.decode()
    return printed.decode().strip()


@pytest.fixture
async def system(authority: Authority, nats: NatsServer, postgres: TlsPostgres) -> AsyncIterator[System]:
    database = postgres.new_database()
    with_roles(postgres, database)
    await schema.migrate(postgres.tls_url(database, "owner", authority.issue("owner")), 20)
    address = f"127.0.0.1:{free_port()}"
    of_manager = authority.issue("manager")
    flags = {
        "manager": (
            *("--listen", address, "--postgres-url", postgres.tls_url(database, "manager", of_manager)),
            *(*of_manager.flags(), *FAST),
        ),
        "engine": ("--backend", "sim", "--sim-step-ms", "1", "--manager-address", address),
        "gateway": ("--port", "0", "--manager-address", address, "--keys"),
    }
    async with AsyncExitStack() as stack:
        services = {}
        for role, given in flags.items():
            own = () if role == "manager" else authority.issue(role).flags()
            running = service(f"parrot_{role}", *given, *own, "--nats-url", tls_url(nats))
            services[role] = await stack.enter_async_context(running)
        await services["engine"].said("attached to the manager")
        ready = await services["gateway"].said("ready")
        key = await parrot(authority, "keys", "create", "acme", "--manager-address", address)
        yield System(str(ready["url"]), key, services)


CALLS = [
    {
        "name": "first",
        "prompt": "Tell of {{topic}}: {{text}}",
        "placeholders": [
            {"name": "topic", "in_out": "in", "value": "the sea"},
            {"name": "text", "in_out": "out", "semantic_var_id": "text", "sampling": {"max_tokens": 200}},
        ],
    },
    {
        "name": "second",
        "prompt": "In short, {{text}} as {{asked}}: {{title}}",
        "placeholders": [
            {"name": "text", "in_out": "in", "semantic_var_id": "text"},
            {"name": "asked", "in_out": "in", "semantic_var_id": "asked"},
            {"name": "title", "in_out": "out", "semantic_var_id": "title", "sampling": {"max_tokens": 8}},
        ],
    },
]
"""The engine reads the first's output from the bus; the second and what a client set."""


@pytest.mark.timeout(300)
async def test_an_application_runs_with_every_door_shut(
    system: System, authority: Authority, nats: NatsServer
) -> None:
    headers = {"Authorization": f"Bearer {system.key}"}
    async with httpx.AsyncClient(base_url=system.url, headers=headers, timeout=60, trust_env=False) as http:
        session = (await http.post("/v1/sessions")).json()["id"]
        given = await http.put(f"/v1/sessions/{session}/variables/asked", json={"value": "a title"})
        assert given.is_success, given.text
        made = await http.post(f"/v1/sessions/{session}/calls", json={"calls": CALLS})
        assert made.status_code == 201, made.text
        streamed = await text_of(http, f"/v1/sessions/{session}/variables/text/stream")
        whole: dict[str, Any] = (await http.get(f"/v1/sessions/{session}/variables/text")).json()
        assert streamed == whole["value"]
        # What went by is read from the stream again.
        assert await text_of(http, f"/v1/sessions/{session}/variables/text/stream") == whole["value"]
        title = (await http.get(f"/v1/sessions/{session}/variables/title")).json()
        assert title["state"] == "ready", title
        assert (await http.delete(f"/v1/sessions/{session}")).is_success
    await emptied(authority, nats, session)
    for role, running in system.services.items():
        refused = [line for line in running.lines if "does not let this service" in line]
        assert not refused, (role, refused)


async def text_of(http: httpx.AsyncClient, path: str) -> str:
    """A variable's text, as its stream gives it."""
    text = ""
    async with http.stream("GET", path) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                text += json.loads(line.removeprefix("data: ")).get("text", "")
    return text


async def emptied(authority: Authority, nats: NatsServer, session: str) -> None:
    """Returns once the manager has emptied the bus of a session."""
    names = SessionSubjects("acme", session)
    tls = authority.issue("gateway").tls()
    async with connected(tls_url(nats), "test", 10, tls=tls, role="gateway") as bus:

        async def gone() -> bool:
            return await bus.last(FINAL_STREAM, names.final("text")) is None

        await eventually(gone, within_s=30)
