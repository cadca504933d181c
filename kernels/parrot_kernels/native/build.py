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
import shlex
import shutil
import subprocess
import sys
import tempfile
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
    """Compiles the library, unless it is there as its sources are; several at once do it one after the other.

    Raises:
        BuildError: there is no compiler, or it refuses.
    """
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise BuildError(
            "there is no C++ compiler; install one (on Debian: apt install g++), or set CXX to yours"
        )
    path = HERE / NAME
    try:
        with (HERE / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_current(path):
                _compile(shlex.split(compiler), path)
    except OSError as error:
        raise BuildError(f"the native kernels can't be built in {HERE}: {error}") from None
    return path


def _compile(compiler: list[str], path: Path) -> None:
    # Of the sources as they are before: what is changed meanwhile is compiled again.
    digest = _digest()
    with tempfile.TemporaryDirectory(dir=HERE, prefix=".build-") as folder:
        objects = []
        for source in sources():
            target = Path(folder) / f"{source.stem}.o"
            flags = X86_FLAGS.get(source.name, ())
            _run([*compiler, *COMMON, *flags, "-c", str(source), "-o", str(target)])
            objects.append(str(target))
        made = Path(folder) / NAME
        _run([*compiler, "-shared", "-pthread", "-o", str(made), *objects])
        # Without its stamp the one before is nobody's, and none is taken for another's.
        _stamp(path).unlink(missing_ok=True)
        made.rename(path)
        _stamp(path).write_text(digest)


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
