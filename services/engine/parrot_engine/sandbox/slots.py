"""The processes that run code: each runs one function after the other, and is replaced when one ends it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from parrot_engine.backends.base import BackendError
from parrot_engine.sandbox.wire import LENGTH
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault

START_S: Final = 30.0
GRACE_S: Final = 2.0
"""So much longer than its limit a function has before its processes are killed, which see to it first."""
FRAME_BYTES: Final = 2 * limits.BATCH_BYTES
"""No reply is longer: its texts are bounded, and JSON makes little of them."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Function:
    """What is to be run. `outputs`: the names of what it makes."""

    source: str
    entry: str
    inputs: dict[str, str]
    outputs: tuple[str, ...]
    timeout_s: float
    memory_bytes: int


class Slot:
    """One process of `host`, with whatever it starts. Use by one task at a time."""

    def __init__(self, memory_bytes: int) -> None:
        """`memory_bytes`: the most a function may ask for."""
        self._memory_bytes = memory_bytes
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Has the process ready.

        Raises:
            BackendError: it can't be started; says why.
        """
        command = ["-I", "-m", "parrot_engine.sandbox.host", str(self._memory_bytes), str(limits.VALUE_BYTES)]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            # Where the interpreter is found, and nothing of ours.
            env={"PATH": str(Path(sys.executable).parent)},
            cwd="/",
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(START_S):
                await _receive(process)
            self._process = process
        except (TimeoutError, _EndedError):
            raise BackendError(
                "the sandbox does not start; is pydantic-monty installed (the extra `sandbox`)?"
            ) from None
        finally:
            if self._process is not process:
                await asyncio.shield(_end(process))

    async def run(self, function: Function) -> dict[str, str]:
        """What a function makes, by the names of its outputs.

        Raises:
            Fault: `native_failed`, `too_large`: it makes nothing, or too much.
            BackendError: the sandbox can't be started.
        """
        if self._process is None:
            await self.start()
        try:
            reply = await self._ask(function)
        except TimeoutError:
            raise _failed("it ran longer than it may, and was killed") from None
        except _EndedError:
            raise _failed("it took the sandbox's process down, most likely by the memory it needs") from None
        if "error" in reply:
            kind = errors.TOO_LARGE if reply.get("too_large") else errors.NATIVE_FAILED
            raise Fault(kind, f"the function {function.entry}: {reply['error']}")
        made: dict[str, str] = reply["outputs"]
        return made

    async def stop(self) -> None:
        """Ends the process, and what it started, whatever they do."""
        process, self._process = self._process, None
        if process is not None:
            await _end(process)

    async def _ask(self, function: Function) -> dict[str, Any]:
        """The process's reply; one that gives none, or is not asked to the end, is not used again."""
        process = self._process
        whole = False
        try:
            if process is None:
                raise _EndedError
            async with asyncio.timeout(function.timeout_s + GRACE_S):
                await _send(process, function)
                reply = await _receive(process)
            whole = True
            return reply
        finally:
            if not whole:
                await asyncio.shield(self.stop())


class _EndedError(Exception):
    """The process has ended."""


async def _end(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


async def _send(process: asyncio.subprocess.Process, function: Function) -> None:
    if process.stdin is None:
        raise _EndedError
    data = json.dumps(
        {
            "source": function.source,
            "entry": function.entry,
            "inputs": function.inputs,
            "outputs": function.outputs,
            "timeout_s": function.timeout_s,
            "memory_bytes": function.memory_bytes,
        }
    ).encode()
    try:
        process.stdin.write(LENGTH.pack(len(data)) + data)
        await process.stdin.drain()
    except ConnectionError:
        raise _EndedError from None


async def _receive(process: asyncio.subprocess.Process) -> dict[str, Any]:
    if process.stdout is None:
        raise _EndedError
    try:
        (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
        if length > FRAME_BYTES:
            raise _EndedError
        reply: dict[str, Any] = json.loads(await process.stdout.readexactly(length))
    except asyncio.IncompleteReadError:
        raise _EndedError from None
    return reply


def _failed(why: str) -> Fault:
    return Fault(errors.NATIVE_FAILED, why)
