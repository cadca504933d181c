"""What is done for a client only while it is there."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from fastapi import Request
from fastapi.responses import Response

LEFT: Final = 499
"""The status of an answer that nobody reads."""


async def while_connected(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """The work's answer; the work is given up, with its clean-up, when the client goes away."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        # Nobody reads the answer to one who left.
        return await working if working.done() else Response(status_code=LEFT)
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
