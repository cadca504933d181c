"""A control stream, as gRPC has it."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

from grpc import aio

from parrot_proto.engine.v1 import engine_pb2


class Stream:
    """One attached stream: writes take turns, and an end is an end whatever noticed it first."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._commands = aiter(call)
        self._turn = asyncio.Lock()

    async def write(self, event: engine_pb2.AttachRequest) -> None:
        """Raises aio.AioRpcError when the stream is broken."""
        async with self._turn:
            try:
                await self._call.write(event)
            except asyncio.InvalidStateError:
                await self._raise_status()

    async def read(self) -> engine_pb2.AttachResponse | None:
        """The next command, or None when the manager ended the stream. Raises aio.AioRpcError."""
        command: engine_pb2.AttachResponse | None = await anext(self._commands, None)
        return command

    async def end(self) -> None:
        """Nothing more will be written."""
        async with self._turn:
            await self._call.done_writing()

    def cancel(self) -> None:
        """Gives the stream up, if it has not ended."""
        self._call.cancel()

    async def _raise_status(self) -> NoReturn:
        raise aio.AioRpcError(
            await self._call.code(),
            await self._call.initial_metadata(),
            await self._call.trailing_metadata(),
            await self._call.details(),
            None,
        )
