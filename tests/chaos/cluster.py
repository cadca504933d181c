"""The whole system as processes that can be killed, paused and started again, each by itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from grpc import aio
from tests.support.nats import free_port
from tests.support.up import data_folder

from parrot_cli import nats_server, postgres_server
from parrot_cli.child import Spec, tethered
from parrot_cli.components import Addresses, Services
from parrot_cli.options import Backend, Dtype, UpOptions
from parrot_cli.postgres_server import Postgres
from parrot_proto.manager.v1 import manager_pb2
from parrot_proto.manager.v1.manager_pb2_grpc import ManagerServiceStub
from parrot_runtime import rpc

READY_WITHIN_S = 180.0
LOOK_S = 0.05
DEFAULT_ADOPT_S = 3.0
SERVERS = {"nats", "postgres"}

IsReady = Callable[[], Awaitable[bool]]


@dataclass
class Part:
    """One process of the cluster, with whatever it starts.

    Attributes:
        command: made anew at each start.
    """

    name: str
    command: Callable[[], list[str]]
    is_ready: IsReady
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it; from the main thread, with which it dies."""
        with self.log.open("ab") as stream:
            self.process = subprocess.Popen(self.command(), stdout=stream, stderr=stream, process_group=0)

    async def ready(self) -> None:
        """Returns once it serves.

        Raises:
            AssertionError: it ended, or takes too long.
        """
        deadline = time.monotonic() + READY_WITHIN_S
        while not await self.is_ready():
            if self.process is None or self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{self.name} did not get ready:\n{self.log.read_text()[-4000:]}")
            await asyncio.sleep(LOOK_S)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to its processes, as far as there are any still."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    async def stop(self, within_s: float) -> int:
        """Asks it to stop, as Kubernetes does; its exit status.

        Raises:
            AssertionError: it still runs after `within_s`.
        """
        assert self.process is not None
        self.signal(signal.SIGTERM)
        try:
            status = await asyncio.to_thread(self.process.wait, within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self.name} still runs after {within_s:g} s:\n{self.log.read_text()[-4000:]}"
            ) from None
        self.process = None
        return status

    def kill(self) -> None:
        """Ends it as a crash would."""
        if self.process is not None:
            self.signal(signal.SIGKILL)
            self.process.wait()
            self.process = None


@dataclass
class Cluster:
    """See `running_cluster`."""

    folder: Path
    url: str
    postgres_url: str
    parts: dict[str, Part] = field(default_factory=dict)

    async def start(self, *names: str) -> None:
        """Starts parts, all of them by default, and returns once they serve."""
        started = [self.parts[name] for name in names or self.parts]
        for part in started:
            part.start()
        await asyncio.gather(*(part.ready() for part in started))

    def close(self) -> None:
        """Ends everything."""
        for part in reversed(self.parts.values()):
            part.kill()

    def logs(self) -> dict[str, str]:
        """What each part logged, over all its lives."""
        return {name: part.log.read_text(errors="replace") for name, part in self.parts.items()}


@dataclass(frozen=True, slots=True)
class Size:
    """How many processes of each kind there are, and what the engines are.

    Attributes:
        model: a model's folder, for vLLM; empty: they are simulated.
        step_ms: of a simulated engine.
        engine_drain_s: how long programs may take to end when an engine is told to stop; 0: as `parrot up`.
        engine_silence_s: how long an engine may say nothing; where it is long, so is a manager's lease.
    """

    managers: int = 2
    engines: int = 2
    model: str = ""
    step_ms: float = 15.0
    engine_drain_s: float = 0.0
    engine_silence_s: float = 2.0


@asynccontextmanager
async def running_cluster(size: Size) -> AsyncIterator[Cluster]:
    """A cluster that has started.

    What is sampled differs each time: what is made anew instead of continued shows.
    """
    with data_folder() as folder:
        plan = _Plan(folder, size)
        try:
            await plan.start()
            yield plan.cluster
        finally:
            plan.cluster.close()
            plan.postgres.clean_up()


class _Plan:
    """How each part is run, and how to see that it serves."""

    def __init__(self, folder: Path, size: Size) -> None:
        self._size = size
        self._nats_port = free_port()
        self.postgres = prepared(folder / "data")
        options = UpOptions(
            data_dir=folder,
            backend=Backend.VLLM if size.model else Backend.SIM,
            model=size.model,
            dtype=Dtype.FLOAT32,
            engines=size.engines,
            managers=size.managers,
            port=free_port(),
        )
        managers = {name: f"127.0.0.1:{free_port()}" for name in options.manager_ids}
        addresses = Addresses(managers, f"nats://127.0.0.1:{self._nats_port}", self.postgres.url)
        self._services = Services(options, addresses)
        self.cluster = Cluster(folder, options.url, self.postgres.url)
        self._add("nats", lambda: nats_server.spec(folder / "nats", self._nats_port), self._nats_answers)
        self._add("postgres", self.postgres.spec, self._postgres_answers)
        for name, address in managers.items():
            self._add(name, partial(self._manager, name), partial(self._manager_answers, address))
        for name in options.engine_ids:
            self._add(name, partial(self._engine, name), partial(self._engine_answers, name))
        self._add("gateway", self._services.gateway, self._gateway_answers)
        self._managers = list(managers.values())

    async def start(self) -> None:
        await self.cluster.start(*SERVERS)
        migrations = await asyncio.create_subprocess_exec(
            *self._services.migrations().command, stdout=subprocess.DEVNULL
        )
        assert await migrations.wait() == 0
        await self.cluster.start(*(name for name in self.cluster.parts if name not in SERVERS))

    def _add(self, name: str, spec: Callable[[], Spec], is_ready: IsReady) -> None:
        def command() -> list[str]:
            made = spec()
            # On a loaded machine peers take their time to start.
            patience = ["--connect-timeout-s", str(READY_WITHIN_S)] if name not in SERVERS else []
            return tethered([*made.command, *patience], signal.SIGKILL, made.user)

        log = self.cluster.folder / f"{name}.log"
        self.cluster.parts[name] = Part(name, command, is_ready, log)

    def _manager(self, name: str) -> Spec:
        spec = self._services.manager(name)
        # A paused engine is given up while it is paused; that all are down for long is no reason to fail.
        silence_s = self._size.engine_silence_s
        flags = ["--engine-silence-s", str(silence_s), "--heartbeat-s", "0.5", "--engine-wait-s", "600"]
        if silence_s > DEFAULT_ADOPT_S:
            flags += ["--adopt-s", str(silence_s), "--lease-s", str(silence_s)]
        return replace(spec, command=[*spec.command, *flags])

    def _engine(self, name: str) -> Spec:
        spec = self._services.engine(name)
        if self._size.model:
            return replace(spec, command=[*spec.command, "--kv-cache-mib", "64", "--threads", "1"])
        sim = ["--sim-step-ms", str(self._size.step_ms), "--sim-varied"]
        if self._size.engine_drain_s:
            sim += ["--drain-s", str(self._size.engine_drain_s)]
        return replace(spec, command=[*spec.command, *sim])

    async def _nats_answers(self) -> bool:
        return await nats_server.version_at(self._nats_port) is not None

    async def _postgres_answers(self) -> bool:
        return self.postgres.is_ready()

    async def _manager_answers(self, address: str) -> bool:
        return await _engines_of(address) is not None

    async def _engine_answers(self, name: str) -> bool:
        answers = [await _engines_of(address) for address in self._managers]
        known = [found for found in answers if found is not None]
        return bool(known) and all(name in found for found in known)

    async def _gateway_answers(self) -> bool:
        async with httpx.AsyncClient(base_url=self.cluster.url, timeout=2) as client:
            try:
                return (await client.get("/readyz")).is_success
            except httpx.HTTPError:
                return False


def prepared(data: Path) -> Postgres:
    """A Postgres with a cluster of its own at `data`, not started."""
    postgres = postgres_server.locate(data)
    init = postgres.init_spec()
    if init is not None:
        postgres.prepare_init()
        subprocess.run(tethered(init.command, init.stop_signal, init.user), check=True, capture_output=True)
        postgres.finish_init()
    return postgres


async def _engines_of(address: str) -> set[str] | None:
    """The engines a manager counts on; None when it can't be asked."""
    async with rpc.channel(address) as channel:
        stub: Any = ManagerServiceStub(channel)
        try:
            answer = await stub.ListEngines(manager_pb2.ListEnginesRequest(), timeout=2)
        except aio.AioRpcError:
            return None
    return {engine.id for engine in answer.engines if engine.state == "ready"}
