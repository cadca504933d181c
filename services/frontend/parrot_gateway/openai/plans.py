"""From a request's texts to the calls that answer it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from pydantic import BaseModel

from parrot_gateway.openai.agents import Place
from parrot_gateway.openai.generation import nth_choice
from parrot_gateway.openai.joining import Joining, criteria_of_joining, key_of_batch
from parrot_gateway.openai.runs import Plan, output_id
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import limits
from parrot_runtime.errors import Fault
from parrot_runtime.text import check_name, too_large

DIGEST_CHARS: Final = 12

Prompt = Sequence[common_pb2.Segment]


def plan_of(
    prompts: Sequence[Prompt],
    sampling: common_pb2.Sampling,
    *,
    name: str,
    model: str,
    key: str,
    digest: str = "",
    choices: int = 1,
    joining: Joining | None = None,
    place: Place,
    criteria: manager_pb2.Criteria | None = None,
) -> Plan:
    """So many calls for each prompt.

    Args:
        name: the calls', for people and for statistics.
        key: what the ids of variables are made from.
        digest: of the request, where it came under a key of the client's.
        place: where they become calls.
        criteria: what is wanted of the outputs where the request itself says nothing.

    Raises:
        Fault: `invalid_request`, `invalid_text`, `too_large`.
    """
    check_name(model, "model")
    criteria = criteria_of_joining(joining) or criteria
    output = joining.output if joining is not None else None
    # Before there is a copy for each choice.
    sizes = [sum(segment.ByteSize() for segment in prompt) for prompt in prompts]
    _check_size(sum(sizes) * choices)
    calls: list[manager_pb2.NewCall] = []
    for prompt in prompts:
        for choice in range(choices):
            hole = common_pb2.OutputHole(
                name="answer",
                variable_id=output or output_id(key, len(calls)),
                sampling=nth_choice(sampling, choice),
            )
            segments = [*prompt, common_pb2.Segment(output=hole)]
            calls.append(manager_pb2.NewCall(name=name, model=model, segments=segments))
    _check_size(sum(call.ByteSize() for call in calls))
    batch_key = key_of_batch(calls, criteria) if output is not None else ""
    return Plan(calls, (), place, name, criteria, digest, batch_key)


def _check_size(size: int) -> None:
    if size > limits.BATCH_BYTES:
        raise too_large("the request, with its prompt for each choice,", size, limits.BATCH_BYTES)


def located(fault: Fault) -> Fault:
    """The manager's refusal, its field named as it stands in the request."""
    if fault.field.endswith(".model"):
        fault.field = "model"
    elif fault.field.startswith("calls["):
        fault.field = "messages" if fault.field.endswith(".messages") else "parrot"
    return fault


def digest_of(request: BaseModel) -> str:
    """What tells a request from others; members that are not followed don't."""
    followed = request.model_dump_json(exclude={"metadata", "prediction"})
    return hashlib.sha256(followed.encode()).hexdigest()[:DIGEST_CHARS]
