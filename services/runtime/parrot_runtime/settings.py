"""Settings: one frozen class a service, read from flags, then the environment, then defaults.

A field `nats_url` is the flag `--nats-url` and the variable `PARROT_NATS_URL`. Nothing else reads
the environment.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict


class ServiceSettings(BaseSettings):
    """What every service needs to know."""

    model_config = SettingsConfigDict(
        env_prefix="PARROT_",
        frozen=True,
        extra="ignore",
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        cli_implicit_flags=True,
    )

    nats_url: str = Field("nats://127.0.0.1:4222", description="NATS server, 2.12 or newer, with JetStream")
    otlp_endpoint: str = Field("", description="OTLP/gRPC collector for traces; empty: none are exported")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least severe log shown"
    )
    log_format: Literal["json", "console"] = Field("json", description="how logs are written")
    connect_timeout_s: float = Field(
        30.0, gt=0, description="how long to wait for NATS, Postgres and peers at start"
    )

    @classmethod
    def load(cls, argv: Sequence[str] | None = None) -> Self:
        """The settings of this process; prints what is wrong and exits with 2 when they don't hold.

        Args:
            argv: flags; the process's own by default.
        """
        arguments = list(sys.argv[1:] if argv is None else argv)
        try:
            return cls(_cli_parse_args=arguments)  # type: ignore[call-arg]
        except ValidationError as error:
            for issue in error.errors():
                name = ".".join(str(part) for part in issue["loc"])
                flag = "--" + name.replace("_", "-")
                sys.stderr.write(f"{flag} (PARROT_{name.upper()}): {issue['msg']}\n")
            raise SystemExit(2) from None
