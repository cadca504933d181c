"""The prototype's variables: made first and set later, and waited for.

A variable that is to be set is the output of a native call, which whoever sets it completes:
so calls that read it can be added before, and wait.
"""

from __future__ import annotations

import re
from typing import Final

from parrot_gateway.closing import GatewayClosing
from parrot_gateway.compiled import Compiled
from parrot_gateway.compiling import compiled_calls
from parrot_gateway.gateway import Gateway
from parrot_gateway.manager_client import new_key
from parrot_gateway.new_blocks import NewBatch
from parrot_gateway.new_calls import LONGEST_NATIVE_S, ClientRun, NewCall, NewPlaceholder
from parrot_gateway.prototype.identity import is_settable, name_in, settable_id
from parrot_gateway.watch import ENDS, Ended, Watch
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault
from parrot_runtime.text import check_name, check_text

WORKER: Final = "semantic_var"
"""Whoever sets a variable: a request that is sent again goes on where the first one stopped."""
PATIENCE_S: Final = 30.0
"""After so long without news it is looked whether what is waited for can come at all."""

_PARAMETER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


async def register(gateway: Gateway, session_id: str, name: str, key: str) -> str:
    """A new variable's id; it waits to be set.

    Raises:
        Fault: the manager's, or `invalid_text` for the name.
    """
    check_name(name, "var_name")
    variable_id = settable_id(Compiled(key).new_id(), name)
    output = NewPlaceholder(name=_parameter(variable_id), in_out="out", semantic_var_id=variable_id)
    # The session's deadline, which is no later, ends the wait.
    run = ClientRun(kind="client", timeout_s=LONGEST_NATIVE_S)
    compiled = await compiled_calls(NewBatch(calls=[NewCall(native=run, placeholders=[output], name=name)]))
    await gateway.manager.submit_calls(session_id, compiled.calls, compiled.values, key or new_key())
    return variable_id


async def set_content(gateway: Gateway, session_id: str, variable_id: str, content: str) -> None:
    """Gives a variable that was made to be set its text. The same text again changes nothing.

    Raises:
        Fault: `not_found`; `variable_already_set`, to another text; `duplicate_producer`: a call makes it.
    """
    check_text(content, "content", limit_bytes=limits.VALUE_BYTES)
    got = await gateway.manager.get_variable(session_id, variable_id)
    if not is_settable(variable_id) or not got.variable.producer_call_id:
        raise Fault(
            errors.DUPLICATE_PRODUCER,
            f"variable {variable_id!r} was not made to be set: what makes it gives it its text",
            session_id=session_id,
            variable_id=variable_id,
        )
    if got.variable.state not in ENDS:
        await _complete(gateway, session_id, got.variable, content)
        got = await gateway.manager.get_variable(session_id, variable_id)
    if got.variable.state == common_pb2.VARIABLE_STATE_READY and got.value != content:
        raise Fault(
            errors.VARIABLE_ALREADY_SET,
            f"variable {variable_id!r} has another text already; it is set once",
            session_id=session_id,
            variable_id=variable_id,
        )
    _check_ready(got.variable)


async def _complete(gateway: Gateway, session_id: str, variable: manager_pb2.Variable, content: str) -> None:
    call_id = variable.producer_call_id
    try:
        # In one request: with a gateway that dies between two a claim were lost, and the variable with it.
        await gateway.manager.complete_call(
            manager_pb2.CompleteCallRequest(
                session_id=session_id,
                call_id=call_id,
                worker=WORKER,
                unclaimed=True,
                outputs=manager_pb2.NativeOutputs(
                    texts=[manager_pb2.NamedText(name=_parameter(variable.id), text=content)]
                ),
            )
        )
    except Fault as fault:
        # It has ended meanwhile, by another request that set it or with its session: the variable tells.
        if fault.kind is not errors.CLAIM_LOST:
            raise


def names_of(found: manager_pb2.GetSessionResponse) -> dict[str, str]:
    """What the variables of a session are called; one that is to be set, as its call."""
    calls = {call.id: call.name for call in found.calls}
    return {
        variable.id: calls.get(variable.producer_call_id, "") if is_settable(variable.id) else variable.name
        for variable in found.variables
    }


def _parameter(variable_id: str) -> str:
    """What the output of a variable's call is called: as the variable is, if that may be a name."""
    name = name_in(variable_id)
    return name if _PARAMETER.match(name) else "content"


async def content(
    gateway: Gateway, session_id: str, variable_id: str, wanted: manager_pb2.Criteria | None
) -> str:
    """A variable's text, once it is there.

    Raises:
        Fault: why it has none; `unproduced_variable`, when it waits for a variable that nobody has set for
            a while; `unavailable`, when this gateway stops first.
    """
    async with gateway.watch(session_id, variable_id, criteria=wanted) as watch:
        try:
            ended = await gateway.closing.interruptible(_end_of(gateway, session_id, watch))
        except GatewayClosing:
            raise Fault(
                errors.UNAVAILABLE, "this gateway is stopping; ask again", retry_after_ms=1000
            ) from None
    _check_ready(ended.variable)
    return ended.text or ""


async def _end_of(gateway: Gateway, session_id: str, watch: Watch) -> Ended:
    while not isinstance(news := await watch.next(PATIENCE_S), Ended):
        if news is None:
            _check_coming(await gateway.manager.get_session(session_id), watch.variable.id)
    return news


def _check_coming(found: manager_pb2.GetSessionResponse, variable_id: str) -> None:
    """Refuses to wait for what can't come before somebody sets a variable."""
    variables = {variable.id: variable for variable in found.variables}
    reads = {
        node.id: [edge.variable_id for edge in node.inputs]
        for nodes in (found.calls, found.blocks)
        for node in nodes
    }
    todo, seen = [variable_id], {variable_id}
    while todo:
        variable = variables.get(todo.pop())
        if variable is None or variable.state in ENDS:
            continue
        if is_settable(variable.id):
            raise Fault(
                errors.UNPRODUCED_VARIABLE,
                f"variable {variable_id!r} waits for {variable.id!r}, which was made to be set and is not "
                "set yet; set it, and ask again",
                session_id=found.session.id,
                variable_id=variable.id,
            )
        upstream = reads.get(variable.producer_call_id or variable.producer_block_id, [])
        todo += [each for each in upstream if each not in seen]
        seen.update(upstream)


def _check_ready(variable: manager_pb2.Variable) -> None:
    if variable.state == common_pb2.VARIABLE_STATE_READY:
        return
    if variable.failure.type:
        raise Fault.from_failure(variable.failure)
    if variable.state not in ENDS:
        why = f"variable {variable.id!r} can't be set at this moment; try again"
        raise Fault(errors.UNAVAILABLE, why, variable_id=variable.id, retry_after_ms=1000)
    raise Fault(errors.CANCELLED, "the variable was cancelled", variable_id=variable.id)
