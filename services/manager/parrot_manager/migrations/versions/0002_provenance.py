"""What made a call's outputs, and the time and tokens of prefill before all inputs were there.

Revision ID: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Adds the columns; code of before leaves them at their defaults."""
    for name in ("static_prefill_ms", "dynamic_prefill_ms"):
        op.add_column("calls", sa.Column(name, sa.Float, server_default="0", nullable=False))
    for name in ("static_prefill_tokens", "dynamic_prefill_tokens"):
        op.add_column("calls", sa.Column(name, sa.BigInteger, server_default="0", nullable=False))
    op.add_column("calls", sa.Column("provenance", JSONB(none_as_null=True)))


def downgrade() -> None:
    """Drops them."""
    for name in (
        "provenance",
        "dynamic_prefill_tokens",
        "static_prefill_tokens",
        "dynamic_prefill_ms",
        "static_prefill_ms",
    ):
        op.drop_column("calls", name)
