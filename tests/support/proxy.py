"""A reverse proxy that does what nginx does with its defaults, only sooner.

Towards the server it speaks HTTP/1.0 and closes; what a server sends it keeps until the answer is whole,
unless that says `X-Accel-Buffering: no`; and a server that is silent for long is given up.
(https://nginx.org/en/docs/http/ngx_http_proxy_module.html: `proxy_http_version`, `proxy_buffering`,
`proxy_read_timeout`.)
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

CHUNK = 65_536


class Proxy:
    """Stands before one server.

    Attributes:
        cut: how many answers it gave up.
    """

    def __init__(self, upstream: str, read_timeout_s: float) -> None:
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname or "", parts.port or 80)
        self._read_timeout_s = read_timeout_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.cut = 0

    def serve(self) -> None:
        """Takes connections until it is closed."""
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._pass_on, args=(client,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Takes no more, and returns once all it took are over."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _pass_on(self, client: socket.socket) -> None:
        with closing(client):
            head, body = _request(client)
            with closing(socket.create_connection(self._upstream, self._read_timeout_s)) as server:
                server.sendall(_rewritten(head) + body)
                self._answer(client, server)

    def _answer(self, client: socket.socket, server: socket.socket) -> None:
        held = b""
        unbuffered = False
        try:
            while data := server.recv(CHUNK):
                held += data
                unbuffered = unbuffered or b"x-accel-buffering: no" in held.lower()
                if unbuffered:
                    client.sendall(held)
                    held = b""
            client.sendall(held)
        except TimeoutError:
            self.cut += 1
        except OSError:
            return  # The client left.


def _request(client: socket.socket) -> tuple[bytes, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        data += client.recv(CHUNK)
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    length = int(lengths[0].partition(b":")[2]) if lengths else 0
    while len(body) < length:
        body += client.recv(CHUNK)
    return head, body


def _rewritten(head: bytes) -> bytes:
    first, *lines = head.split(b"\r\n")
    kept = [line for line in lines if not line.lower().startswith(b"connection:")]
    return b"\r\n".join([first.replace(b"HTTP/1.1", b"HTTP/1.0"), *kept, b"Connection: close"]) + b"\r\n\r\n"


@contextmanager
def running_proxy(upstream: str, read_timeout_s: float) -> Iterator[Proxy]:
    """A proxy for the length of the `with`."""
    proxy = Proxy(upstream, read_timeout_s)
    serving = threading.Thread(target=proxy.serve)
    serving.start()
    try:
        yield proxy
    finally:
        proxy.close()
        serving.join()
