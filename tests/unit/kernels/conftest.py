"""Where there is no compiler, there are no native kernels to try."""

from __future__ import annotations

import shutil

import pytest

from parrot_kernels.native import BuildError, library


@pytest.fixture(autouse=True)
def _native() -> None:
    try:
        library()
    except BuildError:
        if shutil.which("g++") or shutil.which("clang++"):
            raise
        pytest.skip("there is no C++ compiler, and nothing that was compiled before")
