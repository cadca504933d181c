"""One service's monitor: it is there before anything else of the service is, and goes last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)

from parrot_runtime.monitor.bus import BusMetrics
from parrot_runtime.monitor.server import listening
from parrot_runtime.values.bus import Bus
from parrot_runtime.version import parrot_version

Readiness = Callable[[], Awaitable[Sequence[str]]]
"""Why a service is not ready, in words; nothing: it is."""

LAG_INTERVAL_S: Final = 0.25
LAG_BUCKETS: Final = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)

# When a series began is told as a series of its own; nobody asks for it.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Monitor:
    """The metrics of one process, in a registry of their own, and whether it is ready.

    Services keep their own metrics in `registry`. Until `ready_when` says how to find out, a service
    is not ready, for the reason that `starting` gave.
    """

    def __init__(self, service: str) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        labels = ["service", "version"]
        build = Gauge("parrot_build_info", "What runs here", labels, registry=self.registry)
        build.labels(service, parrot_version()).set(1)
        self._lag = Histogram(
            "parrot_loop_lag_seconds",
            "How much later than due the event loop came back to a timer",
            buckets=LAG_BUCKETS,
            registry=self.registry,
        )
        self._bus = BusMetrics()
        self.registry.register(self._bus)
        self._readiness: Readiness | None = None
        self._waits_for = "it starts"

    def starting(self, waits_for: str) -> None:
        """What the service, which is not ready yet, waits for."""
        self._waits_for = waits_for

    def ready_when(self, readiness: Readiness) -> None:
        """How to find out from now on whether the service is ready."""
        self._readiness = readiness

    def watch_bus(self, bus: Bus) -> None:
        """Counts what becomes of a connection to NATS."""
        self._bus.watch(bus)

    async def reasons(self) -> Sequence[str]:
        """Why the service is not ready; empty: it is."""
        if self._readiness is None:
            return [self._waits_for]
        return await self._readiness()

    async def watch_loop(self) -> None:
        """Measures for ever how far the event loop is behind."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + LAG_INTERVAL_S
            await asyncio.sleep(LAG_INTERVAL_S)
            self._lag.observe(max(0.0, loop.time() - due_s))


@asynccontextmanager
async def monitored(address: str, service: str) -> AsyncIterator[Monitor]:
    """A monitor that is served within the block, at an address `host:port`; empty: nowhere.

    Raises:
        Fault: `invalid_request`, when the address can't be used.
    """
    monitor = Monitor(service)
    if not address:
        yield monitor
        return
    async with listening(address, monitor):
        lagging = asyncio.create_task(monitor.watch_loop(), name="loop-lag")
        try:
            yield monitor
        finally:
            lagging.cancel()
            await asyncio.gather(lagging, return_exceptions=True)
