"""Tenants with their limits, API keys, what calls and blocks reserve; whose code a call is, why an output
ended, sessions that end with their calls, and the order sessions are listed in.

To be run before the code that needs it: code of before leaves what is new at its default. What it adds
and ends meanwhile is not counted; the first manager that comes after it counts anew.

Revision ID: 0004
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

LIMITS: Final = (
    "max_sessions",
    "max_calls",
    "max_tokens",
    "tokens_per_minute",
    "requests_per_second",
    "max_stored_bytes",
)
COUNTS: Final = ("sessions", "calls", "tokens", "stored_bytes")
_INDEXES: Final = {
    "sessions_by_tenant": ["tenant", "created_ms", "id"],
    "sessions_by_tenant_state": ["tenant", "state", "created_ms", "id"],
}


def _columns() -> dict[str, list[sa.Column[Any]]]:
    return {
        "calls": [
            _number("reserved_tokens"),
            sa.Column("native", sa.Text, server_default="", nullable=False),
        ],
        "blocks": [_number("reserved_calls"), _number("reserved_tokens")],
        "variables": [sa.Column("finish_reason", sa.Text, server_default="", nullable=False)],
        "sessions": [sa.Column("ends_with_calls", sa.Boolean, server_default=sa.false(), nullable=False)],
    }


def upgrade() -> None:
    """Adds tables, columns and indexes."""
    for table, columns in _columns().items():
        for column in columns:
            op.add_column(table, column)
    for name, indexed in _INDEXES.items():
        op.create_index(name, "sessions", indexed)
    op.create_index("blocks_unfinished", "blocks", ["session_id"], postgresql_where=sa.text("ended_ms = 0"))
    op.create_table(
        "tenants",
        sa.Column("name", sa.Text, primary_key=True),
        *map(_number, (*LIMITS, *COUNTS)),
        *(column for name in ("token", "request") for column in _budget(name)),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("label", sa.Text, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("revoked_ms", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    """Takes them away: keys and limits are gone."""
    for table in ("api_keys", "tenants"):
        op.drop_table(table)
    op.drop_index("blocks_unfinished", "blocks")
    for name in _INDEXES:
        op.drop_index(name, "sessions")
    for table, columns in _columns().items():
        for column in reversed(columns):
            op.drop_column(table, column.name)


def _number(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger, server_default="0", nullable=False)


def _budget(name: str) -> tuple[sa.Column[Any], sa.Column[Any]]:
    """What is left of so many a time, and when that was so."""
    return (
        sa.Column(f"{name}_budget", sa.Float, server_default="0", nullable=False),
        sa.Column(
            f"{name}_budget_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False
        ),
    )
