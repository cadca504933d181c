"""Checks of what clients ask, against what is there. Nothing is changed: each returns the event to store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from parrot_manager.core.events import CallsAccepted, SessionClosing, SessionOpened
from parrot_manager.core.graph import check_inputs, check_outputs, topological_order
from parrot_manager.core.model import (
    Call,
    Edge,
    Session,
    SessionState,
    Value,
    Variable,
    VariableState,
)
from parrot_manager.core.scheduler import ANY_MODEL
from parrot_manager.core.state import LiveSession, Policy, State
from parrot_runtime import errors
from parrot_runtime.errors import Fault


@dataclass(frozen=True, slots=True)
class NewCall:
    """A call as it is submitted. `spec` is opaque here."""

    name: str
    model: str
    inputs: tuple[Edge, ...]
    outputs: tuple[Edge, ...]
    spec: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class NewValue:
    """A value a client gives to a variable that is new to the session."""

    variable_id: str
    name: str
    data: bytes = field(repr=False)


def find_session(state: State, tenant: str, session_id: str) -> LiveSession | None:
    """The tenant's session, when it is in memory; another tenant's is as good as not there."""
    live = state.sessions.get(session_id)
    return live if live is not None and live.session.tenant == tenant else None


def session_not_found(session_id: str) -> Fault:
    """The refusal of an id that names no session of the tenant."""
    return Fault(errors.NOT_FOUND, f"there is no session {session_id!r}", session_id=session_id)


def session_ended(session_id: str, state: SessionState) -> Fault:
    """The refusal of anything new in a session that has ended."""
    return Fault(
        errors.SESSION_ENDED,
        f"session {session_id} is {state.name.lower()} and takes nothing new; open another one",
        session_id=session_id,
    )


def admit_session(
    policy: Policy,
    now_ms: int,
    *,
    session_id: str,
    tenant: str,
    label: str,
    timeout_ms: int,
    trace: Iterable[tuple[str, str]] = (),
) -> SessionOpened:
    """A new session; `timeout_ms` 0 is the default.

    Raises:
        Fault: `invalid_request`, for a time-out that is out of range.
    """
    if not 0 <= timeout_ms <= policy.longest_timeout_ms:
        raise Fault(
            errors.INVALID_REQUEST,
            f"the time-out is {timeout_ms} ms; it lies between 1 and {policy.longest_timeout_ms} ms",
            field="timeout_ms",
        )
    deadline_ms = now_ms + (timeout_ms or policy.default_timeout_ms)
    return SessionOpened(
        Session(session_id, tenant, label, SessionState.OPEN, now_ms, deadline_ms, trace=tuple(trace))
    )


def admit_close(state: State, tenant: str, session_id: str) -> SessionClosing | None:
    """The wish to end a session; None when it has ended already.

    Raises:
        Fault: `not_found`.
    """
    live = find_session(state, tenant, session_id)
    if live is None:
        raise session_not_found(session_id)
    return None if live.session.state.ended else SessionClosing(session_id)


def admit_value(state: State, tenant: str, session_id: str, value: NewValue, now_ms: int) -> CallsAccepted:
    """A value for a variable that is new to the session.

    Raises:
        Fault: `not_found`, `session_ended`, `variable_already_set`, `duplicate_producer`.
    """
    live = _open_session(state, tenant, session_id)
    known = live.variables.get(value.variable_id)
    if known is not None and known.producer_call_id:
        raise Fault(
            errors.DUPLICATE_PRODUCER,
            f"variable {value.variable_id!r} is an output of call {known.producer_call_id}; "
            "only that call gives it its value",
            session_id=session_id,
            call_id=known.producer_call_id,
            variable_id=value.variable_id,
        )
    return CallsAccepted(session_id, (), *_set_variables(live, [value], now_ms))


def admit_calls(
    state: State,
    tenant: str,
    session_id: str,
    calls: Sequence[NewCall],
    values: Sequence[NewValue],
    *,
    now_ms: int,
) -> CallsAccepted:
    """A batch of calls, all of them or none.

    Raises:
        Fault: `not_found`, `session_ended`, `variable_already_set`, `duplicate_producer`,
            `unproduced_variable`, `cyclic_graph`, `unknown_model`.
    """
    live = _open_session(state, tenant, session_id)
    _check_models(state, calls)
    variables, kept = _set_variables(live, values, now_ms)
    valued = dict.fromkeys(value.variable_id for value in values)
    producers = check_outputs(calls, valued, _sources(live, calls))
    check_inputs(calls, live.variables, valued, producers)
    order = topological_order(calls, producers)
    accepted = _number(live, calls, order, now_ms)
    made = tuple(
        Variable(session_id, edge.variable_id, edge.name, producer_call_id=call.id)
        for call in accepted
        for edge in call.outputs
    )
    return CallsAccepted(session_id, accepted, made + variables, kept)


def _open_session(state: State, tenant: str, session_id: str) -> LiveSession:
    live = find_session(state, tenant, session_id)
    if live is None:
        raise session_not_found(session_id)
    if live.session.state is not SessionState.OPEN:
        raise session_ended(session_id, live.session.state)
    return live


def _check_models(state: State, calls: Sequence[NewCall]) -> None:
    served = state.models()
    for place, call in enumerate(calls):
        if served and call.model != ANY_MODEL and call.model not in served:
            raise Fault(
                errors.UNKNOWN_MODEL,
                f"no engine serves the model {call.model!r}; there are: {', '.join(served)}",
                field=f"calls[{place}].model",
            )


def _set_variables(
    live: LiveSession, values: Sequence[NewValue], now_ms: int
) -> tuple[tuple[Variable, ...], tuple[Value, ...]]:
    seen: set[str] = set()
    for value in values:
        if value.variable_id in live.variables or value.variable_id in seen:
            raise Fault(
                errors.VARIABLE_ALREADY_SET,
                f"variable {value.variable_id!r} has its value already, and keeps it; use another variable",
                session_id=live.session.id,
                variable_id=value.variable_id,
            )
        seen.add(value.variable_id)
    variables = tuple(
        Variable(
            live.session.id,
            value.variable_id,
            value.name,
            VariableState.READY,
            size_bytes=len(value.data),
            ready_ms=now_ms,
            published_ms=now_ms,
        )
        for value in values
    )
    return variables, tuple(Value(value.variable_id, value.data) for value in values)


def _sources(live: LiveSession, calls: Sequence[NewCall]) -> dict[str, str]:
    """What gave the batch's outputs their value already, for those that have one."""
    taken: dict[str, str] = {}
    for call in calls:
        for edge in call.outputs:
            known = live.variables.get(edge.variable_id)
            if known is not None:
                producer = known.producer_call_id
                taken[known.id] = f"call {producer}" if producer else "a client"
    return taken


def _number(live: LiveSession, calls: Sequence[NewCall], order: list[int], now_ms: int) -> tuple[Call, ...]:
    first = live.next_number
    rank = {place: position for position, place in enumerate(order)}
    return tuple(
        Call(
            session_id=live.session.id,
            id=f"c-{first + place}",
            number=first + place,
            order=first + rank[place],
            name=call.name,
            model=call.model,
            inputs=call.inputs,
            outputs=call.outputs,
            spec=call.spec,
            accepted_ms=now_ms,
        )
        for place, call in enumerate(calls)
    )
