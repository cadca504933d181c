"""What the fake manager does not play, for it is tried on the real one."""

from __future__ import annotations

from typing import Any

from grpc import aio

from parrot_proto.manager.v1 import manager_pb2 as pb
from parrot_proto.manager.v1 import manager_pb2_grpc
from parrot_runtime import errors
from parrot_runtime.errors import Fault

Context = aio.ServicerContext[Any, Any]


class Unplayed(manager_pb2_grpc.ManagerServiceServicer):
    """Refuses."""

    async def ListSessions(  # noqa: N802
        self, request: pb.ListSessionsRequest, context: Context
    ) -> pb.ListSessionsResponse:
        raise _unplayed()

    async def ClaimCall(self, request: pb.ClaimCallRequest, context: Context) -> pb.ClaimCallResponse:  # noqa: N802
        raise _unplayed()

    async def RenewClaim(self, request: pb.RenewClaimRequest, context: Context) -> pb.RenewClaimResponse:  # noqa: N802
        raise _unplayed()

    async def CompleteCall(  # noqa: N802
        self, request: pb.CompleteCallRequest, context: Context
    ) -> pb.CompleteCallResponse:
        raise _unplayed()


def _unplayed() -> Fault:
    return Fault(errors.INTERNAL, "the fake manager does not play this")
