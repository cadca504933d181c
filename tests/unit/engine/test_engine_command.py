"""The command: light to import, helpful when asked, clear when it can't."""

from __future__ import annotations

import subprocess
import sys


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=50, check=False
    )


def test_importing_the_engine_imports_no_model_code() -> None:
    heavy = "{'vllm', 'torch', 'transformers', 'numpy', 'gguf', 'tokenizers'}"
    code = f"import sys, parrot_engine.main; print(sorted({heavy} & set(sys.modules)))"
    done = python("-c", code)
    assert done.stdout.strip() == "[]", done.stderr


def test_help_tells_every_setting() -> None:
    text = python("-m", "parrot_engine", "--help").stdout
    for flag in (
        "--manager-address",
        "--nats-url",
        "--engine-id",
        "--backend",
        "--model",
        "--dtype",
        "--drain-s",
    ):
        assert flag in text


def test_a_setting_that_is_wrong_is_named() -> None:
    done = python("-m", "parrot_engine", "--backend", "cuda")
    assert done.returncode == 2
    assert "--backend" in done.stderr
    assert "'vllm', 'sim', 'openai' or 'sandbox'" in done.stderr
