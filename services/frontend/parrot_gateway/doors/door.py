"""The door: who comes in, as whom, and how fast. Before anything of a body is read."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Collection, Iterable
from typing import Final, Protocol
from urllib.parse import urlsplit

from fastapi.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from parrot_gateway.doors.keys import KeyRing, refused
from parrot_gateway.doors.patience import impatient
from parrot_gateway.doors.rates import Rates
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.hosts import is_loopback

TENANT_SCOPE: Final = "parrot.tenant"
"""Where a request's scope names its tenant, once its key was checked."""
OPEN: Final = frozenset({"/healthz", "/readyz", "/openapi.json", "/docs", "/docs/oauth2-redirect"})
"""What needs no key: it tells nothing of anybody's."""
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
OPEN_FOLDER: Final = "/static-offline-docs/"

Answer = Callable[[str, Fault, dict[str, str]], Response]
"""The answer to a request of a path that is refused, with headers of its own."""


class Admission(Protocol):
    """Decides who comes in."""

    async def admit(self, scope: Scope) -> str:
        """The tenant whose request it is.

        Raises:
            Fault: it does not come in.
        """
        ...

    async def close(self) -> None:
        """Ends what it has begun."""
        ...


class Keyed:
    """Lets those in who have a good key, as often as their tenant may."""

    def __init__(self, keys: KeyRing, rates: Rates) -> None:
        self._keys = keys
        self._rates = rates

    async def admit(self, scope: Scope) -> str:
        holder = await self._keys.holder(key_of(scope["headers"]))
        await self._rates.pass_one(holder.tenant, holder.requests_per_second)
        return holder.tenant

    async def close(self) -> None:
        await self._keys.close()


class Keyless:
    """Development: lets everybody in who reaches the loopback, as one tenant.

    A web page that has its own name point here (DNS rebinding) is told to go: it comes under that name. So is
    one from elsewhere that sends what a browser sends without asking first; `origins` may, `*`: all.
    """

    def __init__(self, tenant: str, origins: Collection[str] = ()) -> None:
        self._tenant = tenant
        self._origins = frozenset(origins)

    async def admit(self, scope: Scope) -> str:
        hosts = _values(scope["headers"], b"host")
        for host in hosts:
            if not _is_local_name(host):
                raise Fault(
                    errors.MISDIRECTED,
                    "without keys this server answers to localhost and to addresses alone, and not to other "
                    "names; use one of those, or turn keys on",
                    field="Host",
                )
        if scope["method"] not in _READING:
            for origin in _values(scope["headers"], b"origin"):
                self._check_origin(origin, hosts)
        return self._tenant

    def _check_origin(self, origin: str, hosts: Collection[str]) -> None:
        if not (_is_local_origin(origin, hosts) or self._origins & {origin, "*"}):
            raise Fault(
                errors.FOREIGN_ORIGIN,
                "without keys this server takes nothing from web pages of other machines; name the page's "
                "origin in --cors-origins, or turn keys on",
                field="Origin",
            )

    async def close(self) -> None:
        pass


class Door:
    """ASGI middleware: admits requests, and waits for their bodies only so long."""

    def __init__(self, app: ASGIApp, admission: Admission, answer: Answer, body_s: float) -> None:
        self._app = app
        self._admission = admission
        self._answer = answer
        self._body_s = body_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or answers it with why not."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if not _is_open(scope["path"]):
            try:
                scope[TENANT_SCOPE] = await self._admission.admit(scope)
            except Fault as fault:
                scope["parrot.fault"] = fault
                await self._answer(scope["path"], fault, _headers_of(fault))(scope, receive, send)
                return
        await self._app(scope, impatient(receive, self._body_s), send)


def key_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The API key a request brings.

    Raises:
        Fault: `unauthenticated`, when it brings none, or several.
    """
    listed = list(headers)
    found = [*_values(listed, b"authorization"), *_values(listed, b"x-api-key")]
    if not found:
        raise refused("this server asks for an API key")
    bare = {_bare(value) for value in found}
    if len(bare) > 1:
        raise refused("there is more than one API key")
    return bare.pop()


def _bare(value: str) -> str:
    scheme, blank, key = value.strip().partition(" ")
    return key.strip() if blank and scheme.lower() == "bearer" else value.strip()


def _values(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in headers if key == name]


def _is_open(path: str) -> bool:
    return path in OPEN or path.startswith(OPEN_FOLDER)


def _headers_of(fault: Fault) -> dict[str, str]:
    return {"WWW-Authenticate": "Bearer"} if fault.kind is errors.UNAUTHENTICATED else {}


def _is_local_origin(origin: str, hosts: Collection[str]) -> bool:
    """Whether a web page is this machine's, or this server's under one of its own names.

    `null`, of pages that tell nobody where they are from, is none.
    """
    try:
        parts = urlsplit(origin)
        name = parts.hostname or ""
    except ValueError:
        return False
    return name.endswith(".localhost") or is_loopback(name) or parts.netloc in hosts


def _is_local_name(host: str) -> bool:
    """Whether a Host header names this machine, or an address: nobody's page can come under an address."""
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    name = name.strip("[]").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
