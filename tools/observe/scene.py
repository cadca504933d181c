"""The whole system on this machine, with simulated engines, under load: to be looked at."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.stack import get
from tests.support.nats import temporary_nats
from tests.support.postgres import temporary_postgres

import parrot as P  # noqa: N812 - as everybody who writes applications does
from parrot_cli.child import tethered

READY_WITHIN_S: Final = 240.0
ENGINES: Final = 3
MANAGERS: Final = 2
PARTS: Final = 6


@dataclass
class Service:
    """One process, which says what troubles it in `log`."""

    module: str
    flags: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it; it dies with this process."""
        command = tethered([sys.executable, "-m", self.module, *self.flags], signal.SIGKILL)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def lives(self) -> bool:
        """Whether it was started and has not ended."""
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """Ends it as a crash would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@dataclass(frozen=True, slots=True)
class Scene:
    """A running system: its API, its processes by name, and where each job's metrics are."""

    url: str
    services: dict[str, Service]
    targets: dict[str, dict[str, str]]


@contextmanager
def scene(folder: Path) -> Iterator[Scene]:
    """Two managers, three simulated engines and a gateway, for the length of a `with`.

    Raises:
        RuntimeError: they did not come up; with what they say.
    """
    with temporary_nats() as nats, temporary_postgres() as postgres, ExitStack() as stack:
        made = _composed(folder, nats.url, postgres.new_database())
        migrate = made.services["manager-0"]
        subprocess.run([sys.executable, "-m", migrate.module, *migrate.flags, "--migrate"], check=True)
        for service in made.services.values():
            service.start()
            stack.callback(service.kill)
        _wait_ready(made)
        yield made


def _composed(folder: Path, nats_url: str, postgres_url: str) -> Scene:
    ports = _free_ports()
    services: dict[str, Service] = {}
    targets: dict[str, dict[str, str]] = {}
    common = ["--nats-url", nats_url, "--log-level", "error", "--connect-timeout-s", f"{READY_WITHIN_S:g}"]

    def add(kind: str, name: str, *flags: str) -> None:
        address = f"127.0.0.1:{next(ports)}"
        targets.setdefault(f"parrot-{kind}", {})[name] = address
        services[name] = Service(
            f"parrot_{kind}", [*common, "--metrics-address", address, *flags], folder / f"{name}.log"
        )

    managers = [f"127.0.0.1:{next(ports)}" for _ in range(MANAGERS)]
    for number, listen in enumerate(managers):
        name = f"manager-{number}"
        add("manager", name, "--listen", listen, "--manager-id", name, "--postgres-url", postgres_url)
    among = ["--manager-address", ",".join(managers)]
    for number in range(ENGINES):
        name = f"engine-{number}"
        flags = ["--engine-id", name, "--backend", "sim", "--capacity", "8", "--sim-kv-tokens", "40000"]
        add("engine", name, *among, *flags, "--sim-step-ms", "15")
    port = str(next(ports))
    add("gateway", "gateway", *among, "--port", port)
    return Scene(f"http://127.0.0.1:{port}", services, targets)


def _free_ports() -> Iterator[int]:
    """Ports that nobody listens on, from below those that outgoing connections are given."""
    return (port for port in random.sample(range(20_000, 32_000), 1000) if _is_free(port))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _wait_ready(made: Scene) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        if not all(service.lives() for service in made.services.values()):
            break
        try:
            if get(f"{made.url}/v1/models")["data"]:
                return
        except OSError:
            pass
        time.sleep(0.05)  # between two looks at a system that starts
    said = [f"{name}: {service.log.read_text()}" for name, service in made.services.items()]
    raise RuntimeError("\n".join(["the system did not come up", *said]))


_short: Final = P.SamplingConfig(max_gen_length=60)


@P.semantic_function(sampling=_short)
def _part(text: P.Input, point: P.Output) -> None:
    """You read reports and name the one point that matters. The report: {{text}} The point: {{point}}"""


@P.semantic_function(sampling=_short)
def _whole(points: P.Input, summary: P.Output) -> None:
    """You sum up points in two sentences. The points: {{points}} The summary: {{summary}}"""


class Load:
    """Applications that run one after the other in each of several threads, until they are told to end."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self.done = 0
        self.failed: list[str] = []

    def add(self, count: int, for_s: float) -> None:
        """So many more applications at once, for so long."""
        until = time.monotonic() + for_s
        for number in range(count):
            thread = threading.Thread(target=self._run, args=(random.Random(number), until), daemon=True)  # noqa: S311 - a load
            thread.start()
            self._threads.append(thread)

    def end(self) -> None:
        """Returns when every application that has begun has ended."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _run(self, chance: random.Random, until: float) -> None:
        while not self._ended.is_set() and time.monotonic() < until:
            try:
                self._application(
                    [f"Report {chance.random()}. " * chance.randint(20, 200) for _ in range(PARTS)]
                )
                self.done += 1
            except P.ParrotError as error:
                self.failed.append(str(error))
            self._ended.wait(chance.random())

    def _application(self, texts: list[str]) -> None:
        """A map over parts, and what is streamed: the summary of them."""
        with P.Session(self._url):
            summary = _whole(P.map(_part, texts, joined_by="\n"))
            for _ in summary.stream():
                pass
