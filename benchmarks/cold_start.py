"""From nothing to ready: how long each service takes, as a process, and as its image where there is one.

The stack is started service by service, on a NATS and a Postgres that are new; a service is ready when
its monitor says so, and at the end each model is asked for a text. With `--roots FOLDER` the images are
started in place of processes, and their files counted: FOLDER has the root file system of each under its
name, such as `manager` (from `docker export`, or a link to what `buildah mount` says). It needs root: each
is run in mounts of its own, read-only but for a new /tmp, as user 10001, without any capability.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tests.support.nats import free_port, temporary_nats
from tests.support.postgres import temporary_postgres

from benchmarks.harness import Report, parser, print_table
from benchmarks.launch import Command, Settings, Start, as_process, in_image, service

MIB: Final = 2**20
PARTS: Final = {"needs": "opt/parrot/.venv", "service": "opt/parrot/lib"}
"""What an image adds to its base."""
ENGINES: Final[Mapping[str, tuple[str, Settings]]] = {
    "engine, simulated": ("engine-sandbox", {"PARROT_BACKEND": "sim"}),
    "engine, code of users": ("engine-sandbox", {"PARROT_BACKEND": "sandbox"}),
}
VLLM: Final[Mapping[str, tuple[str, Settings]]] = {
    "engine, vLLM, its first start": ("engine-cpu", {}),
    "engine, vLLM, again": ("engine-cpu", {}),
}
"""The first start converts the model."""


class Stack:
    """A stack that is started service by service, and what each start took."""

    def __init__(self, command: Command, folder: Path) -> None:
        self.starts: dict[str, Start] = {}
        self._command = command
        self._folder = folder
        self._running = ExitStack()

    def run(self, engines: Mapping[str, tuple[str, Settings]]) -> None:
        """Starts all of it, asks each model for a text, and stops it."""
        with self._running:
            nats = self._running.enter_context(temporary_nats())
            postgres = self._running.enter_context(temporary_postgres(free_port()))
            manager, gateway = f"127.0.0.1:{free_port()}", free_port()
            common = {"PARROT_NATS_URL": nats.url, "PARROT_LOG_LEVEL": "warning"}
            stored = {**common, "PARROT_POSTGRES_URL": postgres.new_database()}
            self._migrate(stored)
            self._start("manager", "manager", {**stored, "PARROT_LISTEN": manager})
            peers = {**common, "PARROT_MANAGER_ADDRESS": manager}
            alone = {"PARROT_HOST": "127.0.0.1", "PARROT_KEYS": "false", "PARROT_PORT": str(gateway)}
            self._start("gateway", "frontend", {**peers, **alone})
            for name, (image, settings) in engines.items():
                self._start(name, image, {**peers, **settings}, stays=name not in VLLM or "again" in name)
            for model in models(gateway):
                began = time.monotonic()
                ask(gateway, model)
                self.starts[f"an answer of {model}"] = Start(time.monotonic() - began, 0.0)

    def _migrate(self, settings: Settings) -> None:
        began, used = time.monotonic(), children_s()
        command = self._command("manager", {**settings, "PARROT_MIGRATE": "true"}, self._kept("migrations"))
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        self.starts["migrations"] = Start(time.monotonic() - began, children_s() - used)

    def _start(self, name: str, image: str, settings: Settings, *, stays: bool = True) -> None:
        port = free_port()
        given = {**settings, "PARROT_METRICS_ADDRESS": f"127.0.0.1:{port}"}
        command = self._command(image, given, self._kept(image))
        started = service(command, port, self._folder / "log")
        if stays:
            self.starts[name] = self._running.enter_context(started)
        else:
            with started as start:
                self.starts[name] = start

    def _kept(self, name: str) -> Path:
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        return folder


def children_s() -> float:
    """The processors' time of all that was started from here and has ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def models(port: int) -> list[str]:
    """The models that the gateway at this port has."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=60) as answer:
        return [str(model["id"]) for model in json.load(answer)["data"]]


def ask(port: int, model: str) -> None:
    """Asks for a short text.

    Raises:
        RuntimeError: none came.
    """
    body = {"model": model, "prompt": "The most important fact about the sea is that", "max_tokens": 16}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode())
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=120) as answer:
        text = json.load(answer)["choices"][0]["text"]
    if not text.strip():
        raise RuntimeError(f"{model} answered {text!r}")
    print(f"{model}: {text!r}")


def sizes(root: Path) -> dict[str, float]:
    """MiB of the files under an image's root, and of its parts; what is no part is its base."""
    found = {name: size(root / path) for name, path in PARTS.items()}
    whole = size(root)
    return {"base": whole - sum(found.values()), **found, "whole": whole}


def size(folder: Path) -> float:
    """MiB of a folder's files."""
    if not folder.exists():
        raise SystemExit(f"{folder} is missing: each image's root file system is to lie there, unpacked")
    files = (Path(place) / name for place, _, names in os.walk(folder) for name in names)
    return sum(path.lstat().st_size for path in files) / MIB


def main() -> None:
    """Measures and reports."""
    made = parser(__doc__)
    made.add_argument("--roots", type=Path, metavar="FOLDER", help="root file systems of the images")
    made.add_argument("--rounds", type=int, default=0, help="stacks to start (default: 3; --quick: 1)")
    arguments = made.parse_args()
    report = Report("cold_start", {"roots": bool(arguments.roots), "vllm": not arguments.quick})
    engines = {**ENGINES} if arguments.quick else {**ENGINES, **VLLM}
    if arguments.roots:
        show_sizes(
            report, arguments.roots, {"manager", "frontend", *(image for image, _ in engines.values())}
        )
    command = in_image(arguments.roots) if arguments.roots else as_process
    for _ in range(arguments.rounds or (1 if arguments.quick else 3)):
        with tempfile.TemporaryDirectory(prefix="parrot-bench-") as folder:
            Path(folder).chmod(0o755)
            stack = Stack(command, Path(folder))
            stack.run(engines)
            report.samples.append({name: asdict(start) for name, start in stack.starts.items()})
    for name in report.samples[0]:
        starts = [sample[name] for sample in report.samples]
        report.summary[f"{key(name)}_s"] = statistics.median(start["ready_s"] for start in starts)
        report.summary[f"{key(name)}_cpu_s"] = statistics.median(start["cpu_s"] for start in starts)
    report.show(arguments.json)


def key(name: str) -> str:
    """A metric's name of a service's."""
    return name.replace(",", "").replace(" ", "_").lower()


def show_sizes(report: Report, roots: Path, images: set[str]) -> None:
    """Prints and keeps what each image holds."""
    measured: dict[str, Any] = {image: sizes(roots / image) for image in sorted(images)}
    rows = [[image, *(f"{mib:,.1f}" for mib in parts.values())] for image, parts in measured.items()]
    print_table(["image, MiB", "base", *PARTS, "whole"], rows)
    for image, parts in measured.items():
        report.summary[f"{image}_mib"] = parts["whole"]


if __name__ == "__main__":
    main()
