"""Three servers by the configuration of components/tls: with certificates among themselves, too."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from tests.support.certificates import Authority, Files
from tests.support.manager import eventually
from tests.support.nats import free_port
from tests.unit.deploy.manifests import objects, of_kind

from parrot_cli.nats_server import binary
from parrot_runtime.values.bus import Bus, connected

pytestmark = pytest.mark.anyio
SERVERS = range(3)
SCOPE = "00.default.session"


class Cluster:
    """The servers' files and processes."""

    def __init__(self, folder: Path, certificate: Files) -> None:
        self._folder = folder
        self._certificate = certificate
        self._ports = {(number, port): free_port() for number in SERVERS for port in ("4222", "6222", "8222")}
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def urls(self) -> str:
        """Where services find it."""
        return ",".join(f"tls://127.0.0.1:{self._ports[number, '4222']}" for number in SERVERS)

    def start(self) -> None:
        """Starts every server, as its pod does."""
        maps = [item["data"] for item in of_kind(objects("production"), "ConfigMap")]
        (shipped,) = [data for data in maps if "nats.conf" in data]
        for number in SERVERS:
            home = self._folder / f"nats-{number}"
            home.mkdir()
            for name, text in shipped.items():
                (home / name).write_text(self._here(text, number, home))
            command = [str(binary()), "--config", str(home / "nats.conf")]
            with (home / "log").open("wb") as log:
                environment = {"POD_NAME": f"nats-{number}"}
                self._processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))

    def stop(self) -> None:
        """Ends all."""
        for process in self._processes:
            process.kill()
            process.wait()

    def said(self) -> str:
        """What all of them logged."""
        return "".join((self._folder / f"nats-{number}" / "log").read_text() for number in SERVERS)

    def _here(self, text: str, number: int, home: Path) -> str:
        for other in SERVERS:
            text = text.replace(f"nats-{other}.nats:6222", f"127.0.0.1:{self._ports[other, '6222']}")
        for port in ("4222", "6222", "8222"):
            text = text.replace(f"port: {port}", f"port: {self._ports[number, port]}")
        files = {
            "tls.crt": self._certificate.cert,
            "tls.key": self._certificate.key,
            "ca.crt": self._certificate.ca,
        }
        for name, path in files.items():
            text = text.replace(f"/etc/parrot/tls/{name}", str(path))
        return text.replace("/data", str(home / "data")).replace("/run/nats", str(home))


@pytest.fixture
def cluster(tmp_path: Path, authority: Authority) -> Iterator[Cluster]:
    made = Cluster(tmp_path, authority.issue("127.0.0.1", "nats"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


def bus_of(
    role: str, cluster: Cluster, authority: Authority, within_s: float = 30, replicas: int = 1
) -> AbstractAsyncContextManager[Bus]:
    """A service's connection, by its certificate."""
    tls = authority.issue(role).tls()
    return connected(cluster.urls, role, within_s, tls=tls, role=role, replicas=replicas)


@pytest.mark.timeout(180)
async def test_services_do_their_work_on_a_cluster_that_knows_them_by_their_certificates(
    cluster: Cluster, authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    async with bus_of("manager", cluster, authority, 90, replicas=3) as manager:
        await manager.js.publish(f"sv.state.{SCOPE}", b"state", timeout=10)
        await manager.js.publish("sv.epoch.delta.00.e-1", b"granted", timeout=10)
        async with bus_of("engine", cluster, authority) as engine:
            await engine.js.publish(f"sv.delta.{SCOPE}", b"text", timeout=10)
            await engine.js.publish(f"sv.final.{SCOPE}.v", b"value", timeout=10)
            with pytest.raises(TimeoutError):
                await engine.js.publish(f"sv.state.{SCOPE}", b"forged", timeout=1)
        async with bus_of("gateway", cluster, authority) as gateway:

            async def read() -> bool:
                found = await gateway.last("PARROT_FINALS", f"sv.final.{SCOPE}.v")
                return found is not None and found.data == b"value"

            await eventually(read, within_s=30)
            state = await gateway.last("PARROT_DELTAS", f"sv.state.{SCOPE}")
            assert state is not None
            assert state.data == b"state"
    said = capsys.readouterr().out.splitlines()
    (refused,) = [line for line in said if "does not let this service do" in line]
    assert "sv.state" in refused


async def test_a_server_without_a_certificate_of_the_authority_does_not_join(
    cluster: Cluster, stranger: Authority, authority: Authority, tmp_path: Path
) -> None:
    folder = tmp_path / "intruders"
    folder.mkdir()
    intruders = Cluster(folder, stranger.issue("127.0.0.1", believing=authority))
    intruders._ports = {
        **intruders._ports,
        **{(number, "6222"): cluster._ports[number, "6222"] for number in (1, 2)},
    }
    try:
        intruders.start()

        async def refused() -> bool:
            return (
                re.search("route handshake error.*(unknown authority|certificate)", cluster.said())
                is not None
            )

        await eventually(refused, within_s=60)
    finally:
        intruders.stop()
