"""How each service of ours is run, and how to see that it is ready."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import grpc
import httpx
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from parrot_cli.child import Spec
from parrot_cli.options import GATEWAY, SANDBOX, Backend, UpOptions
from parrot_proto.manager.v1 import manager_pb2, manager_pb2_grpc
from parrot_runtime import rpc
from parrot_runtime.tls import Tls

PROBE_S = 2.0


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the services find one another. `managers`: by their ids."""

    managers: Mapping[str, str]
    nats_url: str
    postgres_url: str

    @property
    def manager_address(self) -> str:
        """Of every manager."""
        return ",".join(self.managers.values())


class Services:
    """The commands of the services."""

    def __init__(self, options: UpOptions, addresses: Addresses) -> None:
        self._options = options
        self._addresses = addresses

    def migrations(self) -> Spec:
        """Brings the database's schema to what the manager expects, and ends."""
        flags = [*self._manager_flags, "--migrate"]
        return self._spec("migrations", "parrot_manager", flags, monitor="")

    def manager(self, manager_id: str) -> Spec:
        """A manager; it drains before it stops, while the engines still run."""
        listen = ["--listen", self._addresses.managers[manager_id], "--manager-id", manager_id]
        name = f"manager {manager_id}" if len(self._addresses.managers) > 1 else "manager"
        return self._spec(
            name,
            "parrot_manager",
            [*self._manager_flags, *listen],
            monitor=self._options.monitor(manager_id),
            stop_within_s=30,
            stop_stage=1,
        )

    def engine(self, engine_id: str) -> Spec:
        """One engine."""
        options = self._options
        flags = [
            *("--engine-id", engine_id),
            *("--manager-address", self._addresses.manager_address),
            *("--backend", SANDBOX if engine_id == SANDBOX else options.backend.value),
            # The manager, which stops before it, has waited for what runs already.
            *("--drain-s", "5"),
        ]
        if options.backend is Backend.VLLM and engine_id != SANDBOX:
            flags += ["--model", options.model, "--dtype", options.dtype.value]
        monitor = self._options.monitor(engine_id)
        name = f"engine {engine_id}"
        return self._spec(name, "parrot_engine", flags, monitor=monitor, stop_within_s=40, stop_stage=2)

    def gateway(self) -> Spec:
        """The gateway."""
        flags = [
            *("--host", self._options.host),
            *("--port", str(self._options.port)),
            *("--manager-address", self._addresses.manager_address),
            *(("--keys",) if self._options.keys else ()),
        ]
        monitor = self._options.monitor(GATEWAY)
        return self._spec("gateway", "parrot_gateway", flags, monitor=monitor, stop_within_s=15)

    @property
    def _manager_flags(self) -> list[str]:
        return [
            *("--postgres-url", self._addresses.postgres_url),
            *(("--sandbox",) if self._options.sandbox else ()),
        ]

    def _spec(
        self,
        name: str,
        module: str,
        flags: Sequence[str],
        *,
        monitor: str,
        stop_within_s: float = 10,
        stop_stage: int = 0,
    ) -> Spec:
        common = ["--nats-url", self._addresses.nats_url, "--log-level", self._options.log_level.value]
        # Said in any case: one address in the environment would be that of all of them.
        common += ["--metrics-address", monitor]
        if self._options.otlp_endpoint:
            common += ["--otlp-endpoint", self._options.otlp_endpoint]
        command = [sys.executable, "-m", module, *flags, *common, "--log-format", "json"]
        return Spec(name, command, stop_within_s=stop_within_s, stop_stage=stop_stage)


class Probe:
    """Asks the services whether they are ready."""

    def __init__(self, manager_addresses: Sequence[str], gateway_url: str, tls: Tls | None = None) -> None:
        """`tls`: what the services are told of by the environment, too."""
        self._first = manager_addresses[0]
        self._channels = {address: rpc.channel(address, tls) for address in manager_addresses}
        self._listening: set[str] = set()
        self._http = httpx.AsyncClient(base_url=gateway_url, timeout=PROBE_S, trust_env=False)

    async def close(self) -> None:
        """Hangs up."""
        await self._http.aclose()
        for channel in self._channels.values():
            await channel.close(None)

    async def manager(self, address: str) -> str | None:
        """Empty text once the manager serves; None before."""
        if not await self._can_ask(address):
            return None
        request = health_pb2.HealthCheckRequest()
        try:
            answer = await health_pb2_grpc.HealthStub(self._channels[address]).Check(request, timeout=PROBE_S)
        except aio.AioRpcError:
            return None
        return "" if answer.status == health_pb2.HealthCheckResponse.SERVING else None

    async def engine(self, engine_id: str) -> str | None:
        """The engine's model and backend once the manager counts on it; None before."""
        for engine in await self.engines():
            if engine.id == engine_id and engine.state == "ready":
                return f"{engine.model}, {engine.backend}"
        return None

    async def engines(self) -> list[manager_pb2.Engine]:
        """The engines the manager knows; none while it can't be asked."""
        if not await self._can_ask(self._first):
            return []
        stub: manager_pb2_grpc.ManagerServiceAsyncStub
        stub = manager_pb2_grpc.ManagerServiceStub(self._channels[self._first])
        try:
            answer = await stub.ListEngines(manager_pb2.ListEnginesRequest(), timeout=PROBE_S)
        except grpc.aio.AioRpcError:
            return []
        return list(answer.engines)

    async def gateway(self) -> str | None:
        """Empty text once the gateway can serve; None before."""
        try:
            answer = await self._http.get("/readyz")
        except httpx.HTTPError:
            return None
        return "" if answer.is_success else None

    async def _can_ask(self, address: str) -> bool:
        """Whether it listens yet. The channel is used from then on: it never has to back off."""
        if address not in self._listening:
            host, _, port = address.rpartition(":")
            try:
                _, writer = await asyncio.open_connection(host, int(port))
            except OSError:
                return False
            writer.close()
            self._listening.add(address)
        return True
