"""Becomes a container's process: `sandbox.py PARENT_PID PLAN`, where the plan is JSON (see `Plan`).

It joins a network namespace, makes a root of its own that holds no more than it is given, gives up every
right, and becomes the command. Run by path, in isolated mode, as root; it needs the standard library alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, Final, TypedDict

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWNET: Final = 0x40000000
MS_RDONLY: Final = 1
MS_REMOUNT: Final = 32
MS_BIND: Final = 4096
MS_REC: Final = 16384
MS_PRIVATE: Final = 1 << 18
PR_SET_PDEATHSIG: Final = 1
PR_CAPBSET_DROP: Final = 24
PR_SET_NO_NEW_PRIVS: Final = 38
CAPABILITIES: Final = 64
"""More than there are: dropping one that is not there does nothing."""


class Mount(TypedDict):
    """A file or folder that is seen at `target`; with an empty `source`, `target` is a link to `link`."""

    source: str
    target: str
    writable: bool
    link: str


class Plan(TypedDict):
    """What a process is to be.

    Attributes:
        network: the file of a network namespace.
        root: an empty folder, to make the root at.
        uid: 0: it stays root.
    """

    network: str
    root: str
    mounts: list[Mount]
    read_only: bool
    uid: int
    gid: int
    environment: dict[str, str]
    command: list[str]


_libc: Final = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Becomes the command."""
    parent, text = sys.argv[1:]
    plan: Plan = json.loads(text)
    with Path(plan["network"]).open() as network:
        _call("setns", network.fileno(), CLONE_NEWNET)
    _call("unshare", CLONE_NEWNS)
    _mount("", "/", MS_REC | MS_PRIVATE)
    _make_root(plan)
    os.chroot(plan["root"])
    os.chdir("/")
    _give_up_rights(plan["uid"], plan["gid"])
    # The wish does not survive a change of user, so it comes last; the parent may have died before it.
    _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):
        raise SystemExit(1)
    command = plan["command"]
    try:
        os.execvpe(command[0], command, plan["environment"])  # noqa: S606 - a fixed list of arguments
    except OSError as error:
        sys.stderr.write(f"{command[0]} can't be run: {error.strerror}\n")
        raise SystemExit(127) from None


def _make_root(plan: Plan) -> None:
    root = plan["root"]
    _mount("tmpfs", root, 0, kind="tmpfs", options="mode=755")
    for mount in plan["mounts"]:
        target = Path(root, mount["target"].lstrip("/"))
        target.parent.mkdir(parents=True, exist_ok=True)
        if not mount["source"]:
            target.symlink_to(mount["link"])
            continue
        if Path(mount["source"]).is_dir():
            target.mkdir(exist_ok=True)
        else:
            target.touch()
        _mount(mount["source"], str(target), MS_BIND | MS_REC)
        if not mount["writable"]:
            _mount("", str(target), MS_BIND | MS_REMOUNT | MS_RDONLY)
    if plan["read_only"]:
        _mount("", root, MS_BIND | MS_REMOUNT | MS_RDONLY)


def _give_up_rights(uid: int, gid: int) -> None:
    for capability in range(CAPABILITIES):
        _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
    _call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _mount(source: str, target: str, flags: int, kind: str = "", options: str = "") -> None:
    texts = [source.encode(), target.encode(), kind.encode() or None]
    _call("mount", *texts, ctypes.c_ulong(flags), options.encode() or None, about=f"{source} at {target}")


def _call(name: str, *arguments: Any, about: str = "") -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise SystemExit(f"{name} {about}: {os.strerror(number)}")


if __name__ == "__main__":
    main()
