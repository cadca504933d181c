"""Generates the Python code of the protos beside them, with types. `--check` tells of drift instead.

Usage: python tools/generate_protos.py [--check]
"""

from __future__ import annotations

import argparse
import filecmp
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "proto"


def generate(target: Path) -> None:
    """Writes the generated code under `target`, in the protos' own folders."""
    protos = sorted(str(path.relative_to(ROOT)) for path in ROOT.rglob("*.proto"))
    # The mypy plugin must be this interpreter's, whatever the PATH says.
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    out = [f"--{kind}_out={target}" for kind in ("python", "grpc_python", "mypy")]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={ROOT}", *out, *protos]
    subprocess.run(command, check=True, env=environment, cwd=ROOT)
    services = [proto for proto in protos if re.search(r"^service ", (ROOT / proto).read_text(), re.M)]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={ROOT}", f"--mypy_grpc_out={target}"]
    subprocess.run([*command, *services], check=True, env=environment, cwd=ROOT)
    for stub in target.rglob("*_pb2_grpc.py"):
        if "Stub" not in stub.read_text():
            stub.unlink()


def generated(root: Path) -> set[Path]:
    """The generated files under `root`, relative to it."""
    return {path.relative_to(root) for path in root.rglob("*_pb2*.py*") if "__pycache__" not in path.parts}


def drift() -> list[str]:
    """The files that differ from what the protos generate."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        generate(fresh)
        names = generated(fresh) | generated(ROOT)
        same = {
            name
            for name in generated(fresh) & generated(ROOT)
            if filecmp.cmp(fresh / name, ROOT / name, shallow=False)
        }
        return sorted(str(name) for name in names - same)


def main() -> int:
    """Generates, or with `--check` compares; 1 when something drifted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when files drifted")
    if not parser.parse_args().check:
        generate(ROOT)
        return 0
    drifted = drift()
    for name in drifted:
        print(f"proto/{name} is not what its proto generates; run: make proto")
    return 1 if drifted else 0


if __name__ == "__main__":
    sys.exit(main())
