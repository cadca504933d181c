"""ManagerService: what gateways ask."""

from __future__ import annotations

from typing import Any, Final

from parrot_manager import convert, requests
from parrot_manager.claims import Claims
from parrot_manager.core.graph import Graph
from parrot_manager.deleting import Deleting
from parrot_manager.intake import Intake
from parrot_manager.openings import Openings
from parrot_manager.views import Views
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2 as pb
from parrot_proto.manager.v1 import manager_pb2_grpc
from parrot_runtime.text import check_name

Context = Any

LONGEST_WAIT_S: Final = 60.0


class ManagerServicer(manager_pb2_grpc.ManagerServiceServicer):
    """Checks requests and passes them on; faults become statuses on their way out."""

    def __init__(
        self, intake: Intake, openings: Openings, deleting: Deleting, views: Views, claims: Claims
    ) -> None:
        self._intake = intake
        self._openings = openings
        self._deleting = deleting
        self._claims = claims
        self._views = views

    async def CreateSession(  # noqa: N802 - named by the contract
        self, request: pb.CreateSessionRequest, context: Context
    ) -> pb.CreateSessionResponse:
        """Opens a session."""
        session = await self._openings.open(self._openings.opening(**requests.parse_opening(request)))
        return pb.CreateSessionResponse(session=convert.to_session(session))

    async def GetSession(  # noqa: N802
        self, request: pb.GetSessionRequest, context: Context
    ) -> pb.GetSessionResponse:
        """The graph and its states."""
        return await self._views.session(request.tenant, request.session_id, brief=request.brief)

    async def ListSessions(  # noqa: N802
        self, request: pb.ListSessionsRequest, context: Context
    ) -> pb.ListSessionsResponse:
        """A page of a tenant's sessions."""
        return await self._views.sessions(request.tenant, *requests.parse_list(request))

    async def CloseSession(  # noqa: N802
        self, request: pb.CloseSessionRequest, context: Context
    ) -> pb.CloseSessionResponse:
        """Ends a session."""
        session = await self._intake.close(request.tenant, request.session_id)
        return pb.CloseSessionResponse(session=convert.to_session(session))

    async def DeleteSession(  # noqa: N802
        self, request: pb.DeleteSessionRequest, context: Context
    ) -> pb.DeleteSessionResponse:
        """Deletes a session."""
        await self._deleting.delete(request.tenant, request.session_id, only_empty=request.only_empty)
        self._views.forget(request.session_id)
        return pb.DeleteSessionResponse()

    async def SubmitCalls(  # noqa: N802
        self, request: pb.SubmitCallsRequest, context: Context
    ) -> pb.SubmitCallsResponse:
        """Takes a batch of calls in."""
        submitted = await requests.parsed(request)
        batch: dict[str, Any] = {
            "calls": submitted.calls,
            "values": submitted.values,
            "blocks": submitted.blocks,
            "wanted": requests.parse_wanted(request.wanted),
            "key": check_name(request.idempotency_key, "idempotency_key"),
            "digest": requests.digest_of(request),
        }
        opened: pb.Session | None = None
        if request.HasField("opening"):
            opening = self._openings.opening(**requests.parse_opening_of(request))
            session, ids = await self._openings.submit(opening, **batch)
            opened = convert.to_session(session)
        else:
            ids = await self._intake.submit(request.tenant, request.session_id, **batch)
        return pb.SubmitCallsResponse(
            session=opened,
            call_ids=[name for name in ids if name.startswith("c-")],
            block_ids=[name for name in ids if name.startswith("b-")],
        )

    async def CancelCalls(  # noqa: N802
        self, request: pb.CancelCallsRequest, context: Context
    ) -> pb.CancelCallsResponse:
        """Cancels calls, and what depends on them."""
        cancelled = await self._intake.cancel(
            request.tenant, request.session_id, request.call_ids, subtree=request.subtree
        )
        return pb.CancelCallsResponse(call_ids=cancelled)

    async def ClaimCall(  # noqa: N802
        self, request: pb.ClaimCallRequest, context: Context
    ) -> pb.ClaimCallResponse:
        """A call for a worker of the client."""
        worker = requests.parse_worker(request.worker)
        wait_s = min(request.wait_ms / 1e3, LONGEST_WAIT_S)
        claimed = await self._claims.claim(
            request.tenant, request.session_id, request.call_id, worker, wait_s
        )
        if claimed is None:
            return pb.ClaimCallResponse()
        inputs = [pb.NamedText(name=name, text=text) for name, text in claimed.inputs.items()]
        return pb.ClaimCallResponse(claimed=True, inputs=inputs, lease_ms=claimed.lease_ms)

    async def RenewClaim(  # noqa: N802
        self, request: pb.RenewClaimRequest, context: Context
    ) -> pb.RenewClaimResponse:
        """More time for a worker."""
        worker = requests.parse_worker(request.worker)
        lease_ms = await self._claims.renew(request.tenant, request.session_id, request.call_id, worker)
        return pb.RenewClaimResponse(lease_ms=lease_ms)

    async def CompleteCall(  # noqa: N802
        self, request: pb.CompleteCallRequest, context: Context
    ) -> pb.CompleteCallResponse:
        """What a worker made."""
        state = await self._claims.complete(
            request.tenant,
            request.session_id,
            request.call_id,
            requests.parse_worker(request.worker),
            requests.parse_result(request),
            unclaimed=request.unclaimed,
        )
        return pb.CompleteCallResponse(state=common_pb2.CallState.ValueType(state))

    async def SetVariable(  # noqa: N802
        self, request: pb.SetVariableRequest, context: Context
    ) -> pb.SetVariableResponse:
        """Takes a value in."""
        value = requests.parse_value(request.variable_id, request.name, request.value, "variable")
        variable = await self._intake.set_value(request.tenant, request.session_id, value)
        return pb.SetVariableResponse(variable=convert.to_variable(variable, Graph()))

    async def GetVariable(  # noqa: N802
        self, request: pb.GetVariableRequest, context: Context
    ) -> pb.GetVariableResponse:
        """A variable at its end, or as it is when the time to wait is over."""
        wanted = request.tenant, request.session_id, request.variable_id
        self._intake.want(*wanted, requests.parse_criteria(request.criteria, "criteria"))
        if request.wait_ms:
            await self._views.wait(*wanted, timeout_s=min(request.wait_ms / 1e3, LONGEST_WAIT_S))
        return await self._views.variable(
            *wanted, with_value=request.with_value, with_producer=request.with_producer
        )

    async def ListModels(  # noqa: N802
        self, request: pb.ListModelsRequest, context: Context
    ) -> pb.ListModelsResponse:
        """The models that are served."""
        return self._views.models()

    async def ListEngines(  # noqa: N802
        self, request: pb.ListEnginesRequest, context: Context
    ) -> pb.ListEnginesResponse:
        """The engines that are attached."""
        return self._views.engines()

    async def ListManagers(  # noqa: N802
        self, request: pb.ListManagersRequest, context: Context
    ) -> pb.ListManagersResponse:
        """The managers that live."""
        return self._views.managers()
