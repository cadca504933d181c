"""What gateways send, checked by itself: texts, ids, sizes, samplings. The graph is the core's matter."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from parrot_manager.block_requests import parse_block
from parrot_manager.call_requests import parse_call
from parrot_manager.condition_requests import Checks, check_id
from parrot_manager.core.blocks.definitions import NewBlock
from parrot_manager.core.criteria import Criteria, ObjectiveKind
from parrot_manager.core.events import Wanted
from parrot_manager.core.model import Failure, SessionState
from parrot_manager.core.submissions import NewCall, NewValue
from parrot_manager.store.listing import Place
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault
from parrot_runtime.ids import is_id, session_id_of
from parrot_runtime.text import check_name, check_text, too_large

LISTED: Final = 50
"""Sessions of a list whose asker does not say how many."""
INLINE_BYTES: Final = 65_536
"""More is checked off the event loop, which engines wait for."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """The calls, values and blocks of a request."""

    calls: list[NewCall]
    values: list[NewValue]
    blocks: list[NewBlock]


def parse_opening(request: manager_pb2.CreateSessionRequest, field: str = "") -> dict[str, Any]:
    """A session that is to be opened, as `Intake.opening` takes it; `field`: the path of the request.

    Raises:
        Fault: `invalid_request`, `invalid_text`, `too_large`.
    """
    if not is_id(request.tenant):
        raise Fault(errors.INVALID_REQUEST, "tenant is no id", field=f"{field}tenant")
    return {
        "tenant": request.tenant,
        "label": check_name(request.label, f"{field}label"),
        "timeout_ms": request.timeout_ms,
        "criteria": parse_criteria(request.criteria, f"{field}criteria"),
        "lazy": request.lazy,
        "ends_with_calls": request.ends_with_calls,
        "key": check_name(request.idempotency_key, f"{field}idempotency_key"),
        "digest": digest_of(request),
    }


def parse_opening_of(request: manager_pb2.SubmitCallsRequest) -> dict[str, Any]:
    """The session that is to be opened with a batch.

    Raises:
        Fault: as `parse_opening`; `invalid_request`, when it isn't the batch's.
    """
    opening, field = request.opening, "opening."
    parsed = parse_opening(opening, field)
    if opening.tenant != request.tenant:
        why = "the session's tenant is not the batch's"
        raise Fault(errors.INVALID_REQUEST, why, field=f"{field}tenant")
    if not opening.idempotency_key:
        why = "a session that is opened with calls needs a key"
        raise Fault(errors.INVALID_REQUEST, why, field=f"{field}idempotency_key")
    if request.session_id != session_id_of(opening.tenant, opening.idempotency_key):
        why = "session_id is not the one that follows from the session's key"
        raise Fault(errors.INVALID_REQUEST, why, field="session_id")
    return parsed


async def parsed(request: manager_pb2.SubmitCallsRequest) -> Submitted:
    """As `parse`, without keeping the event loop.

    Raises:
        Fault: as `parse`.
    """
    size = sum(message.ByteSize() for message in (*request.calls, *request.blocks))
    # A block's conditions may hold a schema, which takes long for its size.
    if size <= INLINE_BYTES and not request.blocks:
        return parse(request)
    return await asyncio.to_thread(parse, request)


def parse(request: manager_pb2.SubmitCallsRequest) -> Submitted:
    """What a request submits.

    Raises:
        Fault: `invalid_request`, `invalid_text`, `invalid_template`, `invalid_sampling`, `invalid_block`,
            `duplicate_producer`, `cyclic_graph`, `too_large`.
    """
    for field, count, limit in (
        ("calls", len(request.calls), limits.BATCH_CALLS),
        ("blocks", len(request.blocks), limits.BATCH_BLOCKS),
    ):
        if count > limit:
            raise too_large(field, count, limit, unit=field)
    _check_batch_size(message.ByteSize() for message in (*request.calls, *request.blocks))
    checks = Checks()
    return Submitted(
        [parse_call(message, f"calls[{place}]", checks) for place, message in enumerate(request.calls)],
        parse_values(request.values),
        [parse_block(message, f"blocks[{place}]", checks) for place, message in enumerate(request.blocks)],
    )


def parse_values(messages: Sequence[manager_pb2.NewValue]) -> list[NewValue]:
    """The values of a batch.

    Raises:
        Fault: `invalid_request`, `invalid_text`, `too_large`.
    """
    values = [
        parse_value(message.variable_id, message.name, message.value, f"values[{place}]")
        for place, message in enumerate(messages)
    ]
    _check_batch_size(len(value.data) for value in values)
    return values


def parse_value(variable_id: str, name: str, value: str, field: str) -> NewValue:
    """A value for a variable.

    Raises:
        Fault: `invalid_request`, `invalid_text`, `too_large`.
    """
    check_id(variable_id, f"{field}.variable_id")
    check_name(name, f"{field}.name")
    check_text(value, f"{field}.value", limit_bytes=limits.VALUE_BYTES)
    return NewValue(variable_id, name, value.encode())


def parse_criteria(message: manager_pb2.Criteria, field: str) -> Criteria | None:
    """What a reader wants of an output; None: it does not say.

    Raises:
        Fault: `invalid_request`, for a deadline without a time, or a kind that is not known.
    """
    if not message.kind:
        return None
    if int(message.kind) not in list(map(int, ObjectiveKind)):
        raise Fault(errors.INVALID_REQUEST, f"{field}.kind is none this version knows", field=f"{field}.kind")
    kind = ObjectiveKind(message.kind)
    if (kind is ObjectiveKind.DEADLINE) != (message.deadline_unix_ms > 0):
        raise Fault(
            errors.INVALID_REQUEST,
            f"{field}: a deadline has a time, and nothing else has",
            field=f"{field}.deadline_unix_ms",
        )
    return Criteria(kind, message.deadline_unix_ms)


def parse_list(request: manager_pb2.ListSessionsRequest) -> tuple[SessionState | None, Place | None, int]:
    """Which sessions are listed: their state, the place behind which they begin, and how many.

    Raises:
        Fault: `invalid_request`.
    """
    if request.limit > limits.LISTED_SESSIONS:
        raise Fault(errors.INVALID_REQUEST, f"limit is {limits.LISTED_SESSIONS} at most", field="limit")
    if int(request.state) and int(request.state) not in list(map(int, SessionState)):
        raise Fault(errors.INVALID_REQUEST, "state is none this version knows", field="state")
    return (
        SessionState(request.state) if request.state else None,
        Place.parse(request.after, "after") if request.after else None,
        request.limit or LISTED,
    )


def parse_wanted(messages: Sequence[manager_pb2.Wanted]) -> tuple[Wanted, ...]:
    """The outputs of a batch that will be read.

    Raises:
        Fault: `invalid_request`.
    """
    return tuple(
        Wanted(message.variable_id, parse_criteria(message.criteria, f"wanted[{place}].criteria"))
        for place, message in enumerate(messages)
    )


def parse_worker(worker: str) -> str:
    """The name of a worker of a client.

    Raises:
        Fault: `invalid_request`, `invalid_text`, `too_large`.
    """
    if not worker:
        raise Fault(errors.INVALID_REQUEST, "worker is empty; give each worker a name", field="worker")
    return check_name(worker, "worker")


def parse_result(request: manager_pb2.CompleteCallRequest) -> dict[str, str] | Failure:
    """What a worker says a call came to: its outputs, or why there are none.

    Raises:
        Fault: `invalid_request`.
    """
    kind = request.WhichOneof("result")
    if kind == "error":
        return Failure.of(errors.NATIVE_FAILED, request.error or "the function failed, and did not say why")
    if kind is None:
        raise Fault(errors.INVALID_REQUEST, "give outputs, or an error", field="outputs")
    texts = {given.name: given.text for given in request.outputs.texts}
    if len(texts) < len(request.outputs.texts):
        raise Fault(errors.INVALID_REQUEST, "an output is there twice", field="outputs")
    return texts


def digest_of(request: manager_pb2.CreateSessionRequest | manager_pb2.SubmitCallsRequest) -> bytes:
    """What tells requests with an idempotency key apart; nothing without one."""
    if not request.idempotency_key:
        return b""
    return hashlib.sha256(request.SerializeToString(deterministic=True)).digest()


def _check_batch_size(sizes: Iterable[int]) -> None:
    size = sum(sizes)
    if size > limits.BATCH_BYTES:
        raise too_large("the batch", size, limits.BATCH_BYTES)
