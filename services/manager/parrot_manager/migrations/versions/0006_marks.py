"""When calls and sessions came by what the manager sees, in fractions of ms, and their laps on an engine.

Revision ID: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0006"
down_revision = "0005"
works_with = "0005"


def upgrade() -> None:
    """Adds the columns; code of before leaves them null."""
    for table in ("calls", "sessions"):
        op.add_column(table, sa.Column("marks", JSONB(none_as_null=True)))


def downgrade() -> None:
    """Drops them."""
    for table in ("sessions", "calls"):
        op.drop_column(table, "marks")
