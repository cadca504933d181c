"""Starts the whole system, runs a real application on it, and stops it; 0 when all of it went well.

Usage: python tools/demo.py [--backend sim] [arguments of examples/map_reduce_summary.py]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

from parrot_cli.child import tethered
from parrot_cli.options import free_port
from parrot_cli.report import Report

EXAMPLE: Final = Path(__file__).resolve().parent.parent / "examples" / "map_reduce_summary.py"
STOPS_WITHIN_S: Final = 120.0


class Stack:
    """A `parrot up` of this demo's own, on a free port and a data folder of its own."""

    def __init__(self, folder: Path, backend: str, report: Report) -> None:
        self._report = report
        self.url = ""
        self.ready = threading.Event()
        self.ended = threading.Event()
        flags = ["--json", "--backend", backend, "--port", str(free_port()), "--data-dir", str(folder)]
        self._process = subprocess.Popen(
            tethered([sys.executable, "-m", "parrot_cli", "up", *flags], signal.SIGTERM),
            stdout=subprocess.PIPE,
            text=True,
            # Ctrl-C is the demo's to answer.
            process_group=0,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def stop(self) -> int:
        """Stops it; its exit code."""
        self._process.terminate()
        try:
            self._process.wait(STOPS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.terminate()
        self._reader.join(STOPS_WITHIN_S)
        return self._process.wait()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._show(json.loads(line))
        self.ended.set()
        self.ready.set()

    def _show(self, event: dict[str, Any]) -> None:
        if event["event"] == "progress":
            self._report.progress(event["text"])
            return
        self._report.event(event["event"], event["text"])
        if event["event"] == "up":
            self.url = event["url"]
            self.ready.set()


def run_example(stack: Stack, arguments: list[str]) -> int:
    """Runs the application until it ends; when the stack ends first, so does the application."""
    command = [sys.executable, str(EXAMPLE), *arguments]
    application = subprocess.Popen(command, env={**os.environ, "PARROT_URL": stack.url})
    try:
        while application.poll() is None:
            if stack.ended.wait(0.1):
                return 1
        return application.returncode
    finally:
        application.kill()
        application.wait()


def main() -> int:
    """The demo."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--backend", choices=["vllm", "sim"], default="vllm", help="what engines generate with"
    )
    options, arguments = parser.parse_known_args()
    report = Report(as_json=False)
    start = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="parrot-demo-"))
    report.event("demo", f"starting Parrot (parrot up --backend {options.backend}); data and logs: {folder}")
    stack = Stack(folder, options.backend, report)
    code = 1
    try:
        stack.ready.wait()
        if not stack.ended.is_set():
            report.event("demo", f"\nrunning {EXAMPLE.name}")
            code = run_example(stack, arguments)
    finally:
        report.event("demo", "")
        code = stack.stop() or code
    if code:
        report.event("demo", f"the demo failed; the logs are in {folder / 'logs'}", is_error=True)
        return code
    shutil.rmtree(folder, ignore_errors=True)
    report.event("demo", f"done in {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
