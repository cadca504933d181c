"""Which manager serves a session, and what to do while that changes.

A session's id names its shard, and each shard is served by one manager at a time. The gateway keeps
what it last heard of who serves which. It asks anew when a manager can't be reached, can't do what
it is asked for or says that the session is not its own, and every few seconds while it is used: a
manager that is cut off from the database alone goes on answering reads of sessions it has lost.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc
import structlog
from grpc import aio

from parrot_gateway.certificate import Certificate, refused
from parrot_gateway.health import check_any
from parrot_proto.manager.v1 import manager_pb2 as pb
from parrot_proto.manager.v1 import tenants_pb2
from parrot_proto.manager.v1.manager_pb2_grpc import ManagerServiceStub
from parrot_proto.manager.v1.tenants_pb2_grpc import TenantServiceStub
from parrot_runtime import errors, rpc, skew
from parrot_runtime.errors import Fault
from parrot_runtime.tls import Tls

LIST_S: Final = 1.0
SHORTEST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 0.5
HANG_UP_S: Final = 60.0
"""As long as anything that is asked may take."""
LOOK_AGAIN_S: Final = 2.0
"""A dead manager's sessions are taken over within about as long."""

_STUBS: Final[dict[str, Any]] = {
    method.name: stub
    for service, stub in (
        (pb.DESCRIPTOR.services_by_name["ManagerService"], ManagerServiceStub),
        (tenants_pb2.DESCRIPTOR.services_by_name["TenantService"], TenantServiceStub),
    )
    for method in service.methods
}

log = structlog.get_logger()


def unobserved(method: str, seconds: float) -> None:
    """Nobody is told."""


class ElsewhereError(Exception):
    """A manager can't be asked, or is not the one to be asked: another may be.

    It may have done what it was asked for all the same, such as stored a value and then lost the
    session to another.

    `answered`: it said so itself, and is asked again only while others live who may take over from it.
    """

    def __init__(self, fault: Fault, address: str, *, answered: bool = False) -> None:
        super().__init__(fault.message)
        self.fault = fault
        self.address = address
        self.answered = answered


@dataclass(slots=True)
class Tries:
    """`unsure`: how often something was asked for without hearing what became of it."""

    unsure: int = 0


class Managers:
    """Asks the manager whose a session is."""

    def __init__(
        self,
        addresses: Sequence[str],
        patience_s: float,
        tls: Tls | None = None,
        observe: Callable[[str, float], None] = unobserved,
    ) -> None:
        """`patience_s`: how long what is asked waits for a manager that can be asked.

        `observe`: told what was asked, and how long the answer took.
        """
        self._observe = observe
        self._certificate = Certificate(tls)
        self._patience_s = patience_s
        self._given = tuple(addresses)
        self._known = self._given
        self._homes: dict[int, str] = {}
        self._channels: dict[str, aio.Channel] = {}
        self._turn = 0
        self._refreshing = asyncio.Lock()
        self._rounds = 0
        self._looked_at = -LOOK_AGAIN_S
        self._told = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def connected(self) -> set[str]:
        """The addresses to which a connection is kept."""
        return set(self._channels)

    def hurry(self) -> None:
        """From here on nothing waits for a manager that can be asked: the gateway stops."""
        self._patience_s = 0.0

    async def close(self) -> None:
        """Hangs up."""
        tasks = [*self._tasks, *self._leaving]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for channel in self._channels.values():
            await channel.close(grace=1)

    async def ask(
        self,
        method: str,
        request: Any,
        timeout_s: float,
        *,
        shard: int | None,
        patient: bool = True,
        tries: Tries | None = None,
    ) -> Any:
        """The answer of the manager of a shard, or of any one.

        Whatever is asked must be safe to ask again: a try may have been carried out all the same.

        Args:
            shard: None: whom it concerns does not matter.
            patient: waits while no manager can do it, such as when one takes a dead one's sessions over.
            tries: told how it went.

        Raises:
            Fault: the manager's; `unavailable`, when none could be asked.
        """
        began = time.monotonic()
        try:
            return await self._ask(began, method, request, timeout_s, shard, patient=patient, tries=tries)
        finally:
            self._observe(method, time.monotonic() - began)

    async def check_health(self, timeout_s: float) -> None:
        """Returns if a manager says that it serves.

        Raises:
            Fault: `unavailable`, with what they say instead.
        """
        await check_any({address: self._channel(address) for address in self._known}, timeout_s)

    async def _ask(
        self,
        began: float,
        method: str,
        request: Any,
        timeout_s: float,
        shard: int | None,
        *,
        patient: bool,
        tries: Tries | None,
    ) -> Any:
        pause_s = SHORTEST_PAUSE_S
        while True:
            if time.monotonic() >= self._looked_at + LOOK_AGAIN_S:
                self._refresh_soon(self._rounds)
            try:
                return await self._ask_one(method, request, timeout_s - (time.monotonic() - began), shard)
            except ElsewhereError as error:
                failed, rounds = error, self._rounds
            if tries is not None:
                tries.unsure += 1
            patience_s = min(self._patience_s, timeout_s) if patient else 0.0
            if time.monotonic() + pause_s > began + patience_s:
                self._refresh_soon(rounds, failed.address)
                raise failed.fault
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
            await self._refresh(rounds, failed.address)
            if failed.answered and not self._others_live(failed.address):
                raise failed.fault

    async def _ask_one(self, method: str, request: Any, timeout_s: float, shard: int | None) -> Any:
        address = self._home(shard)
        stub: Any = _STUBS[method](self._channel(address))
        call: Awaitable[Any] = getattr(stub, method)(
            request, timeout=timeout_s, metadata=rpc.outgoing_metadata()
        )
        try:
            return await call
        except aio.AioRpcError as error:
            fault = rpc.fault_of(error, "manager")
            if fault.kind is errors.FORBIDDEN:
                raise refused(address, fault) from None
            if fault.kind is errors.WRONG_MANAGER:
                why = "the session is being taken over by another manager; try again"
                raise ElsewhereError(Fault(errors.UNAVAILABLE, why, retry_after_ms=1000), address) from None
            if fault.kind is errors.UNAVAILABLE and error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                self._pass_over(address)
                raise ElsewhereError(fault, address, answered=_answered(error)) from None
            raise fault from None

    async def _refresh(self, rounds: int, doubted: str = "") -> None:
        """Asks who serves which shard, unless somebody did since `rounds`.

        What is known is kept while no manager knows better. `doubted`: the one that is asked last.
        """
        async with self._refreshing:
            if self._rounds != rounds:
                return
            self._rounds += 1
            self._looked_at = time.monotonic()
            if self._certificate.changed():
                self._hang_up(all_of_them=True)
            for address in sorted(self._candidates(), key=doubted.__eq__):
                if await self._learn(address):
                    self._told = True
                    return
                self._pass_over(address)
            self._told = False

    def _refresh_soon(self, rounds: int, doubted: str = "") -> None:
        """For those who ask next."""
        if not self._tasks:
            task = asyncio.create_task(self._refresh(rounds, doubted), name="managers-refresh")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _learn(self, address: str) -> bool:
        stub: Any = ManagerServiceStub(self._channel(address))
        try:
            answer: pb.ListManagersResponse = await stub.ListManagers(
                pb.ListManagersRequest(), timeout=LIST_S
            )
        except aio.AioRpcError as error:
            log.debug("manager not asked", address=address, code=error.code().name)
            self._spawn(self._certificate.explain(address), f"why not {address}")
            return False
        skew.note("manager", answer.parrot_version)
        self._homes = {shard: found.address for found in answer.managers for shard in found.shards}
        named = dict.fromkeys(found.address for found in answer.managers)
        self._known = tuple(named) or self._given
        self._hang_up()
        return True

    def _hang_up(self, *, all_of_them: bool = False) -> None:
        """Lets go of managers that are no more, or of all; what was asked of them may still be answered."""
        kept = set() if all_of_them else {*self._known, *self._given}
        for address in self._channels.keys() - kept:
            channel = self._channels.pop(address)
            self._spawn(channel.close(grace=HANG_UP_S), f"hang up on {address}")

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def _others_live(self, address: str) -> bool:
        """Whether some manager said lately that there are more than the one at an address."""
        return self._told and any(known != address for known in self._known)

    def _home(self, shard: int | None) -> str:
        home = self._homes.get(shard) if shard is not None else None
        return home or self._known[self._turn % len(self._known)]

    def _candidates(self) -> list[str]:
        at = self._turn % len(self._known)
        return list(dict.fromkeys([*self._known[at:], *self._known[:at], *self._given]))

    def _pass_over(self, address: str) -> None:
        """The next that may be anybody's is another's."""
        if self._known[self._turn % len(self._known)] == address:
            self._turn += 1

    def _channel(self, address: str) -> aio.Channel:
        found = self._channels.get(address)
        if found is None:
            found = self._channels[address] = rpc.channel(address, self._certificate.tls)
        return found


def _answered(error: aio.AioRpcError) -> bool:
    """Whether an error is a manager's answer, and not the connection's."""
    metadata: Any = error.trailing_metadata() or ()
    return any(key == rpc.FAILURE_KEY for key, _ in metadata)
