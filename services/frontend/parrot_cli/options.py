"""What `parrot up` was asked for."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from parrot_cli.errors import UpError
from parrot_runtime.hosts import is_loopback

PACKAGED_MODEL: Final = "smollm2"
LAST_PORT: Final = 65_535
GATEWAY: Final = "gateway"
SANDBOX: Final = "sandbox"
"""The engine that runs code, by its name and its backend's."""


class Backend(StrEnum):
    """What an engine generates with."""

    VLLM = "vllm"
    SIM = "sim"


class Dtype(StrEnum):
    """The arithmetic of a model."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"
    AUTO = "auto"


class LogLevel(StrEnum):
    """The least severe log that is written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class UpOptions:
    """The flags of `parrot up`. Empty texts stand for flags that were not given."""

    data_dir: Path
    model: str = PACKAGED_MODEL
    backend: Backend = Backend.VLLM
    engines: int = 1
    managers: int = 1
    dtype: Dtype = Dtype.BFLOAT16
    host: str = "127.0.0.1"
    port: int = 8080
    nats_url: str = ""
    postgres_url: str = ""
    otlp_endpoint: str = ""
    metrics_port: int = 0
    log_level: LogLevel = LogLevel.INFO
    keys: bool = False
    sandbox: bool = False

    @property
    def url(self) -> str:
        """Where applications reach the stack."""
        host = "127.0.0.1" if self.host in {"", "0.0.0.0", "::"} else self.host  # noqa: S104 - a comparison
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def engine_ids(self) -> list[str]:
        """The engines to start."""
        numbered = [f"e-{number}" for number in range(1, self.engines + 1)]
        return [*numbered, SANDBOX] if self.sandbox else numbered

    @property
    def manager_ids(self) -> list[str]:
        """The managers to start. One that is started again under its name takes its sessions up at once."""
        return [f"m-{number}" for number in range(1, self.managers + 1)]

    def monitor(self, name: str) -> str:
        """Where the gateway, a manager or an engine is monitored, by its name; empty: nowhere.

        The gateway comes first, then the managers, then the engines, each on the port after the one before.
        """
        if not self.metrics_port:
            return ""
        return f"127.0.0.1:{self.metrics_port + self._monitored.index(name)}"

    @property
    def _monitored(self) -> list[str]:
        return [GATEWAY, *self.manager_ids, *self.engine_ids]

    def check(self) -> None:
        """Finds what can't work, before anything is started.

        Raises:
            UpError: the model's folder or the port is not usable, or others are let in without keys.
        """
        if self.backend is Backend.VLLM and self.model != PACKAGED_MODEL:
            _check_model(Path(self.model))
        if not self.keys and not is_loopback(self.host):
            raise UpError(
                f"--host {self.host} lets others in, and no keys are asked for: add --keys, and make one "
                "with `parrot keys create`; or listen on 127.0.0.1"
            )
        _check_port(self.host, self.port)
        if self.metrics_port:
            self._check_monitors()

    def _check_monitors(self) -> None:
        ports = [int(self.monitor(name).rpartition(":")[2]) for name in self._monitored]
        if ports[-1] > LAST_PORT:
            raise UpError(
                f"--metrics-port {self.metrics_port}: {len(ports)} services need a port each from there on, "
                f"and {LAST_PORT} is the last; choose a lower one"
            )
        for port in ports:
            _check_port("127.0.0.1", port, "--metrics-port")


def _check_model(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise UpError(
            f"--model {folder}: no folder of a Hugging Face model (with its config.json); "
            f"give one, or {PACKAGED_MODEL} for the model that comes with Parrot"
        )


def _check_port(host: str, port: int, flag: str = "--port") -> None:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # As servers do; otherwise connections that just ended would keep the port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise UpError(
            f"can't listen on {host}:{port} ({error.strerror}); stop what uses it, or choose another {flag}"
        ) from None


def free_port() -> int:
    """A TCP port of the loopback that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
