"""Settings: one frozen class a service, read from flags, then the environment, then defaults.

A field `nats_url` is the flag `--nats-url` and the variable `PARROT_NATS_URL`. Nothing else reads
the environment.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

NATS_SCHEMES: Final = frozenset({"nats", "tls"})


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

    nats_url: str = Field(
        "nats://127.0.0.1:4222",
        description="NATS server, 2.12 or newer, with JetStream; of a cluster several, with commas",
    )
    stream_replicas: int = Field(
        1,
        ge=1,
        le=5,
        description="servers of the NATS cluster that keep what is written, at least; managers see to it",
    )
    otlp_endpoint: str = Field("", description="OTLP/gRPC collector for traces; empty: none are exported")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least severe log shown"
    )
    log_format: Literal["json", "console"] = Field("json", description="how logs are written")
    metrics_address: str = Field(
        "",
        description="host:port to serve /metrics (Prometheus), /healthz and /readyz on; empty: none",
    )
    connect_timeout_s: float = Field(
        30.0, gt=0, description="how long to wait for NATS, Postgres and peers at start"
    )
    tls_cert: str = Field(
        "",
        description="this service's certificate (PEM), a DNS name of which is its role; empty: no TLS."
        " With all three, gRPC is mutual TLS",
    )
    tls_key: str = Field("", description="the certificate's key (PEM, without a password)")
    tls_ca: str = Field("", description="certificates of the authorities whose peers are believed (PEM)")

    @field_validator("nats_url")
    @classmethod
    def _check_nats_url(cls, urls: str) -> str:
        for number, url in enumerate(urls.split(","), 1):
            parts = urlsplit(url.strip())
            if parts.scheme not in NATS_SCHEMES or not parts.hostname:
                # Not the URL itself: it may hold a password.
                raise ValueError(
                    f"URL {number} is not one of a NATS server; write nats://host:4222 or tls://host:4222, "
                    "and those of a cluster's servers with commas between them"
                )
        return urls

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        given = {"--tls-cert": self.tls_cert, "--tls-key": self.tls_key, "--tls-ca": self.tls_ca}
        missing = [flag for flag, path in given.items() if not path]
        if 0 < len(missing) < len(given):
            raise ValueError(f"{', '.join(given)} are given together, or none of them; {missing[0]} is not")
        return self

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
                sys.stderr.write(f"{_where(issue['loc'])}{issue['msg']}\n")
            raise SystemExit(2) from None


def _where(place: tuple[int | str, ...]) -> str:
    """A setting by both its names; nothing where several don't go together."""
    name = ".".join(str(part) for part in place)
    return f"--{name.replace('_', '-')} (PARROT_{name.upper()}): " if name else ""
