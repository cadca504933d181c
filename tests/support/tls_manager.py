"""A server of a manager's services that answers a few calls, to see who is let in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from parrot_manager.callers import ALLOWED
from parrot_proto.engine.v1 import engine_pb2, engine_pb2_grpc
from parrot_proto.manager.v1 import manager_pb2, manager_pb2_grpc, tenants_pb2, tenants_pb2_grpc
from parrot_runtime import rpc
from parrot_runtime.callers import Callers
from parrot_runtime.tls import Tls


class Models(manager_pb2_grpc.ManagerServiceServicer):
    """Answers one method."""

    async def ListModels(  # noqa: N802
        self, request: manager_pb2.ListModelsRequest, context: Any
    ) -> manager_pb2.ListModelsResponse:
        return manager_pb2.ListModelsResponse()


class Keys(tenants_pb2_grpc.TenantServiceServicer):
    """Answers one method."""

    async def CreateKey(  # noqa: N802
        self, request: tenants_pb2.CreateKeyRequest, context: Any
    ) -> tenants_pb2.CreateKeyResponse:
        return tenants_pb2.CreateKeyResponse()


class Engines(engine_pb2_grpc.EngineControlServiceServicer):
    """Takes any engine."""

    async def Attach(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        await context.read()
        await context.write(engine_pb2.AttachResponse(registered=engine_pb2.Registered()))


@asynccontextmanager
async def manager(tls: Tls | None, address: str = "127.0.0.1:0") -> AsyncIterator[str]:
    """The address of a server of a manager's services."""
    server = rpc.server(Callers(ALLOWED)) if tls is not None else rpc.server()
    manager_pb2_grpc.add_ManagerServiceServicer_to_server(Models(), server)  # type: ignore[abstract]
    tenants_pb2_grpc.add_TenantServiceServicer_to_server(Keys(), server)  # type: ignore[abstract]
    engine_pb2_grpc.add_EngineControlServiceServicer_to_server(Engines(), server)
    port = rpc.listen(server, address, tls)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)
