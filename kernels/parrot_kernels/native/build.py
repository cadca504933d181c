"""Builds the native library.

Each processor's kernels are compiled for it, and chosen when the library is loaded. Beside the library stands
a stamp of what it was made of.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
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
    "attention_avx2.cpp": ("-mavx2", "-mfma", "-mf16c"),
    "attention_avx512.cpp": _AVX512,
    "attention_amx.cpp": (*_AVX512, "-mamx-tile", "-mamx-bf16"),
}
"""What only some processors can run, the most common first."""


class BuildError(RuntimeError):
    """The native library is not there and can't be built; says why."""


def build(folder: Path = HERE) -> Path:
    """Compiles the library into a folder, unless it is there as its sources are.

    Several at once do it one after the other. Where it is there, nothing is written and no compiler needed.

    Raises:
        BuildError: there is no compiler, it refuses, or the folder can't be written.
    """
    path = folder / NAME
    if is_current(path):
        return path
    compiler = _compiler()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_current(path):
                _compile(compiler, path)
    except OSError as error:
        raise BuildError(f"the native kernels can't be built in {folder}: {error}") from None
    return path


def is_current(path: Path) -> bool:
    """Whether this library is there, can be read, and is made of the sources that are there."""
    try:
        return path.exists() and _stamp(path).read_bytes() == digest().encode()
    except OSError:
        # What can't be read is as good as not there; whoever builds it then is told what is wrong.
        return False


def sources() -> list[Path]:
    """What is compiled here, in the order in which it is linked.

    A function that several files have in common is taken from the first: never one for processors that
    another's file is not for.
    """
    is_x86 = platform.machine() in {"x86_64", "AMD64"}
    special = [HERE / name for name in X86_FLAGS]
    common = [path for path in sorted(HERE.glob("*.cpp")) if path not in special]
    return [*common, *special] if is_x86 else common


def digest() -> str:
    """Of all that the library is made of."""
    found = hashlib.sha256(repr((COMMON, X86_FLAGS, platform.machine())).encode())
    for path in sorted([*HERE.glob("*.cpp"), *HERE.glob("*.hpp")]):
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def _compiler() -> list[str]:
    given = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if not given:
        raise BuildError(
            "there is no C++ compiler; install g++ 12 or clang++ 15 or newer (on Debian: apt install g++), "
            "or set CXX to yours"
        )
    return shlex.split(given)


def _compile(compiler: list[str], path: Path) -> None:
    # Of the sources as they are before: what is changed meanwhile is compiled again.
    made_of = digest()
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".build-") as folder:

        def compiled(source: Path) -> str:
            target = Path(folder) / f"{source.stem}.o"
            flags = X86_FLAGS.get(source.name, ())
            _run([*compiler, *COMMON, *flags, "-c", str(source), "-o", str(target)])
            return str(target)

        with ThreadPoolExecutor(os.cpu_count()) as several:
            objects = list(several.map(compiled, sources()))
        made = Path(folder) / NAME
        _run([*compiler, "-shared", "-pthread", "-o", str(made), *objects])
        # Without its stamp the one before is nobody's, and none is taken for another's.
        _stamp(path).unlink(missing_ok=True)
        made.rename(path)
        _stamp(path).write_text(made_of)


def _stamp(path: Path) -> Path:
    return path.with_suffix(".stamp")


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    except OSError as error:
        raise BuildError(f"the C++ compiler {command[0]} can't be run ({error}); see CXX") from None
    if done.returncode:
        raise BuildError(
            f"the native kernels can't be compiled:\n{' '.join(command)}\n{done.stdout}{done.stderr}"
            "g++ 12 or clang++ 15 or newer is needed; CXX says which is taken"
        )
