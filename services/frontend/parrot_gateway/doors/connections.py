"""Connections whose requests' heads come too slowly, or are too long, are cut.

uvicorn waits for ever for the head of a request, once something of it has come or before anything has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEAD_BYTES: Final = 65_536
"""A request's line and headers."""

_TOO_LATE: Final = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_TOO_LONG: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
)


class Impatient(asyncio.Protocol):
    """An end to the patience of one of uvicorn's protocols, in front of which it stands."""

    head_s: float = 10.0
    """How long a head may take."""
    on_timed_out: Callable[[], None] = staticmethod(lambda: None)
    """Told of a client that was cut because it acknowledged nothing of what it was sent."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limit: asyncio.TimerHandle | None = None
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins to wait for a head."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Takes what comes; what is no whole head yet has to go on in time."""
        if self._awaits_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._is_answering:
            self._stop_waiting()
        elif self._head_bytes > HEAD_BYTES:
            self._cut(_TOO_LONG)
        else:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits no more."""
        if isinstance(exc, TimeoutError):
            self.on_timed_out()
        self._stop_waiting()
        super().connection_lost(exc)

    @property
    def _is_answering(self) -> bool:
        """Whether a request has come that was not answered yet."""
        cycle: Any = getattr(self, "cycle", None)
        return cycle is not None and not cycle.response_complete

    @property
    def _awaits_head(self) -> bool:
        """Whether what comes next is a head, and not the rest of a body that was answered already."""
        cycle: Any = getattr(self, "cycle", None)
        return cycle is None or (cycle.response_complete and not cycle.more_body)

    def _wait(self) -> None:
        if self._limit is None:
            self._limit = asyncio.get_running_loop().call_later(self.head_s, self._cut, _TOO_LATE)

    def _stop_waiting(self) -> None:
        self._head_bytes = 0
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _cut(self, answer: bytes) -> None:
        transport: Any = getattr(self, "transport", None)
        if transport is None or transport.is_closing() or self._is_answering:
            return
        if self._head_bytes:
            transport.write(answer)
        transport.close()


def impatient_protocol(
    head_s: float,
    base: type[asyncio.Protocol] = AutoHTTPProtocol,
    on_timed_out: Callable[[], None] = lambda: None,
) -> type[Impatient]:
    """uvicorn's protocol, by default whichever it would choose, that waits so long for a head."""
    members = {"head_s": head_s, "on_timed_out": staticmethod(on_timed_out)}
    return type(f"Impatient{base.__name__}", (Impatient, base), members)
