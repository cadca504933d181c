"""Who runs a native call, from the client's form to the manager's."""

from __future__ import annotations

import math

from parrot_gateway.compiled import Compiled
from parrot_gateway.new_calls import ClientRun, SandboxRun
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault


def compile_native(compiled: Compiled, sent: ClientRun | SandboxRun, where: str) -> manager_pb2.Native:
    """What a native call says of itself.

    Raises:
        Fault: `invalid_request`, `invalid_text`, `too_large`, with the path of the field.
    """
    timeout_ms = max(1, math.ceil(sent.timeout_s * 1000))
    if isinstance(sent, ClientRun):
        return manager_pb2.Native(client=manager_pb2.NativeClient(timeout_ms=timeout_ms))
    compiled.add_text(sent.source, f"{where}.source", limits.NATIVE_SOURCE_BYTES)
    if not sent.entry.isidentifier():
        why = f"{where}.entry: it is the name of a function that the source defines"
        raise Fault(errors.INVALID_REQUEST, why, field=f"{where}.entry")
    return manager_pb2.Native(
        sandbox=manager_pb2.NativeSandbox(
            source=sent.source,
            entry=sent.entry,
            timeout_ms=timeout_ms,
            memory_bytes=sent.memory_bytes or 0,
        )
    )
