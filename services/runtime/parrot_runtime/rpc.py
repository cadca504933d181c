"""gRPC as every service uses it: message sizes, faults and trace context in metadata, waiting for a peer.

With TLS both sides show a certificate. Only managers are dialled, and they are known by their role's
name; who may call what there is `parrot_runtime.callers`' to say.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NoReturn

import grpc
import structlog
from grpc import aio
from opentelemetry import context as otel_context
from opentelemetry.trace import SpanKind, Status, StatusCode

from parrot_proto.common.v1 import common_pb2
from parrot_runtime import errors, limits, skew, telemetry
from parrot_runtime.errors import Fault
from parrot_runtime.tls import MANAGER, Tls
from parrot_runtime.tls_trouble import why_not
from parrot_runtime.version import parrot_version

FAILURE_KEY: Final = "parrot-failure-bin"

OPTIONS: Final[list[tuple[str, int]]] = [
    ("grpc.max_receive_message_length", limits.RPC_BYTES),
    ("grpc.max_send_message_length", limits.RPC_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.so_reuseport", 0),
]

LAST_LOOK_S: Final = 2.0
LOOK_AFTER_S: Final = 5.0
"""When it is asked why a peer is not spoken to: one that starts is there by then."""

log = structlog.get_logger()


TLS_OPTIONS: Final[list[tuple[str, int | str]]] = [
    *OPTIONS,
    # Managers come and go with their addresses; no certificate could hold those.
    ("grpc.ssl_target_name_override", MANAGER),
]


def channel(address: str, tls: Tls | None = None) -> aio.Channel:
    """A channel to the manager at `address` (`host:port`) that reconnects by itself.

    With the certificate `tls` has now: one that is to go by a later one is made anew.
    """
    if tls is None:
        return aio.insecure_channel(address, options=OPTIONS)
    return aio.secure_channel(address, channel_credentials(tls), options=TLS_OPTIONS)


def blocking_channel(address: str, tls: Tls | None = None) -> grpc.Channel:
    """As `channel`, for programs without an event loop."""
    if tls is None:
        return grpc.insecure_channel(address, options=OPTIONS)
    return grpc.secure_channel(address, channel_credentials(tls), options=TLS_OPTIONS)


def channel_credentials(tls: Tls) -> grpc.ChannelCredentials:
    """What a channel with `TLS_OPTIONS` shows, and by what it believes."""
    pems = tls.current()
    return grpc.ssl_channel_credentials(pems.roots, pems.key, pems.chain)


def listen(server: aio.Server, address: str, tls: Tls | None = None) -> int:
    """Binds a server that has not started to `host:port`; the port.

    With `tls`, clients without a certificate of its authorities are not let in. Each handshake goes by
    the files of its moment.

    Raises:
        RuntimeError: it can't be listened on.
    """
    if tls is None:
        return server.add_insecure_port(address)

    def configuration() -> grpc.ServerCertificateConfiguration:
        pems = tls.current()
        return grpc.ssl_server_certificate_configuration([(pems.key, pems.chain)], pems.roots)

    credentials = grpc.dynamic_ssl_server_credentials(
        configuration(), configuration, require_client_authentication=True
    )
    return server.add_secure_port(address, credentials)


def server(*outer: aio.ServerInterceptor) -> aio.Server:  # type: ignore[type-arg]
    """A server whose handlers may raise `Fault`, and continue the caller's trace.

    Args:
        outer: interceptors that see what comes of that: the status a fault became.
    """
    return aio.server(options=OPTIONS, interceptors=[*outer, _FaultInterceptor()])


def outgoing_metadata() -> list[tuple[str, str]]:
    """Metadata that carries the current trace context, and who asks."""
    return [(skew.METADATA_KEY, parrot_version()), *telemetry.inject().items()]


def fault_of(error: aio.AioRpcError, peer: str) -> Fault:
    """The fault behind an RPC's error; `unavailable` or `internal` when the peer sent none."""
    metadata: Any = error.trailing_metadata() or ()
    for key, value in metadata:
        if key == FAILURE_KEY and isinstance(value, bytes):
            return Fault.from_failure(common_pb2.Failure.FromString(value))
    if error.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}:
        return Fault(errors.UNAVAILABLE, f"the {peer} can't be reached; try again", retry_after_ms=1000)
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Fault(errors.UNAVAILABLE, f"the {peer} did not answer in time; try again", retry_after_ms=1000)
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return Fault(errors.TOO_LARGE, f"a message exceeds {limits.RPC_BYTES:,} bytes")
    return Fault(errors.INTERNAL, f"the {peer} answered {error.code().name}")


async def wait_ready(channel: aio.Channel, address: str, peer: str, timeout_s: float) -> None:
    """Returns once the peer can be reached.

    Raises:
        Fault: `unavailable`, when it can't within `timeout_s`.
    """
    try:
        await asyncio.wait_for(channel.channel_ready(), timeout_s)
    except TimeoutError:
        raise Fault(
            errors.UNAVAILABLE, f"no {peer} answers at {address}, waited {timeout_s:g} s; is it running?"
        ) from None


def addresses_of(setting: str) -> list[str]:
    """The addresses of a setting that names one, or several with commas between them."""
    return [address for part in setting.split(",") if (address := part.strip())]


async def wait_any_ready(
    addresses: Sequence[str], peer: str, timeout_s: float, tls: Tls | None = None
) -> None:
    """Returns once one of several peers can be reached.

    Raises:
        Fault: `unavailable`, when none can within `timeout_s`.
    """
    channels = [channel(address, tls) for address in addresses]
    waiting = [asyncio.ensure_future(found.channel_ready()) for found in channels]
    told = [""]
    looking = asyncio.create_task(_look_for_whys(addresses, tls, told), name="why-not-ready")
    try:
        done, _ = await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        for wait in waiting:
            wait.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await asyncio.gather(*(found.close(None) for found in channels))
    if not done:
        if not told[0]:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_LOOK_S):
                    told[0] = await _whys(addresses, tls, "")
        where = ", ".join(addresses)
        raise Fault(
            errors.UNAVAILABLE,
            f"no {peer} answers at {where}, waited {timeout_s:g} s; {told[0] or 'is it running?'}",
        )


async def _look_for_whys(addresses: Sequence[str], tls: Tls | None, told: list[str]) -> None:
    """Looks again and again, beside who waits: one that does not answer takes long to look at."""
    while True:
        await asyncio.sleep(LOOK_AFTER_S)
        told[0] = await _whys(addresses, tls, told[0])


async def _whys(addresses: Sequence[str], tls: Tls | None, before: str) -> str:
    """Why none of the peers that are there is spoken to; logged, if it is another reason than before."""
    whys = await asyncio.gather(*(why_not(address, tls) for address in addresses))
    told = "; ".join(f"{address}: {why}" for address, why in zip(addresses, whys, strict=True) if why)
    if told and told != before:
        log.warning("not spoken to", reason=told)
    return told


class _FaultInterceptor(aio.ServerInterceptor):  # type: ignore[type-arg]
    """Turns a handler's `Fault` into a status with the failure attached, and makes its span."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler: Any = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or handler.unary_unary is None or method.startswith("/grpc."):
            return handler
        inner = handler.unary_unary

        async def guarded(request: Any, context: aio.ServicerContext[Any, Any]) -> Any:
            metadata = {
                key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)
            }
            token = otel_context.attach(telemetry.extract(metadata))
            try:
                with telemetry.tracer().start_as_current_span(
                    method.rpartition("/")[2], kind=SpanKind.SERVER, set_status_on_exception=False
                ) as span:
                    try:
                        skew.check("caller", metadata.get(skew.METADATA_KEY, ""))
                        return await inner(request, context)
                    except Fault as fault:
                        span.set_status(Status(StatusCode.ERROR, fault.kind.type))
                        return await abort(context, fault)
                    except (asyncio.CancelledError, aio.AbortError):
                        raise
                    # The last resort: a bug is logged here, and the caller is told that there is one.
                    except Exception:
                        log.exception("rpc failed", method=method)
                        span.set_status(Status(StatusCode.ERROR, "internal"))
                        return await abort(
                            context, Fault(errors.INTERNAL, "an unexpected error; the service's log has it")
                        )
            finally:
                otel_context.detach(token)

        return grpc.unary_unary_rpc_method_handler(
            guarded,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


async def abort(context: aio.ServicerContext[Any, Any], fault: Fault) -> NoReturn:
    """Ends an RPC with the fault's status, the whole failure attached."""
    await context.abort(
        grpc.StatusCode[fault.kind.grpc],
        fault.kind.type,
        trailing_metadata=((FAILURE_KEY, fault.to_failure().SerializeToString()),),
    )
    raise AssertionError("abort returns never")
