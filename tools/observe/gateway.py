"""Gateways: requests, streams, and what they wait for."""

from __future__ import annotations

from typing import Final

from tools.observe.asking import processes, quantile, rate
from tools.observe.panels import Choice, Dashboard, Panel, Query, Row

_HERE: Final = 'instance=~"$instance"'

_REQUESTS: Final = Row(
    "Requests",
    [
        Panel(
            "By route",
            "A second.",
            (Query(rate("parrot_gateway_requests_total", "method, route", _HERE), "{{method}} {{route}}"),),
            unit="reqps",
            stacked=True,
        ),
        Panel(
            "By status",
            "A second. 5xx are the server's fault.",
            (Query(rate("parrot_gateway_requests_total", "status", _HERE), "{{status}}"),),
            unit="reqps",
            stacked=True,
        ),
        Panel(
            "Refused, by type",
            "A second, by the type of the problem that was answered.",
            (Query(rate("parrot_gateway_refused_total", "type", _HERE), "{{type}}"),),
            unit="reqps",
            stacked=True,
        ),
    ],
)

_TIME: Final = Row(
    "Time",
    [
        Panel(
            "To the head of the answer, by route (p95)",
            "Reads of a value wait for it: those are as slow as the call.",
            (Query(quantile(0.95, "parrot_gateway_request_seconds", "route", _HERE), "{{route}}"),),
            unit="s",
            width=12,
        ),
        Panel(
            "Waiting for managers, by method (p95)",
            "The part of it that is a manager's.",
            (Query(quantile(0.95, "parrot_gateway_manager_seconds", "method", _HERE), "{{method}}"),),
            unit="s",
            width=12,
        ),
    ],
)

_STREAMS: Final = Row(
    "Streams",
    [
        Panel(
            "Open",
            "Readers that are connected now, by what they read.",
            (Query(f"sum by (kind) (parrot_gateway_streams{{{_HERE}}})", "{{kind}}"),),
            stacked=True,
        ),
        Panel(
            "Sent, by gateway",
            "Bytes a second.",
            (Query(rate("parrot_gateway_stream_bytes_total", "instance", _HERE), "{{instance}}"),),
            unit="Bps",
            stacked=True,
        ),
        Panel(
            "Readers cut",
            "A second: readers that took too little, or vanished. They come back where they were.",
            (Query(rate("parrot_gateway_readers_cut_total", "instance", _HERE), "{{instance}}"),),
            unit="cps",
        ),
    ],
)

GATEWAY: Final = Dashboard(
    "parrot-gateway",
    "Parrot: gateways",
    "Requests and streams at the HTTP edge.",
    [Choice("instance", "parrot_gateway_stream_bytes_total")],
    [_REQUESTS, _TIME, _STREAMS, processes("parrot-gateway")],
)
