"""`parrot up` as a test runs it: a process of its own, whose events are read as they come."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from parrot_cli.child import tethered
from tests.support.nats import free_port
from tests.support.waiting import until

Event = dict[str, Any]


class Up:
    """A `parrot up --json` on a free port."""

    def __init__(self, folder: Path, *flags: str, env: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.events: list[Event] = []
        self._queue: queue.Queue[Event | None] = queue.Queue()
        command = [sys.executable, "-m", "parrot_cli", "up", "--json", "--data-dir", str(folder)]
        self.process = subprocess.Popen(
            tethered([*command, "--port", str(self.port), *flags], signal.SIGTERM),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, kind: str, component: str = "", within_s: float = 60) -> Event:
        """The next event of this kind (and component).

        Raises:
            AssertionError: it does not come; tells what came instead.
        """
        while True:
            try:
                event = self._queue.get(timeout=within_s)
            except queue.Empty:
                raise AssertionError(f"no {kind} within {within_s:g} s; there were: {self.texts()}") from None
            if event is None:
                raise AssertionError(f"parrot up ended without {kind}; there were: {self.texts()}")
            if event["event"] == kind and component in {"", event.get("component")}:
                return event

    def wait_up(self, within_s: float = 60) -> Event:
        """Returns once it serves."""
        return self.wait_for("up", within_s=within_s)

    def pids(self) -> dict[str, int]:
        """The processes of the components that became ready."""
        return {event["component"]: event["pid"] for event in self.events if event["event"] == "ready"}

    def tree(self) -> list[psutil.Process]:
        """Every process it started, and they started."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def stop(self, within_s: float = 60) -> int:
        """Asks it to stop; its exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.wait_exit(within_s)

    def wait_exit(self, within_s: float = 60) -> int:
        """Its exit code, once it is gone."""
        code = self.process.wait(within_s)
        self._reader.join(within_s)
        return code

    def close(self) -> None:
        """Ends it, whatever it is doing, and everything it started."""
        if self.process.poll() is None:
            left = self.tree()
            self.process.kill()
            self.process.wait()
            for process in left:
                until(lambda process=process: gone(process))  # type: ignore[misc]
        self._reader.join()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def texts(self) -> str:
        """All it said, for a failed assertion."""
        return "\n".join(event["text"] for event in self.events)

    def _read(self) -> None:
        for line in self.process.stdout or ():
            event: Event = json.loads(line)
            self.events.append(event)
            self._queue.put(event)
        self._queue.put(None)


def gone(process: psutil.Process) -> bool:
    """Whether a process has ended, reaped or not."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@contextmanager
def data_folder() -> Iterator[Path]:
    """A short folder that Postgres's account can enter, which pytest's own is not."""
    with tempfile.TemporaryDirectory(prefix="parrot-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextmanager
def running(folder: Path, *flags: str, env: Mapping[str, str] | None = None) -> Iterator[Up]:
    """A `parrot up`, ended at the end of the `with` if it has not ended yet."""
    up = Up(folder, *flags, env=env)
    try:
        yield up
    finally:
        up.close()
