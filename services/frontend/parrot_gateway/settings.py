"""The gateway's settings."""

from __future__ import annotations

from pydantic import Field

from parrot_runtime.settings import ServiceSettings

LONGEST_SILENCE_S = 15.0
"""Proxies cut a stream that is silent for long; no stream of ours is, for longer than this."""


class GatewaySettings(ServiceSettings):
    """What the gateway needs to know."""

    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(default=8080, ge=0, le=65535, description="port to listen on; 0: any free one")
    manager_address: str = Field(
        default="127.0.0.1:7400",
        description="host:port of the managers' gRPC, one or several with commas; they tell of any others",
    )
    takeover_wait_s: float = Field(
        default=10.0,
        ge=0,
        description="how long a request waits for a manager to take a dead one's sessions over",
    )
    heartbeat_s: float = Field(
        default=10.0, gt=0, le=LONGEST_SILENCE_S, description="longest silence of an event stream"
    )
    recheck_s: float = Field(
        default=5.0, gt=0, description="how often the manager is asked about a variable the bus is silent on"
    )
    keys: bool = Field(
        default=False,
        description="ask for API keys; without, it is for development: it listens on the loopback alone",
    )
    key_recheck_s: float = Field(
        default=5.0, gt=0, description="how long a key is believed unasked: so long a revoked one is good"
    )
    head_s: float = Field(
        default=10.0, gt=0, description="how long the line and headers of a request may take to come"
    )
    body_s: float = Field(
        default=30.0,
        gt=0,
        description="how long a request's body may take to come; longer, as more than 16 KiB/s of it come",
    )
    cors_origins: str = Field(
        default="",
        description="origins of web pages that may use the server, with commas; `*`: all; empty: none",
    )
    unread_s: float = Field(
        default=60.0,
        gt=0,
        description="how long a client may leave what it is sent unread, or unacknowledged,"
        " before it is cut (Linux)",
    )
    stop_s: int = Field(
        default=5, ge=1, description="how long requests may take to end when the gateway stops"
    )
