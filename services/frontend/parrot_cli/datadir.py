"""The folder a stack lives in, and the lock that lets one stack at a time live in it."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from parrot_cli.errors import UpError

LEFTOVERS_S: Final = 30.0
_POLL_S: Final = 0.2


def default_data_dir() -> Path:
    """Where a stack keeps its data: the user's XDG data folder, or /var/lib for root.

    Root's Postgres runs as another user, which can't enter root's home.
    """
    if os.geteuid() == 0:
        return Path("/var/lib/parrot")
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "parrot"


@dataclass(frozen=True, slots=True)
class DataDir:
    """A data folder that this process holds.

    Attributes:
        lock_fd: the lock. Whatever inherits it keeps the folder locked for as long as it lives.
    """

    path: Path
    lock_fd: int

    def announce(self, manager_address: str) -> None:
        """Tells other commands on this machine where the managers are."""
        held_by = json.loads(os.pread(self.lock_fd, 4096, 0)) | {"manager_address": manager_address}
        _write(self.lock_fd, held_by)

    @property
    def logs(self) -> Path:
        """A log a component."""
        return self.path / "logs"

    @property
    def nats(self) -> Path:
        """What JetStream stores."""
        return self.path / "nats"

    @property
    def postgres(self) -> Path:
        """Postgres's own data folder."""
        return self.path / "postgres"


@contextmanager
def held(path: Path, url: str, waiting: Callable[[str], None]) -> Iterator[DataDir]:
    """The folder at `path`, made if need be, held until the end of the `with`.

    Args:
        url: where this stack will be reached; told to whoever finds the folder held.
        waiting: told, in words, when processes of a stack that was killed still hold the folder.

    Raises:
        UpError: it can't be made, or another stack holds it.
    """
    path = path.expanduser().resolve()
    try:
        for folder in (path, path / "logs", path / "nats"):
            folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(path / "parrot.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UpError(f"the data folder {path} can't be used: {error.strerror}") from None
    try:
        _lock(fd, path, waiting)
        _write(fd, {"pid": os.getpid(), "url": url})
        yield DataDir(path, fd)
    finally:
        os.close(fd)


def announced_managers(path: Path) -> str:
    """Where the managers of the stack in a folder are, as it said when it was up; empty: it never was."""
    try:
        held_by = json.loads((path.expanduser() / "parrot.lock").read_text())
        return str(held_by["manager_address"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _write(fd: int, held_by: dict[str, object]) -> None:
    os.ftruncate(fd, 0)
    os.pwrite(fd, json.dumps(held_by).encode(), 0)


def _lock(fd: int, path: Path, waiting: Callable[[str], None]) -> None:
    """Takes the lock, after what is left of a stack that was killed is gone."""
    deadline = time.monotonic() + LEFTOVERS_S
    told = False
    while not _try_lock(fd):
        pid, url = _holder(fd)
        if _alive(pid):
            raise UpError(
                f"another parrot up (process {pid}, {url}) is using {path}; "
                "stop it, or give this one a --data-dir of its own"
            )
        if time.monotonic() > deadline:
            raise UpError(
                f"processes of an earlier parrot up (process {pid}) still use {path}; end them first"
            )
        if not told:
            waiting(f"what is left of an earlier parrot up (process {pid}) is still stopping; waiting for it")
            told = True
        # Another process that goes tells nobody: there is only looking again.
        time.sleep(_POLL_S)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(fd: int) -> tuple[int, str]:
    """Who wrote the lock file; (0, "") while they are still writing it."""
    try:
        held_by = json.loads(os.pread(fd, 4096, 0))
        return int(held_by["pid"]), str(held_by["url"])
    except (ValueError, KeyError, TypeError):
        return 0, ""


def _alive(pid: int) -> bool:
    """Whether `pid` is a parrot up: the number may have passed to another program since."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return _exists(pid)
    return b"up" in command.split(b"\0")


def _exists(pid: int) -> bool:
    if pid <= 0 or Path("/proc/self").exists():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
