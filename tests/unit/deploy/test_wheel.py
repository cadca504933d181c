"""The wheel: it holds every package, and the kernels compiled where there is a compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from tests.support import compose

PROJECT = tomllib.loads((compose.ROOT / "pyproject.toml").read_text())
LIBRARY = "parrot_kernels/native/libparrot_kernels.so"
NO_COMPILER = {"CXX": "", "PATH": "/nonexistent"}


def built(root: Path, into: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """What hatchling says, and its status; wheels come into `into`."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(into)]
    return subprocess.run(
        command, cwd=root, env={**os.environ, **environment}, check=False, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def uncompiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is built, in which nothing was compiled yet."""
    root = tmp_path_factory.mktemp("sources")
    ignored = shutil.ignore_patterns("*.so", "*.stamp", ".lock", "__pycache__")
    for name in ("LICENSE", "README.md", "pyproject.toml"):
        shutil.copy(compose.ROOT / name, root)
    for name in ("kernels", "proto", "services", "tools"):
        shutil.copytree(compose.ROOT / name, root / name, ignore=ignored)
    return root


def test_it_holds_every_package_and_the_kernels_for_this_kind_of_machine(tmp_path: Path) -> None:
    done = built(compose.ROOT, tmp_path)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert "-py3-none-" in wheel.name
    assert not wheel.name.endswith("-any.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    assert {LIBRARY, "parrot_kernels/native/plan.cpp"} <= held
    packages = [Path(one).name for one in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]
    assert {f"{name}/__init__.py" for name in packages if name != "parrot_proto"} <= held
    assert not [name for name in held if "/.lock" in name or "/.build" in name or "__pycache__" in name]


def test_without_a_compiler_it_is_one_for_every_machine_and_says_so(uncompiled: Path, tmp_path: Path) -> None:
    done = built(uncompiled, tmp_path, **NO_COMPILER)
    assert done.returncode == 0, done.stderr
    assert "no C++ compiler" in done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*-py3-none-any.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    assert "parrot_kernels/native/plan.cpp" in held
    assert LIBRARY not in held


def test_where_the_kernels_are_required_there_is_no_wheel_without_them(
    uncompiled: Path, tmp_path: Path
) -> None:
    done = built(uncompiled, tmp_path, PARROT_WHEEL_KERNELS="require", **NO_COMPILER)
    assert done.returncode != 0
    assert "no C++ compiler" in done.stderr
    assert not list(tmp_path.glob("*.whl"))
