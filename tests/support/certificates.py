"""An authority of a test's own, and what it certifies, as files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

from parrot_runtime.tls import Tls


@dataclass(frozen=True, slots=True)
class Files:
    """A certificate's files."""

    cert: Path
    key: Path
    ca: Path

    def tls(self) -> Tls:
        """As a service has them."""
        return Tls(self.cert, self.key, self.ca)

    def flags(self) -> tuple[str, ...]:
        """As a service is told of them."""
        return ("--tls-cert", str(self.cert), "--tls-key", str(self.key), "--tls-ca", str(self.ca))

    def settings(self) -> dict[str, str]:
        """As fields of a settings class."""
        return {"tls_cert": str(self.cert), "tls_key": str(self.key), "tls_ca": str(self.ca)}


class Authority:
    """Certifies names."""

    def __init__(self, folder: Path) -> None:
        """`folder`: where the files go."""
        self._ca = trustme.CA()
        self._folder = folder

    def issue(
        self, *names: str, as_file: str = "", expired: bool = False, believing: Authority | None = None
    ) -> Files:
        """The files of a new certificate; those of the same name go.

        Args:
            names: DNS names or addresses it is good for; of roles, say.
            as_file: how its files are called; by default as its first name.
            believing: the authority its holder goes by; this one by default.
        """
        now = datetime.now(UTC)
        lived = (
            (now - timedelta(days=2), now - timedelta(days=1)) if expired else (now - timedelta(days=1), None)
        )
        made = self._ca.issue_cert(*names, common_name=names[0], not_before=lived[0], not_after=lived[1])
        stem = as_file or names[0]
        files = Files(*(self._folder / f"{stem}.{end}" for end in ("crt", "key", "ca")))
        files.cert.write_bytes(b"".join(part.bytes() for part in made.cert_chain_pems))
        files.key.write_bytes(made.private_key_pem.bytes())
        files.ca.write_bytes((believing or self)._ca.cert_pem.bytes())
        files.key.chmod(0o600)
        return files
