"""deploy/tls/certificates.sh makes what services and servers take."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.support.certificates import Files
from tests.support.guarded_nats import guarded_nats, tls_url
from tests.support.nats import free_port
from tests.support.tls_postgres import needs_tls_postgres, tls_postgres

from parrot_manager.main import listening
from parrot_manager.store import schema
from parrot_runtime import rpc
from parrot_runtime.values.bus import connected

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(
        shutil.which("openssl") is None, reason="there is no openssl here, which the script calls"
    ),
]
SCRIPT = Path(__file__).parents[3] / "deploy" / "tls" / "certificates.sh"
HERE = {"NATS_NAMES": "DNS:nats,IP:127.0.0.1", "POSTGRES_NAMES": "IP:127.0.0.1"}


def made(folder: Path, *roles: str, code: int = 0) -> str:
    """Runs the script; what it complains of."""
    path = {"PATH": str(Path(shutil.which("openssl") or "").parent) + ":/usr/bin:/bin"}
    done = subprocess.run(
        [str(SCRIPT), str(folder), *roles], env={**path, **HERE}, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stderr


def files(folder: Path, role: str) -> Files:
    """A role's."""
    return Files(*(folder / role / name for name in ("tls.crt", "tls.key", "ca.crt")))


@needs_tls_postgres
async def test_they_open_every_door(tmp_path: Path) -> None:
    made(tmp_path)
    address = f"127.0.0.1:{free_port()}"
    server = listening(address, files(tmp_path, "manager").tls())
    await server.start()
    for role in ("gateway", "engine", "operator"):
        await rpc.wait_any_ready([address], "manager", 5, files(tmp_path, role).tls())
    await server.stop(None)
    with guarded_nats("certificates.conf", files(tmp_path, "nats")) as nats:
        tls = files(tmp_path, "manager").tls()
        async with connected(tls_url(nats), "manager", 5, tls=tls, role="manager"):
            pass
    with tls_postgres(files(tmp_path, "postgres")) as postgres:
        database = postgres.new_database()
        postgres.run("create role parrot_owner login superuser")
        await schema.migrate(postgres.tls_url(database, "owner", files(tmp_path, "owner")), 20)


def test_one_is_made_anew_of_the_same_authority_and_a_client_s_is_no_server_s(tmp_path: Path) -> None:
    made(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    made(tmp_path, "gateway")
    changed = {
        path.relative_to(tmp_path).as_posix() for path, old in before.items() if path.read_bytes() != old
    }
    assert (
        {"gateway/tls.crt", "gateway/tls.key"}
        <= changed
        <= {
            "gateway/tls.crt",
            "gateway/tls.key",
            "authority/cert.srl",
        }
    )
    assert files(tmp_path, "gateway").tls().own_trouble() == ""
    assert "unsuitable certificate purpose" in files(tmp_path, "postgres").tls().own_trouble()
    assert {oct(path.stat().st_mode & 0o777) for path in tmp_path.rglob("*.key")} == {"0o600"}
    assert "there is no role gatewy" in made(tmp_path, "gatewy", code=2)
