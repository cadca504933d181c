"""Who may call what: with TLS, a client's certificate decides by the DNS names it has.

A name is a role. What no role may call, nobody may.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final

import grpc
import structlog
from grpc import aio

from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.rpc import abort

NAMES: Final = "peer_dns"
"""Where gRPC keeps the DNS names of a client's certificate, which it has checked."""
_KINDS: Final[dict[str, Any]] = {
    "unary_unary": grpc.unary_unary_rpc_method_handler,
    "unary_stream": grpc.unary_stream_rpc_method_handler,
    "stream_unary": grpc.stream_unary_rpc_method_handler,
    "stream_stream": grpc.stream_stream_rpc_method_handler,
}

log = structlog.get_logger()


class Callers(aio.ServerInterceptor):  # type: ignore[type-arg]
    """Refuses what a client's role may not call."""

    def __init__(self, allowed: Mapping[str, Collection[str]]) -> None:
        """`allowed`: by role, the methods (`/package.Service/Method`) it may call."""
        self._allowed = {role: frozenset(methods) for role, methods in allowed.items()}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """The handler, behind a look at who calls."""
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        kind, make = next((kind, make) for kind, make in _KINDS.items() if getattr(handler, kind))
        inner = getattr(handler, kind)

        async def guarded(request: Any, context: aio.ServicerContext[Any, Any]) -> Any:
            fault = self.refusal(method, names_of(context))
            if fault is not None:
                log.warning("caller refused", method=method, reason=fault.message)
                await abort(context, fault)
            return await inner(request, context)

        return make(
            guarded,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def refusal(self, method: str, names: Collection[str]) -> Fault | None:
        """Why a client of these names may not call a method; None: it may."""
        roles = [role for role, methods in self._allowed.items() if method in methods]
        if any(name in roles for name in names):
            return None
        has = f"has the names {', '.join(sorted(names))}" if names else "has no DNS name"
        wanted = " or ".join(roles) or "none there is"
        return Fault(
            errors.FORBIDDEN,
            f"the caller's certificate {has}; {method.rpartition('/')[2]} is for one with the name {wanted}",
        )


def names_of(context: aio.ServicerContext[Any, Any]) -> set[str]:
    """The DNS names of the caller's certificate."""
    found: Any = context.auth_context()
    return {name.decode(errors="replace") for name in found.get(NAMES, ())}
