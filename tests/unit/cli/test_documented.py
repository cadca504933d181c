"""docs/cli.md tells of each command there is, and of no other."""

from __future__ import annotations

import re
from pathlib import Path

from typer.main import get_command
from typer.testing import CliRunner

from parrot_cli.main import app

PAGE = Path(__file__).parents[3] / "docs" / "cli.md"


def test_the_page_and_the_command_agree() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `parrot ")]
    told = {name for line in rows for name in re.findall(r"`parrot (\w+)", line)}
    there = set(get_command(app).list_commands(None))  # type: ignore[attr-defined]
    assert told == there - {"version"}


def test_every_command_explains_itself() -> None:
    for name in get_command(app).list_commands(None):  # type: ignore[attr-defined]
        shown = CliRunner().invoke(app, [name, "--help"])
        assert shown.exit_code == 0
        assert len(shown.stdout) > 100
