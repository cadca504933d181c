"""Functions on real sandbox engines: values on the bus, failover, cancels, limits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import psutil
import pytest
from tests.integration.manager.test_manager_blocks import final
from tests.support.manager import Client, ManagerUnderTest, eventually, native, serving
from tests.support.managers import Service
from tests.support.up import gone

from parrot_manager.store.base import Store
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2 as pb
from parrot_runtime.values.bus import Bus

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

RUNNING = common_pb2.CALL_STATE_RUNNING
ENDLESS = "def f():\n    while True: pass"


def function(source: str, inputs: list[str], outputs: list[str], timeout_ms: int = 1_000) -> pb.NewCall:
    """A function `f` whose placeholders are named as its variables."""
    made = native("f", inputs, outputs)
    made.native.sandbox.CopyFrom(pb.NativeSandbox(source=source, entry="f", timeout_ms=timeout_ms))
    return made


@asynccontextmanager
async def site(
    store: Store, bus: Bus, nats_url: str, *names: str
) -> AsyncIterator[tuple[ManagerUnderTest, dict[str, Service]]]:
    """A manager, and sandboxes of one place each, by their names."""
    async with AsyncExitStack() as stack:
        manager = await stack.enter_async_context(serving(store, bus, sandbox=True))
        engines: dict[str, Service] = {}
        for name in names:
            flags = ["--engine-id", name, "--manager-address", manager.address, "--nats-url", nats_url]
            engines[name] = Service(["parrot_engine", "--backend", "sandbox", "--capacity", "1", *flags])
            stack.push_async_callback(engines[name].kill)
            await engines[name].start()
        for name in names:
            await eventually(lambda name=name: has_engine(manager.client, name), 60)  # type: ignore[misc]
        yield manager, engines


async def has_engine(client: Client, name: str) -> bool:
    return any(engine.id == name for engine in await client.engines())


async def running_on(client: Client, session: str, place: int = 0) -> str:
    """The engine that runs a call of a session's; empty: none does."""
    found = (await client.session(session)).calls[place]
    return found.engine_id if found.state == RUNNING else ""


async def are_gone(processes: list[psutil.Process]) -> bool:
    return all(map(gone, processes))


async def test_functions_are_calls_as_any_other(store: Store, bus: Bus, nats_url: str) -> None:
    halves = function("def f(x):\n    return {'y': x[:3], 'z': x[3:]}", ["x"], ["y", "z"])
    halves.segments[0].input.transforms.append("strip")
    halves.segments[2].output.transforms.append("upper")
    joined = function("def f(y, z):\n    return z + y", ["y", "z"], ["end"])
    joined.when.CopyFrom(pb.Condition(variable_id="y", equals="kea"))
    skipped = function("def f():\n    return ''", [], ["never"])
    skipped.when.CopyFrom(pb.Condition(variable_id="y", empty=True))
    async with site(store, bus, nats_url, "e-1") as (manager, _):
        client = manager.client
        session = await client.open()
        await client.submit(session, [joined, halves, skipped], {"x": " kea 漢! \n"})
        assert (await client.ended(session, "end", 30)).value == " 漢!kea"
        assert (await final(bus, session, "z")).text == " 漢!"
        assert (await client.ended(session, "never")).variable.failure.type == "skipped"
        shown = {one.id: one for one in (await client.session(session)).calls}
        assert shown["c-2"].provenance.backend == "sandbox"
        assert (shown["c-2"].native, shown["c-2"].model) == ("sandbox", "python")
        assert shown["c-2"].usage.output_tokens == 0


async def test_a_function_goes_on_elsewhere_when_its_engine_dies(
    store: Store, bus: Bus, nats_url: str
) -> None:
    async with site(store, bus, nats_url, "e-1", "e-2") as (manager, engines):
        client = manager.client
        session = await client.open()
        await client.submit(session, [function(ENDLESS, [], ["out"], timeout_ms=60_000)])
        first: str = await eventually(lambda: running_on(client, session), 30)
        started = engines[first].children()
        assert len(started) == 2
        await engines.pop(first).kill()
        # What ran there does not go on behind its back.
        await eventually(lambda: are_gone(started), 30)
        (second,) = engines

        async def moved() -> bool:
            return await running_on(client, session) == second

        await eventually(moved, 30)
        assert await client.cancel(session, "c-1") == ["c-1"]
        # Its place is free again, though it would have run for a minute.
        await client.submit(session, [function("def f():\n    return 'next'", [], ["next"])])
        assert (await client.ended(session, "next", 20)).value == "next"
