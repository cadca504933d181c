"""The manager's process."""

from __future__ import annotations

import structlog
from grpc import aio
from grpc_health.v1 import health, health_pb2_grpc

from parrot_manager.intake import Intake
from parrot_manager.servicers.engine_control import EngineControlServicer
from parrot_manager.servicers.manager import ManagerServicer
from parrot_manager.settings import ManagerSettings
from parrot_manager.shell import Shell, running
from parrot_manager.store import postgres, schema
from parrot_manager.views import Views
from parrot_proto.engine.v1 import engine_pb2_grpc
from parrot_proto.manager.v1 import manager_pb2_grpc
from parrot_runtime import errors, rpc
from parrot_runtime.errors import Fault
from parrot_runtime.lifecycle import Stop, run_service
from parrot_runtime.values import bus

GRACE_S = 2.0

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
    timeout_s = settings.connect_timeout_s
    await schema.check(settings.postgres_url, timeout_s)
    async with (
        postgres.opened(settings.postgres_url, settings.store_deadline_s) as store,
        bus.connected(settings.nats_url, "parrot-manager", timeout_s) as values,
        running(settings, store, values) as shell,
    ):
        healthy = health.aio.HealthServicer()  # type: ignore[attr-defined]
        server = listening(shell, healthy, settings.listen)
        await server.start()
        stop.begun()
        log.info("ready", listen=settings.listen)
        await stop.wait()
        await healthy.enter_graceful_shutdown()
        await shell.drain()
        await server.stop(GRACE_S)
    log.info("stopped")


def listening(shell: Shell, healthy: health_pb2_grpc.HealthServicer, address: str) -> aio.Server:
    """The server with all its services, bound to an address.

    Raises:
        Fault: `unavailable`, when the address is taken or is none.
    """
    server = rpc.server()
    manager_pb2_grpc.add_ManagerServiceServicer_to_server(
        ManagerServicer(Intake(shell), Views(shell)), server
    )
    engine_pb2_grpc.add_EngineControlServiceServicer_to_server(EngineControlServicer(shell), server)
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    try:
        port = server.add_insecure_port(address)
    except RuntimeError:
        port = 0
    if not port:
        raise Fault(errors.UNAVAILABLE, f"can't listen on {address}: is another manager running there?")
    return server
