"""Whether managers can do their work: they say so themselves, by gRPC's health service."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from parrot_runtime import errors, rpc
from parrot_runtime.errors import Fault


async def check_any(channels: Mapping[str, aio.Channel], timeout_s: float) -> None:
    """Returns once one of some managers, by their addresses, says that it serves.

    One that does not has no lease: it can't reach Postgres, or is stopping.

    Raises:
        Fault: `unavailable`, with what each of them says.
    """
    asking = [
        asyncio.create_task(_complaint(address, channel, timeout_s)) for address, channel in channels.items()
    ]
    complaints: list[str] = []
    try:
        for answer in asyncio.as_completed(asking):
            complaint = await answer
            if not complaint:
                return
            complaints.append(complaint)
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    raise Fault(errors.UNAVAILABLE, "; ".join(sorted(complaints)), retry_after_ms=1000)


async def _complaint(address: str, channel: aio.Channel, timeout_s: float) -> str:
    request = health_pb2.HealthCheckRequest()
    try:
        answer: Any = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout_s)
    except aio.AioRpcError as error:
        return f"{address}: {rpc.fault_of(error, 'manager').message}"
    if answer.status == health_pb2.HealthCheckResponse.SERVING:
        return ""
    return f"{address}: it can't reach Postgres, or is stopping"
