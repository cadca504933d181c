"""A process of an earlier release on the wire: what it does not know it neither reads nor says.

A proxy before a manager reads every message with an earlier release's descriptors, drops what those don't
know, and sends on what is left. To the caller the manager then looks like an earlier one, and to the manager
the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc import aio
from grpc_health.v1 import health_pb2

from parrot_runtime import rpc, skew
from tests.support.nats import free_port

FAILURE: Final = "parrot_proto.common.v1.Failure"
REGISTRATION: Final = "parrot_proto.engine.v1.AttachRequest"
_OWN_KEYS: Final = ("user-agent", "te", "content-type", "grpc-")
_RELEASED: Final = Path(__file__).parents[2] / "released"


def released(release: str) -> descriptor_pb2.FileDescriptorSet:
    """The protos of a release."""
    data = (_RELEASED / release / "protos.binpb").read_bytes()
    return descriptor_pb2.FileDescriptorSet.FromString(data)


def without(
    protos: descriptor_pb2.FileDescriptorSet, fields: Mapping[str, str]
) -> descriptor_pb2.FileDescriptorSet:
    """The same before a field of some messages was there; by message, without its package."""
    made = descriptor_pb2.FileDescriptorSet()
    made.CopyFrom(protos)
    for message in (message for file in made.file for message in file.message_type):
        kept = [field for field in message.field if fields.get(message.name) != field.name]
        del message.field[:]
        message.field.extend(kept)
    return made


class OldRelease:
    """What a release knows."""

    def __init__(self, protos: descriptor_pb2.FileDescriptorSet, version: str) -> None:
        """`version`: what its processes say they are; empty: nothing."""
        self.version = version
        self.methods: dict[str, descriptor_pb2.MethodDescriptorProto] = {}
        self._pool = descriptor_pool.DescriptorPool()
        for file in protos.file:
            self._pool.Add(file)
            for service in file.service:
                self.methods |= {f"/{file.package}.{service.name}/{m.name}": m for m in service.method}

    def known(self, message: str, data: bytes) -> bytes:
        """A message without what this release does not know."""
        read: Any = message_factory.GetMessageClass(self._pool.FindMessageTypeByName(message))()
        read.ParseFromString(data)
        read.DiscardUnknownFields()
        if message == REGISTRATION and read.HasField("registration"):
            read.registration.parrot_version = self.version
        return bytes(read.SerializeToString())


class Between:
    """The proxy: `release` may change while it serves, as when one of the two is replaced."""

    def __init__(self, channel: aio.Channel, release: OldRelease) -> None:
        self.release = release
        self.asked: set[str] = set()
        self._channel: Any = channel

    def handler(self, method: str) -> Any:
        """Whoever serves a method; None: the release has no such method."""
        if method.startswith("/grpc.health"):
            return grpc.unary_unary_rpc_method_handler(self._check_health)
        known = self.release.methods.get(method)
        if known is None:
            return None
        self.asked.add(method)
        if known.client_streaming:
            return grpc.stream_stream_rpc_method_handler(self._stream(method, known))
        return grpc.unary_unary_rpc_method_handler(self._unary(method, known))

    async def _check_health(self, request: bytes, context: Any) -> bytes:
        ask = self._channel.unary_unary("/grpc.health.v1.Health/Check")
        answer: bytes = await ask(request or health_pb2.HealthCheckRequest().SerializeToString())
        return answer

    def _unary(
        self, method: str, known: descriptor_pb2.MethodDescriptorProto
    ) -> Callable[[bytes, Any], Awaitable[bytes]]:
        async def ask(request: bytes, context: Any) -> bytes:
            to = self._channel.unary_unary(method)
            sent = self.release.known(known.input_type[1:], request)
            try:
                answer: bytes = await to(sent, metadata=self._metadata(context))
            except aio.AioRpcError as error:
                await self._abort(context, error)
            return self.release.known(known.output_type[1:], answer)

        return ask

    def _stream(
        self, method: str, known: descriptor_pb2.MethodDescriptorProto
    ) -> Callable[[Any, Any], AsyncIterator[bytes]]:
        async def stream(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            async def known_requests() -> AsyncIterator[bytes]:
                async for request in requests:
                    yield self.release.known(known.input_type[1:], request)

            to = self._channel.stream_stream(method)
            try:
                async for answer in to(known_requests(), metadata=self._metadata(context)):
                    yield self.release.known(known.output_type[1:], answer)
            except aio.AioRpcError as error:
                await self._abort(context, error)

        return stream

    def _metadata(self, context: Any) -> list[tuple[str, str | bytes]]:
        kept = [
            (key, value)
            for key, value in context.invocation_metadata() or ()
            if not key.startswith(_OWN_KEYS) and key != skew.METADATA_KEY
        ]
        return [*kept, (skew.METADATA_KEY, self.release.version)] if self.release.version else kept

    async def _abort(self, context: Any, error: aio.AioRpcError) -> None:
        trailing: Iterable[Any] = error.trailing_metadata() or ()
        told = [
            (key, self.release.known(FAILURE, value)) for key, value in trailing if key == rpc.FAILURE_KEY
        ]
        await context.abort(error.code(), error.details() or "", trailing_metadata=tuple(told))


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    def __init__(self, between: Between) -> None:
        self._between = between

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return self._between.handler(handler_call_details.method)


@asynccontextmanager
async def between(manager: str, address: str, release: OldRelease) -> AsyncIterator[Between]:
    """A proxy at `address` before the manager at `manager`."""
    async with rpc.channel(manager) as channel:
        made = Between(channel, release)
        server = aio.server(options=rpc.OPTIONS)
        server.add_generic_rpc_handlers((_Handlers(made),))
        assert server.add_insecure_port(address)
        await server.start()
        try:
            yield made
        finally:
            await asyncio.shield(server.stop(None))


def proxy_address() -> str:
    """Where a proxy may listen."""
    return f"127.0.0.1:{free_port()}"
