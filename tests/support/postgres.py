"""A real Postgres server for tests: the packaged one, its data in a temporary folder, on a socket."""

from __future__ import annotations

import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from parrot_cli.child import Spec, tethered
from parrot_cli.postgres_server import Postgres, locate

STARTED_WITHIN_S = 20.0


class PostgresServer:
    """A server that makes fresh databases, and can be stopped and started again on the same data.

    Start it from the main thread: it dies with the thread that started it.
    """

    def __init__(self, postgres: Postgres, port: int = 0) -> None:
        """`port`: listens on the loopback too, where those who can't see the socket reach it."""
        self._postgres = postgres
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        init = postgres.init_spec()
        if init is not None:
            postgres.prepare_init()
            subprocess.run(_command(init), check=True, capture_output=True)
            postgres.finish_init()

    @property
    def bin(self) -> Path:
        """The folder of Postgres's own programs."""
        return self._postgres.bin

    def start(self) -> None:
        """Returns once it takes connections."""
        log = Path(tempfile.gettempdir(), f"{self._postgres.data.parent.name}.log")
        with log.open("ab") as stream:
            self._process = subprocess.Popen(
                [*_command(self._postgres.spec()), "-c", "fsync=off", *self._also_by_tcp()],
                stdout=stream,
                stderr=stream,
            )
        deadline = time.monotonic() + STARTED_WITHIN_S
        while not self._postgres.is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(log.read_text())
            time.sleep(0.01)  # between two looks at a server that starts
        log.unlink()

    def stop(self) -> None:
        """Stops it at once: connections break."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait()
            self._process = None

    def new_database(self) -> str:
        """The URL of a database nobody has used."""
        name = f"test_{uuid4().hex}"
        self.run(f"create database {name}")
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Removes a database, whoever is connected to it."""
        name = url.partition("?")[0].rpartition("/")[2]
        self.run(f"drop database {name} with (force)")

    def url(self, database: str) -> str:
        """Where a database is."""
        head, _, query = self._postgres.url.partition("?")
        if self._port:
            return f"{head.rpartition('/')[0]}127.0.0.1:{self._port}/{database}"
        return f"{head.rpartition('/')[0]}/{database}?{query}"

    def run(self, command: str) -> None:
        """Runs a command as superuser."""
        psql = [str(self._postgres.bin / "psql"), "-q", "-c", command, self.url("postgres")]
        subprocess.run(psql, check=True, capture_output=True)

    def _also_by_tcp(self) -> list[str]:
        settings = ["listen_addresses=127.0.0.1", f"port={self._port}"] if self._port else []
        return [word for setting in settings for word in ("-c", setting)]

    def close(self) -> None:
        """Stops it for good."""
        self.stop()
        self._postgres.clean_up()


@contextmanager
def temporary_postgres(port: int = 0) -> Iterator[PostgresServer]:
    """A started server for the length of a `with`."""
    with tempfile.TemporaryDirectory(prefix="pg-") as folder:
        server = PostgresServer(locate(Path(folder) / "data"), port)
        server.start()
        try:
            yield server
        finally:
            server.close()


def _command(spec: Spec) -> list[str]:
    return tethered(spec.command, spec.stop_signal, spec.user)
