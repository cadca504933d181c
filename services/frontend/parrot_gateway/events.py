"""Event streams: server-sent events in ready-made bytes, and a variable's text as such.

Its `id` is `<session>/<variable>:<offset>`, the bytes of UTF-8 up to the event's end, on any gateway and
after any restart. While nothing else is sent, a comment says that the stream is alive.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from parrot_gateway import resources
from parrot_gateway.closing import Closing, GatewayClosing
from parrot_gateway.problems import problem_of
from parrot_gateway.watch import Ended, Watch
from parrot_proto.common.v1 import common_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.values.reader import Chunk

EVENT_CHARS: Final = 16_384
"""Text of one event: readers have line buffers."""
ALIVE: Final = b": alive\n\n"
RECONNECT: Final = b"retry: 500\n: the server is stopping; reconnect with Last-Event-ID\n\n"
HEADERS: Final = {
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}

_EVENT_ID = re.compile(r"([a-z0-9-]{1,64})/([A-Za-z0-9_-]{1,64}):([0-9]{1,18})\Z")
# `json.dumps` would make an encoder for every event.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
# JSON leaves these bare, and some readers end a line at them.
_LINE_ENDS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def offset_of(last_event_id: str, session_id: str, variable_id: str) -> int:
    """The offset in bytes that an event id names; 0 for none.

    Raises:
        Fault: `invalid_request`, when it is no id of this variable's stream.
    """
    if not last_event_id:
        return 0
    match = _EVENT_ID.match(last_event_id)
    if match is None or match[1] != session_id or match[2] != variable_id:
        raise Fault(
            errors.INVALID_REQUEST,
            "Last-Event-ID is none of this stream's ids; send one of them, or none to start over",
            field="Last-Event-ID",
            session_id=session_id,
            variable_id=variable_id,
        )
    return int(match[3])


class EventStream(Response):
    """A stream of events. What it opened is closed when the client goes away.

    What goes wrong before the first of them is the request's failure, with a status of its own.
    """

    media_type = "text/event-stream"

    def __init__(self, open_blocks: Callable[[], AbstractAsyncContextManager[AsyncIterator[bytes]]]) -> None:
        super().__init__(headers=HEADERS)
        self._open_blocks = open_blocks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._open_blocks() as blocks:
            response = StreamingResponse(blocks, headers=HEADERS, media_type=self.media_type)
            await response(scope, receive, send)


@asynccontextmanager
async def variable_events(
    watch: AbstractAsyncContextManager[Watch], session_id: str, closing: Closing, heartbeat_s: float
) -> AsyncIterator[AsyncIterator[bytes]]:
    """The events of a variable, once it is watched.

    Raises:
        Fault: what watching it raises.
    """
    async with watch as watched:
        yield event_blocks(watched, session_id, closing, heartbeat_s)


async def event_blocks(
    watch: Watch, session_id: str, closing: Closing, heartbeat_s: float
) -> AsyncIterator[bytes]:
    """The events of a watch, up to the variable's end or the gateway's."""
    stream = f"{session_id}/{watch.variable.id}"
    offset_bytes = 0
    # Some proxies hold the headers back until there is a body.
    yield ALIVE
    while True:
        try:
            news = await closing.interruptible(watch.next(heartbeat_s))
        except GatewayClosing:
            yield RECONNECT
            return
        except Fault as fault:
            yield event_block("error", problem_of(fault))
            return
        if news is None:
            yield ALIVE
        elif isinstance(news, Chunk):
            for block in _deltas(stream, news):
                yield block
            offset_bytes = news.end_bytes
        else:
            yield _end(news, f"{stream}:{max(offset_bytes, news.variable.size_bytes)}")
            return


def _deltas(stream: str, chunk: Chunk) -> list[bytes]:
    blocks: list[bytes] = []
    offset = chunk.offset_bytes
    for start in range(0, len(chunk.text), EVENT_CHARS):
        text = chunk.text[start : start + EVENT_CHARS]
        end = offset + len(text.encode())
        blocks.append(event_block("delta", {"offset": offset, "text": text}, f"{stream}:{end}"))
        offset = end
    return blocks


def _end(ended: Ended, event_id: str) -> bytes:
    variable = ended.variable
    state = resources.variable_state(variable)
    if ended.text is not None:
        return event_block("done", {"state": state, "size_bytes": variable.size_bytes}, event_id)
    failure = variable.failure
    if not failure.type:
        failure = common_pb2.Failure(type=errors.CANCELLED.type, message="the variable was cancelled")
    problem = problem_of(Fault.from_failure(failure))
    return event_block("error", {"state": state, **problem})


def event_block(name: str, data: dict[str, Any], event_id: str = "") -> bytes:
    """One event as it is sent."""
    line = _encode(data).translate(_LINE_ENDS)
    head = f"id: {event_id}\n" if event_id else ""
    return f"{head}event: {name}\ndata: {line}\n\n".encode()
