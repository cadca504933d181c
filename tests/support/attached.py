"""Engines of a test's own, each a process, attached by hand to a `parrot up` without any."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

import parrot as P
from tests.support.up import Event, Up
from tests.support.waiting import until


class Engines:
    """Engines that tests start and kill. `flags`: with what each is started."""

    def __init__(self, up: Up, ready: Event, folder: Path, flags: Sequence[str]) -> None:
        self._up = up
        self._folder = folder
        self._flags = [
            *flags,
            *("--manager-address", ready["manager_address"]),
            *("--nats-url", ready["nats_url"]),
        ]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._logs = ExitStack()

    def start(self, name: str, *flags: str) -> None:
        """Starts an engine, with flags of its own beside those of all."""
        command = [sys.executable, "-m", "parrot_engine", "--engine-id", name, *self._flags, *flags]
        log = self._logs.enter_context((self._folder / f"{name}.log").open("ab"))
        self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        """kill -9."""
        process = self._processes[name]
        process.send_signal(signal.SIGKILL)
        process.wait()

    def wait_attached(self, *names: str, within_s: float = 60) -> None:
        """Returns once just these are there."""
        until(lambda: attached(self._up) == sorted(names), within_s=within_s)

    def close(self) -> None:
        """Ends them all, and returns once they are given up."""
        for name in self._processes:
            self.kill(name)
        self._logs.close()
        self.wait_attached()


@contextmanager
def engines(
    up: Up, ready: Event, folder: Path, flags: Sequence[str], *names: str, within_s: float = 60
) -> Iterator[Engines]:
    """Engines for the length of the `with`."""
    found = Engines(up, ready, folder, flags)
    try:
        for name in names:
            found.start(name)
        found.wait_attached(*names, within_s=within_s)
        yield found
    finally:
        found.close()


def attached(up: Up) -> list[str]:
    """The engines that are there."""
    return sorted(engine["id"] for engine in httpx.get(f"{up.url}/v1/engines").json()["engines"])


def graph(up: Up, session: P.Session) -> dict[str, Any]:
    """A session's graph."""
    found: dict[str, Any] = httpx.get(f"{up.url}/v1/sessions/{session.id}").json()
    return found


def engine_of(up: Up, session: P.Session, place: int = 0) -> str:
    """Where a call runs."""
    return str(graph(up, session)["calls"][place]["engine"])


def streamed(variable: P.SemanticVariable, pieces: int) -> tuple[Iterator[str], list[str]]:
    """A stream of which so many pieces were read."""
    stream = variable.stream(timeout=60)
    return stream, [next(stream) for _ in range(pieces)]
