"""Server-sent events, as far as a completion's stream uses them (WHATWG HTML, section 9.2.6)."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final

from parrot_engine.backends.base import BackendError

EVENT_BYTES: Final = 16 << 20
"""An event is never larger; a server that sends more sends no events."""

_LINE_END: Final = re.compile(rb"\r\n|\n|\r(?!$)")
"""A carriage return that the data ends with may have its line feed yet to come."""


async def read_events(data: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """The data of each event; comments and other fields are left out.

    Lines end where the standard says and nowhere else: the text of an event may hold any of the
    other characters that Unicode calls line ends.

    Raises:
        BackendError: an event has no end.
    """
    rest = b""
    event: list[bytes] = []
    async for received in data:
        *lines, rest = _LINE_END.split(rest + received)
        for line in lines:
            if line.startswith(b"data:"):
                event.append(line[5:].removeprefix(b" "))
            elif not line and event:
                yield b"\n".join(event)
                event = []
        if len(rest) + sum(map(len, event)) > EVENT_BYTES:
            raise BackendError(f"the server sent an event of more than {EVENT_BYTES:,} bytes")
