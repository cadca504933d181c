"""The library's client of NATS, with what it lacks: certificates that change, and TLS that is insisted on."""

from __future__ import annotations

import asyncio
import re
import ssl
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import nats.errors
from nats.aio.client import Client

from parrot_runtime.tls import Tls
from parrot_runtime.tls_words import words_of

CANCEL_S: Final = 0.1
HANGS_UP: Final = "it hangs up; does a user of its go by this certificate's names?"
_PASSWORD: Final = re.compile(r"(://[^:/@,]*):[^@,]*@")


class BusClient(Client):
    """A client that goes by its certificate's files at each handshake."""

    def __init__(self, tls: Tls | None = None) -> None:
        """`tls`: None: servers with `tls://` are believed by the system's authorities, and shown nothing."""
        super().__init__()
        self._tls = tls

    async def connect_within(self, timeout_s: float, **options: Any) -> None:
        """Connects, with the library's options.

        Raises:
            TimeoutError: it has not, in that time.
            Error, OSError: it can't.
        """
        connecting = asyncio.create_task(self.connect(**options), name="bus-connect")
        try:
            done, _ = await asyncio.wait({connecting}, timeout=timeout_s)
        finally:
            await end(connecting)
            if not self.is_connected and self._transport is not None:
                # Of a try that was broken off.
                self._transport.close()  # type: ignore[no-untyped-call]
        if not done:
            raise TimeoutError
        connecting.result()

    @property
    def ssl_context(self) -> ssl.SSLContext:
        """Of the files as they are now."""
        return self._tls.client_context() if self._tls is not None else ssl.create_default_context()

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        # The library speaks TLS only where the server says that it must: whoever sits between could
        # answer in the server's place that it need not, and be told the password.
        if initial_connection and self._current_server is not None:
            require_tls(self._current_server.uri.scheme, info)
        await super()._process_info(info, initial_connection)

    async def _process_connect_init(self) -> None:
        try:
            await super()._process_connect_init()
        except ConnectionError:
            if self._tls is None:
                raise
            # It gives no other sign when no user of its own goes by any name in the certificate.
            raise nats.errors.Error(HANGS_UP) from None

    async def _process_err(self, err_msg: str) -> None:
        # A server that lets this service in no more may do so again: its users are changed while it runs.
        error = nats.errors.Error(f"nats: {err_msg}")
        if is_forbidden(error):
            await super()._process_err(err_msg)
        else:
            await self._process_op_err(error)


async def end(task: asyncio.Task[Any]) -> None:
    """Returns once a task that waits for the library has ended; what came of it is left to who wants it.

    The library takes a cancellation that comes at the wrong moment for the end of one try, and loses one that
    comes together with an answer.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=CANCEL_S)
    if not task.cancelled():
        task.exception()


def is_forbidden(error: BaseException) -> bool:
    """Whether the server refused to publish or subscribe for this user."""
    return isinstance(error, nats.errors.Error) and "permissions violation" in str(error).lower()


def refuses(error: BaseException) -> bool:
    """Whether an error is a server's, or this service's of it: it is there, and is not spoken to."""
    return bool(words_of(error)) or type(error) is nats.errors.Error


def tells(error: BaseException) -> int:
    """How much an error says of why a server lets nobody in: one that says why hangs up, and which of the
    two is heard is a matter of luck at each try.
    """
    if isinstance(error, (BrokenPipeError, ConnectionResetError)):
        return 0
    return 1 if str(error) == HANGS_UP else 2


def why(error: BaseException) -> str:
    """An error of the way to a server, in few words."""
    return words_of(error) or str(error).removeprefix("nats: ") or type(error).__name__


def require_tls(scheme: str, info: dict[str, Any]) -> None:
    """Has TLS spoken with a server that was named by `tls://`.

    Raises:
        Error: it speaks none.
    """
    if scheme != "tls" or info.get("tls_required"):
        return
    if not info.get("tls_available"):
        raise nats.errors.Error("it speaks no TLS, and tls:// asks for it")
    info["tls_required"] = True


def credentials_of(url: str) -> dict[str, str]:
    """The user and the password in a URL; of a cluster's other servers, too, which tell no URL of theirs."""
    parts = urlsplit(url)
    if parts.username is None or parts.password is None:
        return {}
    return {"user": unquote(parts.username), "password": unquote(parts.password)}


def hide_passwords(urls: str) -> str:
    """URLs, with commas between, as they may be shown."""
    return _PASSWORD.sub(r"\1:***@", urls)
