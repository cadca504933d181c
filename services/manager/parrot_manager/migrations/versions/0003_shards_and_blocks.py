"""Managers and the shards they hold, batches with their keys, blocks, and what the core learnt to keep.

To be run before the code that needs it: code of before finds all it knows, and leaves what is new at
its default. (Two indexes give way to the same ones by shard.) But a manager of before knows no epochs
and would write beside whoever takes its sessions over: stop it before the first new one starts.

Revision ID: 0003
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0003"
down_revision = "0002"


def _text(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Text, server_default="", nullable=False)


def _bytes(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.LargeBinary, server_default="", nullable=False)


def _number(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Integer, server_default="0", nullable=False)


def _flag(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Boolean, server_default=sa.false(), nullable=False)


def _json(name: str) -> sa.Column[Any]:
    return sa.Column(name, JSONB(none_as_null=True))


def _columns() -> dict[str, list[sa.Column[Any]]]:
    return {
        "sessions": [_json("criteria"), _flag("lazy"), _text("idempotency_key"), _bytes("body_digest")],
        "calls": [_number("losses"), _text("placement"), _text("block_id")],
        "variables": [_json("criteria"), _bytes("value_digest"), _text("producer_block_id")],
        "attempts": [_text("reason")],
    }


_SHARD: Final = sa.text("substr(id, 2, 2)")


def upgrade() -> None:
    """Adds tables, columns and indexes."""
    for table, columns in _columns().items():
        for column in columns:
            op.add_column(table, column)
    op.create_index("sessions_open_shard", "sessions", [_SHARD], postgresql_where=sa.text("ended_ms = 0"))
    op.create_index(
        "sessions_unpurged_shard",
        "sessions",
        [_SHARD, "ended_ms"],
        postgresql_where=sa.text("ended_ms > 0 AND NOT purged"),
    )
    op.create_index(
        "sessions_purged_shard", "sessions", [_SHARD, "ended_ms"], postgresql_where=sa.text("purged")
    )
    op.drop_index("sessions_open", "sessions")
    op.drop_index("sessions_unpurged", "sessions")
    _create_managers()
    _create_batches()
    _create_blocks()


def downgrade() -> None:
    """Takes them away, with all they hold."""
    for table in ("blocks", "batches", "shards", "managers"):
        op.drop_table(table)
    op.create_index("sessions_open", "sessions", ["created_ms"], postgresql_where=sa.text("ended_ms = 0"))
    op.create_index(
        "sessions_unpurged",
        "sessions",
        ["ended_ms"],
        postgresql_where=sa.text("ended_ms > 0 AND NOT purged"),
    )
    for index in ("sessions_purged_shard", "sessions_unpurged_shard", "sessions_open_shard"):
        op.drop_index(index, "sessions")
    for table, columns in _columns().items():
        for column in reversed(columns):
            op.drop_column(table, column.name)


def _create_managers() -> None:
    op.create_table(
        "managers",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("incarnation", sa.Text, nullable=False),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("leaving", sa.Boolean, nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_table(
        "shards",
        sa.Column("shard", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("manager_id", sa.Text, nullable=False),
    )


def _create_batches() -> None:
    op.create_table(
        "batches",
        sa.Column("session_id", sa.Text, sa.ForeignKey("sessions.id"), primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("call_ids", JSONB, nullable=False),
    )


def _create_blocks() -> None:
    op.create_table(
        "blocks",
        sa.Column("session_id", sa.Text, sa.ForeignKey("sessions.id"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("state", sa.SmallInteger, nullable=False),
        sa.Column("spec", sa.LargeBinary, nullable=False),
        sa.Column("data", JSONB, nullable=False),
        sa.Column("ended_ms", sa.BigInteger, nullable=False),
    )
