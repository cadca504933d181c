"""Keeps watch over components: starts them, notices their deaths, stops them in order."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Final

from parrot_cli.child import Child, Spec, describe_exit
from parrot_cli.errors import UpError
from parrot_cli.report import Report
from parrot_cli.revival import PAUSE_S, Deaths

POLL_S: Final = 0.05
FORCED_EXIT: Final = 130
_WATCHDOG: Final = Path(__file__).with_name("watchdog.py")
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

IsReady = Callable[[], Awaitable[str | None]]
"""A component's details once it is ready, None before."""


class StopRequestedError(Exception):
    """Somebody asked the crew to stop."""


class ComponentDiedError(Exception):
    """A component ended that should not have."""

    def __init__(self, child: Child, code: int) -> None:
        super().__init__(f"{child.spec.name} {describe_exit(code)}")
        self.child = child
        self.code = code


class Crew:
    """The components of one stack. A death among them ends them all, unless it is of one that is revived."""

    def __init__(self, logs: Path, report: Report, keep_fds: Sequence[int]) -> None:
        self._logs = logs
        self._report = report
        self._keep_fds = keep_fds
        self._stop = asyncio.Event()
        self._children: list[Child] = []
        self._busy: dict[str, tuple[float, Child]] = {}
        self._watches: asyncio.TaskGroup
        self._watchdog: asyncio.subprocess.Process

    async def run(self, start: Callable[[], Awaitable[None]]) -> bool:
        """Starts everything by `start` and watches it until a signal asks to stop, or a component dies.

        Returns:
            Whether it ended in order: it was asked to, and nothing died or had to be killed.

        Raises:
            Exception: what `start` raised, after everything that had been started was stopped.
        """
        with self._listening_for_signals():
            self._watchdog = await start_watchdog()
            try:
                return await self._run(start)
            finally:
                await self._watchdog.communicate(b"")

    async def _run(self, start: Callable[[], Awaitable[None]]) -> bool:
        errors: list[Exception] = []
        try:
            async with asyncio.TaskGroup() as self._watches:
                self._watches.create_task(self._until_asked_to_stop())
                self._watches.create_task(self._show_progress())
                await start()
        except* StopRequestedError:
            self._report.event("stopping", "stopping (again to stop at once)")
        except* Exception as group:  # noqa: BLE001 - whatever it was, the components are stopped first
            errors = _leaves(group)
        deaths = [error for error in errors if isinstance(error, ComponentDiedError)]
        for death in deaths:
            self._report_death(death)
        in_order = await self._stop_all()
        others = [error for error in errors if not isinstance(error, ComponentDiedError)]
        if others:
            raise others[0]
        return in_order and not deaths

    async def launch(self, spec: Spec, is_ready: IsReady, within_s: float, *, revived: bool = False) -> None:
        """Starts a component, and returns once it is ready.

        Args:
            revived: when it dies, having been ready, it is started again.

        Raises:
            UpError: it was not ready within `within_s`.
        """
        child = await self._start(spec)
        watch = self._watches.create_task(self._watch(child))
        await self._until_ready(child, is_ready, within_s)
        if revived:
            watch.cancel()
            self._watches.create_task(self._revive(child, is_ready, within_s))

    async def _until_ready(self, child: Child, is_ready: IsReady, within_s: float) -> None:
        """Returns once it is ready.

        Raises:
            UpError: not within `within_s`.
        """
        name = child.spec.name
        started, _ = self._busy[name]
        while (details := await is_ready()) is None:
            if time.monotonic() - started > within_s:
                raise UpError(f"{name} was not ready within {within_s:g} s; its log: {child.log}")
            await asyncio.sleep(POLL_S)
        self._done("ready", child, details)

    async def _revive(self, child: Child, is_ready: IsReady, within_s: float) -> None:
        """Starts a component again each time it dies.

        Raises:
            ComponentDiedError: it dies again and again.
            UpError: it did not get ready.
        """
        deaths = Deaths()
        while True:
            code = await asyncio.shield(child.ended)
            if deaths.one_more():
                raise ComponentDiedError(child, code)
            self._report_death(ComponentDiedError(child, code), "; it is started again")
            self._bury(child)
            await asyncio.sleep(PAUSE_S)
            child = await self._start(child.spec)
            deaths.reborn(ready=await self._is_ready(child, is_ready, within_s))

    async def _is_ready(self, child: Child, is_ready: IsReady, within_s: float) -> bool:
        """True once it is ready; False, when it has died before."""
        getting_ready = asyncio.create_task(self._until_ready(child, is_ready, within_s))
        try:
            await asyncio.wait({getting_ready, child.ended}, return_when=asyncio.FIRST_COMPLETED)
            if getting_ready.done():
                await getting_ready
            return getting_ready.done()
        finally:
            getting_ready.cancel()
            await asyncio.gather(getting_ready, return_exceptions=True)

    def _bury(self, child: Child) -> None:
        """What it left behind ends too, and nothing more is done about it."""
        child.kill()
        self._tell_watchdog(f"-{child.pid}")
        self._children.remove(child)

    async def complete(self, spec: Spec) -> None:
        """Runs something that ends by itself.

        Raises:
            ComponentDiedError: it failed.
        """
        child = await self._start(spec)
        code = await child.ended
        if code:
            raise ComponentDiedError(child, code)
        self._done("done", child, "")

    def _tell_watchdog(self, line: str) -> None:
        if self._watchdog.stdin is not None:
            self._watchdog.stdin.write(f"{line}\n".encode())

    async def _start(self, spec: Spec) -> Child:
        try:
            child = await Child.start(spec, self._logs, self._keep_fds)
        except OSError as error:
            raise UpError(f"{spec.name} can't be started: {error}") from None
        self._tell_watchdog(f"+{child.pid}")
        self._children.append(child)
        self._busy[spec.name] = (time.monotonic(), child)
        return child

    def _done(self, kind: str, child: Child, details: str) -> None:
        seconds = time.monotonic() - self._busy.pop(child.spec.name)[0]
        text = f"  {child.spec.name:<12} {kind} in {seconds:5.1f} s"
        self._report.event(
            kind,
            f"{text}   {details}".rstrip(),
            component=child.spec.name,
            seconds=round(seconds, 3),
            details=details,
            pid=child.pid,
            log=str(child.log),
        )

    async def _watch(self, child: Child) -> None:
        raise ComponentDiedError(child, await asyncio.shield(child.ended))

    async def _until_asked_to_stop(self) -> None:
        await self._stop.wait()
        raise StopRequestedError

    async def _show_progress(self) -> None:
        while True:
            await asyncio.sleep(1)
            if self._busy:
                self._report.progress("  " + "; ".join(self._doings()))

    def _doings(self) -> list[str]:
        now = time.monotonic()
        return [
            f"{name}: {child.last_event() or 'starting'} ({now - started:.0f} s)"
            for name, (started, child) in self._busy.items()
        ]

    def _report_death(self, death: ComponentDiedError, then: str = "") -> None:
        child = death.child
        tail = child.tail()
        lines = [f"{child.spec.name} {describe_exit(death.code)}{then}; the end of {child.log}:"]
        lines += [f"    {line}" for line in tail] or ["    (it logged nothing)"]
        self._report.event(
            "died",
            "\n".join(lines),
            component=child.spec.name,
            exit=death.code,
            log=str(child.log),
            tail=tail,
        )

    async def _stop_all(self) -> bool:
        alive = [child for child in self._children if not child.ended.done()]
        alive.sort(key=lambda child: child.spec.stop_stage)
        orderly = True
        for _, stage in groupby(alive, key=lambda child: child.spec.stop_stage):
            orderly &= all(await asyncio.gather(*(self._stop_one(child) for child in stage)))
        for child in self._children:
            child.kill()
            self._tell_watchdog(f"-{child.pid}")
        return orderly

    async def _stop_one(self, child: Child) -> bool:
        start = time.monotonic()
        stopping = asyncio.create_task(child.stop())
        while not (await asyncio.wait({stopping}, timeout=1))[0]:
            self._report.progress(f"  {child.spec.name}: stopping ({time.monotonic() - start:.0f} s)")
        orderly = stopping.result()
        seconds = time.monotonic() - start
        outcome = "stopped" if orderly else "killed: it did not stop"
        self._report.event(
            "stopped",
            f"  {child.spec.name:<12} {outcome} in {seconds:.1f} s",
            component=child.spec.name,
            seconds=round(seconds, 3),
            orderly=orderly,
            exit=child.ended.result(),
        )
        return orderly

    @contextmanager
    def _listening_for_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._on_signal)
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    def _on_signal(self) -> None:
        if not self._stop.is_set():
            self._stop.set()
            return
        for child in self._children:
            child.kill()
        self._report.event("forced", "stopped at once")
        os._exit(FORCED_EXIT)


async def start_watchdog() -> asyncio.subprocess.Process:
    """The process that sweeps up should this one be killed; out of a terminal's reach."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-S",
        str(_WATCHDOG),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )


def _leaves(group: BaseExceptionGroup[Exception]) -> list[Exception]:
    """What was raised, out of the groups it came in."""
    found: list[Exception] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
