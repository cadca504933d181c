"""The manager's settings."""

from __future__ import annotations

from pydantic import Field

from parrot_manager.core.state import Policy
from parrot_runtime.settings import ServiceSettings


class ManagerSettings(ServiceSettings):
    """What the manager needs to know. All durations are in seconds."""

    listen: str = Field("127.0.0.1:7400", description="host:port for gateways and engines (gRPC)")
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
    heartbeat_s: float = Field(2.0, gt=0, description="how often engines say that they live")
    session_timeout_s: float = Field(3600.0, gt=0, description="a session's deadline when it names none")
    drain_s: float = Field(20.0, ge=0, description="how long running calls may finish at shutdown")
    retain_s: float = Field(300.0, gt=0, description="how long an ended session stays in memory")
    purge_after_s: float = Field(
        900.0, ge=0, description="how long an ended session's values stay on the bus (they stay in Postgres)"
    )
    upkeep_interval_s: float = Field(30.0, gt=0, description="how often what has ended is tidied up")

    @property
    def policy(self) -> Policy:
        """The state machine's share of them."""
        return Policy(
            engine_wait_ms=_ms(self.engine_wait_s),
            default_timeout_ms=_ms(self.session_timeout_s),
            retain_ms=_ms(self.retain_s),
        )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
