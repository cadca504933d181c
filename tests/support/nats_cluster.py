"""A real cluster of NATS servers for tests, each with a store of its own, to be killed and brought back."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from tests.support.nats import free_port

SERVERS: Final = 3
HEALTHY_WITHIN_S: Final = 60.0


@dataclass(eq=False)
class Member:
    """One server of a cluster."""

    name: str
    folder: Path
    port: int = field(default_factory=free_port)
    route_port: int = field(default_factory=free_port)
    monitor_port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"nats://127.0.0.1:{self.port}"

    def start(self, route_ports: list[int]) -> None:
        """Starts it; it is there when it is healthy."""
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in route_ports)
        path = self.folder / f"{self.name}.conf"
        path.write_text(
            f"server_name: {self.name}\n"
            f"listen: 127.0.0.1:{self.port}\n"
            f"http: 127.0.0.1:{self.monitor_port}\n"
            f'jetstream {{ store_dir: "{self.folder / self.name}" }}\n'
            f"cluster {{ name: tests, listen: 127.0.0.1:{self.route_port}, no_advertise: true, "
            f"routes: [{routes}] }}\n"
        )
        command = [str(Path(sys.executable).with_name("nats-server")), "-c", str(path)]
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self) -> None:
        """Ends it as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Has it end in order; it leads nothing any more then."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def pause(self) -> None:
        """It keeps its connections, and says nothing: as if its machine hung, or was cut off."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """It goes on where it was."""
        self._signal(signal.SIGCONT)

    @property
    def runs(self) -> bool:
        """Whether its process has not ended."""
        return self._process is not None and self._process.poll() is None

    def process(self) -> psutil.Process | None:
        """Its process, to be measured."""
        return psutil.Process(self._process.pid) if self._process is not None else None

    def healthy(self) -> bool:
        """Whether it has all that the others have."""
        try:
            self._ask("healthz")
        except (OSError, ValueError):
            return False
        return True

    def leader_of(self, stream: str) -> str:
        """By whom it believes a stream to be led; empty: by nobody."""
        try:
            accounts = self._ask("jsz?streams=true")["account_details"]
        except (OSError, ValueError, KeyError):
            return ""
        for found in (one for account in accounts for one in account.get("stream_detail", [])):
            if found["name"] == stream:
                return str(found.get("cluster", {}).get("leader", ""))
        return ""

    def _ask(self, what: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.monitor_port}/{what}", timeout=2) as answer:
            told: dict[str, Any] = json.load(answer)
        return told

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.runs:
            self._process.send_signal(number)


class NatsCluster:
    """Servers that keep replicas of one another's streams."""

    def __init__(self, folder: Path, servers: int = SERVERS) -> None:
        self.members = [Member(f"n{number}", folder) for number in range(servers)]

    @property
    def url(self) -> str:
        """All servers', as services are told."""
        return ",".join(member.url for member in self.members)

    def start(self, member: Member) -> None:
        """Starts a server, for the first time or again."""
        member.start([one.route_port for one in self.members])

    async def healthy(self) -> None:
        """Returns once every server has all there is.

        Raises:
            TimeoutError: that takes too long.
        """
        async with asyncio.timeout(HEALTHY_WITHIN_S):
            while not all(  # noqa: ASYNC110 - servers set no event
                [await asyncio.to_thread(member.healthy) for member in self.members]
            ):
                await asyncio.sleep(0.1)

    async def leader_of(self, stream: str, but: Member | None = None) -> Member:
        """The server that leads a stream, of those but one.

        Raises:
            TimeoutError: there is none for too long.
        """
        among = {member.name: member for member in self.members if member is not but}
        async with asyncio.timeout(HEALTHY_WITHIN_S):
            while True:
                for member in among.values():
                    name = await asyncio.to_thread(member.leader_of, stream)
                    if name in among:
                        return among[name]
                await asyncio.sleep(0.1)

    def revive(self) -> None:
        """Has every server run, whatever a test did to it."""
        for member in self.members:
            member.resume()
            if not member.runs:
                self.start(member)

    def close(self) -> None:
        """Ends every server."""
        for member in self.members:
            member.kill()


@contextmanager
def temporary_cluster() -> Iterator[NatsCluster]:
    """Started servers for the length of a `with`."""
    with tempfile.TemporaryDirectory(prefix="nats-") as folder:
        cluster = NatsCluster(Path(folder))
        try:
            for member in cluster.members:
                cluster.start(member)
            yield cluster
        finally:
            cluster.close()
