"""The services as processes of their own, each with the flags it is given."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

ENDS_WITHIN_S = 30


@dataclass(slots=True)
class Service:
    """A process, and what it logs."""

    process: asyncio.subprocess.Process
    lines: list[str] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self) -> None:
        """Keeps what it says, until it ends."""
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.lines.append(line.decode())
            self.changed.set()
        self.changed.set()

    async def said(self, event: str, within_s: float = 60) -> dict[str, Any]:
        """What it logs as an event, once it has.

        Raises:
            AssertionError: it has not, in time or until its end.
        """
        try:
            async with asyncio.timeout(within_s):
                while True:
                    self.changed.clear()
                    for line in self.lines:
                        if line.startswith("{") and (found := json.loads(line))["event"] == event:
                            return dict(found)
                    if self.process.returncode is not None:
                        break
                    await self.changed.wait()
        except TimeoutError:
            pass
        raise AssertionError(f"it did not say {event!r}, but: {''.join(self.lines)}")


@asynccontextmanager
async def service(module: str, *flags: str) -> AsyncIterator[Service]:
    """`python -m MODULE` for the length of a `with`; it is told to stop in order."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *flags),
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
    )
    made = Service(process)
    reading = asyncio.create_task(made.read())
    try:
        yield made
    finally:
        if process.returncode is None:
            process.terminate()
            await asyncio.wait_for(process.wait(), ENDS_WITHIN_S)
        await reading
