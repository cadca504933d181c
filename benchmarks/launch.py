"""Services by themselves: as processes of this environment, or as images whose files lie unpacked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
from tests.support import compose

READY_WITHIN_S: Final = 300.0
STOPPED_WITHIN_S: Final = 60.0
IN_A_ROOT: Final = """
root=$1 cache=$2; shift 2
mount --bind "$root" "$root" && mount -o remount,bind,ro "$root" && mount -t tmpfs tmpfs "$root/tmp" \
    && mount --rbind /dev "$root/dev" && mount -t proc proc "$root/proc" \
    && mount -t sysfs -o ro sysfs "$root/sys" || exit 99
if [ -d "$root/var/cache/parrot" ]; then mount --bind "$cache" "$root/var/cache/parrot" || exit 99; fi
exec chroot "$root" setpriv --reuid=10001 --regid=10001 --clear-groups --inh-caps=-all --bounding-set=-all \
    --no-new-privs env -i "$@"
"""

Settings = Mapping[str, str]
Command = Callable[[str, Settings, Path], list[str]]
"""How an image's program is run with settings, keeping what it keeps in a folder."""


MODULES: Final = {"frontend": "parrot_gateway", "manager": "parrot_manager"}


def as_process(image: str, settings: Settings, cache: Path) -> list[str]:
    """The command of a service in this environment."""
    given = [f"{name}={value}" for name, value in settings.items()]
    module = MODULES.get(image, "parrot_engine")
    return ["env", *given, f"PARROT_CACHE_DIR={cache}", sys.executable, "-m", module]


def in_image(roots: Path) -> Command:
    """How the services of images are run, whose files are under `roots`."""

    def command(image: str, settings: Settings, cache: Path) -> list[str]:
        dockerfile = compose.ROOT / "docker" / f"{image}.Dockerfile"
        own = compose.image_environment(dockerfile)
        own["PATH"] = own["PATH"].replace("$PATH", "/usr/local/bin:/usr/bin:/bin")
        # As in a container, nothing is taken over from here.
        given = [f"{name}={value}" for name, value in (own | dict(settings)).items()]
        entry = compose.entry_point(dockerfile)
        os.chown(cache, 10001, 10001)
        script = ["unshare", "--mount", "--propagation", "private", "sh", "-c", IN_A_ROOT, "sh"]
        return [*script, str((roots / image).resolve()), str(cache), *given, *entry]

    return command


@dataclass(frozen=True, slots=True)
class Start:
    """What a service's start took: the time until it was ready, and the processors' time."""

    ready_s: float
    cpu_s: float


@contextmanager
def service(command: list[str], port: int, log: Path) -> Iterator[Start]:
    """A service from its start to its end in order, ready within the block."""
    started = time.monotonic()
    with log.open("ab") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream)
    try:
        while not is_ready(port):
            if process.poll() is not None or time.monotonic() - started > READY_WITHIN_S:
                raise RuntimeError(f"{command[-1]} did not become ready:\n{log.read_text()[-3000:]}")
            time.sleep(0.01)  # between two looks
        yield Start(time.monotonic() - started, cpu_s(process.pid))
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOPPED_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def cpu_s(pid: int) -> float:
    """The processors' time of a process and those it started."""
    process = psutil.Process(pid)
    every = [process, *process.children(recursive=True)]
    return sum(sum(one.cpu_times()[:4]) for one in every)


def is_ready(port: int) -> bool:
    """Whether the monitor on this port says so."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
            return True
    except (OSError, urllib.error.URLError):
        return False
