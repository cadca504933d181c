"""A Parrot of a benchmark's own: `parrot up` on a free port, with the settings that all systems get."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from parrot_bench.shell import apart
from parrot_bench.systems.base import Say, Settings, Unavailable
from parrot_cli.child import Child, Spec, describe_exit
from parrot_cli.options import free_port

READY_WITHIN_S: Final = 600.0
STOP_WITHIN_S: Final = 90.0
POLL_S: Final = 0.1


class ParrotStack:
    """A running `parrot up`, which ends with this process, however that ends."""

    def __init__(self, child: Child, url: str) -> None:
        self._child = child
        self.url = url

    @property
    def pid(self) -> int:
        """The command itself; what it started are its children."""
        return self._child.pid

    @classmethod
    async def start(cls, name: str, settings: Settings, say: Say) -> ParrotStack:
        """Starts it, and returns once it serves.

        Raises:
            Unavailable: it did not come up.
        """
        folder = settings.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        # Postgres runs as another user where this one is root.
        folder.chmod(0o755)
        port = free_port()
        child = await Child.start(
            Spec(name, _command(folder, port, settings), signal.SIGINT), settings.folder
        )
        stack = cls(child, f"http://127.0.0.1:{port}")
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                await _until_up(child, say)
        except TimeoutError:
            await stack.stop()
            raise Unavailable(
                f"{name} was not ready within {READY_WITHIN_S:g} s; its log: {child.log}"
            ) from None
        except BaseException:
            await stack.stop()
            raise
        return stack

    async def stop(self) -> None:
        """Stops it in order, and whatever is left of it after a while."""
        if not self._child.ended.done():
            os.kill(self.pid, signal.SIGINT)
            await asyncio.wait({self._child.ended}, timeout=STOP_WITHIN_S)
        self._child.kill()
        await self._child.ended


def environment(settings: Settings) -> dict[str, str]:
    """What the services are told beyond the command's flags, by their PARROT_ names."""
    given = {
        "PARROT_THREADS": settings.engine_threads,
        "PARROT_STEP_TOKENS": settings.step_tokens,
        "PARROT_KV_CACHE_MIB": settings.kv_cache_mib,
        **({"PARROT_CAPACITY": settings.capacity} if settings.capacity else {}),
    }
    return {name: str(value) for name, value in given.items()} | dict(settings.environment)


def _command(folder: Path, port: int, settings: Settings) -> list[str]:
    up = [
        *(sys.executable, "-m", "parrot_cli", "up", "--json"),
        *("--data-dir", str(folder), "--port", str(port), "--log-level", "warning"),
        *("--backend", settings.backend, "--model", settings.model, "--dtype", settings.dtype),
        *("--engines", str(settings.engines)),
    ]
    return apart(up, environment(settings))


async def _until_up(child: Child, say: Say) -> None:
    """Returns once it serves; `say` hears what it is doing.

    Raises:
        Unavailable: it ended, or can't start.
    """
    said = ""
    while True:
        events = _events(child.tail(50))
        if any(event["event"] == "up" for event in events):
            return
        if child.ended.done():
            raise Unavailable(_why(child, events))
        if events and (text := str(events[-1].get("text", "")).strip()) not in {"", said}:
            said = text
            say(text)
        # Its log is a file, which tells nobody that it grew; its end is noticed at once.
        await asyncio.wait({child.ended}, timeout=POLL_S)


def _events(lines: Sequence[str]) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and "event" in event:
            found.append(event)
    return found


def _why(child: Child, events: Sequence[Mapping[str, Any]]) -> str:
    bad = [str(event.get("text", "")) for event in events if event["event"] in {"refused", "died"}]
    lines = bad or child.tail(1) or ["it logged nothing"]
    ended = describe_exit(child.ended.result())
    return f"parrot up {ended}: {' '.join(lines[-1].split())}; its log: {child.log}"
