"""RPC: a fault crosses the wire whole, a message of the largest batch fits, a trace goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc import aio
from opentelemetry import trace

from parrot_proto.manager.v1 import manager_pb2, manager_pb2_grpc
from parrot_runtime import errors, limits, rpc, telemetry
from parrot_runtime.errors import Fault

pytestmark = pytest.mark.anyio
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Servicer(manager_pb2_grpc.ManagerServiceServicer):
    """Answers in the way the tenant asks for."""

    async def GetVariable(  # noqa: N802
        self, request: manager_pb2.GetVariableRequest, context: aio.ServicerContext[Any, Any]
    ) -> manager_pb2.GetVariableResponse:
        if request.tenant == "fault":
            raise Fault(errors.NOT_FOUND, "no variable x", variable_id="x", retry_after_ms=7)
        if request.tenant == "bug":
            raise ZeroDivisionError
        if request.tenant == "trace":
            span = trace.get_current_span().get_span_context()
            return manager_pb2.GetVariableResponse(value=format(span.trace_id, "032x"))
        return manager_pb2.GetVariableResponse(value=request.variable_id)


@pytest.fixture
async def stub() -> AsyncIterator[Any]:
    server = rpc.server()
    manager_pb2_grpc.add_ManagerServiceServicer_to_server(Servicer(), server)  # type: ignore[abstract]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with rpc.channel(f"127.0.0.1:{port}") as channel:
        yield manager_pb2_grpc.ManagerServiceStub(channel)
    await server.stop(None)


async def test_a_fault_crosses_the_wire_whole(stub: Any) -> None:
    with pytest.raises(aio.AioRpcError) as caught:
        await stub.GetVariable(manager_pb2.GetVariableRequest(tenant="fault"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    fault = rpc.fault_of(caught.value, "manager")
    assert (fault.kind, fault.message, fault.variable_id, fault.retry_after_ms) == (
        errors.NOT_FOUND,
        "no variable x",
        "x",
        7,
    )


async def test_a_bug_shows_nothing_of_its_inside(stub: Any) -> None:
    with pytest.raises(aio.AioRpcError) as caught:
        await stub.GetVariable(manager_pb2.GetVariableRequest(tenant="bug"))
    fault = rpc.fault_of(caught.value, "manager")
    assert fault.kind is errors.INTERNAL
    assert "ZeroDivision" not in str(fault)


async def test_a_whole_batch_fits_in_a_message_both_ways(stub: Any) -> None:
    text = "x" * limits.BATCH_BYTES
    answer = await stub.GetVariable(manager_pb2.GetVariableRequest(variable_id=text))
    assert answer.value == text


async def test_a_trace_goes_on_behind_the_wire(stub: Any) -> None:
    with trace.use_span(trace.get_current_span(telemetry.extract({"traceparent": TRACEPARENT}))):
        metadata = rpc.outgoing_metadata()
    answer = await stub.GetVariable(manager_pb2.GetVariableRequest(tenant="trace"), metadata=metadata)
    assert answer.value == telemetry.trace_id_of({"traceparent": TRACEPARENT})


async def test_a_peer_that_is_not_there_is_unavailable() -> None:
    async with rpc.channel("127.0.0.1:1") as channel:
        with pytest.raises(Fault, match=r"no manager answers at 127\.0\.0\.1:1"):
            await rpc.wait_ready(channel, "127.0.0.1:1", "manager", 0.2)
        with pytest.raises(aio.AioRpcError) as caught:
            await manager_pb2_grpc.ManagerServiceStub(channel).GetVariable(
                manager_pb2.GetVariableRequest(), timeout=1
            )
    assert rpc.fault_of(caught.value, "manager").kind is errors.UNAVAILABLE
