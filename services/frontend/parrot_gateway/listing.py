"""Lists of sessions: their shape, and what may be asked of them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from parrot_gateway import resources
from parrot_gateway.models import SessionResource
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2

SessionStateName = Literal["open", "closing", "closed", "failed", "cancelled", "expired"]


class ListedSession(SessionResource):
    """A session in a list. Its calls are counted as they are stored, a moment after they happen."""

    calls: int = Field(description="how many it has, those that blocks made among them")
    calls_ended: int = Field(description="those that are done, failed or cancelled")


class SessionList(BaseModel):
    """A page of sessions, the newest first."""

    sessions: list[ListedSession]
    next: str | None = Field(description="what `after` is for the next page; null: this is the last")


def session_list(found: manager_pb2.ListSessionsResponse) -> SessionList:
    """The page that the manager told."""
    listed = [
        ListedSession(
            **resources.session(one.session).model_dump(), calls=one.calls, calls_ended=one.calls_ended
        )
        for one in found.sessions
    ]
    return SessionList(sessions=listed, next=found.next or None)


def state_of(name: SessionStateName | None) -> common_pb2.SessionState.ValueType:
    """The manager's word for a state; none for any."""
    return common_pb2.SessionState.Value(f"SESSION_STATE_{(name or 'unspecified').upper()}")
