"""A schema of the release after this one: one step more than this code knows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from unittest import mock

from parrot_manager.store import schema

LATER: Final = "9998"
_STEP: Final = f'''
import sqlalchemy as sa
from alembic import op

revision = "{LATER}"
down_revision = "HEAD"
works_with = "WORKS_WITH"


def upgrade() -> None:
    for table in ("sessions", "calls", "variables", "attempts", "blocks", "managers", "shards"):
        op.add_column(table, sa.Column("later", sa.Text, server_default="", nullable=False))
    op.create_index("later_calls", "calls", ["later"])
    op.create_table("later", sa.Column("id", sa.Text, primary_key=True))


def downgrade() -> None:
    raise AssertionError("nobody goes back")
'''


@contextmanager
def later_release(folder: Path, works_with: str = "") -> Iterator[None]:
    """Within it this process is of the release after: `schema` knows a step more.

    Args:
        works_with: the oldest code that works with the step; by default this code.
    """
    head = schema.head_revision()
    step = _STEP.replace("HEAD", head).replace("WORKS_WITH", works_with or head)
    (folder / f"{LATER}_later.py").write_text(step)
    with mock.patch.object(schema, "STEPS", (*schema.STEPS, str(folder))):
        yield
