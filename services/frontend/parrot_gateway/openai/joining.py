"""How a request of OpenAI's API joins a graph: the member `parrot` of its body, sent as `extra_body`."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from pydantic import Field

from parrot_gateway.headers import criteria_of
from parrot_gateway.sent import NewCriteria, Sent
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.ids import ID_RULE, is_id
from parrot_runtime.text import check_name


class Joining(Sent):
    """The session a request becomes a call of, and what of its text are semantic variables."""

    session_id: str | None = Field(
        default=None,
        description="the session it joins; by default that of its headers, or one of its own",
    )
    inputs: dict[str, str] = Field(
        default_factory=dict,
        description="name to semantic_var_id: {{name}} in a message's text is this variable's value; a text "
        "of a request without inputs has no holes",
        examples=[{"code": "draft-1"}],
    )
    output: str | None = Field(
        default=None, description="the semantic_var_id of the variable that what the model writes becomes"
    )
    criteria: NewCriteria | None = Field(default=None, description="what is wanted of the output")


def check_joining(joining: Joining, *, joined: bool) -> None:
    """Checks the ids and names; `joined`: there is a session whose they are.

    Raises:
        Fault: what is wrong with them, with the path of the field.
    """
    if not joined and (joining.inputs or joining.output is not None):
        raise Fault(
            errors.INVALID_REQUEST,
            "parrot: inputs and output are a session's variables; name it by session_id, or by the header "
            "X-Session-ID",
            field="parrot",
        )
    for name, variable_id in joining.inputs.items():
        check_name(name, "parrot.inputs")
        _check_id(variable_id, f"parrot.inputs.{name}")
    if joining.output is not None:
        _check_id(joining.output, "parrot.output")


def key_of_batch(
    calls: Iterable[manager_pb2.NewCall], criteria: manager_pb2.Criteria | None, *values: str
) -> str:
    """The key of a request that makes a named variable and came without a key.

    Clients send a request again by themselves when its answer is late. Who makes a variable by the very same
    call means the one that makes it already; another call is refused as a second producer.
    """
    digest = blake2b(digest_size=16)
    parts = [call.SerializeToString(deterministic=True) for call in calls]
    parts.append(criteria.SerializeToString(deterministic=True) if criteria is not None else b"")
    for part in (*parts, *(value.encode() for value in values)):
        digest.update(len(part).to_bytes(8) + part)
    return f"output-{digest.hexdigest()}"


def criteria_of_joining(joining: Joining | None) -> manager_pb2.Criteria | None:
    """What is wanted of the output, for the manager; None: the request does not say.

    Raises:
        Fault: `invalid_request`, for a deadline without a time, or a time without a deadline.
    """
    if joining is None or joining.criteria is None:
        return None
    try:
        return criteria_of(joining.criteria.kind, joining.criteria.deadline_unix_ms)
    except Fault as fault:
        fault.field = "parrot.criteria.deadline_unix_ms"
        raise


def _check_id(text: str, where: str) -> None:
    if not is_id(text):
        raise Fault(errors.INVALID_REQUEST, f"{where}: an id is {ID_RULE}", field=where)
