"""One component of the stack: a process in a group of its own, with its own log."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TAIL_LINES: Final = 20
EVENT_LINES: Final = 300
"""How far back the last structured line is looked for: libraries log their own way between them."""
_TAIL_BYTES: Final = 64 * 1024
_TETHER: Final = Path(__file__).with_name("tether.py")


@dataclass(frozen=True, slots=True)
class Spec:
    """What to run.

    Attributes:
        name: for people; the log's name too.
        stop_signal: asks it to stop in order; sent by the kernel too when this process dies.
        stop_within_s: how long it may take to; then it is killed.
        stop_stage: components of a lower stage are stopped first.
        user: the account to run it as; empty: this one's.
    """

    name: str
    command: Sequence[str]
    stop_signal: signal.Signals = signal.SIGTERM
    stop_within_s: float = 10.0
    stop_stage: int = 0
    user: str = ""


class Child:
    """A started component. `ended` is done, with its exit code, once its process is gone."""

    def __init__(self, spec: Spec, log: Path, process: asyncio.subprocess.Process, log_start: int) -> None:
        self.spec = spec
        self.log = log
        self.ended = asyncio.create_task(self._wait(process), name=f"wait {spec.name}")
        self._process = process
        self._log_start = log_start

    @classmethod
    async def start(cls, spec: Spec, logs: Path, keep_fds: Sequence[int] = ()) -> Child:
        """Starts it, logging to `logs`; it and its children inherit `keep_fds`.

        Raises:
            OSError: it can't be started.
        """
        log = logs / f"{spec.name.replace(' ', '-')}.log"
        with log.open("ab") as stream:
            log_start = stream.tell()
            process = await asyncio.create_subprocess_exec(
                *tethered(spec.command, spec.stop_signal, spec.user),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                process_group=0,
                pass_fds=keep_fds,
            )
            return cls(spec, log, process, log_start)

    @property
    def pid(self) -> int:
        """Its process, and the group it leads."""
        return self._process.pid

    async def stop(self) -> bool:
        """Asks it to stop and returns once it is gone; False when it had to be killed."""
        self._signal(self.spec.stop_signal)
        done, _ = await asyncio.wait({self.ended}, timeout=self.spec.stop_within_s)
        self.kill()
        await self.ended
        return bool(done)

    def kill(self) -> None:
        """Kills it and whatever it started."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def tail(self, lines: int = TAIL_LINES) -> list[str]:
        """The last lines it logged since it was started."""
        with self.log.open("rb") as stream:
            end = stream.seek(0, os.SEEK_END)
            stream.seek(max(self._log_start, end - _TAIL_BYTES))
            return stream.read().decode(errors="replace").splitlines()[-lines:]

    def last_event(self) -> str:
        """What its last structured log line says it is doing; empty when there is none."""
        for line in reversed(self.tail(EVENT_LINES)):
            try:
                event = json.loads(line)["event"]
            except (ValueError, KeyError, TypeError):
                continue
            return str(event)
        return ""

    def _signal(self, number: signal.Signals) -> None:
        try:
            self._process.send_signal(number)
        except ProcessLookupError:
            return

    @staticmethod
    async def _wait(process: asyncio.subprocess.Process) -> int:
        return await process.wait()


def tethered(command: Sequence[str], death_signal: signal.Signals, user: str = "") -> list[str]:
    """`command`, run as `user`, so that it gets `death_signal` when this process dies."""
    tether = [sys.executable, "-I", "-S", str(_TETHER), str(os.getpid()), str(int(death_signal))]
    return [*tether, user, *command]


def describe_exit(code: int) -> str:
    """An exit code in words."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"exited with code {code}"
