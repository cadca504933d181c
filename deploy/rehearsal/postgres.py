"""What the Postgres image's entry point does: makes a database at the first start, and becomes the server."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

DATA: Final = Path("/var/lib/postgresql/18/docker")
"""Where the image has it, in the volume."""
RULES: Final = "local all all trust\nhost all all 127.0.0.1/32 trust\nhost all all all scram-sha-256\n"


def main() -> None:
    """Becomes the server, of `POSTGRES_DB` with `POSTGRES_USER` and `POSTGRES_PASSWORD`."""
    if not (DATA / "PG_VERSION").exists():
        _make()
    settings = ["-c", "listen_addresses=*", "-c", "unix_socket_directories=/var/run/postgresql"]
    os.execvp("postgres", ["postgres", "-D", str(DATA), *settings])  # noqa: S606 - the image's PATH


def _make() -> None:
    user, database = os.environ["POSTGRES_USER"], os.environ["POSTGRES_DB"]
    # What a stop leaves half made is begun anew.
    made = DATA.with_name("half-made")
    shutil.rmtree(made, ignore_errors=True)
    made.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w") as password:
        password.write(os.environ["POSTGRES_PASSWORD"])
        password.flush()
        options = ["--encoding=UTF8", "--locale=C", "--no-instructions", "--auth=trust", "--no-sync"]
        command = ["initdb", "-D", str(made), "-U", user, f"--pwfile={password.name}", *options]
        subprocess.run(command, check=True)
    single = ["postgres", "--single", "-D", str(made), "postgres"]  # on the image's PATH
    subprocess.run(single, input=f'create database "{database}"\n', text=True, check=True)
    (made / "pg_hba.conf").write_text(RULES)
    made.rename(DATA)


if __name__ == "__main__":
    main()
