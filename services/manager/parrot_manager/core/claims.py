"""Whether a worker of the client may claim a call, keep it, and say what it came to. Nothing is changed."""

from __future__ import annotations

from parrot_manager.core.model import Call, CallState
from parrot_manager.core.offers import worker_of
from parrot_manager.core.state import LiveSession
from parrot_runtime import errors
from parrot_runtime.errors import Fault

_OF_WORKERS = frozenset({errors.NATIVE_FAILED.type, errors.TRANSFORM_FAILED.type, errors.TOO_LARGE.type})
"""How a call fails whose worker is told so, and may ask again."""


def check_native(call: Call) -> None:
    """Refuses a call that no worker runs.

    Raises:
        Fault: `invalid_request`.
    """
    if not call.by_client:
        who = "the server's sandbox" if call.native is not None else "a model"
        raise Fault(
            errors.INVALID_REQUEST,
            f"call {call.id} is not the client's to run: {who} makes its outputs",
            session_id=call.session_id,
            call_id=call.id,
        )


def admit_claim(live: LiveSession, call: Call, worker: str) -> bool:
    """Whether a worker gets a call now; False: the call still waits.

    Raises:
        Fault: `invalid_request`; `claim_lost`, when it has ended or is another worker's.
    """
    check_native(call)
    if call.state.ended:
        raise ended(call)
    offer = live.offers.get(call.id)
    if offer is not None and offer.worker not in {"", worker}:
        raise _another(call, "another worker has it")
    return offer is not None


def admit_renewal(live: LiveSession, call: Call, worker: str) -> None:
    """Refuses a renewal of what is not this worker's.

    Raises:
        Fault: `invalid_request`, `claim_lost`.
    """
    check_native(call)
    if call.state.ended:
        raise ended(call)
    offer = live.offers.get(call.id)
    if offer is None or offer.worker != worker:
        raise _another(call, "this worker has not claimed it" if offer is None else "another worker has it")


def admit_result(live: LiveSession, call: Call, worker: str, *, unclaimed: bool) -> None:
    """Refuses a result from a worker that has not claimed the call, unless it needs no claim.

    Raises:
        Fault: `invalid_request`, `claim_lost`; `unavailable`, when the call still waits.
    """
    if not unclaimed:
        admit_renewal(live, call, worker)
    elif not admit_claim(live, call, worker):
        raise Fault(
            errors.UNAVAILABLE,
            f"call {call.id} still waits for what it reads; try again",
            session_id=call.session_id,
            call_id=call.id,
            retry_after_ms=1000,
        )


def has_result(call: Call, worker: str) -> bool:
    """Whether the worker has said what a call came to before; False: it may say so, if it has the claim.

    Raises:
        Fault: `invalid_request`; `claim_lost`, when the call has ended otherwise.
    """
    check_native(call)
    if not call.state.ended:
        return False
    told = call.state is CallState.DONE or (call.failure is not None and call.failure.type in _OF_WORKERS)
    if told and worker_of(call) == worker:
        return True
    raise ended(call)


def ended(call: Call) -> Fault:
    """The refusal of a call that has ended; says how."""
    failure = call.failure
    return Fault(
        errors.CLAIM_LOST,
        f"call {call.id} is {call.state.name.lower()}"
        + (f": {failure.message}" if failure is not None else ""),
        session_id=call.session_id,
        call_id=call.id,
        cause_type=failure.root_type if failure is not None else "",
        cause_call_id=failure.root_call_id if failure is not None else "",
    )


def _another(call: Call, why: str) -> Fault:
    return Fault(errors.CLAIM_LOST, f"call {call.id}: {why}", session_id=call.session_id, call_id=call.id)
