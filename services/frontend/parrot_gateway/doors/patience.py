"""How long a request's body may take to come."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from starlette.types import Message, Receive

from parrot_runtime import errors
from parrot_runtime.errors import Fault

BYTES_A_SECOND: Final = 16_384
"""Whoever sends slower than this is cut off, sooner or later."""


def impatient(receive: Receive, body_s: float) -> Receive:
    """`receive` that waits for the body `body_s`, and longer only as more of it comes.

    What comes behind the body (that the client left) may be waited for as long as one likes.

    Raises:
        Fault: `request_timeout`, from what is returned.
    """
    end_s = 0.0
    complete = False

    async def receive_in_time() -> Message:
        nonlocal end_s, complete
        if complete:
            return await receive()
        # From when the route asks for it: how late that is, is not the client's doing.
        end_s = end_s or time.monotonic() + body_s
        try:
            async with asyncio.timeout(end_s - time.monotonic()):
                message = await receive()
        except TimeoutError:
            raise Fault(
                errors.REQUEST_TIMEOUT,
                f"the body did not come within {body_s:g} s, and a second for every {BYTES_A_SECOND:,} bytes",
                field="body",
            ) from None
        end_s += len(message.get("body", b"")) / BYTES_A_SECOND
        complete = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    return receive_in_time
