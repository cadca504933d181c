"""The kernels themselves, against float64: on a GPU where there is one, else in Triton's interpreter.

Triton decides when it is first imported whether it interprets, for the whole process, and other libraries
look whether it can compile: so the bodies run in a process of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


@pytest.mark.timeout(400)
@pytest.mark.parametrize("bodies", sorted(HERE.glob("bodies_*.py")), ids=lambda path: path.stem)
def test_kernels_make_what_float64_does(bodies: Path) -> None:
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "0" if torch.cuda.is_available() else "1"}
    # Small products: more threads would only wait for one another.
    environment["OMP_NUM_THREADS"] = "1"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(bodies)]
    ran = subprocess.run(
        command, cwd=HERE.parents[3], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout[-8_000:] + ran.stderr[-2_000:]
    assert " passed" in ran.stdout
    assert "skipped" not in ran.stdout
