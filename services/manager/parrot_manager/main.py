"""The manager's process."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import structlog
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from parrot_manager.callers import ALLOWED
from parrot_manager.claims import Claims
from parrot_manager.deleting import Deleting
from parrot_manager.gauges import Gauges
from parrot_manager.intake import Intake
from parrot_manager.metrics import ManagerMetrics
from parrot_manager.openings import Openings
from parrot_manager.servicers.engine_control import EngineControlServicer
from parrot_manager.servicers.manager import ManagerServicer
from parrot_manager.servicers.tenants import TenantServicer
from parrot_manager.settings import ManagerSettings
from parrot_manager.shell import Shell, running
from parrot_manager.store import postgres, schema
from parrot_manager.store.base import Store
from parrot_manager.views import Views
from parrot_proto.engine.v1 import engine_pb2_grpc
from parrot_proto.manager.v1 import manager_pb2_grpc, tenants_pb2_grpc
from parrot_runtime import errors, rpc
from parrot_runtime.callers import Callers
from parrot_runtime.errors import Fault
from parrot_runtime.lifecycle import Stop, run_service
from parrot_runtime.monitor import Monitor, monitored
from parrot_runtime.monitor.rpcs import ObservedRpcs
from parrot_runtime.tls import Tls
from parrot_runtime.values import bus

GRACE_S = 2.0
HEALTH_S = 0.25
_STATUS = {
    True: health_pb2.HealthCheckResponse.SERVING,
    False: health_pb2.HealthCheckResponse.NOT_SERVING,
}

log = structlog.get_logger()


def main() -> None:
    """Runs the manager, or its migrations, with the settings of this process."""
    settings = ManagerSettings.load()

    async def run(stop: Stop) -> None:
        if settings.migrate:
            await schema.migrate(settings.postgres_url, settings.connect_timeout_s)
        else:
            await serve(settings, stop)

    run_service("manager", settings, run)


async def serve(settings: ManagerSettings, stop: Stop) -> None:
    """Serves until it is told to stop, then drains.

    Raises:
        Fault: `unavailable`, when Postgres or NATS is not there in time or not fit, or the address
            can't be listened on.
    """
    async with monitored(settings.metrics_address, "manager") as monitor:
        metrics = ManagerMetrics(monitor.registry)
        monitor.starting("Postgres was not found fit yet")
        await schema.check(settings.postgres_url, settings.connect_timeout_s)
        opening = postgres.opened(settings.postgres_url, settings.store_deadline_s, observer=metrics)
        await _serve(settings, stop, opening, monitor, metrics)


async def serve_store(
    settings: ManagerSettings, stop: Stop, opening: AbstractAsyncContextManager[Store]
) -> None:
    """As `serve`, over any store.

    Raises:
        Fault: `unavailable`, as there.
    """
    async with monitored(settings.metrics_address, "manager") as monitor:
        await _serve(settings, stop, opening, monitor, ManagerMetrics(monitor.registry))


async def _serve(
    settings: ManagerSettings,
    stop: Stop,
    opening: AbstractAsyncContextManager[Store],
    monitor: Monitor,
    metrics: ManagerMetrics,
) -> None:
    # Before anyone is told of this manager: a second one at the same address must not be heard of.
    tls = Tls.of(settings)
    server = listening(settings.listen, tls, ObservedRpcs(metrics.rpc))
    monitor.starting("NATS is not connected, or the first shards are not loaded yet")
    async with (
        opening as store,
        bus.connected(
            settings.nats_url,
            "parrot-manager",
            settings.connect_timeout_s,
            replicas=settings.stream_replicas,
            tls=tls,
            role=bus.MANAGER,
        ) as values,
        running(settings, store, values, metrics) as shell,
    ):
        monitor.watch_bus(values)
        monitor.registry.register(Gauges(shell))
        healthy = health.aio.HealthServicer()  # type: ignore[attr-defined]
        add_services(server, shell, healthy)
        await server.start()
        shell.tasks.spawn(tell_health(shell, healthy), "health")
        monitor.ready_when(lambda: reasons(shell, values, stop))
        stop.begun()
        log.info("ready", listen=settings.listen, manager_id=settings.manager_id)
        await stop.wait()
        await healthy.enter_graceful_shutdown()
        await shell.drain()
        await server.stop(GRACE_S)
    log.info("stopped")


async def reasons(shell: Shell, values: bus.Bus, stop: Stop) -> list[str]:
    """Why this manager is not the one to ask; nothing: it is."""
    found: list[str] = []
    if stop.is_set():
        found.append("it is told to stop: its sessions go to the others")
    if not shell.keeper.valid:
        found.append("its lease has run out: Postgres can't be reached")
    if not values.client.is_connected:
        found.append("the bus (NATS) can't be reached")
    return found


async def tell_health(shell: Shell, healthy: health.aio.HealthServicer) -> None:  # type: ignore[name-defined]
    """Keeps the health service's word true: ready is who could say to Postgres lately that it lives."""
    told = None
    while True:
        valid = shell.keeper.valid
        if valid is not told:
            await healthy.set("", _STATUS[valid])
            told = valid
        await shell.keeper.changed(HEALTH_S)


def listening(address: str, tls: Tls | None = None, *outer: aio.ServerInterceptor) -> aio.Server:  # type: ignore[type-arg]
    """A server without services, bound to an address; with `tls`, for clients that show who they are.

    Args:
        outer: interceptors that see how its RPCs end.

    Raises:
        Fault: `unavailable`, when the address is taken or is none.
    """
    server = rpc.server(*outer, *(() if tls is None else (Callers(ALLOWED),)))
    try:
        port = rpc.listen(server, address, tls)
    except RuntimeError:
        port = 0
    if not port:
        raise Fault(errors.UNAVAILABLE, f"can't listen on {address}: is another manager running there?")
    return server


def add_services(server: aio.Server, shell: Shell, healthy: health_pb2_grpc.HealthServicer) -> None:
    """Gives a server that has not started all a manager serves."""
    intake = Intake(shell)
    manager_pb2_grpc.add_ManagerServiceServicer_to_server(
        ManagerServicer(
            intake, Openings(shell, intake), Deleting(shell, intake), Views(shell), Claims(shell)
        ),
        server,
    )
    tenants_pb2_grpc.add_TenantServiceServicer_to_server(TenantServicer(shell.store.tenants), server)
    engine_pb2_grpc.add_EngineControlServiceServicer_to_server(EngineControlServicer(shell), server)
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
