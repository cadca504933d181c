"""Hostile code in a sandbox: it reaches nothing, takes no more than it may, and leaves nothing behind."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from tests.support.sandboxes import (
    MIB,
    function,
    made,
    processes_of,
    refused,
    running_sandbox,
)

from parrot_engine.sandbox.backend import SandboxBackend
from parrot_runtime import errors, limits

pytestmark = pytest.mark.anyio

GET_SECCOMP = 21
FILTERS = (
    platform.system() == "Linux"
    and platform.machine() in {"x86_64", "aarch64"}
    and ctypes.CDLL(None).prctl(GET_SECCOMP, 0, 0, 0, 0) >= 0
)
WAS_HERE = Path("/tmp/parrot-was-here")
SECRET = "PARROT_TEST_SECRET"


@pytest.fixture
async def sandbox(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SandboxBackend]:
    """A sandbox whose engine has a secret in its environment."""
    monkeypatch.setenv(SECRET, "kea")
    async with running_sandbox() as made_sandbox:
        yield made_sandbox


@pytest.mark.parametrize(
    "body",
    [
        "return open('/etc/passwd').read()",
        "return open('/proc/self/environ').read()",
        "import pathlib\n    return pathlib.Path('/etc/passwd').read_text()",
        "import pathlib\n    pathlib.Path('/tmp/parrot-was-here').write_text('x')\n    return ''",
        "open('/tmp/parrot-was-here', 'w').write('x')\n    return ''",
        "import os\n    return str(os.listdir('/'))",
        "import os\n    os.remove('/tmp/parrot-was-here')\n    return ''",
        f"import os\n    return os.environ['{SECRET}']",
        f"import os\n    return os.getenv('{SECRET}')",
        "import os\n    os.system('touch /tmp/parrot-was-here')\n    return ''",
        "import os\n    os.kill(os.getppid(), 9)\n    return ''",
        "import os\n    os.fork()\n    return ''",
        "import subprocess\n    return str(subprocess.run(['id']))",
        "import socket\n    return str(socket.create_connection(('127.0.0.1', 22)))",
        "import urllib.request\n    return str(urllib.request.urlopen('http://127.0.0.1'))",
        "import ctypes\n    return str(ctypes.CDLL(None))",
        "import pickle\n    return str(pickle.loads(b''))",
        "import importlib\n    return str(importlib.import_module('socket'))",
        "import parrot_engine\n    return ''",
        "import numpy\n    return ''",
        "return str(__import__('socket'))",
        "return str(__builtins__['__import__']('socket'))",
        "return str(().__class__.__bases__[0].__subclasses__())",
        "return str(f.__globals__['__builtins__'])",
        "return str(f.__code__)",
        "return str((lambda: 0).__code__.replace(co_code=b''))",
        "return eval(\"__import__('os').listdir('/')\")",
        "exec('import socket')\n    return ''",
    ],
)
async def test_a_function_reaches_no_file_no_network_and_no_other_code(
    sandbox: SandboxBackend, body: str
) -> None:
    fault = await refused(sandbox, function(f"def f():\n    {body}\n"))
    assert fault.kind is errors.NATIVE_FAILED
    assert "kea" not in fault.message
    assert not WAS_HERE.exists()  # noqa: ASYNC240 - a look


@pytest.mark.parametrize(
    "body",
    [
        "while True:\n        pass",
        "while True:\n        print('x' * 100_000)",
        "import re\n    while True:\n        re.match('(a+)+$', 'a' * 30 + 'b')",
        "sum(range(10 ** 12))\n    return ''",
        "return str(9 ** 9 ** 6)",
        "def g(n):\n        return n if n < 2 else g(n - 1) + g(n - 2)\n    return str(g(60))",
    ],
)
async def test_a_function_that_runs_too_long_is_stopped(sandbox: SandboxBackend, body: str) -> None:
    began = time.monotonic()
    fault = await refused(sandbox, function(f"def f():\n    {body}\n", timeout_s=0.3))
    assert fault.kind is errors.NATIVE_FAILED
    assert time.monotonic() - began < 10
    assert await made(sandbox, "def f():\n    return 'next'") == "next"


async def test_sleeping_takes_no_time(sandbox: SandboxBackend) -> None:
    began = time.monotonic()
    assert await made(sandbox, "import time\n\ndef f():\n    time.sleep(3600)\n    return 'x'") == "x"
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    "body",
    [
        "x = []\n    while True:\n        x.append('a' * 1_000_000)",
        "x = 'a'\n    while True:\n        x = x + x",
        "return 'a' * 10 ** 12",
        "return str([0] * 10 ** 10)",
        "return str(10 ** 10 ** 8)",
        "x = {}\n    n = 0\n    while True:\n        n += 1\n        x[n] = [n] * 1000",
        "return ''.join(['b' * 1000] * 10 ** 6)",
        "x = []\n    while True:\n        x = [x, x]",
    ],
)
async def test_a_function_that_takes_too_much_memory_is_stopped(sandbox: SandboxBackend, body: str) -> None:
    before = psutil.Process().memory_info().rss
    fault = await refused(sandbox, function(f"def f():\n    {body}\n", timeout_s=3))
    assert fault.kind is errors.NATIVE_FAILED
    assert psutil.Process().memory_info().rss - before < 32 * MIB
    assert await made(sandbox, "def f():\n    return 'next'") == "next"


@pytest.mark.parametrize(
    "body",
    [
        f"return 'x' * {limits.VALUE_BYTES + 1}",
        f"return '漢' * {limits.VALUE_BYTES // 3 + 1}",
    ],
)
async def test_an_output_that_is_no_value_is_refused(sandbox: SandboxBackend, body: str) -> None:
    before = psutil.Process().memory_info().rss
    fault = await refused(sandbox, function(f"def f():\n    {body}\n", memory_bytes=256 * MIB))
    assert fault.kind is errors.TOO_LARGE
    assert psutil.Process().memory_info().rss - before < 32 * MIB
    largest = f"def f():\n    return 'x' * {limits.VALUE_BYTES}\n"
    whole = await sandbox.run(function(largest, memory_bytes=256 * MIB))
    assert len(whole["out"]) == limits.VALUE_BYTES


async def test_a_flood_of_objects_ends_where_it_is_made(sandbox: SandboxBackend) -> None:
    before = psutil.Process().memory_info().rss
    body = "return {str(n): [n] * 10 for n in range(200_000)}"
    fault = await refused(sandbox, function(f"def f():\n    {body}\n", memory_bytes=256 * MIB, timeout_s=10))
    assert "it returns dict" in fault.message or "memory" in fault.message
    assert psutil.Process().memory_info().rss - before < 32 * MIB


async def test_nothing_is_left_of_one_run_in_the_next(sandbox: SandboxBackend) -> None:
    assert await made(sandbox, "kept = ['x']\n\ndef f():\n    return kept[0]") == "x"
    for _ in range(4):
        fault = await refused(sandbox, function("def f():\n    return kept[0]"))
        assert "NameError" in fault.message


async def test_inputs_are_values_and_never_code(sandbox: SandboxBackend) -> None:
    text = "'); open('/tmp/parrot-was-here', 'w'); ('"
    assert await made(sandbox, "def f(text):\n    return text", text=text) == text


def filtered(process: psutil.Process) -> bool:
    """Whether the kernel filters its system calls, and gives it no new rights."""
    told = dict(line.split(":\t", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
    return told.get("Seccomp") == "2" and told.get("NoNewPrivs") == "1"


async def test_every_process_that_has_to_do_with_code_is_confined(sandbox: SandboxBackend) -> None:
    # One that looks after the other, which is ready to run the first function.
    processes = processes_of(sandbox)
    assert len(processes) == 2
    for process in processes:
        assert process.rlimit(psutil.RLIMIT_FSIZE) == (0, 0)
        assert process.rlimit(psutil.RLIMIT_NOFILE)[0] <= 128
        assert process.rlimit(psutil.RLIMIT_DATA)[1] <= 2 * 256 * MIB + 512 * MIB
        assert filtered(process) or not FILTERS
        assert SECRET not in process.environ()


@pytest.mark.skipif(not FILTERS, reason="there are no filters of system calls here")
@pytest.mark.parametrize(
    "attempt",
    [
        "socket.socket()",
        "open(path, 'w')",
        "open(path, 'a')",
        "os.unlink(sys.executable)",
        "os.rename(sys.executable, path)",
        "os.mkdir(path)",
        "os.symlink('/', path)",
        "os.chmod(sys.executable, 0o777)",
        "os.truncate(sys.executable, 0)",
        "subprocess.run([sys.executable, '-c', 'import socket; socket.socket()'], check=True)",
        "os.chroot('/')",
    ],
)
def test_who_broke_out_of_the_interpreter_still_stands_before_a_wall(attempt: str, tmp_path: Path) -> None:
    program = f"""
import os, socket, subprocess, sys
from parrot_engine.sandbox.confine import confine
path = sys.argv[1]
confine(64 << 20)
try:
    {attempt}
except (PermissionError, subprocess.CalledProcessError):
    sys.exit(7)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "made")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
    assert not (tmp_path / "made").exists()
