"""A NATS server with the users that are shipped in deploy/nats."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.certificates import Files
from tests.support.nats import NatsServer

SHIPPED = Path(__file__).parents[2] / "deploy" / "nats"
ROLES = ("gateway", "manager", "engine")
WHERE = "/etc/parrot/tls/"
ENVIRONMENT = {f"NATS_{role.upper()}_PASSWORD": f"of-{role}" for role in ROLES}


@contextmanager
def guarded_nats(access: str, files: Files | None = None) -> Iterator[NatsServer]:
    """A server that goes by one of the shipped files, passwords.conf or certificates.conf.

    Args:
        files: the server's certificate, which is at another place than the shipped file says.
    """
    with tempfile.TemporaryDirectory(prefix="nats-") as folder:
        for name in ("permissions.conf", access):
            text = (SHIPPED / name).read_text()
            if files is not None:
                places = {"tls.crt": files.cert, "tls.key": files.key, "ca.crt": files.ca}
                for end, path in places.items():
                    text = text.replace(f"{WHERE}{end}", str(path))
            (Path(folder) / name).write_text(text)
        server = NatsServer(Path(folder), f"include ./{access}\n", ENVIRONMENT)
        server.start()
        try:
            yield server
        finally:
            server.stop()


def password_url(server: NatsServer, role: str) -> str:
    """Where a role finds it, with its password."""
    return server.url.replace("://", f"://{role}:{ENVIRONMENT[f'NATS_{role.upper()}_PASSWORD']}@")


def tls_url(server: NatsServer) -> str:
    """Where it is found by TLS."""
    return server.url.replace("nats://", "tls://")
