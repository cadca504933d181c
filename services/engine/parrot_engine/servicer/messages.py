"""What an engine says of itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import uuid4

from parrot_engine.programs.table import Programs
from parrot_engine.programs.tools import Tools
from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime.version import parrot_version

INSTANCE_ID: Final = uuid4().hex
"""Of this process: an engine that is started again with its old id is another."""


def registration(
    tools: Tools, programs: Programs, unsent_ends: Iterable[engine_pb2.AttemptRef]
) -> engine_pb2.Registration:
    """What the engine is, and has."""
    info = tools.backend.info
    return engine_pb2.Registration(
        engine_id=tools.engine_id,
        instance_id=INSTANCE_ID,
        model=info.model,
        context_window_tokens=info.context_window_tokens,
        backend=info.backend,
        version=info.version,
        capacity=info.capacity,
        dtype=info.dtype,
        kv_tokens=info.kv_tokens,
        block_tokens=info.block_tokens,
        tensor_parallel=info.tensor_parallel,
        attempts=[*programs.attempts(), *unsent_ends],
        contexts=tools.shared.messages(),
        attention=info.attention,
        batch_invariant=info.batch_invariant,
        parrot_version=parrot_version(),
    )


def heartbeat(tools: Tools, programs: Programs) -> engine_pb2.Heartbeat:
    """How busy it is now."""
    stats = tools.backend.stats()
    return engine_pb2.Heartbeat(
        running=programs.running,
        waiting=programs.waiting,
        paused=programs.paused,
        kv_used_fraction=stats.kv_used_fraction,
        held_tokens=stats.held_tokens,
        free_tokens=stats.free_tokens,
        step_ms=stats.step_ms,
        prefill_token_ms=stats.token_ms,
        piece_token_ms=stats.piece_token_ms,
    )
