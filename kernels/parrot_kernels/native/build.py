"""Builds and loads the native library.

It is built when it is first used, and again when its sources have changed. Each processor's kernels are
compiled for it, and chosen when the library is loaded.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
NAME: Final = "libparrot_kernels.so"
COMMON: Final = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")
_AVX512: Final = (
    *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16"),
    "-mfma",
    "-mprefer-vector-width=512",
)
X86_FLAGS: Final = {
    "attention_amx.cpp": (*_AVX512, "-mamx-tile", "-mamx-bf16"),
    "attention_avx512.cpp": _AVX512,
    "attention_avx2.cpp": ("-mavx2", "-mfma", "-mf16c"),
}


class BuildError(RuntimeError):
    """The native library is not there and can't be built; says why."""


@cache
def library() -> ctypes.CDLL:
    """The library.

    Raises:
        BuildError: it is not there, and can't be built.
    """
    path = HERE / NAME
    if not _is_current(path):
        build()
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(f"{path} can't be loaded: {error}") from None


def build() -> Path:
    """Compiles the library anew; several at once do it one after the other.

    Raises:
        BuildError: there is no compiler, or it refuses.
    """
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise BuildError(
            "there is no C++ compiler; install one (on Debian: apt install g++), or set CXX to yours"
        )
    path = HERE / NAME
    with (HERE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_current(path):
            _compile(compiler, path)
    return path


def _compile(compiler: str, path: Path) -> None:
    objects = []
    for source in sources():
        target = path.with_name(f".{source.stem}.{os.getpid()}.o")
        _run([compiler, *COMMON, *X86_FLAGS.get(source.name, ()), "-c", str(source), "-o", str(target)])
        objects.append(target)
    made = path.with_name(f".{NAME}.{os.getpid()}")
    _run([compiler, "-shared", "-pthread", "-o", str(made), *map(str, objects)])
    for target in objects:
        target.unlink()
    _stamp(path).write_text(_digest())
    made.rename(path)


def sources() -> list[Path]:
    """What is compiled here."""
    is_x86 = platform.machine() in {"x86_64", "AMD64"}
    return [path for path in sorted(HERE.glob("*.cpp")) if is_x86 or path.name not in X86_FLAGS]


def _is_current(path: Path) -> bool:
    stamp = _stamp(path)
    return path.exists() and stamp.exists() and stamp.read_text() == _digest()


def _stamp(path: Path) -> Path:
    return path.with_suffix(".stamp")


def _digest() -> str:
    digest = hashlib.sha256(repr((COMMON, X86_FLAGS, platform.machine())).encode())
    for path in sorted([*HERE.glob("*.cpp"), *HERE.glob("*.hpp")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _run(command: list[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(
            f"the native kernels can't be compiled:\n{' '.join(command)}\n{done.stdout}{done.stderr}"
        )


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{build()}\n")
    except BuildError as failed:
        sys.exit(f"parrot-kernels: {failed}")
