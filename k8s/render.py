"""Renders the overlays to `k8s/rendered`, for who applies plain files; `--check` says if they are current.

Rendering takes `kubectl`. To see whether they are current, the digests in their first lines are enough.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
RENDERED: Final = HERE / "rendered"
OVERLAYS: Final = tuple(sorted(path.parent.name for path in HERE.glob("overlays/*/kustomization.yaml")))
SOURCES: Final = (
    "k8s/base/*",
    "k8s/components/*/*",
    "k8s/engine/*",
    "k8s/overlays/**/*",
    "k8s/postgres/*",
    "deploy/nats/*",
    "deploy/observe/kustomization.yaml",
    "deploy/observe/rules/*",
)


def main() -> int:
    """Renders, or checks; 0 when all is current."""
    if "--check" in sys.argv[1:]:
        stale = [name for name in OVERLAYS if not is_current(name)]
        for name in stale:
            sys.stderr.write(f"{path_of(name)} is stale; run: python k8s/render.py\n")
        return 1 if stale else 0
    if shutil.which("kubectl") is None:
        sys.stderr.write("there is no kubectl on the PATH; rendering needs one, of version 1.27 or newer\n")
        return 2
    RENDERED.mkdir(exist_ok=True)
    for name in OVERLAYS:
        text = rendered(name)
        path_of(name).write_text(header(text) + text)
    return 0


def is_current(overlay: str) -> bool:
    """Whether an overlay's file was made from the sources as they are, and is as it was made."""
    path = path_of(overlay)
    if not path.exists():
        return False
    first, _, text = path.read_text().partition("\n")
    return f"{first}\n" == header(text)


def path_of(overlay: str) -> Path:
    """Where an overlay is rendered to."""
    return RENDERED / f"{overlay}.yaml"


def header(text: str) -> str:
    """The first line of what is rendered: digests of all that it is made from, and of itself."""
    digest = hashlib.sha256()
    root = HERE.parent
    for path in sorted(path for pattern in SOURCES for path in root.glob(pattern) if path.is_file()):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    own = hashlib.sha256(text.encode()).hexdigest()
    return f"# Made by k8s/render.py. Sources: {digest.hexdigest()[:32]}, this text: {own[:32]}\n"


def rendered(overlay: str) -> str:
    """What `kubectl kustomize` makes of an overlay."""
    command = ["kubectl", "kustomize", str(HERE / "overlays" / overlay)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    raise SystemExit(main())
