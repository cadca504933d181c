"""What the store has of a session, with what is derived from it."""

from __future__ import annotations

from dataclasses import replace

from parrot_manager import specs
from parrot_manager.block_requests import with_plan
from parrot_manager.core.events import SessionRestored
from parrot_manager.core.model import Call
from parrot_manager.store.base import SessionRecord
from parrot_proto.manager.v1 import manager_pb2


def restored(record: SessionRecord) -> SessionRestored:
    """The event that brings a session back to memory."""
    calls = tuple(_derived(call) for call in record.calls)
    blocks = tuple(with_plan(block) for block in record.blocks)
    return SessionRestored(record.session, calls, record.variables, record.attempts, record.batches, blocks)


def _derived(call: Call) -> Call:
    """A call with what its spec says. A block's instances have none: their block says it of them."""
    if not call.spec:
        return call
    when = specs.when_of(call.spec)
    if call.native is not None:
        _, timeout_ms = specs.native_of(manager_pb2.NewCall.FromString(call.spec))
        return replace(call, when=when, native_timeout_ms=timeout_ms)
    return replace(call, shape=specs.shape_of(call.spec, call.inputs, call.outputs), when=when)
