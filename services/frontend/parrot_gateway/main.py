"""`parrot-gateway`: serves the HTTP API."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog
import uvicorn

from parrot_gateway.app import admission_of, create_app
from parrot_gateway.closing import Closing
from parrot_gateway.doors.connections import impatient_protocol
from parrot_gateway.doors.door import Admission
from parrot_gateway.gateway import DEFAULT_TENANT, Gateway
from parrot_gateway.manager_client import ManagerClient
from parrot_gateway.managers import Managers
from parrot_gateway.metrics import GatewayMetrics
from parrot_gateway.readiness import reasons
from parrot_gateway.session_events import stored_values
from parrot_gateway.session_news import renderer
from parrot_gateway.settings import GatewaySettings
from parrot_runtime import errors, rpc
from parrot_runtime.errors import Fault
from parrot_runtime.hosts import is_loopback
from parrot_runtime.lifecycle import Stop, run_service
from parrot_runtime.monitor import Monitor, monitored
from parrot_runtime.tls import Tls
from parrot_runtime.values.bus import connected
from parrot_runtime.values.reader import Feeds
from parrot_runtime.values.session_log import SessionLogs

KEEP_ALIVE_S = 75
"""Longer than clients keep idle connections, so that they close them and not we."""
BACKLOG = 2048

log = structlog.get_logger()


def main(argv: list[str] | None = None) -> None:
    """The `parrot-gateway` command."""
    settings = GatewaySettings.load(argv)

    async def serve_until(stop: Stop) -> None:
        await serve(settings, stop)

    run_service("gateway", settings, serve_until, instance=f"{settings.host}:{settings.port}")


async def serve(settings: GatewaySettings, stop: Stop, on_ready: Callable[[str], None] | None = None) -> None:
    """Serves until `stop` is set; `on_ready` gets the URL.

    Raises:
        Fault: `unavailable`: the address is taken, or the manager or NATS does not answer;
            `invalid_request`: others are let in without keys.
    """
    _check_door(settings)
    async with monitored(settings.metrics_address, "gateway") as monitor:
        await _serve(settings, stop, on_ready, monitor)


async def _serve(
    settings: GatewaySettings, stop: Stop, on_ready: Callable[[str], None] | None, monitor: Monitor
) -> None:
    tls, metrics = Tls.of(settings), GatewayMetrics(monitor.registry)
    with _listening(settings.host, settings.port, settings.unread_s) as listener:
        addresses = rpc.addresses_of(settings.manager_address)
        managers = Managers(addresses, settings.takeover_wait_s, tls, metrics.asked)
        monitor.starting("no manager answers yet")
        try:
            await rpc.wait_any_ready(addresses, "manager", settings.connect_timeout_s, tls)
            monitor.starting("NATS is not connected yet")
            async with connected(
                settings.nats_url, "parrot-gateway", settings.connect_timeout_s, tls=tls, role="gateway"
            ) as bus:
                client = ManagerClient(managers, DEFAULT_TENANT)
                logs = SessionLogs(bus, renderer, stored_values(client))
                gateway = Gateway(settings, client, bus, Feeds(bus), Closing(), logs, metrics)
                monitor.watch_bus(bus)
                admission = admission_of(gateway)
                try:
                    await _serve_http(gateway, admission, listener, stop, on_ready=on_ready, monitor=monitor)
                finally:
                    await admission.close()
        finally:
            await managers.close()


async def _serve_http(
    gateway: Gateway,
    admission: Admission,
    listener: socket.socket,
    stop: Stop,
    *,
    on_ready: Callable[[str], None] | None,
    monitor: Monitor,
) -> None:
    settings = gateway.settings
    server = _Server(
        uvicorn.Config(
            create_app(gateway, admission),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            http=impatient_protocol(settings.head_s, on_timed_out=gateway.metrics.reader_cut),
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=settings.stop_s,
        )
    )
    # What it would say is in our own log, or is a client's mistake.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="http")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"http://{host}:{listener.getsockname()[1]}"
    if not settings.keys:
        log.warning(
            "DEVELOPMENT: NO KEYS ARE ASKED FOR: whoever reaches this machine's loopback can use the server "
            "and read every session; turn keys on (--keys) to serve anybody else",
            host=settings.host,
        )
    stop.begun()
    monitor.ready_when(lambda: _reasons(gateway, server))
    log.info("ready", url=url)
    if on_ready is not None:
        on_ready(url)
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    log.info("stopping")
    gateway.closing.begin()
    gateway.manager.hurry()
    server.should_exit = True
    await serving


async def _reasons(gateway: Gateway, server: _Server) -> list[str]:
    return await reasons(gateway) if server.started else ["it does not listen yet"]


class _Server(uvicorn.Server):
    """Leaves signals to the service's own life cycle."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextmanager
def _listening(host: str, port: int, unread_s: float) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise Fault(
            errors.UNAVAILABLE, f"can't listen on {host}:{port} ({error.strerror}); choose another --port"
        ) from None
    with listener:
        if sys.platform == "linux":
            # Its connections inherit it. A stream that nobody reads would else wait for ever.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(unread_s * 1e3))
        yield listener


def _check_door(settings: GatewaySettings) -> None:
    """Refuses to open a door without keys to a network.

    Raises:
        Fault: `invalid_request`.
    """
    if not settings.keys and not is_loopback(settings.host):
        raise Fault(
            errors.INVALID_REQUEST,
            f"--host {settings.host} lets others in, and no keys are asked for: turn them on (--keys, and "
            "`parrot keys create` makes one), or listen on 127.0.0.1",
            field="host",
        )
