"""Programs that stand in pages of the documentation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
_BLOCK = re.compile(r"(?:<!-- needs a ([a-z ]+)[^\n]*-->\n)?```python\n(.*?)```", re.DOTALL)


def pieces(page: str, *there: str) -> list[str]:
    """The pieces of Python on a page, in their order, without those that need more than what is `there`."""
    found = _BLOCK.findall((DOCS / page).read_text())
    return [code for needs, code in found if not needs or needs.strip() in there]


def run(code: str, url: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a program against a server, in a process of its own."""
    file = folder / "page.py"
    file.write_text(code)
    return subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", str(file)],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PARROT_URL": url},
    )
