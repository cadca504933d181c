"""Services beside a stack's own: managers that can be killed, engines and gateways of their own."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from grpc import aio

from benchmarks.stack import Stack, free_port
from parrot_cli.child import tethered
from parrot_proto.manager.v1 import manager_pb2 as pb
from parrot_proto.manager.v1.manager_pb2_grpc import ManagerServiceStub
from parrot_runtime import rpc

STARTED_WITHIN_S = 60.0
LOOK_S = 0.005


@dataclass
class Service:
    """One process."""

    module: str
    flags: list[str]
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it; it dies with this process."""
        command = tethered([sys.executable, "-m", self.module, *self.flags], signal.SIGKILL)
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        """Ends it as a crash would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextmanager
def started(*services: Service) -> Iterator[None]:
    """Services for the length of the `with`."""
    with ExitStack() as stack:
        for service in services:
            service.start()
            stack.callback(service.kill)
        yield


def flag(stack: Stack, name: str) -> str:
    """The value of a flag that one of a stack's processes was started with."""
    for process in stack.processes().values():
        words = process.cmdline()
        if name in words:
            return words[words.index(name) + 1]
    raise RuntimeError(f"no process of the stack has {name}")


def manager(
    stack: Stack, manager_id: str, *flags: str, module: str = "parrot_manager"
) -> tuple[Service, str]:
    """Another manager on a stack's servers, and its address."""
    address = f"127.0.0.1:{free_port()}"
    common = ["--nats-url", flag(stack, "--nats-url"), "--postgres-url", flag(stack, "--postgres-url")]
    own = ["--listen", address, "--manager-id", manager_id, "--log-level", "warning", *flags]
    return Service(module, [*common, *own]), address


async def ask(channel: aio.Channel, method: str, request: Any, timeout_s: float = 30) -> Any:
    """A manager's answer.

    Raises:
        Fault: the manager's.
    """
    stub: Any = ManagerServiceStub(channel)
    try:
        return await getattr(stub, method)(request, timeout=timeout_s)
    except aio.AioRpcError as error:
        raise rpc.fault_of(error, "manager") from None


async def shards_of(channel: aio.Channel, manager_id: str) -> set[int]:
    """The shards a manager serves, as another knows it."""
    answer: pb.ListManagersResponse = await ask(channel, "ListManagers", pb.ListManagersRequest())
    return {shard for found in answer.managers if found.id == manager_id for shard in found.shards}


async def until(holds: Callable[[], Awaitable[bool]], within_s: float = STARTED_WITHIN_S) -> None:
    """Returns once it holds.

    Raises:
        RuntimeError: it does not within `within_s`.
    """
    deadline = time.monotonic() + within_s
    while not await holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {within_s:g} s")
        await asyncio.sleep(LOOK_S)
