"""Checks of what clients ask, against what is there. Nothing is changed: each returns the event to store."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from parrot_manager.core.blocks.checks import Needs, check_name, check_names, needs_of
from parrot_manager.core.blocks.definitions import NewBlock
from parrot_manager.core.blocks.model import Block
from parrot_manager.core.criteria import Criteria, stricter
from parrot_manager.core.endings import digest_of
from parrot_manager.core.events import CallsAccepted, CallsCancelled, SessionClosing, SessionOpened, Wanted
from parrot_manager.core.graph import check_inputs, check_outputs, topological_order
from parrot_manager.core.model import (
    SANDBOX_MODEL,
    Batch,
    Call,
    Session,
    SessionState,
    Value,
    Variable,
    VariableState,
)
from parrot_manager.core.numbering import number
from parrot_manager.core.reservations import reserved
from parrot_manager.core.scheduling import ANY_MODEL
from parrot_manager.core.state import LiveSession, Policy, State
from parrot_manager.core.submissions import NewCall, NewValue
from parrot_runtime import errors
from parrot_runtime.errors import Fault


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
    criteria: Criteria | None = None,
    lazy: bool = False,
    ends_with_calls: bool = False,
    key: str = "",
    digest: bytes = b"",
) -> SessionOpened:
    """A new session; `timeout_ms` 0 is the default.

    Args:
        key: the request's idempotency key, with the request's digest; empty: none.

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
    session = Session(
        session_id,
        tenant,
        label,
        SessionState.OPEN,
        now_ms,
        deadline_ms,
        trace=tuple(trace),
        criteria=criteria,
        lazy=lazy,
        idempotency_key=key,
        body_digest=digest if key else b"",
        ends_with_calls=ends_with_calls,
    )
    return SessionOpened(session)


def check_repeated(session: Session, digest: bytes) -> None:
    """A session that was opened under an idempotency key is asked for again.

    Raises:
        Fault: `idempotency_conflict`, when it was opened by another request.
    """
    if session.body_digest != digest:
        raise conflict(session.idempotency_key, "session")


def find_batch(batches: Mapping[str, Batch], key: str, digest: bytes) -> Batch | None:
    """Of a session's batches the one of an idempotency key; None: it has none, or there is no key.

    Raises:
        Fault: `idempotency_conflict`, when it was another batch.
    """
    found = batches.get(key) if key else None
    if found is not None and found.digest != digest:
        raise conflict(key, "batch")
    return found


def conflict(key: str, what: str) -> Fault:
    """The refusal of an idempotency key that stands for something else."""
    return Fault(
        errors.IDEMPOTENCY_CONFLICT,
        f"the idempotency key {key!r} was used for another {what}; use a key of its own for each",
        field="idempotency_key",
    )


def admit_close(
    state: State, tenant: str, session_id: str, *, settled_ms: float = 0.0, asked_ms: float = 0.0
) -> SessionClosing | None:
    """The wish to end a session; None when it has ended already. Times: see `SessionClosing`.

    Raises:
        Fault: `not_found`.
    """
    live = find_session(state, tenant, session_id)
    if live is None:
        raise session_not_found(session_id)
    return None if live.session.state.ended else SessionClosing(session_id, settled_ms, asked_ms)


def admit_value(state: State, tenant: str, session_id: str, value: NewValue, now_ms: int) -> CallsAccepted:
    """A value for a variable that is new to the session.

    Raises:
        Fault: `not_found`, `session_ended`, `variable_already_set`, `duplicate_producer`.
    """
    live = _open_session(state, tenant, session_id)
    known = live.variables.get(value.variable_id)
    producer = known.producer_call_id or known.producer_block_id if known is not None else ""
    if producer:
        raise Fault(
            errors.DUPLICATE_PRODUCER,
            f"variable {value.variable_id!r} is an output of {producer}; only that gives it its value",
            session_id=session_id,
            call_id=producer,
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
    blocks: Sequence[NewBlock] = (),
    wanted: Sequence[Wanted] = (),
    key: str = "",
    digest: bytes = b"",
    opening: Session | None = None,
) -> CallsAccepted:
    """A batch of calls and blocks, all of them or none.

    Args:
        wanted: outputs that will be read.
        key: the batch's idempotency key, with the request's digest; empty: none.
        opening: the session, where it is not there yet, and is to be opened with the batch.

    Raises:
        Fault: `not_found`, `session_ended`, `queue_full`, `too_large`, `variable_already_set`,
            `duplicate_producer`, `unproduced_variable`, `cyclic_graph`, `unknown_model`.
    """
    live = LiveSession(opening) if opening is not None else _open_session(state, tenant, session_id)
    full = state.fleet.refuse(tenant, len(calls))
    if full is None:
        full = live.refuse(len(calls))
    if full is not None:
        raise full
    _check_models(state, [*calls, *(call for block in blocks for call in block.plan.body)])
    variables, kept = _set_variables(live, values, now_ms)
    valued = dict.fromkeys(value.variable_id for value in values)
    nodes = [*map(needs_of, calls), *map(needs_of, blocks)]
    check_names(nodes)
    producers = check_outputs(nodes, valued, _sources(live, nodes))
    check_inputs(nodes, live.variables, valued, producers)
    order = topological_order(nodes, producers)
    accepted, unfolding = number(live, calls, blocks, order, now_ms)
    _check_wanted(wanted, live.variables, valued, producers)
    wishes = _wishes(wanted)
    accepted, unfolding = reserved(live, accepted, unfolding, variables)
    made = _made([*accepted, *unfolding], wishes)
    ids = (*(call.id for call in accepted), *(block.id for block in unfolding))
    batch = Batch(key, digest, ids) if key else None
    return CallsAccepted(
        session_id,
        accepted,
        made + variables,
        kept,
        batch=batch,
        wanted=tuple(wanted),
        blocks=unfolding,
    )


def admit_cancel(
    state: State, tenant: str, session_id: str, call_ids: Sequence[str], *, subtree: bool
) -> CallsCancelled:
    """The wish to cancel calls and blocks; those that have ended are passed over.

    Raises:
        Fault: `not_found`, for a session, call or block that is not there.
    """
    live = find_session(state, tenant, session_id)
    if live is None:
        raise session_not_found(session_id)
    for call_id in call_ids:
        if call_id not in live.calls and call_id not in live.blocks.all:
            raise Fault(
                errors.NOT_FOUND,
                f"session {session_id} has no call {call_id!r}",
                session_id=session_id,
                call_id=call_id,
            )
    return CallsCancelled(session_id, tuple(dict.fromkeys(call_ids)), subtree)


def _check_wanted(wanted: Sequence[Wanted], *known: Container[str]) -> None:
    for place, wish in enumerate(wanted):
        if not any(wish.variable_id in names for names in known):
            raise Fault(
                errors.UNPRODUCED_VARIABLE,
                f"variable {wish.variable_id!r} is wanted, but no call produces it and nobody has set it",
                field=f"wanted[{place}].variable_id",
                variable_id=wish.variable_id,
            )


def _wishes(wanted: Sequence[Wanted]) -> dict[str, Criteria | None]:
    found: dict[str, Criteria | None] = {}
    for wish in wanted:
        found[wish.variable_id] = stricter(found.get(wish.variable_id), wish.criteria)
    return found


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
        if call.native is not None or call.model == ANY_MODEL:
            continue
        if call.model == SANDBOX_MODEL or (served and call.model not in served):
            raise Fault(
                errors.UNKNOWN_MODEL,
                f"no engine serves the model {call.model!r}; there are: {', '.join(served)}",
                field=f"{call.path or f'calls[{place}]'}.model",
            )


def _set_variables(
    live: LiveSession, values: Sequence[NewValue], now_ms: int
) -> tuple[tuple[Variable, ...], tuple[Value, ...]]:
    seen: set[str] = set()
    for place, value in enumerate(values):
        check_name(value.variable_id, f"values[{place}].variable_id")
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
            value_digest=digest_of(value.data),
            ready_ms=now_ms,
            published_ms=now_ms,
        )
        for value in values
    )
    return variables, tuple(Value(value.variable_id, value.data) for value in values)


def _sources(live: LiveSession, nodes: Sequence[Needs]) -> dict[str, str]:
    """What gives the batch's outputs their value already, for those that are there."""
    taken: dict[str, str] = {}
    for node in nodes:
        for edge in node.outputs:
            known = live.variables.get(edge.variable_id)
            if known is not None:
                taken[known.id] = known.producer_call_id or known.producer_block_id or "a client"
    return taken


def _made(nodes: Sequence[Call | Block], wishes: Mapping[str, Criteria | None]) -> tuple[Variable, ...]:
    """What calls and blocks make, still to be made."""
    return tuple(
        Variable(
            node.session_id,
            edge.variable_id,
            edge.name,
            producer_call_id=node.id if isinstance(node, Call) else "",
            producer_block_id=node.id if isinstance(node, Block) else "",
            criteria=wishes.get(edge.variable_id),
        )
        for node in nodes
        for edge in node.outputs
    )
