"""Sweeps up after a `parrot up` that was killed: `watchdog.py`, told of process groups on its input.

A line `+PGID` is a group that was started, `-PGID` one that is gone. The input ends when whoever
writes it does, however that ends. What a group's leader left behind is killed then, and after a
while the leader too. (The leaders themselves are told by the kernel, see `tether`.)
"""

from __future__ import annotations

import os
import signal
import sys
import time

GRACE_S = 20.0
_POLL_S = 0.1


def main() -> None:
    """Reads until the input ends, then sweeps."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    sweep(groups)


def sweep(groups: set[int]) -> None:
    """Returns once all of these groups are dead."""
    deadline = time.monotonic() + GRACE_S
    while groups:
        late = time.monotonic() > deadline
        for group in [group for group in groups if late or not _leader_lives(group)]:
            _kill(group)
            groups.discard(group)
        # They are no children of ours, so nothing tells when they end.
        time.sleep(_POLL_S)


def _leader_lives(group: int) -> bool:
    try:
        os.kill(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _kill(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


if __name__ == "__main__":
    main()
