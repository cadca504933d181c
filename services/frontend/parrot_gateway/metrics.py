"""What a gateway counts, for Prometheus."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from parrot_gateway.connected import LEFT

UNKNOWN: Final = "unknown"
"""The route of what was refused before it came to one, or of a path that nobody serves."""
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
_SECONDS: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class GatewayMetrics:
    """Counters and histograms of one gateway."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """`registry`: where they are served from; None: nowhere."""
        registry = registry or CollectorRegistry()
        self._requests = Counter(
            "parrot_gateway_requests",
            "Requests that are over",
            ["route", "method", "status"],
            registry=registry,
        )
        self._seconds = Histogram(
            "parrot_gateway_request_seconds",
            "From a request to the head of its answer",
            ["route"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._streams = Gauge("parrot_gateway_streams", "Streams that are open", ["kind"], registry=registry)
        self._bytes = Counter("parrot_gateway_stream_bytes", "What went out on streams", registry=registry)
        self._cut = Counter(
            "parrot_gateway_readers_cut",
            "Clients that were cut for taking too little, or nothing any more",
            registry=registry,
        )
        self._refused = Counter(
            "parrot_gateway_refused",
            "Requests that failed, by the problem's type",
            ["type"],
            registry=registry,
        )
        self._manager = Histogram(
            "parrot_gateway_manager_seconds",
            "What managers take to answer, with all tries, and waits that were asked for",
            ["method"],
            buckets=_SECONDS,
            registry=registry,
        )

    def answered(self, route: str, seconds: float) -> None:
        """The head of an answer went out."""
        self._seconds.labels(route or UNKNOWN).observe(seconds)

    def over(self, route: str, method: str, status: int, problem: str) -> None:
        """A request is over. `status` 0: its client left before there was any; `problem`: a type, or none."""
        known = method if method in _METHODS else "other"
        self._requests.labels(route or UNKNOWN, known, str(status or LEFT)).inc()
        if problem:
            self._refused.labels(problem).inc()

    def opened(self, route: str) -> Gauge:
        """A stream begins; returns what counts its kind, to be counted down at its end."""
        kind = self._streams.labels(kind_of(route))
        kind.inc()
        return kind

    def sent(self, size_bytes: int) -> None:
        """So much went out on a stream."""
        self._bytes.inc(size_bytes)

    def reader_cut(self) -> None:
        """A client was cut that does not take what is for it."""
        self._cut.inc()

    def asked(self, method: str, seconds: float) -> None:
        """A manager was asked."""
        self._manager.labels(method).observe(seconds)


def kind_of(route: str) -> str:
    """What is streamed on a route: a session's events, a variable's text, or an answer of OpenAI's API."""
    if route.endswith("/events"):
        return "session"
    return "variable" if route.endswith("/stream") else "openai"
