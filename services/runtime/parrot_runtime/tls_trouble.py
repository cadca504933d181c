"""Why two services don't get to talk: gRPC says of most of it that a socket was closed.

One more handshake, by hand, tells what it is about. It is asked for when a peer can't be reached.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Final

from parrot_runtime.tls import MANAGER, Tls

LOOK_S: Final = 5.0
ALPN: Final = ["h2"]


async def why_not(address: str, tls: Tls | None) -> str:
    """What keeps this service from talking to the manager at `host:port`; empty: not that."""
    # In a thread: event loops tell of a handshake's end by a connection that is closed, and no more.
    return await asyncio.to_thread(look, address, tls)


def look(address: str, tls: Tls | None) -> str:
    """As `why_not`; blocks for a few seconds at most."""
    host, _, port = address.rpartition(":")
    try:
        return _look(host.strip("[]"), int(port), tls)
    except (OSError, ValueError):
        # Nobody is there, or it is no address: that is told already.
        return ""


def _look(host: str, port: int, tls: Tls | None) -> str:
    context = tls.client_context() if tls is not None else _believing_anybody()
    context.set_alpn_protocols(ALPN)
    with socket.create_connection((host, port), LOOK_S) as connection:
        try:
            with context.wrap_socket(connection, server_hostname=MANAGER) as secured:
                if tls is None:
                    return "it speaks TLS, and this one does not: set --tls-cert, --tls-key and --tls-ca"
                # A server that believes this one's certificate begins to talk.
                if not secured.recv(1):
                    return _hung_up(tls)
        except ssl.SSLCertVerificationError as error:
            return f"its certificate is not believed: {error.verify_message}"
        except ssl.SSLError as error:
            return _told(error, tls)
    return ""


def _believing_anybody() -> ssl.SSLContext:
    """Of one that has nothing to believe by: it wants to know whether TLS is spoken there, and no more."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


_PLAIN: Final = "it speaks no TLS, and this one does: give it --tls-cert, --tls-key and --tls-ca"


def _hung_up(tls: Tls) -> str:
    own = tls.own_trouble() or "it may go by another authority"
    return f"it hangs up on this one's certificate: {own}"


def _told(error: ssl.SSLError, tls: Tls | None) -> str:
    if tls is None:
        # A peer without TLS, as this one is.
        return ""
    if isinstance(error, ssl.SSLEOFError):
        return _hung_up(tls)
    reason = error.reason or ""
    return _PLAIN if "WRONG_VERSION" in reason or "RECORD" in reason else f"the handshake fails ({reason})"
