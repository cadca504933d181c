"""A stack of its own for a benchmark: `parrot up` on a free port and a temporary data folder."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

READY_WITHIN_S = 300.0
STOPPED_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Stack:
    """A running system."""

    url: str
    process: subprocess.Popen[bytes]
    folder: Path
    ready_s: float

    def processes(self) -> dict[str, psutil.Process]:
        """The stack's processes by component and pid, such as `parrot_manager-123`."""
        found = {}
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with child.oneshot():
                words = child.cmdline()
                name = words[words.index("-m") + 1] if "-m" in words else child.name()
            found[f"{name}-{child.pid}"] = child
        return found


@contextmanager
def running(*flags: str, keep: Path | None = None) -> Iterator[Stack]:
    """A stack that is ready, stopped in order afterwards.

    Args:
        flags: more flags for `parrot up`.
        keep: a data folder to use instead of a temporary one.
    """
    with tempfile.TemporaryDirectory(prefix="parrot-bench-") as made:
        folder = keep or Path(made)
        port = free_port()
        command = [
            sys.executable,
            "-m",
            "parrot_cli",
            "up",
            "--port",
            str(port),
            "--data-dir",
            str(folder),
            *flags,
        ]
        started = time.monotonic()
        with (folder / "up.log").open("wb") as log:
            process = subprocess.Popen([*command, *flags], stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_ready(url, process, folder / "up.log")
            yield Stack(url, process, folder, time.monotonic() - started)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(STOPPED_WITHIN_S)


def free_port() -> int:
    """A TCP port nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def get(url: str) -> dict[str, object]:
    """The JSON at `url`."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        return dict(json.load(answer))


def _wait_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if get(f"{url}/v1/models")["data"]:
                return
        except (OSError, urllib.error.URLError, json.JSONDecodeError):
            pass
        time.sleep(0.05)  # between two looks: a server that is not there yet tells nobody
    raise RuntimeError(f"the stack did not come up:\n{log.read_text()}")
