"""vLLM's GPU backend, in a process of its own: Triton decides when it is imported whether it interprets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(240)]


def test_the_backend_does_in_vllm_what_float64_does() -> None:
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "0" if torch.cuda.is_available() else "1"}
    environment["OMP_NUM_THREADS"] = "1"
    # vLLM's own imports warn.
    warnings = [f"-Wignore::{kind}" for kind in ("DeprecationWarning", "FutureWarning")]
    bodies = str(HERE / "vllm_gpu_bodies.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *warnings, bodies]
    ran = subprocess.run(
        command, cwd=HERE.parents[2], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout[-8_000:] + ran.stderr[-2_000:]
    assert " passed" in ran.stdout
    assert "skipped" not in ran.stdout
