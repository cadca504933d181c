"""What a request says of the code that makes a call's outputs."""

from __future__ import annotations

from collections.abc import Iterable

from parrot_manager.core.blocks.definitions import NewBlock
from parrot_manager.core.model import NativeKind
from parrot_manager.core.submissions import NewCall
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault
from parrot_runtime.text import check_text


def check_native(message: manager_pb2.NewCall, field: str) -> None:
    """Checks a native call that stands at `field` of its request; any other is none of its business.

    Raises:
        Fault: `invalid_request`, `invalid_text`, `too_large`.
    """
    if not message.HasField("native"):
        return
    if message.model:
        raise _invalid(f"{field}.model", "no model makes what a native call makes; leave it out")
    if any(segment.WhichOneof("piece") not in {"input", "output"} for segment in message.segments):
        raise _invalid(f"{field}.prompt", "a native call has inputs and outputs, and no text")
    kind = message.native.WhichOneof("kind")
    if kind is None:
        raise _invalid(f"{field}.native", "it is of no kind; give client or sandbox")
    if kind == "sandbox":
        _check_sandbox(message.native.sandbox, f"{field}.native")


def check_allowed(calls: Iterable[NewCall], blocks: Iterable[NewBlock], *, sandbox: bool) -> None:
    """Code runs on the server only where its operator lets it.

    Raises:
        Fault: `invalid_request`.
    """
    if sandbox:
        return
    for call in (*calls, *(call for block in blocks for call in block.plan.body)):
        if call.native is NativeKind.SANDBOX:
            raise _invalid(
                f"{call.path}.native.kind",
                'this server runs no code, for its sandbox is off: let the client run it (kind "client"), or '
                "its operator turn PARROT_SANDBOX on",
            )


def _check_sandbox(message: manager_pb2.NativeSandbox, field: str) -> None:
    check_text(message.source, f"{field}.source", limit_bytes=limits.NATIVE_SOURCE_BYTES)
    if not message.entry.isidentifier():
        raise _invalid(f"{field}.entry", "it is the name of a function that the source defines")
    if message.timeout_ms > limits.SANDBOX_S * 1000:
        raise _invalid(f"{field}.timeout_s", f"it is at most {limits.SANDBOX_S:g} s")
    if message.memory_bytes > limits.SANDBOX_BYTES:
        raise _invalid(f"{field}.memory_bytes", f"it is at most {limits.SANDBOX_BYTES:,} bytes")


def _invalid(field: str, why: str) -> Fault:
    return Fault(errors.INVALID_REQUEST, f"{field}: {why}", field=field)
