"""The embedded servers start, keep their data over any kind of death, and are never half made."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import psutil
import pytest
from tests.support.waiting import until

from parrot_cli import nats_server, postgres_server
from parrot_cli.child import Child, Spec
from parrot_cli.errors import UpError
from parrot_cli.options import free_port
from parrot_cli.postgres_server import SOCKET, Postgres
from parrot_runtime.values import bus, subjects

pytestmark = pytest.mark.anyio


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short folder that Postgres's account can enter, which pytest's own is not."""
    with tempfile.TemporaryDirectory(prefix="parrot-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        (Path(name) / "logs").mkdir()
        yield Path(name)


async def run(spec: Spec, folder: Path) -> None:
    child = await Child.start(spec, folder / "logs")
    assert await child.ended == 0, child.tail()


async def made(folder: Path) -> Postgres:
    postgres = postgres_server.locate(folder / "postgres")
    init = postgres.init_spec()
    assert init is not None
    postgres.prepare_init()
    await run(init, folder)
    postgres.finish_init()
    return postgres


async def started(postgres: Postgres, folder: Path) -> Child:
    child = await Child.start(postgres.spec(), folder / "logs")
    until(lambda: postgres.is_ready() or child.ended.done())
    assert not child.ended.done(), child.tail()
    return child


async def test_a_cluster_keeps_its_data_over_a_stop_and_a_crash(folder: Path) -> None:
    postgres = await made(folder)
    assert postgres.init_spec() is None
    server = await started(postgres, folder)
    connection = await asyncpg.connect(postgres.url)
    await connection.execute("create table kept (n int); insert into kept values (1)")
    # A client that stays connected does not keep it from stopping.
    assert await server.stop()
    await connection.close()

    server = await started(postgres, folder)
    pids = [server.pid, *(child.pid for child in psutil.Process(server.pid).children(recursive=True))]
    server.kill()
    await server.ended
    until(lambda: not any(map(psutil.pid_exists, pids)))
    assert (postgres.data / "postmaster.pid").exists()
    # The dead server's number is another's by now, of the same account.
    command = [shutil.which("sleep") or "", "60"]
    other = await Child.start(Spec("sleep", command, user=postgres.user), folder / "logs")
    until(lambda: other.ended.done() or psutil.Process(other.pid).cmdline() == command)
    lock = postgres.sockets / f"{SOCKET}.lock"
    lock.write_text("\n".join([str(other.pid), *lock.read_text().splitlines()[1:], ""]))

    server = await started(postgres, folder)
    assert not other.ended.done(), other.tail()
    other.kill()
    await other.ended
    connection = await asyncpg.connect(postgres.url)
    assert await connection.fetchval("select count(*) from kept") == 1
    await connection.close()
    assert await server.stop()


async def test_a_cluster_whose_making_was_cut_off_is_made_anew(folder: Path) -> None:
    postgres = postgres_server.locate(folder / "postgres")
    postgres.prepare_init()
    (folder / "postgres.new" / "PG_VERSION").write_text("18\n")
    assert postgres.init_spec() is not None
    server = await started(await made(folder), folder)
    assert await server.stop()


async def test_a_long_folder_gets_its_socket_elsewhere(folder: Path) -> None:
    deep = folder / ("d" * 120)
    (deep / "logs").mkdir(parents=True)
    postgres = await made(deep)
    assert postgres.sockets != postgres.data
    server = await started(postgres, deep)
    connection = await asyncpg.connect(postgres.url)
    await connection.close()
    await server.stop()
    postgres.clean_up()
    assert not postgres.sockets.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="Postgres runs as another user for root only")
async def test_root_is_told_of_a_folder_postgres_can_not_enter(folder: Path) -> None:
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    (closed / "data").mkdir()
    with pytest.raises(UpError, match=rf"can't enter {closed}; choose another --data-dir"):
        postgres_server.locate(closed / "data" / "postgres")


@pytest.mark.skipif(os.geteuid() != 0, reason="Postgres runs as another user for root only")
async def test_root_gets_a_copy_of_programs_that_postgres_can_not_reach(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_server, "_reachable", lambda program: False)
    postgres = await made(folder)
    assert postgres.bin.is_relative_to(folder)
    server = await started(postgres, folder)
    await server.stop()


async def test_nats_tells_its_version_and_keeps_its_streams(folder: Path) -> None:
    port = free_port()
    assert await nats_server.version_at(port) is None
    for _ in range(2):
        child = await Child.start(nats_server.spec(folder / "nats", port), folder / "logs")
        async with bus.connected(f"nats://127.0.0.1:{port}", "test", 20) as connection:
            assert (await nats_server.version_at(port) or "") >= "2.12"
            await connection.js.stream_info(subjects.FINAL_STREAM)
        os.kill(child.pid, signal.SIGKILL)
        await child.ended
