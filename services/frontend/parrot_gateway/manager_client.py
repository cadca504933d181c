"""What the gateway asks of the manager, as the one tenant there is without keys."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Final, TypeVar

from grpc import aio

from parrot_proto.manager.v1 import manager_pb2 as pb
from parrot_proto.manager.v1.manager_pb2_grpc import ManagerServiceStub
from parrot_runtime import errors, rpc
from parrot_runtime.errors import Fault
from parrot_runtime.ids import is_id, is_session_id

TENANT: Final = "default"
ASK_S: Final = 10.0
STORE_S: Final = 60.0

T = TypeVar("T")


class ManagerClient:
    """Asks over one channel. Every method raises the manager's `Fault`, or `unavailable`."""

    def __init__(self, channel: aio.Channel) -> None:
        # Generated for the synchronous API; the channel makes its calls awaitable.
        self._stub: Any = ManagerServiceStub(channel)

    async def create_session(self, label: str, timeout_ms: int) -> pb.Session:
        """A new session; `timeout_ms` 0 is the server's default."""
        request = pb.CreateSessionRequest(tenant=TENANT, label=label, timeout_ms=timeout_ms)
        answer: pb.CreateSessionResponse = await self._ask(self._stub.CreateSession, request, STORE_S)
        return answer.session

    async def get_session(self, session_id: str) -> pb.GetSessionResponse:
        """A session's graph as it is now."""
        _check_session(session_id)
        request = pb.GetSessionRequest(tenant=TENANT, session_id=session_id)
        answer: pb.GetSessionResponse = await self._ask(self._stub.GetSession, request, ASK_S)
        return answer

    async def close_session(self, session_id: str) -> pb.Session:
        """Ends a session; what is unfinished is cancelled."""
        _check_session(session_id)
        request = pb.CloseSessionRequest(tenant=TENANT, session_id=session_id)
        answer: pb.CloseSessionResponse = await self._ask(self._stub.CloseSession, request, STORE_S)
        return answer.session

    async def submit_calls(
        self, session_id: str, calls: Sequence[pb.NewCall], values: Sequence[pb.NewValue]
    ) -> list[str]:
        """Adds a batch, all of it or nothing; the calls' ids in order."""
        _check_session(session_id)
        request = pb.SubmitCallsRequest(tenant=TENANT, session_id=session_id, calls=calls, values=values)
        answer: pb.SubmitCallsResponse = await self._ask(self._stub.SubmitCalls, request, STORE_S)
        return list(answer.call_ids)

    async def set_variable(self, session_id: str, variable_id: str, value: str, name: str) -> pb.Variable:
        """Gives a variable its value."""
        _check_session(session_id)
        request = pb.SetVariableRequest(
            tenant=TENANT, session_id=session_id, variable_id=variable_id, value=value, name=name
        )
        answer: pb.SetVariableResponse = await self._ask(self._stub.SetVariable, request, STORE_S)
        return answer.variable

    async def get_variable(
        self, session_id: str, variable_id: str, *, with_value: bool = True, wait_s: float = 0.0
    ) -> pb.GetVariableResponse:
        """A variable at its end, or as it is after `wait_s`."""
        _check_session(session_id)
        if not is_id(variable_id):
            raise Fault(errors.NOT_FOUND, "there is no such variable", session_id=session_id)
        request = pb.GetVariableRequest(
            tenant=TENANT,
            session_id=session_id,
            variable_id=variable_id,
            with_value=with_value,
            wait_ms=int(wait_s * 1e3),
        )
        answer: pb.GetVariableResponse = await self._ask(self._stub.GetVariable, request, ASK_S + wait_s)
        return answer

    async def list_models(self, timeout_s: float = ASK_S) -> list[pb.Model]:
        """The models some engine serves."""
        answer: pb.ListModelsResponse = await self._ask(
            self._stub.ListModels, pb.ListModelsRequest(), timeout_s
        )
        return list(answer.models)

    async def list_engines(self) -> list[pb.Engine]:
        """The engines the manager knows."""
        answer: pb.ListEnginesResponse = await self._ask(
            self._stub.ListEngines, pb.ListEnginesRequest(), ASK_S
        )
        return list(answer.engines)

    async def _ask(self, method: Any, request: object, timeout_s: float) -> Any:
        call: Awaitable[Any] = method(request, timeout=timeout_s, metadata=rpc.outgoing_metadata())
        try:
            return await call
        except aio.AioRpcError as error:
            raise rpc.fault_of(error, "manager") from None


def _check_session(session_id: str) -> None:
    if not is_session_id(session_id):
        raise Fault(errors.NOT_FOUND, "there is no such session")
