"""What the manager tells, in the shapes of the HTTP API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from parrot_gateway import models
from parrot_gateway.problems import problem_of
from parrot_gateway.wording import reworded
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime.errors import Fault


def session(found: manager_pb2.Session) -> models.SessionResource:
    """A session."""
    return models.SessionResource(**_session(found))


def graph(found: manager_pb2.GetSessionResponse) -> models.SessionGraph:
    """A session with its calls, blocks and variables."""
    return models.SessionGraph(
        **_session(found.session),
        calls=[_call(call) for call in found.calls],
        blocks=[_block(block) for block in found.blocks],
        variables=[summary(variable) for variable in found.variables],
    )


def summary(found: manager_pb2.Variable) -> models.VariableSummary:
    """A variable without its value."""
    return models.VariableSummary(**_variable(found))


def variable(found: manager_pb2.Variable, value: str | None) -> models.VariableResource:
    """A variable, with its value when it has one."""
    return models.VariableResource(**_variable(found), value=value)


def model(found: manager_pb2.Model) -> models.ModelResource:
    """A model."""
    return models.ModelResource(
        id=found.id, context_window_tokens=found.context_window_tokens, engines=found.engines
    )


def engine(found: manager_pb2.Engine) -> models.EngineResource:
    """An engine."""
    return models.EngineResource(
        id=found.id,
        model=found.model,
        state=found.state,
        running=found.running,
        capacity=found.capacity,
        backend=found.backend,
        backend_version=found.version,
        dtype=found.dtype,
        attention=found.attention,
        parrot_version=found.parrot_version,
    )


def failure(message: common_pb2.Failure) -> dict[str, Any] | None:
    """The problem a failure describes; None when there is none."""
    return problem_of(Fault.from_failure(message)) if message.type else None


def _session(found: manager_pb2.Session) -> dict[str, Any]:
    return {
        "id": found.id,
        "label": found.label,
        "state": _state(common_pb2.SessionState.Name(found.state)),
        "created_unix_ms": found.created_unix_ms,
        "deadline_unix_ms": found.deadline_unix_ms,
        "ended_unix_ms": found.ended_unix_ms or None,
        "trace_id": found.trace_id,
        "criteria": _criteria(found.criteria),
        "lazy": found.lazy,
    }


def _call(found: manager_pb2.Call) -> models.CallResource:
    return models.CallResource(
        id=found.id,
        name=found.name,
        model=found.model,
        state=_state(common_pb2.CallState.Name(found.state)),
        inputs=edges(found.inputs),
        outputs=edges(found.outputs),
        error=failure(found.failure),
        engine=found.engine_id,
        attempt=found.attempt,
        usage=models.Usage(
            prompt_tokens=found.usage.prompt_tokens,
            cached_tokens=found.usage.cached_tokens,
            output_tokens=found.usage.output_tokens,
        ),
        timings=_timings(found.timings),
        provenance=_provenance(found.provenance) if found.HasField("provenance") else None,
        accepted_unix_ms=found.accepted_unix_ms,
        ready_unix_ms=found.ready_unix_ms or None,
        dispatched_unix_ms=found.dispatched_unix_ms or None,
        ended_unix_ms=found.ended_unix_ms or None,
        objective=_objective(found.objective),
        placement=found.placement,
        block_id=found.block_id,
        native=found.native,
    )


def _block(found: manager_pb2.Block) -> models.BlockResource:
    # Validated, for its kind comes as a text.
    return models.BlockResource.model_validate(
        {
            "id": found.id,
            "name": found.name,
            "kind": found.kind,
            "state": _state(manager_pb2.BlockState.Name(found.state)),
            "inputs": edges(
                manager_pb2.Edge(name=reworded(edge.name), variable_id=edge.variable_id)
                for edge in found.inputs
            ),
            "outputs": edges(found.outputs),
            "instances": found.instances,
            "error": failure(found.failure),
            "accepted_unix_ms": found.accepted_unix_ms,
            "unfolded_unix_ms": found.unfolded_unix_ms or None,
            "ended_unix_ms": found.ended_unix_ms or None,
        }
    )


def _criteria(found: manager_pb2.Criteria) -> models.Criteria | None:
    if not found.kind:
        return None
    return models.Criteria(kind=_kind(found.kind), deadline_unix_ms=found.deadline_unix_ms or None)


def _objective(found: manager_pb2.Objective) -> models.Objective | None:
    if not found.kind:
        return None
    return models.Objective(
        kind=_kind(found.kind),
        group=found.group,
        reason=found.reason,
        latest_finish_unix_ms=found.latest_finish_unix_ms or None,
    )


def _kind(kind: manager_pb2.ObjectiveKind.ValueType) -> str:
    return manager_pb2.ObjectiveKind.Name(kind).removeprefix("OBJECTIVE_KIND_").lower()


def _timings(found: common_pb2.Timings) -> models.Timings:
    return models.Timings(
        queue_ms=found.queue_ms,
        prefill_ms=found.prefill_ms,
        decode_ms=found.decode_ms,
        static_prefill_ms=found.static_prefill_ms,
        dynamic_prefill_ms=found.dynamic_prefill_ms,
        static_prefill_tokens=found.static_prefill_tokens,
        dynamic_prefill_tokens=found.dynamic_prefill_tokens,
    )


def _provenance(found: common_pb2.Provenance) -> models.Provenance:
    return models.Provenance(
        engine=found.engine_id,
        model=found.model,
        dtype=found.dtype,
        backend=found.backend,
        backend_version=found.backend_version,
        attention=found.attention,
        tensor_parallel=found.tensor_parallel,
        batch_invariant=found.batch_invariant,
        parrot_version=found.version,
    )


def _variable(found: manager_pb2.Variable) -> dict[str, Any]:
    return {
        "id": found.id,
        "name": found.name,
        "state": variable_state(found),
        "producer_call_id": found.producer_call_id,
        "consumer_call_ids": list(found.consumer_call_ids),
        "size_bytes": found.size_bytes,
        "error": failure(found.failure),
        "ready_unix_ms": found.ready_unix_ms or None,
        "criteria": _criteria(found.criteria),
        "producer_block_id": found.producer_block_id,
    }


def variable_state(found: manager_pb2.Variable) -> str:
    """A variable's state as the API names it."""
    return _state(common_pb2.VariableState.Name(found.state))


def edges(found: Iterable[manager_pb2.Edge]) -> list[models.Edge]:
    return [models.Edge(name=edge.name, semantic_var_id=edge.variable_id) for edge in found]


def _state(name: str) -> str:
    return name.partition("_STATE_")[2].lower()
