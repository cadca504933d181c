"""The tables. States are the numbers of `common.v1`, times are Unix milliseconds with 0 for "not yet".

Values and call specs are BYTEA: a text may hold U+0000, which Postgres refuses in TEXT and JSONB.
The partial indexes stand on `ended_ms`, not on `state`, so that the updates of a running call stay
on their page (heap-only). A session's shard is the two hex digits that follow the first character of
its id.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    DateTime,
    ForeignKey,
    Index,
    LargeBinary,
    SmallInteger,
    Text,
    false,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeEngine

SHARD_DIGITS: Final = text("substr(id, 2, 2)")


class Base(DeclarativeBase):
    """The schema."""

    type_annotation_map: dict[Any, type[TypeEngine[Any]] | TypeEngine[Any]] = {  # noqa: RUF012 - SQLAlchemy's own hook
        str: Text,
        bytes: LargeBinary,
        dict[str, Any]: JSONB,
        list[list[str]]: JSONB,
        list[str]: JSONB,
        datetime: DateTime(timezone=True),
    }


class SessionRow(Base):
    """One run of an application. `purged`: the bus holds nothing of it any more."""

    __tablename__ = "sessions"
    __table_args__ = (
        Index("sessions_open_shard", SHARD_DIGITS, postgresql_where=text("ended_ms = 0")),
        Index(
            "sessions_unpurged_shard",
            SHARD_DIGITS,
            "ended_ms",
            postgresql_where=text("ended_ms > 0 AND NOT purged"),
        ),
        Index("sessions_purged_shard", SHARD_DIGITS, "ended_ms", postgresql_where=text("purged")),
        # As lists of them are ordered, with and without a state.
        Index("sessions_by_tenant", "tenant", "created_ms", "id"),
        Index("sessions_by_tenant_state", "tenant", "state", "created_ms", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant: Mapped[str]
    label: Mapped[str]
    state: Mapped[int] = mapped_column(SmallInteger)
    created_ms: Mapped[int] = mapped_column(BigInteger)
    deadline_ms: Mapped[int] = mapped_column(BigInteger)
    ended_ms: Mapped[int] = mapped_column(BigInteger)
    trace: Mapped[dict[str, Any]]
    purged: Mapped[bool] = mapped_column(server_default=false())
    criteria: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    lazy: Mapped[bool] = mapped_column(server_default=false())
    idempotency_key: Mapped[str] = mapped_column(server_default="")
    body_digest: Mapped[bytes] = mapped_column(server_default="")
    ends_with_calls: Mapped[bool] = mapped_column(server_default=false())
    marks: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))


class CallRow(Base):
    """One call. Edges are (placeholder, variable id) pairs; `spec` is a `manager.v1.NewCall`."""

    __tablename__ = "calls"
    __table_args__ = (Index("calls_unfinished", "session_id", postgresql_where=text("ended_ms = 0")),)

    session_id: Mapped[str] = mapped_column(ForeignKey("sessions.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    position: Mapped[int]
    name: Mapped[str]
    model: Mapped[str]
    inputs: Mapped[list[list[str]]]
    outputs: Mapped[list[list[str]]]
    spec: Mapped[bytes]
    state: Mapped[int] = mapped_column(SmallInteger)
    failure: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    engine_id: Mapped[str]
    attempt: Mapped[int]
    prompt_tokens: Mapped[int]
    cached_tokens: Mapped[int]
    output_tokens: Mapped[int]
    queue_ms: Mapped[float]
    prefill_ms: Mapped[float]
    decode_ms: Mapped[float]
    static_prefill_ms: Mapped[float] = mapped_column(server_default="0")
    dynamic_prefill_ms: Mapped[float] = mapped_column(server_default="0")
    static_prefill_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    dynamic_prefill_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    provenance: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    accepted_ms: Mapped[int] = mapped_column(BigInteger)
    ready_ms: Mapped[int] = mapped_column(BigInteger)
    dispatched_ms: Mapped[int] = mapped_column(BigInteger)
    ended_ms: Mapped[int] = mapped_column(BigInteger)
    losses: Mapped[int] = mapped_column(server_default="0")
    placement: Mapped[str] = mapped_column(server_default="")
    block_id: Mapped[str] = mapped_column(server_default="")
    native: Mapped[str] = mapped_column(server_default="")
    reserved_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    marks: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))


class VariableRow(Base):
    """One variable and its value."""

    __tablename__ = "variables"

    session_id: Mapped[str] = mapped_column(ForeignKey("sessions.id"), primary_key=True)
    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    state: Mapped[int] = mapped_column(SmallInteger)
    producer_call_id: Mapped[str]
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    failure: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    ready_ms: Mapped[int] = mapped_column(BigInteger)
    value: Mapped[bytes | None]
    criteria: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    value_digest: Mapped[bytes] = mapped_column(server_default="")
    producer_block_id: Mapped[str] = mapped_column(server_default="")
    finish_reason: Mapped[str] = mapped_column(server_default="")


class AttemptRow(Base):
    """One try of a call on one engine."""

    __tablename__ = "attempts"

    session_id: Mapped[str] = mapped_column(ForeignKey("sessions.id"), primary_key=True)
    call_number: Mapped[int] = mapped_column(primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True)
    engine_id: Mapped[str]
    state: Mapped[int] = mapped_column(SmallInteger)
    started_ms: Mapped[int] = mapped_column(BigInteger)
    ended_ms: Mapped[int] = mapped_column(BigInteger)
    reason: Mapped[str] = mapped_column(server_default="")


class BatchRow(Base):
    """A batch of calls that came with an idempotency key."""

    __tablename__ = "batches"

    session_id: Mapped[str] = mapped_column(ForeignKey("sessions.id"), primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    digest: Mapped[bytes]
    call_ids: Mapped[list[str]]


class BlockRow(Base):
    """A part of a graph that unfolds. `spec` is a `manager.v1.NewBlock`, `data` how far it has come."""

    __tablename__ = "blocks"
    __table_args__ = (Index("blocks_unfinished", "session_id", postgresql_where=text("ended_ms = 0")),)

    session_id: Mapped[str] = mapped_column(ForeignKey("sessions.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[int] = mapped_column(SmallInteger)
    spec: Mapped[bytes]
    data: Mapped[dict[str, Any]]
    ended_ms: Mapped[int] = mapped_column(BigInteger)
    reserved_calls: Mapped[int] = mapped_column(BigInteger, server_default="0")
    reserved_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")


class ManagerRow(Base):
    """A manager and its lease, by the database's clock. `leaving`: it takes no shards any more."""

    __tablename__ = "managers"

    id: Mapped[str] = mapped_column(primary_key=True)
    incarnation: Mapped[str]
    address: Mapped[str]
    leaving: Mapped[bool]
    expires_at: Mapped[datetime]


class ShardRow(Base):
    """Who serves a shard; empty: nobody. `epoch` grows with every change of hands."""

    __tablename__ = "shards"

    shard: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False)
    epoch: Mapped[int] = mapped_column(BigInteger)
    manager_id: Mapped[str]


class TenantRow(Base):
    """A tenant that has limits (0: none of this kind), and what of them is taken.

    A budget is what is left of so many a time, at `..._at`, by the database's clock; it may be less than
    nothing.
    """

    __tablename__ = "tenants"

    name: Mapped[str] = mapped_column(primary_key=True)
    max_sessions: Mapped[int] = mapped_column(BigInteger, server_default="0")
    max_calls: Mapped[int] = mapped_column(BigInteger, server_default="0")
    max_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    tokens_per_minute: Mapped[int] = mapped_column(BigInteger, server_default="0")
    requests_per_second: Mapped[int] = mapped_column(BigInteger, server_default="0")
    max_stored_bytes: Mapped[int] = mapped_column(BigInteger, server_default="0")
    sessions: Mapped[int] = mapped_column(BigInteger, server_default="0")
    calls: Mapped[int] = mapped_column(BigInteger, server_default="0")
    tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    stored_bytes: Mapped[int] = mapped_column(BigInteger, server_default="0")
    token_budget: Mapped[float] = mapped_column(server_default="0")
    token_budget_at: Mapped[datetime] = mapped_column(server_default=func.now())
    request_budget: Mapped[float] = mapped_column(server_default="0")
    request_budget_at: Mapped[datetime] = mapped_column(server_default=func.now())


class ApiKeyRow(Base):
    """An API key: the digest of its secret, never the secret. `revoked_ms` 0: it is good."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant: Mapped[str]
    label: Mapped[str]
    digest: Mapped[bytes]
    created_ms: Mapped[int] = mapped_column(BigInteger)
    revoked_ms: Mapped[int] = mapped_column(BigInteger)


class SchemaStepRow(Base):
    """A step of the schema, and the newest step that the oldest code knows which works with it."""

    __tablename__ = "schema_steps"

    revision: Mapped[str] = mapped_column(primary_key=True)
    works_with: Mapped[str]
