"""What an event is about."""

from __future__ import annotations

from typing import Final

from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime.ids import is_session_id, shard_of

NO_SHARD: Final = -1
"""Of an attempt whose session's id names none."""
_ENDS: Final = frozenset({"done", "failed", "cancelled"})
_OF_ATTEMPTS: Final = _ENDS | {"started", "streaming"}


def end_of(event: engine_pb2.AttachRequest) -> engine_pb2.AttemptRef | None:
    """The attempt whose end an event tells of, if it does."""
    kind = event.WhichOneof("event")
    return getattr(event, kind).ref if kind in _ENDS else None


def shard_of_event(event: engine_pb2.AttachRequest) -> int | None:
    """The shard of the attempt an event is about; None for what concerns the whole engine."""
    kind = event.WhichOneof("event")
    return shard_of_ref(getattr(event, kind).ref) if kind in _OF_ATTEMPTS else None


def shard_of_ref(ref: engine_pb2.AttemptRef) -> int:
    """The shard an attempt's session lives in."""
    return shard_of(ref.session_id) if is_session_id(ref.session_id) else NO_SHARD
