"""Starts the clients on their machine, and listens to what they report."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from deploy.rehearsal.cluster import Cluster
from deploy.rehearsal.images import ROOT
from deploy.rehearsal.load import LOST_AFTER_S, Record

UNDISTURBED_WITHIN_S: Final = 300.0
COMMAND_WITHIN_S: Final = 60.0
ENDED_WITHIN_S: Final = 10.0


class ClientsFailed(Exception):
    """The clients did not get to work, or stopped."""


class Clients:
    """The process that runs applications.

    Attributes:
        records: of runs that have ended.
    """

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log
        self._ready = asyncio.Event()
        self.records: list[Record] = []
        self._reading = asyncio.create_task(self._read())

    async def ready(self) -> None:
        """Returns when each application has run once, undisturbed.

        Raises:
            ClientsFailed: one does not run.
        """
        ready = asyncio.create_task(self._ready.wait())
        await asyncio.wait(
            {ready, self._reading}, timeout=UNDISTURBED_WITHIN_S, return_when=asyncio.FIRST_COMPLETED
        )
        ready.cancel()
        if not self._ready.is_set():
            why = self._reading.exception() if self._reading.done() else ""
            raise ClientsFailed(
                f"applications don't run, even undisturbed: {why or ''} {self._log.read_text()[-2000:]}"
            )

    async def stop(self) -> None:
        """Lets what runs end.

        Raises:
            ClientsFailed: the process broke.
        """
        assert self._process.stdin is not None  # noqa: S101 - we opened it
        self._process.stdin.close()
        await asyncio.wait({self._reading}, timeout=LOST_AFTER_S + COMMAND_WITHIN_S)
        if await self.close() != 0:
            raise ClientsFailed(f"the clients broke: {self._log.read_text()[-2000:]}")

    async def close(self) -> int:
        """Ends it, if it has not ended; its exit code."""
        self._reading.cancel()
        if self._reading.done():
            # It has said all, or what it said could not be read: then it does not end by itself.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ENDED_WITHIN_S):
                    await self._process.wait()
        if self._process.returncode is None:
            self._process.kill()
        return await self._process.wait()

    async def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - we opened it
        async for line in self._process.stdout:
            found: dict[str, Any] = json.loads(line)
            if found.get("event") == "ready":
                self._ready.set()
            else:
                self.records.append(Record(**found))


@asynccontextmanager
async def running_clients(cluster: Cluster, key: str, at_once: int, log: Path) -> AsyncIterator[Clients]:
    """Clients on the machine outside, with a tenant's key."""
    url = f"http://{cluster.services.addresses['gateway']}"
    command = ["ip", "netns", "exec", cluster.client.namespace, sys.executable, "-m", "deploy.rehearsal.load"]
    with log.open("ab") as stream:
        process = await asyncio.create_subprocess_exec(
            *command,
            url,
            f"--at-once={at_once}",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=stream,
            cwd=ROOT,
            env={**os.environ, "PARROT_API_KEY": key},
        )
    clients = Clients(process, log)
    try:
        yield clients
    finally:
        await clients.close()


async def make_key(cluster: Cluster) -> str:
    """A key of a tenant, made in a gateway's pod, as the operating guide has it.

    Raises:
        ClientsFailed: none is given.
    """
    (pod, *_) = cluster.ready("gateway")
    command = ["parrot", "keys", "create", "rehearsal", "--manager-address", "manager:7400"]
    code, said, complained = await cluster.runtime.run(pod, command, COMMAND_WITHIN_S)
    if code != 0 or not said.strip():
        raise ClientsFailed(f"`{' '.join(command)}` in {pod.name}: {code} {said} {complained}")
    return said.split()[-1]
