"""A manager in this process, and its clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from grpc import aio
from grpc_health.v1 import health

from parrot_manager.gauges import Gauges
from parrot_manager.main import add_services, listening
from parrot_manager.settings import ManagerSettings
from parrot_manager.shell import Shell, running
from parrot_manager.store.base import Store
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2 as pb
from parrot_proto.manager.v1.manager_pb2_grpc import ManagerServiceStub
from parrot_runtime import rpc
from parrot_runtime.ids import session_id_of
from parrot_runtime.monitor.rpcs import ObservedRpcs
from parrot_runtime.values.bus import Bus
from tests.support.nats import free_port

T = TypeVar("T")
TENANT = "default"
ENDED = {
    common_pb2.VARIABLE_STATE_READY,
    common_pb2.VARIABLE_STATE_FAILED,
    common_pb2.VARIABLE_STATE_CANCELLED,
}


@dataclass(slots=True)
class ManagerUnderTest:
    """A serving manager, its insides, and a client of it."""

    address: str
    shell: Shell
    client: Client


def _native_outputs(outputs: dict[str, str]) -> pb.NativeOutputs:
    return pb.NativeOutputs(texts=[pb.NamedText(name=name, text=text) for name, text in outputs.items()])


class Client:
    """Asks a manager; raises `Fault`."""

    def __init__(self, channel: aio.Channel, tenant: str = TENANT) -> None:
        self.channel = channel
        self._stub: Any = ManagerServiceStub(channel)
        self.tenant = tenant

    async def open(self, timeout_ms: int = 0, label: str = "", key: str = "", *, lazy: bool = False) -> str:
        """A new session's id."""
        request = pb.CreateSessionRequest(
            tenant=self.tenant, timeout_ms=timeout_ms, label=label, idempotency_key=key, lazy=lazy
        )
        answer = await self._ask("CreateSession", request)
        return str(answer.session.id)

    async def submit(
        self,
        session_id: str,
        calls: Sequence[pb.NewCall],
        values: dict[str, str] | None = None,
        key: str = "",
        blocks: Sequence[pb.NewBlock] = (),
    ) -> list[str]:
        """The ids of a batch: its calls', then its blocks'."""
        given = [pb.NewValue(variable_id=name, value=value) for name, value in (values or {}).items()]
        request = pb.SubmitCallsRequest(
            tenant=self.tenant,
            session_id=session_id,
            calls=calls,
            values=given,
            idempotency_key=key,
            blocks=blocks,
        )
        answer: pb.SubmitCallsResponse = await self._ask("SubmitCalls", request)
        return [*answer.call_ids, *answer.block_ids]

    async def open_with(
        self,
        session_key: str,
        calls: Sequence[pb.NewCall],
        values: dict[str, str] | None = None,
        *,
        label: str = "",
        key: str = "batch",
        session_id: str = "",
    ) -> pb.SubmitCallsResponse:
        """A session that ends with its calls, opened with a batch; by default its id follows from its key."""
        opening = pb.CreateSessionRequest(
            tenant=self.tenant, idempotency_key=session_key, label=label, ends_with_calls=True
        )
        request = pb.SubmitCallsRequest(
            tenant=self.tenant,
            session_id=session_id or session_id_of(self.tenant, session_key),
            calls=calls,
            values=[pb.NewValue(variable_id=name, value=text) for name, text in (values or {}).items()],
            idempotency_key=key,
            opening=opening,
        )
        answer: pb.SubmitCallsResponse = await self._ask("SubmitCalls", request)
        return answer

    async def claim(
        self, session_id: str, call_id: str = "c-1", worker: str = "w", wait_ms: int = 5000
    ) -> dict[str, str] | None:
        """The inputs of a call that is the worker's now; None: they were not there in time."""
        request = pb.ClaimCallRequest(
            tenant=self.tenant, session_id=session_id, call_id=call_id, worker=worker, wait_ms=wait_ms
        )
        answer: pb.ClaimCallResponse = await self._ask("ClaimCall", request)
        return {given.name: given.text for given in answer.inputs} if answer.claimed else None

    async def renew(self, session_id: str, call_id: str = "c-1", worker: str = "w") -> int:
        """For how many ms a call is the worker's from now on."""
        request = pb.RenewClaimRequest(
            tenant=self.tenant, session_id=session_id, call_id=call_id, worker=worker
        )
        return int((await self._ask("RenewClaim", request)).lease_ms)

    async def complete(
        self, session_id: str, call_id: str = "c-1", worker: str = "w", error: str = "", **outputs: str
    ) -> int:
        """The state in which a call ended with this."""
        request = pb.CompleteCallRequest(
            tenant=self.tenant, session_id=session_id, call_id=call_id, worker=worker
        )
        if error:
            request.error = error
        else:
            request.outputs.CopyFrom(_native_outputs(outputs))
        return int((await self._ask("CompleteCall", request)).state)

    async def complete_unclaimed(
        self, session_id: str, call_id: str = "c-1", worker: str = "w", **outputs: str
    ) -> int:
        """As `complete`, by a worker that has claimed nothing."""
        request = pb.CompleteCallRequest(
            tenant=self.tenant, session_id=session_id, call_id=call_id, worker=worker, unclaimed=True
        )
        request.outputs.CopyFrom(_native_outputs(outputs))
        return int((await self._ask("CompleteCall", request)).state)

    async def set(self, session_id: str, variable_id: str, value: str) -> pb.Variable:
        """Gives a variable its value."""
        request = pb.SetVariableRequest(
            tenant=self.tenant, session_id=session_id, variable_id=variable_id, value=value
        )
        answer: pb.SetVariableResponse = await self._ask("SetVariable", request)
        return answer.variable

    async def get(
        self, session_id: str, variable_id: str, wait_ms: int = 0, criteria: pb.Criteria | None = None
    ) -> pb.GetVariableResponse:
        """A variable with its value, as it is at its end or after `wait_ms`."""
        request = pb.GetVariableRequest(
            tenant=self.tenant,
            session_id=session_id,
            variable_id=variable_id,
            with_value=True,
            wait_ms=wait_ms,
            criteria=criteria,
        )
        answer: pb.GetVariableResponse = await self._ask("GetVariable", request)
        return answer

    async def ended(self, session_id: str, variable_id: str, within_s: float = 10) -> pb.GetVariableResponse:
        """A variable once it has ended."""

        async def look() -> pb.GetVariableResponse | None:
            got = await self.get(session_id, variable_id)
            return got if got.variable.state in ENDED else None

        found: pb.GetVariableResponse = await eventually(look, within_s)
        return found

    async def session(self, session_id: str) -> pb.GetSessionResponse:
        """The graph as it is."""
        request = pb.GetSessionRequest(tenant=self.tenant, session_id=session_id)
        answer: pb.GetSessionResponse = await self._ask("GetSession", request)
        return answer

    async def cancel(self, session_id: str, *call_ids: str, subtree: bool = False) -> list[str]:
        """Cancels calls; those that ended."""
        request = pb.CancelCallsRequest(
            tenant=self.tenant, session_id=session_id, call_ids=call_ids, subtree=subtree
        )
        return list((await self._ask("CancelCalls", request)).call_ids)

    async def close(self, session_id: str) -> pb.Session:
        """Ends a session."""
        request = pb.CloseSessionRequest(tenant=self.tenant, session_id=session_id)
        answer: pb.CloseSessionResponse = await self._ask("CloseSession", request)
        return answer.session

    async def models(self) -> list[pb.Model]:
        """The models that are served."""
        return list((await self._ask("ListModels", pb.ListModelsRequest())).models)

    async def engines(self) -> list[pb.Engine]:
        """The engines that are attached."""
        return list((await self._ask("ListEngines", pb.ListEnginesRequest())).engines)

    async def managers(self) -> list[pb.ManagerInfo]:
        """The managers that live, with their shards."""
        return list((await self._ask("ListManagers", pb.ListManagersRequest())).managers)

    async def engine_ready(self, engine_id: str = "e-1") -> None:
        """Returns once an engine is attached."""

        async def look() -> bool:
            return any(engine.id == engine_id for engine in await self.engines())

        await eventually(look)

    async def _ask(self, method: str, request: Any) -> Any:
        try:
            return await getattr(self._stub, method)(request, timeout=30, metadata=rpc.outgoing_metadata())
        except aio.AioRpcError as error:
            raise rpc.fault_of(error, "manager") from None


@asynccontextmanager
async def serving(store: Store, bus: Bus, **settings: Any) -> AsyncIterator[ManagerUnderTest]:
    """A manager on a free port. Leaving the block kills it: nothing is drained.

    The next one on the same store goes on as the same, unless it is given a `manager_id` of its own.
    """
    named = {"manager_id": "m-1", **settings}
    configured = ManagerSettings(listen=f"127.0.0.1:{free_port()}", **named)
    async with AsyncExitStack() as stack:
        shell = await stack.enter_async_context(running(configured, store, bus))
        healthy = health.aio.HealthServicer()  # type: ignore[attr-defined]
        shell.metrics.registry.register(Gauges(shell))
        server = listening(configured.listen, None, ObservedRpcs(shell.metrics.rpc))
        add_services(server, shell, healthy)
        await server.start()
        stack.push_async_callback(server.stop, None)
        stack.callback(setattr, shell, "stopping", True)
        channel = await stack.enter_async_context(rpc.channel(configured.listen))
        yield ManagerUnderTest(configured.listen, shell, Client(channel))


def call(name: str, inputs: Sequence[str], outputs: Sequence[str], model: str = "") -> pb.NewCall:
    """A call whose placeholders are named as its variables."""
    segments = [common_pb2.Segment(text=f"Task {name}:")]
    segments += [common_pb2.Segment(input=common_pb2.InputHole(name=v, variable_id=v)) for v in inputs]
    segments += [common_pb2.Segment(output=common_pb2.OutputHole(name=v, variable_id=v)) for v in outputs]
    return pb.NewCall(name=name, model=model, segments=segments)


def native(name: str, inputs: Sequence[str], outputs: Sequence[str], timeout_ms: int = 60_000) -> pb.NewCall:
    """A call that the client runs, whose placeholders are named as its variables."""
    made = call(name, inputs, outputs)
    del made.segments[0]
    made.native.client.timeout_ms = timeout_ms
    return made


async def eventually(look: Callable[[], Any], within_s: float = 10) -> Any:
    """The first true answer of an async look.

    Raises:
        AssertionError: there is none within `within_s`.
    """
    try:
        async with asyncio.timeout(within_s):
            while not (found := await look()):  # noqa: ASYNC110 - what is looked at can't tell us
                await asyncio.sleep(0.005)
            return found
    except TimeoutError:
        raise AssertionError(f"not within {within_s:g} s") from None
