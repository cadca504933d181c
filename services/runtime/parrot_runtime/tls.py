"""The certificate a service shows to its peers, and the authority by which it believes theirs.

A certificate is its role's: its DNS names hold `manager`, `gateway`, `engine` or `operator`. Who dials a
manager asks for that name, whatever address it has, and a manager looks at a client's names to see what
it may call. The files may be exchanged at any time: what is shaken hands on from then on goes by the
new ones.
"""

from __future__ import annotations

import ssl
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import structlog

from parrot_runtime import errors
from parrot_runtime.errors import Fault

MANAGER: Final = "manager"
"""The DNS name in the certificate of every manager."""

_TOO_LATE_OR_EARLY: Final = frozenset({"certificate has expired", "certificate is not yet valid"})
AGAIN_S: Final = 10.0
"""So long files that were refused are not looked into again, unless they change."""
_FLIGHTS: Final = 4
"""Of a handshake, at the most."""

_Stamp = tuple[tuple[int, int, int, int], ...]

log = structlog.get_logger()


class _Files(Protocol):
    """The settings that name the files; empty: no TLS."""

    @property
    def tls_cert(self) -> str: ...
    @property
    def tls_key(self) -> str: ...
    @property
    def tls_ca(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Pems:
    """What the files held: a certificate with what leads to its authority, its key, and whom to believe."""

    chain: bytes
    key: bytes
    roots: bytes


class Tls:
    """The files, and what of them is in use. Handshakes ask from any thread."""

    def __init__(self, cert: Path, key: Path, ca: Path) -> None:
        """Reads the files.

        Raises:
            Fault: `invalid_request`: one can't be read, or they don't fit together.
        """
        self._paths = {"--tls-cert": cert, "--tls-key": key, "--tls-ca": ca}
        self._lock = threading.Lock()
        self._stamp = self._look()
        self._pems = self._read()
        self._refused: _Stamp | None = None
        self._looks_again_at = 0.0

    @classmethod
    def of(cls, settings: _Files) -> Tls | None:
        """As the settings say; None: this service speaks plain text.

        Raises:
            Fault: `invalid_request`, as the constructor.
        """
        if not settings.tls_cert:
            return None
        return cls(Path(settings.tls_cert), Path(settings.tls_key), Path(settings.tls_ca))

    def current(self) -> Pems:
        """What the files hold now. While they hold nothing that can be used, what they held before.

        The same object as long as nothing has changed.
        """
        with self._lock:
            try:
                stamp = self._look()
                again = stamp != self._refused or time.monotonic() > self._looks_again_at
                if stamp != self._stamp and again:
                    self._take_up(stamp)
            except Fault as fault:
                log.warning("certificate files can't be looked at", reason=fault.message)
            return self._pems

    def client_context(self) -> ssl.SSLContext:
        """For a connection to a server that is not gRPC's: it is believed by its name and the authority."""
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cadata=self.current().roots.decode())
        try:
            chain, key = self._paths["--tls-cert"], self._paths["--tls-key"]
            context.load_cert_chain(chain, key, password=_no_password)
        except ValueError as error:
            # Of the password. Whoever connects tries again after this kind, and not after that one.
            raise ssl.SSLError(str(error)) from None
        return context

    def own_trouble(self) -> str:
        """What this service itself would say of its certificate, if a client showed it; empty: nothing."""
        return _trouble(*self._paths.values())

    def _take_up(self, stamp: _Stamp) -> None:
        try:
            pems = self._read()
        except Fault as fault:
            # Halfway through an exchange, say, or too early by this machine's clock. They are tried again
            # when they have changed again, and after a while.
            self._refused, self._looks_again_at = stamp, time.monotonic() + AGAIN_S
            log.warning("new certificate not taken up; the one before stays", reason=fault.message)
            return
        self._stamp, self._pems, self._refused = stamp, pems, None
        log.info("new certificate taken up", cert=str(self._paths["--tls-cert"]))

    def _look(self) -> _Stamp:
        return tuple(_stamp_of(flag, path) for flag, path in self._paths.items())

    def _read(self) -> Pems:
        chain, key, roots = (_bytes_of(flag, path) for flag, path in self._paths.items())
        cert_path, key_path, ca_path = self._paths.values()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_cert_chain(cert_path, key_path, password=_no_password)
        except (ssl.SSLError, ValueError) as error:
            raise _unusable(
                f"--tls-cert {cert_path} and --tls-key {key_path} are no certificate and its key, in PEM and "
                f"without a password ({_reason(error)})"
            ) from None
        try:
            context.load_verify_locations(ca_path)
        except ssl.SSLError as error:
            raise _unusable(f"--tls-ca {ca_path} holds no certificate in PEM ({_reason(error)})") from None
        if (trouble := _trouble(cert_path, key_path, ca_path)) in _TOO_LATE_OR_EARLY:
            raise _unusable(f"--tls-cert {cert_path}: {trouble}; put a new one there, and its key")
        return Pems(chain, key, roots)


def _trouble(cert: Path, key: Path, ca: Path) -> str:
    """Shakes hands with itself: what the side of the server says of the certificate of the client's side."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    # What is asked is what a server thinks of it.
    client.verify_mode, server.verify_mode = ssl.CERT_NONE, ssl.CERT_REQUIRED
    for context in (server, client):
        context.load_cert_chain(cert, key, password=_no_password)
    server.load_verify_locations(ca)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)
    for _ in range(_FLIGHTS):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                return error.verify_message
    return ""


def _stamp_of(flag: str, path: Path) -> tuple[int, int, int, int]:
    try:
        # Behind a symbolic link, by whose exchange a mounted Secret changes.
        found = path.stat()
    except OSError as error:
        raise _unreadable(flag, path, error) from None
    # When its owner or mode was changed too: it may be readable now.
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


def _bytes_of(flag: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(flag, path, error) from None


def _unreadable(flag: str, path: Path, error: OSError) -> Fault:
    return _unusable(f"{flag} {path} can't be read ({error.strerror}); it is a file in PEM for this user")


def _unusable(message: str) -> Fault:
    return Fault(errors.INVALID_REQUEST, message)


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error)


def _no_password() -> str:
    # Otherwise OpenSSL asks the terminal.
    raise ValueError("the key has a password")
