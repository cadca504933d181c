"""How long a server's RPCs take, and how they end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from grpc import aio

Observe = Callable[[str, str, str, float], None]
"""Told of an RPC that is over: its method, its status by gRPC's name, what it was refused with (a
problem's type, or nothing), and its seconds."""


class ObservedRpcs(aio.ServerInterceptor):  # type: ignore[type-arg]
    """Tells of every RPC with one request and one answer; of streams it tells nothing."""

    def __init__(self, observe: Observe) -> None:
        self._observe = observe

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Passes the RPC on, and watches it."""
        handler: Any = await continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler
        inner, method = handler.unary_unary, handler_call_details.method.rpartition("/")[2]

        async def timed(request: Any, context: Any) -> Any:
            began = time.perf_counter()
            code, problem = "CANCELLED", ""
            try:
                answer = await inner(request, context)
                code = "OK"
                return answer
            except asyncio.CancelledError:
                raise
            except BaseException:
                # `Abort` among them: the context knows what the RPC is ended with.
                code, problem = _name_of(context.code()), context.details()
                raise
            finally:
                self._observe(method, code, problem, time.perf_counter() - began)

        return grpc.unary_unary_rpc_method_handler(
            timed,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


def _name_of(code: Any) -> str:
    """A status's name; what ended without one is what gRPC makes of a handler that broke."""
    return code.name if isinstance(code, grpc.StatusCode) else grpc.StatusCode.UNKNOWN.name
