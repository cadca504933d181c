"""Which code works with the schema: each step from here on says the oldest that does.

Revision ID: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
works_with = "0005"


def upgrade() -> None:
    """Adds the table; `env.py` writes a row with each step."""
    op.create_table(
        "schema_steps",
        sa.Column("revision", sa.Text, primary_key=True),
        sa.Column("works_with", sa.Text, nullable=False),
    )


def downgrade() -> None:
    """Drops it: managers refuse any schema but their own again."""
    op.drop_table("schema_steps")
