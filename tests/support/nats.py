"""A real NATS server for tests: the packaged one, on a free port, its store in a temporary folder."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

STARTED_WITHIN_S = 10.0


def free_port() -> int:
    """A TCP port nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class NatsServer:
    """A server that can be stopped, killed and started again on the same port and store."""

    def __init__(
        self, folder: Path, configuration: str = "", environment: Mapping[str, str] | None = None
    ) -> None:
        """`configuration`: more than flags can say, in a file that `reload` rewrites."""
        self._configuration = folder / "nats.conf"
        self._configuration.write_text(configuration)
        self._environment = {**os.environ, **(environment or {})}
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns once it answers."""
        binary = Path(sys.executable).with_name("nats-server")
        command = [str(binary), "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self._folder)]
        command += ["-c", str(self._configuration)]
        log = (self._folder / "nats.log").open("ab")
        with log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=self._environment)
        deadline = time.monotonic() + STARTED_WITHIN_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self._folder / "nats.log").read_text())

    def reload(self, configuration: str) -> None:
        """Has it go on with another configuration; it says in its log when it does."""
        self._configuration.write_text(configuration)
        if self._process is not None:
            self._process.send_signal(signal.SIGHUP)

    @property
    def log(self) -> str:
        """What it said."""
        return (self._folder / "nats.log").read_text()

    def kill(self) -> None:
        """Ends it as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Ends it in order."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 0.2) as peer:
                return peer.recv(4) == b"INFO"
        except OSError:
            return False


@contextmanager
def temporary_nats(
    configuration: str = "", environment: Mapping[str, str] | None = None
) -> Iterator[NatsServer]:
    """A started server for the length of a `with`."""
    with tempfile.TemporaryDirectory(prefix="nats-") as folder:
        server = NatsServer(Path(folder), configuration, environment)
        server.start()
        try:
            yield server
        finally:
            server.stop()
