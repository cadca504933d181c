"""What is generated is current, the SDK stands alone, and no file grows beyond what can be read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
LONGEST_FILE = 600
FOLDERS = ("services", "tools", "examples", "benchmarks", "tests")


@pytest.mark.parametrize("tool", ["generate_protos", "settings_table"])
def test_what_is_generated_is_current(tool: str) -> None:
    command = [sys.executable, f"tools/{tool}.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_protos_keep_the_rules_of_buf() -> None:
    buf = Path(sys.executable).with_name("buf")
    done = subprocess.run([str(buf), "lint"], cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_sdk_imports_nothing_heavy_and_no_service() -> None:
    code = "import sys, parrot; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    packages = {name.partition(".")[0] for name in loaded.stdout.splitlines()}
    heavy = {"torch", "vllm", "transformers", "numpy", "grpc", "nats", "sqlalchemy", "pydantic", "fastapi"}
    ours = {name for name in packages if name.startswith("parrot_")}
    assert packages & heavy == set()
    assert ours == set()


def test_no_file_is_too_long_to_read() -> None:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if "_pb2" not in path.name]
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert len(files) > 50
    assert {name: count for name, count in lines.items() if count > LONGEST_FILE} == {}


def test_the_readme_shows_the_example_that_is_there() -> None:
    code = (ROOT / "examples" / "first_app.py").read_text().split("\n\n", 1)[1]
    assert code in (ROOT / "README.md").read_text()
