"""The manager's settings."""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator

from parrot_manager.core.scheduling import POLICIES
from parrot_manager.core.scheduling.policies import Limits
from parrot_manager.core.state import Policy
from parrot_runtime.settings import ServiceSettings

Scheduling = Literal["app_centric", "request_fifo", "request_least_loaded", "prefix_affinity_only"]
FEATURES: Final = frozenset({"grouping", "prefix_affinity", "objectives", "streaming_edges", "app_order"})
"""Of a scheduling policy, each to be switched off by itself."""


class ManagerSettings(ServiceSettings):
    """What the manager needs to know. All durations are in seconds."""

    listen: str = Field("127.0.0.1:7400", description="host:port for gateways and engines (gRPC)")
    manager_id: str = Field(
        default_factory=lambda: f"m-{secrets.token_hex(4)}",
        pattern=r"^[A-Za-z0-9_-]{1,64}$",
        description="this manager's name among the managers, its own alone; one that is restarted under it"
        " takes its shards up at once (default: a new one at each start)",
    )
    advertise: str = Field(
        "", description="host:port under which gateways and engines find this manager; empty: as it listens"
    )
    lease_s: float = Field(
        3.0, gt=0, description="a manager not heard of for so long loses its sessions to the others"
    )
    renew_s: float = Field(1.0, gt=0, description="how often a manager says that it lives")
    postgres_url: str = Field(
        "postgresql://postgres@127.0.0.1:5432/postgres", description="Postgres database that holds the truth"
    )
    migrate: bool = Field(False, description="bring the database's schema up to date, and exit")
    store_deadline_s: float = Field(5.0, gt=0, description="how long a write waits for Postgres to come back")
    engine_wait_s: float = Field(
        30.0, gt=0, description="how long a call waits for an engine of its model to be there"
    )
    engine_silence_s: float = Field(
        15.0, gt=0, description="an engine that says nothing for so long is given up"
    )
    engine_grace_s: float = Field(
        1.0, ge=0, description="how long an engine whose connection broke may take to come back to its calls"
    )
    heartbeat_s: float = Field(2.0, gt=0, description="how often engines say that they live")
    session_timeout_s: float = Field(3600.0, gt=0, description="a session's deadline when it names none")
    drain_s: float = Field(20.0, ge=0, description="how long running calls may finish at shutdown")
    retain_s: float = Field(300.0, gt=0, description="how long an ended session stays in memory")
    purge_after_s: float = Field(
        900.0, ge=0, description="how long an ended session's values stay on the bus (they stay in Postgres)"
    )
    keep_sessions_s: float = Field(
        0.0, ge=0, description="how long ended sessions stay in Postgres, with their values; 0: for ever"
    )
    adopt_s: float = Field(
        3.0, gt=0, description="after a restart, how long a call's engine may take to say that it runs it"
    )
    claim_s: float = Field(
        15.0, gt=0, description="how long a worker of a client has a call it claimed, unless it is heard of"
    )
    sandbox: bool = Field(
        False,
        description="take calls whose code runs on the server, in the sandbox of a `python` engine",
    )
    max_losses: int = Field(
        5, ge=0, description="how often a call is tried again whose engine was lost or failed"
    )
    scheduling: Literal["app_centric", "request_fifo", "request_least_loaded", "prefix_affinity_only"] = (
        Field("app_centric", description="who goes where and when; the others are there to compare")
    )
    scheduling_without: str = Field(
        "",
        description="parts of it to switch off, with commas: grouping, prefix_affinity, objectives,"
        " streaming_edges, app_order",
    )
    tenant_calls: int = Field(200_000, ge=0, description="unfinished calls of one tenant; 0: no limit")
    total_calls: int = Field(1_000_000, ge=0, description="unfinished calls of all tenants; 0: no limit")
    upkeep_interval_s: float = Field(30.0, gt=0, description="how often what has ended is tidied up")
    history_file: Path | None = Field(
        None,
        description="a file for every event and decision, to be replayed; it holds what users said",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.renew_s * 2 > self.lease_s:
            raise ValueError("renew_s is at most half of lease_s, so that one renewal may fail")
        if unknown := self._switched_off - FEATURES:
            raise ValueError(f"scheduling_without knows {', '.join(sorted(FEATURES))}; not {sorted(unknown)}")
        if 0 < self.keep_sessions_s < max(self.purge_after_s, self.retain_s):
            raise ValueError("keep_sessions_s is 0, or at least purge_after_s and retain_s")
        return self

    @property
    def address(self) -> str:
        """Where the others find this manager."""
        return self.advertise or self.listen

    @property
    def policy(self) -> Policy:
        """The state machine's share of them."""
        switches: dict[str, Any] = dict.fromkeys(self._switched_off, False)
        return Policy(
            engine_wait_ms=_ms(self.engine_wait_s),
            default_timeout_ms=_ms(self.session_timeout_s),
            retain_ms=_ms(self.retain_s),
            adopt_ms=_ms(self.adopt_s),
            claim_ms=_ms(self.claim_s),
            max_losses=self.max_losses,
            scheduling=replace(
                POLICIES[self.scheduling],
                limits=Limits(self.tenant_calls, self.total_calls),
                **switches,
            ),
        )

    @property
    def _switched_off(self) -> set[str]:
        return {name.strip() for name in self.scheduling_without.split(",") if name.strip()}


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
