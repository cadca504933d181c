"""Managers and an engine as real processes, and a client that finds whoever serves a session."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import uuid4

import httpx
import psutil

from parrot_cli.child import tethered
from parrot_proto.manager.v1 import manager_pb2 as pb
from parrot_runtime import errors, rpc
from parrot_runtime.errors import Fault
from tests.support.manager import Client, eventually
from tests.support.nats import free_port

T = TypeVar("T")
PASSING = {errors.WRONG_MANAGER, errors.UNAVAILABLE}
AGAIN_S = 0.02


@dataclass(eq=False)
class Service:
    """A process that is stopped and killed in every way there is."""

    command: list[str]
    _process: asyncio.subprocess.Process | None = field(default=None, init=False)

    async def start(self) -> None:
        """Starts it; it may not serve yet."""
        command = tethered([sys.executable, "-m", *self.command], signal.SIGKILL)
        self._process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )

    async def kill(self) -> None:
        """Ends it as a crash would."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> int:
        """Asks it to stop; its exit status."""
        return await self._end(signal.SIGTERM)

    @property
    def runs(self) -> bool:
        """Whether the process that was started last has not ended."""
        return self._process is not None and self._process.returncode is None

    def children(self) -> list[psutil.Process]:
        """Every process it started, and they started."""
        return psutil.Process(self._process.pid).children(recursive=True) if self._process is not None else []

    def pause(self) -> None:
        """It does nothing more, and does not know."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """It goes on where it was."""
        self._signal(signal.SIGCONT)

    async def _end(self, number: signal.Signals) -> int:
        if self._process is None:
            return 0
        self._signal(number)
        self._signal(signal.SIGCONT)
        process, self._process = self._process, None
        return await process.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            # One that a signal just ended may be gone before that is known here.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)


@dataclass(eq=False)
class ManagerProcess(Service):
    """`parrot-manager`, at an address."""

    id: str = ""
    address: str = ""


@dataclass(eq=False)
class GatewayProcess(Service):
    """`parrot-gateway`, at a URL."""

    url: str = ""


@dataclass
class Site:
    """One database, one bus, managers, engines and a client."""

    postgres_url: str
    nats_url: str
    stack: AsyncExitStack
    managers: list[ManagerProcess] = field(default_factory=list)
    clients: dict[str, Client] = field(default_factory=dict)

    async def manager(self, manager_id: str, *flags: str) -> ManagerProcess:
        """A manager that was started and answers."""
        address = f"127.0.0.1:{free_port()}"
        settings = ("--manager-id", manager_id, "--listen", address, *flags)
        stores = ("--postgres-url", self.postgres_url, "--nats-url", self.nats_url)
        made = ManagerProcess(["parrot_manager", *settings, *stores], id=manager_id, address=address)
        self.managers.append(made)
        self.stack.push_async_callback(made.kill)
        await made.start()
        channel = await self.stack.enter_async_context(rpc.channel(address))
        await rpc.wait_ready(channel, address, "manager", 60)
        self.clients[manager_id] = Client(channel)
        return made

    async def engine(self, engine_id: str, *flags: str) -> Service:
        """A simulated engine that attaches to every manager there is."""
        addresses = ",".join(manager.address for manager in self.managers)
        settings = ("--manager-address", addresses, "--engine-id", engine_id, "--backend", "sim", *flags)
        made = Service(["parrot_engine", *settings, "--nats-url", self.nats_url])
        self.stack.push_async_callback(made.kill)
        await made.start()
        for client in self.clients.values():
            await eventually(_has_engine(client, engine_id), within_s=60)
        return made

    async def gateway(self, *flags: str) -> GatewayProcess:
        """A gateway of every manager there is, that was started and answers."""
        port = free_port()
        addresses = ",".join(manager.address for manager in self.managers)
        settings = ("--port", str(port), "--manager-address", addresses, "--nats-url", self.nats_url, *flags)
        made = GatewayProcess(["parrot_gateway", *settings], url=f"http://127.0.0.1:{port}")
        self.stack.push_async_callback(made.kill)
        await made.start()
        async with httpx.AsyncClient(base_url=made.url, timeout=2) as http:

            async def ready() -> bool:
                try:
                    return (await http.get("/readyz")).status_code == 200
                except httpx.TransportError:
                    return False

            await eventually(ready, within_s=60)
        return made

    async def ask(self, question: Callable[[Client], Awaitable[T]], within_s: float = 30) -> T:
        """The answer of whichever manager it is for."""
        async with asyncio.timeout(within_s):
            while True:
                for client in list(self.clients.values()):
                    try:
                        async with asyncio.timeout(1):
                            return await question(client)
                    except Fault as fault:
                        if fault.kind not in PASSING:
                            raise
                    except TimeoutError:
                        continue
                await asyncio.sleep(AGAIN_S)

    async def open(self) -> str:
        """A new session's id."""
        key = uuid4().hex
        return await self.ask(lambda client: client.open(key=key))

    async def submit(
        self, session_id: str, calls: Sequence[pb.NewCall], values: dict[str, str] | None = None
    ) -> list[str]:
        """The ids of a batch, which is taken once, however often it had to be sent."""
        key = uuid4().hex
        return await self.ask(lambda client: client.submit(session_id, calls, values, key=key))

    async def session(self, session_id: str, within_s: float = 30) -> pb.GetSessionResponse:
        """The graph as it is."""
        return await self.ask(lambda client: client.session(session_id), within_s)

    async def shards(self) -> dict[str, int]:
        """How many shards each manager has, as whoever answers has it."""

        async def count(client: Client) -> dict[str, int]:
            return {one.id: len(one.shards) for one in await client.managers()}

        return await self.ask(count)

    async def shared(self, **expected: int) -> None:
        """Returns once the managers have so many shards each."""
        wanted = {name.replace("_", "-"): count for name, count in expected.items()}

        async def look() -> bool:
            return await self.shards() == wanted

        await eventually(look, within_s=30)


@asynccontextmanager
async def site(postgres_url: str, nats_url: str) -> AsyncIterator[Site]:
    """A site whose processes end with the block. The database's schema is in place."""
    async with AsyncExitStack() as stack:
        yield Site(postgres_url, nats_url, stack)


def _has_engine(client: Client, engine_id: str) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return any(engine.id == engine_id for engine in await client.engines())

    return look
