"""Where the native library comes from: the package, the folder it is in, or a cache."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import parrot_kernels
from parrot_kernels.native.build import NAME, X86_FLAGS, sources
from parrot_kernels.native.load import find

WITHOUT_ITS_POWERS = """
import ctypes, os, sys
drop, may_write_anywhere, may_read_anywhere = 24, 1, 2
for power in (may_write_anywhere, may_read_anywhere):
    ctypes.CDLL(None).prctl(drop, power, 0, 0, 0)
os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
"""
"""Root as well can't write what is not to be written, nor read what is not to be read."""
ASK = "from parrot_kernels.native import library, unavailable; print(unavailable()); library()"
STAMP = Path(NAME).with_suffix(".stamp").name


class Installed:
    """A copy of the package, which can't be written; the compiler is one that copies.

    Attributes:
        home: can be.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.native, self.home = folder, folder / "parrot_kernels/native", folder / "home"
        source = Path(str(parrot_kernels.__file__)).parent
        left = shutil.ignore_patterns("*.so", "*.stamp", ".lock", "__pycache__")
        shutil.copytree(source, folder / "parrot_kernels", ignore=left)
        self.home.mkdir()
        self.calls = self.home / "calls"
        self.library = folder / "made.so"
        shutil.copy(find(), self.library)
        self.compiler = folder / "compiler"
        self.compiler.write_text(
            '#!/bin/sh\necho "$@" >> "$CALLS"\nwhile [ "$1" != -o ]; do shift; done\ncp "$LIBRARY" "$2"\n'
        )
        self.compiler.chmod(0o755)
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755)
        self.native.chmod(0o555)

    def start(self, code: str = ASK, **environment: str) -> subprocess.Popen[str]:
        """Python code, with that package."""
        mine = {
            "PYTHONPATH": str(self.folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": str(self.home),
            "CXX": str(self.compiler),
            "CALLS": str(self.calls),
            "LIBRARY": str(self.library),
            "PATH": os.environ["PATH"],
        }
        return subprocess.Popen(
            [sys.executable, "-c", WITHOUT_ITS_POWERS, code],
            env=mine | environment,
            cwd="/",
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def said(self, code: str = ASK, **environment: str) -> tuple[int, str]:
        """Its status, and all that it says."""
        process = self.start(code, **environment)
        out, error = process.communicate(timeout=60)
        return process.returncode, out + error

    @property
    def links(self) -> int:
        """How often a library was made."""
        return self.calls.read_text().count("-shared") if self.calls.exists() else 0


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    return Installed(tmp_path)


def test_a_package_that_cannot_be_written_is_built_into_the_users_cache_once(installed: Installed) -> None:
    many = [installed.start() for _ in range(4)]
    for process in many:
        out, error = process.communicate(timeout=60)
        assert process.returncode == 0, error
        assert not out.strip()
    assert installed.links == 1
    (made,) = (installed.home / ".cache/parrot-kernels").glob(f"*/{NAME}")
    assert not (installed.native / NAME).exists()
    # Of other sources it is another.
    with (installed.native / "plan.hpp").open("a") as header:
        header.write("\n")
    assert installed.said()[0] == 0
    assert installed.links == 2
    assert made.exists()


@pytest.mark.parametrize("name", ["PARROT_KERNELS_CACHE", "XDG_CACHE_HOME"])
def test_the_cache_is_where_one_says(installed: Installed, name: str) -> None:
    assert installed.said(**{name: str(installed.home / "elsewhere")})[0] == 0
    assert list((installed.home / "elsewhere").rglob(NAME))
    assert not (installed.home / ".cache").exists()


@pytest.mark.parametrize(
    "code",
    [
        "from parrot_kernels.native import library; print(library()._name)",
        "from parrot_kernels.native.build import build; print(build())",
    ],
)
def test_the_library_that_came_with_the_package_is_taken_without_a_compiler(
    installed: Installed, code: str
) -> None:
    for name in (NAME, STAMP):
        shutil.copy(find().with_name(name), installed.native)
    status, said = installed.said(code, CXX="", PATH="/nonexistent")
    assert status == 0, said
    assert said.strip() == str(installed.native / NAME)


def test_one_that_came_with_the_package_and_cannot_be_loaded_is_built_anew(installed: Installed) -> None:
    shutil.copy(find().with_name(STAMP), installed.native)
    (installed.native / NAME).write_bytes(b"another system's")
    status, said = installed.said()
    assert status == 0, said
    assert installed.links == 1


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"CXX": "", "PATH": "/nonexistent"}, "no C++ compiler; install g++"),
        ({"CXX": "/nonexistent/c++"}, "/nonexistent/c++ can't be run"),
        ({"CXX": "sh -c 'echo it is refused; exit 1'"}, "it is refused"),
        (
            {"PARROT_KERNELS_CACHE": "/proc/nowhere"},
            "set PARROT_KERNELS_CACHE to a folder that can be written",
        ),
        ({"LIBRARY": "/dev/null"}, "can't be loaded"),
    ],
)
def test_why_there_is_none_is_told(installed: Installed, environment: dict[str, str], why: str) -> None:
    status, said = installed.said(**environment)
    assert status == 1
    told, raised = said.split("Traceback", 1)
    assert why in told
    assert "BuildError" in raised


def unreadable(path: Path) -> None:
    path.chmod(0o000)


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def no_text(path: Path) -> None:
    path.write_bytes(b"\xff\xfe")


@pytest.mark.parametrize("spoil", [unreadable, a_folder, no_text])
def test_a_library_whose_stamp_cannot_be_read_is_built_anew(
    installed: Installed, spoil: Callable[[Path], None]
) -> None:
    for name in (NAME, STAMP):
        shutil.copy(find().with_name(name), installed.native)
    spoil(installed.native / STAMP)
    status, said = installed.said()
    assert status == 0, said
    assert installed.links == 1


@pytest.mark.parametrize(
    ("place", "spoil"),
    [("folder", unreadable), ("cache", unreadable), ("stamp", a_folder), ("library", a_folder)],
)
def test_a_cache_that_cannot_be_used_is_told(
    installed: Installed, place: str, spoil: Callable[[Path], None]
) -> None:
    assert installed.said()[0] == 0
    (made,) = (installed.home / ".cache/parrot-kernels").glob(f"*/{NAME}")
    stamp = made.with_name(STAMP)
    if place == "library":
        stamp.unlink()
    places = {"folder": made.parent, "cache": made.parent.parent, "stamp": stamp, "library": made}
    spoil(places[place])
    status, said = installed.said()
    places[place].chmod(0o700)
    assert status == 1
    told, raised = said.split("Traceback", 1)
    assert "the native kernels" in told
    assert "BuildError" in raised


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
@pytest.mark.parametrize("above", [0, 1])
def test_no_library_is_loaded_that_others_can_replace(installed: Installed, above: int, mode: int) -> None:
    assert installed.said()[0] == 0
    (made,) = (installed.home / ".cache/parrot-kernels").glob(f"*/{NAME}")
    made.parents[above].chmod(mode)
    status, said = installed.said()
    assert status == 1
    assert f"{made.parents[above]} can be written by others" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("above", [0, 1])
def test_no_library_is_loaded_from_another_users_folder(installed: Installed, above: int) -> None:
    assert installed.said()[0] == 0
    (made,) = (installed.home / ".cache/parrot-kernels").glob(f"*/{NAME}")
    for folder in made.parents[:2]:
        folder.chmod(0o755)
    os.chown(made.parents[above], 12_345, -1)
    status, said = installed.said()
    assert status == 1
    assert f"{made.parents[above]} can be written by others" in said


def test_nobody_else_can_write_into_a_new_cache(installed: Installed) -> None:
    status, said = installed.said(f"import os; os.umask(0); {ASK}")
    assert status == 0, said
    (made,) = (installed.home / ".cache/parrot-kernels").glob(f"*/{NAME}")
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in made.parents[:2]} == {0o700}


def test_it_can_be_built_beforehand(installed: Installed) -> None:
    code = "import runpy; runpy.run_module('parrot_kernels.native', run_name='__main__')"
    status, said = installed.said(code)
    assert status == 0, said
    assert Path(said.strip()).name == NAME
    status, said = installed.said(code, CXX="/nonexistent/c++")
    assert status == 0, said
    status, said = installed.said(code, CXX="/nonexistent/c++", HOME="/nonexistent")
    assert status == 1
    assert "parrot-kernels: " in said


def test_what_all_processors_run_is_linked_before_what_only_some_do() -> None:
    names = [path.name for path in sources()]
    special = [name for name in names if name in X86_FLAGS]
    assert names[len(names) - len(special) :] == special
    assert {"attention.cpp", "attention_portable.cpp", "plan.cpp"} <= set(names)
