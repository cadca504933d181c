"""Becomes another program that dies with its parent: `tether.py PARENT_PID SIGNAL USER COMMAND...`.

The kernel sends SIGNAL to this process when the process that started it ends, however that ends
(prctl(2), PR_SET_PDEATHSIG; Linux). The wish survives exec but not a change of user, so the user
is changed first. Run by path, in isolated mode, before there is anything to import.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ties this process to its parent and becomes COMMAND, as USER unless that is empty."""
    parent, number, user, *command = sys.argv[1:]
    if user:
        _become(user)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    # A parent that died before the kernel knew of the wish.
    if os.getppid() != int(parent):
        raise SystemExit(1)
    try:
        os.execvp(command[0], command)  # noqa: S606 - a fixed list of arguments
    except OSError as error:
        sys.stderr.write(f"{command[0]} can't be run{f' as {user}' if user else ''}: {error.strerror}\n")
        raise SystemExit(127) from None


def _become(user: str) -> None:
    account = pwd.getpwnam(user)
    os.setgroups([])
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)
    os.chdir("/")
    os.environ["HOME"] = "/"


if __name__ == "__main__":
    main()
