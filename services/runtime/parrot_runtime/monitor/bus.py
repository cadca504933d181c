"""What becomes of the connection to NATS."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from parrot_runtime.values.bus import Bus


class BusMetrics(Collector):
    """The connection as it is when it is asked about; none yet is not connected."""

    def __init__(self) -> None:
        self._bus: Bus | None = None

    def watch(self, bus: Bus) -> None:
        """This is the connection."""
        self._bus = bus

    def collect(self) -> Iterator[Metric]:
        """Whether it stands, and how often it was made again."""
        client = self._bus.client if self._bus is not None else None
        connected = client is not None and client.is_connected
        yield GaugeMetricFamily("parrot_bus_connected", "Whether NATS is connected: 1 or 0", int(connected))
        reconnects = client.stats["reconnects"] if client is not None else 0
        yield CounterMetricFamily(
            "parrot_bus_reconnects", "How often a lost connection to NATS came back", reconnects
        )
