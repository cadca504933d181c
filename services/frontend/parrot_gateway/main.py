"""`parrot-gateway`: serves the HTTP API."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog
import uvicorn

from parrot_gateway.app import create_app
from parrot_gateway.closing import Closing
from parrot_gateway.gateway import Gateway
from parrot_gateway.manager_client import ManagerClient
from parrot_gateway.managers import Managers
from parrot_gateway.settings import GatewaySettings
from parrot_runtime import errors, rpc
from parrot_runtime.errors import Fault
from parrot_runtime.lifecycle import Stop, run_service
from parrot_runtime.values.bus import connected
from parrot_runtime.values.reader import Feeds

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
        Fault: `unavailable`: the address is taken, or the manager or NATS does not answer.
    """
    with _listening(settings.host, settings.port) as listener:
        addresses = rpc.addresses_of(settings.manager_address)
        managers = Managers(addresses, settings.takeover_wait_s)
        try:
            await rpc.wait_any_ready(addresses, "manager", settings.connect_timeout_s)
            async with connected(settings.nats_url, "parrot-gateway", settings.connect_timeout_s) as bus:
                gateway = Gateway(settings, ManagerClient(managers), bus, Feeds(bus), Closing())
                await _serve_http(gateway, listener, stop, on_ready)
        finally:
            await managers.close()


async def _serve_http(
    gateway: Gateway, listener: socket.socket, stop: Stop, on_ready: Callable[[str], None] | None
) -> None:
    settings = gateway.settings
    server = _Server(
        uvicorn.Config(
            create_app(gateway),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
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
    _warn_of_open_door(settings.host)
    stop.begun()
    log.info("ready", url=url)
    if on_ready is not None:
        on_ready(url)
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    log.info("stopping")
    gateway.closing.begin()
    server.should_exit = True
    await serving


class _Server(uvicorn.Server):
    """Leaves signals to the service's own life cycle."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise Fault(
            errors.UNAVAILABLE, f"can't listen on {host}:{port} ({error.strerror}); choose another --port"
        ) from None
    with listener:
        yield listener


def _warn_of_open_door(host: str) -> None:
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        log.warning(
            "THE DOOR IS OPEN: no keys are checked, so whoever reaches this address can use the server "
            "and read its sessions; listen on 127.0.0.1 unless the network is closed",
            host=host,
        )
