"""The tables. States are the numbers of `common.v1`, times are Unix milliseconds with 0 for "not yet".

Values and call specs are BYTEA: a text may hold U+0000, which Postgres refuses in TEXT and JSONB.
The partial indexes stand on `ended_ms`, not on `state`, so that the updates of a running call stay
on their page (heap-only).
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, LargeBinary, SmallInteger, Text, false, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeEngine


class Base(DeclarativeBase):
    """The schema."""

    type_annotation_map: dict[Any, type[TypeEngine[Any]]] = {  # noqa: RUF012 - SQLAlchemy's own hook
        str: Text,
        bytes: LargeBinary,
        dict[str, Any]: JSONB,
        list[list[str]]: JSONB,
    }


class SessionRow(Base):
    """One run of an application. `purged`: the bus holds nothing of it any more."""

    __tablename__ = "sessions"
    __table_args__ = (
        Index("sessions_open", "created_ms", postgresql_where=text("ended_ms = 0")),
        Index("sessions_unpurged", "ended_ms", postgresql_where=text("ended_ms > 0 AND NOT purged")),
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
