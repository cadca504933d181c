"""Sessions, calls, variables, attempts.

Revision ID: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Creates the tables."""
    op.create_table(
        "sessions",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("label", sa.Text, nullable=False),
        sa.Column("state", sa.SmallInteger, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("deadline_ms", sa.BigInteger, nullable=False),
        sa.Column("ended_ms", sa.BigInteger, nullable=False),
        sa.Column("trace", JSONB, nullable=False),
        sa.Column("purged", sa.Boolean, server_default=sa.false(), nullable=False),
    )
    op.create_index("sessions_open", "sessions", ["created_ms"], postgresql_where=sa.text("ended_ms = 0"))
    op.create_index(
        "sessions_unpurged",
        "sessions",
        ["ended_ms"],
        postgresql_where=sa.text("ended_ms > 0 AND NOT purged"),
    )
    _create_calls()
    _create_variables()
    _create_attempts()


def downgrade() -> None:
    """Drops them, with all they hold."""
    for table in ("attempts", "variables", "calls", "sessions"):
        op.drop_table(table)


def _create_calls() -> None:
    op.create_table(
        "calls",
        sa.Column("session_id", sa.Text, sa.ForeignKey("sessions.id"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("inputs", JSONB, nullable=False),
        sa.Column("outputs", JSONB, nullable=False),
        sa.Column("spec", sa.LargeBinary, nullable=False),
        sa.Column("state", sa.SmallInteger, nullable=False),
        sa.Column("failure", JSONB(none_as_null=True)),
        sa.Column("engine_id", sa.Text, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("prompt_tokens", sa.Integer, nullable=False),
        sa.Column("cached_tokens", sa.Integer, nullable=False),
        sa.Column("output_tokens", sa.Integer, nullable=False),
        sa.Column("queue_ms", sa.Float, nullable=False),
        sa.Column("prefill_ms", sa.Float, nullable=False),
        sa.Column("decode_ms", sa.Float, nullable=False),
        sa.Column("accepted_ms", sa.BigInteger, nullable=False),
        sa.Column("ready_ms", sa.BigInteger, nullable=False),
        sa.Column("dispatched_ms", sa.BigInteger, nullable=False),
        sa.Column("ended_ms", sa.BigInteger, nullable=False),
    )
    op.create_index("calls_unfinished", "calls", ["session_id"], postgresql_where=sa.text("ended_ms = 0"))


def _create_variables() -> None:
    op.create_table(
        "variables",
        sa.Column("session_id", sa.Text, sa.ForeignKey("sessions.id"), primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("state", sa.SmallInteger, nullable=False),
        sa.Column("producer_call_id", sa.Text, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("failure", JSONB(none_as_null=True)),
        sa.Column("ready_ms", sa.BigInteger, nullable=False),
        sa.Column("value", sa.LargeBinary),
    )


def _create_attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("session_id", sa.Text, sa.ForeignKey("sessions.id"), primary_key=True),
        sa.Column("call_number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("engine_id", sa.Text, nullable=False),
        sa.Column("state", sa.SmallInteger, nullable=False),
        sa.Column("started_ms", sa.BigInteger, nullable=False),
        sa.Column("ended_ms", sa.BigInteger, nullable=False),
    )
